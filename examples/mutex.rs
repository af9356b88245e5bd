//! A fair lock: two clients take turns, and a third does not wait.
//!
//! ```text
//! cargo run --example mutex                                 # in memory
//! cargo run --example mutex -- zookeeper://127.0.0.1:2181   # or file:DIR, lockkeeper://HOST:PORT
//! ```
//!
//! Output:
//!
//! ```text
//! Ann holds the lock, token N
//! Bob waits
//! Cid tries: the lock is held
//! Cid waits for 100 ms: not granted
//! Ann releases
//! Bob holds the lock, token N
//! a late write of Ann's is refused
//! Bob releases
//! ```

use std::error::Error;
use std::time::Duration;

use lockkeeper::{FencingGate, LockError, LockOptions, Mutex, connect, lock_events};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).unwrap_or("memory:".into());

    // Each client has its own session, like a separate program. A lock lives as long as its session.
    let ann = Mutex::new(&connect(url.as_str()).await?, "/example/mutex")?;
    let bob = Mutex::new(&connect(url.as_str()).await?, "/example/mutex")?;
    let cid = Mutex::new(&connect(url.as_str()).await?, "/example/mutex")?;

    // The protected resource remembers the newest token that it has seen. Keep the gate with the data, and check it in
    // the same transaction as the write.
    let mut resource = FencingGate::default();

    let guard = ann.lock().await?;
    let anns_token = guard.fencing_token();
    resource.admit(anns_token)?;
    println!("Ann holds the lock, token {anns_token}");

    // Bob queues. His first event shows that the store has his entry.
    let (sink, mut events) = lock_events();
    let waiting = tokio::spawn(async move { bob.lock_with(LockOptions::new().events(sink)).await });
    events.next().await;
    println!("Bob waits");

    // `try_lock` does not queue.
    if cid.try_lock().await?.is_none() {
        println!("Cid tries: the lock is held");
    }
    // `lock_timeout` queues, and leaves the queue after the timeout.
    match cid.lock_timeout(Duration::from_millis(100)).await {
        Err(LockError::Timeout { .. }) => println!("Cid waits for 100 ms: not granted"),
        other => drop(other?),
    }

    println!("Ann releases");
    guard.release().await?; // Dropping the guard releases the lock as well.

    // The first waiter in the queue gets the lock, and each token is greater than the previous one.
    let guard = waiting.await??;
    resource.admit(guard.fencing_token())?;
    println!("Bob holds the lock, token {}", guard.fencing_token());

    // If Ann was paused for a minute, she may not know that she has lost the lock.
    if resource.admit(anns_token).is_err() {
        println!("a late write of Ann's is refused");
    }

    println!("Bob releases");
    guard.release().await?;
    Ok(())
}
