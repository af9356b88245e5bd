//! A service of which one instance leads: the shape to copy.
//!
//! ```text
//! cargo run --release --example leader_election_service -- --demo
//! cargo run --release --example leader_election_service -- --url zookeeper://127.0.0.1:2181
//! ```
//!
//! Start the second line in several terminals, and stop the leader: by Ctrl-C or `kill`, and another
//! leads at once; by `kill -9`, and another leads when the session has expired.
//!
//! What it says: `ready` once it is connected and stands for election (what a supervisor waits for),
//! then `standing by`, `leading epoch …` or `not leading` at each change, at the end `stopped`. On
//! SIGTERM or Ctrl-C the leader ends the piece of work that it has begun, resigns, has that
//! confirmed, and exits with 0.

use std::error::Error;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lexopt::prelude::*;
use lockkeeper::{
    Client, ConnectOptions, Election, FencingGate, LeaderChange, Leadership, Role, Target,
    connect_with,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

const HELP: &str = "\
A service of which one instance leads.

  cargo run --release --example leader_election_service -- [OPTIONS]

  --url URL      where the election is: memory: (default), file:PATH (with --features file),
                 or zookeeper://host:port[/chroot];
                 a chroot that is missing is made
  --path PATH    the election (default /election/service)
  --name NAME    what this instance calls itself (default: its process number)
  --for SECONDS  stop by itself after so long
  --demo         run two instances in this process, stop the one that leads, and check that the
                 other takes over
  --help         this text

Exit status: 0 after a clean stop, 1 when anything is wrong, 2 for a bad command line.
";

type Failure = Box<dyn Error + Send + Sync>;

struct Args {
    target: Target,
    path: String,
    name: String,
    length: Option<Duration>,
    demo: bool,
    help: bool,
}

impl Args {
    fn parse(mut parser: lexopt::Parser) -> Result<Self, lexopt::Error> {
        let mut args = Self {
            target: Target::memory(),
            path: "/election/service".into(),
            name: format!("process {}", std::process::id()),
            length: None,
            demo: false,
            help: false,
        };
        while let Some(option) = parser.next()? {
            match option {
                Long("url") => args.target = parser.value()?.parse()?,
                Long("path") => args.path = parser.value()?.string()?,
                Long("name") => args.name = parser.value()?.string()?,
                Long("for") => {
                    let seconds = parser.value()?.parse()?;
                    args.length = Some(Duration::try_from_secs_f64(seconds).map_err(text)?);
                }
                Long("demo") => args.demo = true,
                Short('h') | Long("help") => args.help = true,
                other => return Err(other.unexpected()),
            }
        }
        Ok(args)
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = match Args::parse(lexopt::Parser::from_env()) {
        Ok(args) => args,
        Err(error) => {
            eprintln!("leader_election_service: {error} (see --help)");
            return ExitCode::from(2);
        }
    };
    if args.help {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let done = match args.demo {
        true => demo(&args).await,
        false => serve_until_told(&args).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leader_election_service: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The service: stands for election, works while it leads, and stops when it is told to.
struct Service {
    name: String,
    client: Client,
    election: Election,
    stop: watch::Receiver<bool>,
    /// What the leader works on. It would be elsewhere, and check epochs there.
    resource: Arc<Mutex<FencingGate>>,
}

impl Service {
    async fn connect(
        args: &Args,
        name: &str,
        stop: watch::Receiver<bool>,
        resource: Arc<Mutex<FencingGate>>,
    ) -> Result<Self, Failure> {
        let options = ConnectOptions::new()
            .session_timeout(Duration::from_secs(6))
            .create_chroot();
        let client = connect_with(args.target.clone(), options).await?;
        Ok(Self {
            name: name.to_owned(),
            election: Election::new(&client, args.path.as_str())?,
            client,
            stop,
            resource,
        })
    }

    /// Serves until it is told to stop. Losses, expiries and a store that is away for a while are
    /// `run`'s business; an error is one that no repetition mends.
    async fn serve(&self) -> Result<(), Failure> {
        let telling = tokio::spawn(tell_roles(self.name.clone(), self.election.clone()));
        let outcome = tokio::select! {
            // A leader sees by itself that it is to stop: `run` then resigns, and has it confirmed.
            outcome = self.election.run(self.name.as_str(), |leadership| self.lead(leadership)) => outcome?,
            // One that stands by has no work that could end: dropping `run` leaves the line.
            () = self.stopped_while_standing_by() => Ok(()),
        };
        // Whatever is still on its way is done when this is answered.
        self.client.close().await?;
        telling.abort();
        println!("{}: stopped", self.name);
        outcome
    }

    /// The work of a leader, piece by piece. It is dropped at any await when the leadership is lost.
    async fn lead(&self, leadership: Arc<Leadership>) -> Result<(), Failure> {
        let mut stop = self.stop.clone();
        while !*stop.borrow() {
            self.do_a_piece(&leadership).await?;
            let pause = tokio::time::sleep(Duration::from_millis(50));
            tokio::select! {
                () = pause => {}
                // Also when nobody is left to say so.
                _ = stop.wait_for(|stop| *stop) => {}
            }
        }
        Ok(())
    }

    /// One piece of work. The resource checks the epoch: whether one leads is only advice.
    async fn do_a_piece(&self, leadership: &Leadership) -> Result<(), Failure> {
        let admitted = {
            let mut resource = self.resource.lock().map_err(text)?;
            resource.admit(leadership.epoch())
        };
        match admitted {
            Ok(()) => {
                leadership
                    .set_data(format!("{}, at work", self.name))
                    .await?
            }
            // Somebody else leads: this future is about to be dropped.
            Err(stale) => println!("{}: {stale}", self.name),
        }
        Ok(())
    }

    async fn stopped_while_standing_by(&self) {
        let mut stop = self.stop.clone();
        // Also when nobody is left to say so.
        let _ = stop.wait_for(|stop| *stop).await;
        let mut state = self.election.state();
        state.wait_for(|role| !role.is_leader()).await;
    }
}

/// Says at each change which part this instance plays.
async fn tell_roles(name: String, election: Election) {
    let mut state = election.state();
    let mut role = Some(state.current());
    while let Some(now) = role {
        match now {
            Role::Leader { epoch } => println!("{name}: leading epoch {epoch}"),
            Role::Candidate => println!("{name}: standing by"),
            _ => println!("{name}: not leading"),
        }
        role = state.changed().await;
    }
}

async fn serve_until_told(args: &Args) -> Result<(), Failure> {
    let (tell_stop, stop) = watch::channel(false);
    // Before anything is said: who reads `ready` may send a signal at once.
    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    let service = Service::connect(args, &args.name, stop, Arc::default()).await?;
    println!("ready");
    let length = args.length;
    tokio::spawn(async move {
        let over = async {
            match length {
                Some(length) => tokio::time::sleep(length).await,
                None => std::future::pending().await,
            }
        };
        let why = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "Ctrl-C",
            () = over => "the time is over",
        };
        println!("stopping: {why}");
        // The service may have ended by itself.
        let _ = tell_stop.send(true);
    });
    service.serve().await
}

/// Two instances: the one that leads is stopped, and the other takes over.
async fn demo(args: &Args) -> Result<(), Failure> {
    let client = connect_with(args.target.clone(), ConnectOptions::new().create_chroot()).await?;
    let mut changes = Election::new(&client, args.path.as_str())?.observe();
    let resource = Arc::<Mutex<FencingGate>>::default();
    let mut services = Vec::new();
    for name in ["first", "second"] {
        let (tell_stop, stop) = watch::channel(false);
        let service = Service::connect(args, name, stop, resource.clone()).await?;
        let mut state = service.election.state();
        println!("{name}: ready");
        services.push((
            name,
            tell_stop,
            tokio::spawn(async move { service.serve().await }),
        ));
        // The first leads before the second comes.
        let come = |role: Role| role.is_leader() || (name == "second" && role == Role::Candidate);
        state.wait_for(come).await;
    }
    let mut newest = None;
    for (name, tell_stop, serving) in services {
        let at_work = format!("{name}, at work");
        let epoch = loop {
            let change = changes
                .next()
                .await
                .ok_or("the election cannot be seen")??;
            if let Some(leader) = change.leader()
                && leader.data.as_ref() == Some(&at_work)
            {
                break Some(leader.epoch);
            }
        };
        if epoch <= newest {
            return Err("the epochs do not grow".into());
        }
        newest = epoch;
        tell_stop.send(true)?;
        serving.await??;
    }
    if changes
        .next()
        .await
        .ok_or("the election cannot be seen")??
        != LeaderChange::Vacant
    {
        return Err("somebody is left".into());
    }
    client.close().await?;
    println!("The second took over from the first, and both have stopped cleanly.");
    Ok(())
}
