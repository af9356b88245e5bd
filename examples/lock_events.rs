//! The events of one contender from the queue to the release, and the loss of a lock.
//!
//! ```text
//! cargo run --example lock_events                                 # in memory
//! cargo run --example lock_events -- zookeeper://127.0.0.1:2181   # or file:DIR, lockkeeper://HOST:PORT
//! ```
//!
//! Output:
//!
//! ```text
//! Ann: acquired, token N
//! Bob: queued behind 1
//! Cid: queued behind 2
//! the queue: Ann, Bob, Cid
//! Bob gives up
//! Bob: abandoned
//! Cid: advanced, 1 ahead
//! Ann: released
//! Cid: acquired, token N
//! Cid's session is closed while it holds the lock
//! Cid: lost, the session was closed
//! ```

use std::error::Error;

use lockkeeper::{
    Client, Guard, LockError, LockEvent, LockEvents, LockOptions, Mutex, connect, lock_events,
    queue,
};
use tokio::task::JoinHandle;

const LOCK: &str = "/example/lock_events";

type Waiting = JoinHandle<Result<Guard, LockError>>;

/// Waits for the lock in another task. Returns the task and the contender's events.
fn contend(client: &Client, label: &'static str) -> Result<(Waiting, LockEvents), Box<dyn Error>> {
    let (sink, events) = lock_events();
    let mutex = Mutex::new(client, LOCK)?;
    // `lockkeeper::queue` shows the label to other contenders and operators.
    let options = LockOptions::new().label(label).events(sink);
    let waiting = tokio::spawn(async move { mutex.lock_with(options).await });
    Ok((waiting, events))
}

/// Prints the next event. (`LockEvent` also implements `Display`, but here we leave out values that differ between
/// runs.)
async fn show(label: &str, events: &mut LockEvents) {
    match events.next().await {
        Some(LockEvent::Queued { position, .. }) => println!("{label}: queued behind {position}"),
        Some(LockEvent::Advanced { position }) => println!("{label}: advanced, {position} ahead"),
        Some(LockEvent::Acquired { fencing_token, .. }) => {
            println!("{label}: acquired, token {fencing_token}")
        }
        Some(LockEvent::Released) => println!("{label}: released"),
        Some(LockEvent::Abandoned) => println!("{label}: abandoned"),
        Some(LockEvent::Lost { reason }) => println!("{label}: lost, {reason}"),
        other => println!("{label}: {other:?}"),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).unwrap_or("memory:".into());
    let (ann, bob) = (connect(url.as_str()).await?, connect(url.as_str()).await?);
    let cid = connect(url.as_str()).await?;

    let (granted, mut anns) = contend(&ann, "Ann")?;
    show("Ann", &mut anns).await;
    let guard = granted.await??;
    let (bob_waits, mut bobs) = contend(&bob, "Bob")?;
    show("Bob", &mut bobs).await;
    let (cid_waits, mut cids) = contend(&cid, "Cid")?;
    show("Cid", &mut cids).await;

    // Any client can list the queue without joining it.
    let entries = queue(&ann, LOCK).await?;
    let labels = entries
        .iter()
        .filter_map(|entry| entry.metadata.as_ref()?.label.as_deref());
    println!("the queue: {}", labels.collect::<Vec<_>>().join(", "));

    // Aborting the task drops the wait, and a dropped wait leaves the queue.
    println!("Bob gives up");
    bob_waits.abort();
    show("Bob", &mut bobs).await;
    show("Cid", &mut cids).await;

    guard.release().await?;
    show("Ann", &mut anns).await;
    show("Cid", &mut cids).await;

    // A lock is lost with its session. Here we close the session. If a program dies, its session expires.
    println!("Cid's session is closed while it holds the lock");
    let guard = cid_waits.await??;
    cid.close().await?;
    show("Cid", &mut cids).await;
    assert!(!guard.is_held());
    Ok(())
}
