//! Leader election: one instance of a service works, and the others are on standby.
//!
//! ```text
//! cargo run --example leader_election                                      # two instances, in memory
//! cargo run --example leader_election -- zookeeper://127.0.0.1:2181 NAME   # one: start several, stop the leader
//! ```
//!
//! Output of the first command:
//!
//! ```text
//! A: leads, epoch N
//! B: stands by
//! A: stops
//! B: leads, epoch N
//! B: stops
//! ```
//!
//! If you stop a leader with Ctrl-C or SIGTERM, the next candidate leads immediately. After `kill -9`, the next
//! candidate leads when the session has expired.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{
    Client, ConnectOptions, Election, ElectionState, Leadership, LockError, Role, connect_with,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;

type Result<T = (), E = Box<dyn Error>> = std::result::Result<T, E>;

struct Instance {
    name: String,
    client: Client,
    state: ElectionState,
    standing: JoinHandle<Result<(), LockError>>,
}

impl Instance {
    async fn start(url: &str, name: &str) -> Result<Self> {
        // If a leader dies, the other candidates wait until its session has timed out.
        let options = ConnectOptions::new().session_timeout(Duration::from_secs(6));
        let client = connect_with(url, options).await?;
        let election = Election::new(&client, "/example/election")?;
        let state = election.state();
        // Observers of the election see this data of the leader, for example its address.
        let name = name.to_owned();
        let data = name.clone();
        // `run` campaigns again after each loss, and returns only when the work is done.
        let standing = tokio::spawn(async move { election.run(data, work).await });
        Ok(Self {
            name,
            client,
            state,
            standing,
        })
    }

    fn print_role(&self) {
        match self.state.current() {
            Role::Leader { epoch } => println!("{}: leads, epoch {epoch}", self.name),
            Role::Candidate => println!("{}: stands by", self.name),
            _ => println!("{}: does not lead", self.name),
        }
    }

    async fn stop(self) -> Result {
        println!("{}: stops", self.name);
        // Aborting the task drops `run` and its work at an await. If this instance leads, it resigns. If it is a
        // candidate, it leaves the queue. Closing the client waits until the store has confirmed that.
        self.standing.abort();
        let _ = self.standing.await;
        Ok(self.client.close().await?)
    }
}

/// The work of a leader. It is dropped at an await if the leadership is lost.
async fn work(leadership: Arc<Leadership>) {
    loop {
        // A former leader in another process may still write, because it has not noticed its loss. So pass the epoch to
        // the resource, which refuses older epochs (see `mutex.rs`).
        let _epoch = leadership.epoch();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::main]
async fn main() -> Result {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or("memory:".into());
    if let Some(name) = arguments.next() {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut instance = Instance::start(&url, &name).await?;
        loop {
            tokio::select! {
                Some(_) = instance.state.changed() => instance.print_role(),
                ended = &mut instance.standing => return Ok(ended??),
                _ = terminate.recv() => return instance.stop().await,
                _ = tokio::signal::ctrl_c() => return instance.stop().await,
            }
        }
    }
    let mut a = Instance::start(&url, "A").await?;
    a.state.wait_for(Role::is_leader).await;
    a.print_role();
    let mut b = Instance::start(&url, "B").await?;
    b.state.wait_for(|role| role == Role::Candidate).await;
    b.print_role();
    a.stop().await?;
    b.state.wait_for(Role::is_leader).await;
    b.print_role();
    b.stop().await
}
