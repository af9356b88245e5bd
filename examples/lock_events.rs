//! What one contender for a lock is told, from the queue to the release, and how a lock is lost.
//!
//! ```text
//! cargo run --release --example lock_events
//! cargo run --release --example lock_events -- --url zookeeper://127.0.0.1:2181
//! ```
//!
//! Each person has a client, and so a session, of his or her own. The program checks that it is
//! told what it expects, and exits with 1 when it is not.

#[path = "common/args.rs"]
mod args;
#[path = "common/mortal.rs"]
mod mortal;

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use lockkeeper::{
    Client, ConnectOptions, FencingGate, Guard, LockError, LockEvent, LockEvents, LockOptions,
    LostReason, Mutex, Target, connect_with, lock_events,
};
use tokio::task::JoinHandle;

use crate::mortal::Mortal;

/// A lock of this run's own.
fn lock() -> String {
    format!("/lock_events-{}", std::process::id())
}

/// The session timeout that Eve asks for; a store may insist on a longer one (two of its ticks).
const SHORT_TIMEOUT: Duration = Duration::from_secs(1);

/// Nothing here takes that long.
const PATIENCE: Duration = Duration::from_secs(60);

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const ABOUT: &str =
    "What one contender for a lock is told, from the queue to the release, and how a lock is lost.";

fn main() -> ExitCode {
    let target = match args::target(ABOUT) {
        Ok(target) => target,
        Err(status) => return status,
    };
    match show(&target) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lock_events: {error}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn show(target: &Target) -> Outcome {
    from_queue_to_release(target).await?;
    lost_by_closing(target).await?;
    lost_by_silence(target).await?;
    println!("\nAll events came as expected.");
    Ok(())
}

async fn from_queue_to_release(target: &Target) -> Outcome {
    println!("Ann holds the lock. Bob and Cid queue for it, in this order.");
    let (ann, bob, cid) = (
        connect(target).await?,
        connect(target).await?,
        connect(target).await?,
    );
    let labelled = LockOptions::new().label("Ann");
    let anns = Mutex::new(&ann, lock())?.lock_with(labelled).await?;
    let mut bob = Contender::start("Bob", &bob)?;
    bob.is_told("queued", queued(1)).await?;
    let mut cid = Contender::start("Cid", &cid)?;
    cid.is_told("queued", queued(2)).await?;

    println!("Seen from outside, the queue is:");
    for entry in lockkeeper::queue(&ann, lock()).await? {
        let label = entry.metadata.and_then(|metadata| metadata.label);
        let label = label.as_deref().unwrap_or("(no label)");
        println!(
            "  number {:<4} token {:<20} {label}",
            entry.sequence, entry.fencing_token
        );
    }

    println!("Bob does not want it any more, so Cid moves up.");
    bob.wait.abort();
    bob.is_told("gave up", |event| matches!(event, LockEvent::Abandoned))
        .await?;
    cid.is_told("advanced", |event| {
        matches!(event, LockEvent::Advanced { position: 1 })
    })
    .await?;

    println!("Ann releases. Nobody but Cid is woken.");
    anns.release().await?;
    cid.is_told("acquired", acquired).await?;
    let (guard, mut cid) = cid.granted().await?;
    guard.release().await?;
    cid.is_told("released", released).await
}

async fn lost_by_closing(target: &Target) -> Outcome {
    println!("\nDan's program closes its session while it holds the lock.");
    let dan = connect(target).await?;
    let mut contender = Contender::start("Dan", &dan)?;
    contender.is_told("acquired", acquired).await?;
    let (guard, mut contender) = contender.granted().await?;
    dan.close().await?;
    let closed = |event: &_| {
        matches!(
            event,
            LockEvent::Lost {
                reason: LostReason::SessionClosed
            }
        )
    };
    contender.is_told("lost: closed", closed).await?;
    match guard.release().await {
        Err(LockError::Lost(reason)) => println!("  Dan's release says so, too: {reason}"),
        other => return Err(format!("Dan's release answered {other:?}").into()),
    }
    Ok(())
}

async fn lost_by_silence(target: &Target) -> Outcome {
    println!("\nEve holds the lock, and Fay waits.");
    let options = ConnectOptions::new()
        .create_chroot()
        .session_timeout(SHORT_TIMEOUT);
    let eve = Mortal::connect(target, options).await?;
    let fay = connect(target).await?;
    let mut contender = Contender::start("Eve", eve.client())?;
    contender.is_told("acquired", acquired).await?;
    let (guard, mut contender) = contender.granted().await?;
    let mut fay = Contender::start("Fay", &fay)?;
    fay.is_told("queued", queued(1)).await?;

    let timeout = guard.session().timeout().unwrap_or_default();
    println!("Eve is cut off from the store. Her session's timeout is {timeout:?}.");
    let began = Instant::now();
    eve.cut();
    let lost = |event: &_| {
        matches!(
            event,
            LockEvent::Lost {
                reason: LostReason::LeaseExpired | LostReason::SessionExpired
            }
        )
    };
    contender.is_told("lost", lost).await?;
    println!(
        "  Eve knows after {:.1?}, by her own clock: nobody could tell her.",
        began.elapsed()
    );
    fay.is_told("acquired", acquired).await?;
    println!(
        "  The store has ended Eve's session after {:.1?}, and Fay holds the lock.",
        began.elapsed()
    );
    if guard.is_held() {
        return Err("Eve still believes in her lock".into());
    }

    let (fays, mut fay) = fay.granted().await?;
    let mut gate = FencingGate::default();
    gate.admit(guard.fencing_token())?;
    gate.admit(fays.fencing_token())?;
    match gate.admit(guard.fencing_token()) {
        Err(stale) => println!("  Should a write of Eve's come late, it is refused: {stale}"),
        Ok(()) => return Err("Eve's old token was accepted".into()),
    }
    fays.release().await?;
    fay.is_told("released", released).await
}

async fn connect(target: &Target) -> Result<Client, lockkeeper::Error> {
    connect_with(target.clone(), ConnectOptions::new().create_chroot()).await
}

fn queued(behind: usize) -> impl Fn(&LockEvent) -> bool {
    move |event| matches!(event, LockEvent::Queued { position, .. } if *position == behind)
}

fn acquired(event: &LockEvent) -> bool {
    matches!(event, LockEvent::Acquired { .. })
}

fn released(event: &LockEvent) -> bool {
    matches!(event, LockEvent::Released)
}

/// Somebody who wants the lock, and the stream of what happens to him or her.
struct Contender<W> {
    name: &'static str,
    events: LockEvents,
    wait: W,
}

type Waiting = Contender<JoinHandle<Result<Guard, LockError>>>;

impl Waiting {
    fn start(name: &'static str, client: &Client) -> Outcome<Self> {
        let (sink, events) = lock_events();
        let options = LockOptions::new().label(name).events(sink);
        let mutex = Mutex::new(client, lock())?;
        let wait = tokio::spawn(async move { mutex.lock_with(options).await });
        Ok(Self { name, events, wait })
    }

    /// The guard, once it is granted.
    async fn granted(self) -> Outcome<(Guard, Contender<()>)> {
        let contender = Contender {
            name: self.name,
            events: self.events,
            wait: (),
        };
        Ok((self.wait.await??, contender))
    }
}

impl<W> Contender<W> {
    /// Prints the next event, which must be as expected. That the connection is lost or back may
    /// be told before.
    async fn is_told(&mut self, what: &str, expected: impl Fn(&LockEvent) -> bool) -> Outcome {
        let name = self.name;
        loop {
            let event = tokio::time::timeout(PATIENCE, self.events.next())
                .await
                .map_err(|_| format!("{name} was told nothing; expected: {what}"))?
                .ok_or_else(|| format!("{name}'s events have ended; expected: {what}"))?;
            println!("  {name}: {event}");
            match event {
                event if expected(&event) => return Ok(()),
                LockEvent::Suspended { .. } | LockEvent::Resumed => {}
                event => return Err(format!("{name} was told {event:?}; expected: {what}").into()),
            }
        }
    }
}
