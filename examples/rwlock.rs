//! A fair read-write lock: readers share it, a writer excludes everyone else, and neither overtakes the other.
//!
//! ```text
//! cargo run --example rwlock                                 # in memory
//! cargo run --example rwlock -- zookeeper://127.0.0.1:2181   # or file:DIR, lockkeeper://HOST:PORT
//! ```
//!
//! Output:
//!
//! ```text
//! two readers hold the lock
//! a writer waits
//! a reader that comes after the writer does not overtake it: not granted
//! the writer holds the lock, token N
//! the writer has become a reader, with the same token
//! two readers hold the lock
//! an upgrade is refused while another reader holds the lock
//! the only reader has become the writer
//! ```

use std::error::Error;

use lockkeeper::{LockOptions, RwLock, Upgrade, connect, lock_events};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).unwrap_or("memory:".into());
    // Each client has its own session, like a separate program.
    let ann = RwLock::new(&connect(url.as_str()).await?, "/example/rwlock")?;
    let bob = RwLock::new(&connect(url.as_str()).await?, "/example/rwlock")?;
    let cid = RwLock::new(&connect(url.as_str()).await?, "/example/rwlock")?;

    let anns = ann.read().await?;
    let bobs = bob.read().await?;
    println!("two readers hold the lock");

    // The writer queues behind both readers. We only use its events to wait until it has joined the queue.
    let (sink, mut events) = lock_events();
    let options = LockOptions::new().events(sink);
    let waiting = tokio::spawn(async move { cid.write_with(options).await });
    events.next().await;
    println!("a writer waits");

    // The lock is also fair to writers, so a stream of readers cannot starve a writer.
    if ann.try_read().await?.is_none() {
        println!("a reader that comes after the writer does not overtake it: not granted");
    }

    anns.release().await?;
    bobs.release().await?;
    let writer = waiting.await??;
    let token = writer.fencing_token();
    println!("the writer holds the lock, token {token}");

    // A downgrade keeps the position in the queue, so no other writer gets in between.
    let reader = writer.downgrade().await?;
    assert_eq!(reader.fencing_token(), token);
    println!("the writer has become a reader, with the same token");

    let other = ann.read().await?;
    println!("two readers hold the lock");

    // An upgrade is refused if there are other holders or waiters. If two readers waited for an upgrade, they would
    // wait for each other.
    let reader = match reader.try_upgrade().await? {
        Upgrade::Upgraded(_) => return Err("two hold the lock, and one writes".into()),
        Upgrade::Refused(reader) => reader,
    };
    println!("an upgrade is refused while another reader holds the lock");
    other.release().await?;
    if let Upgrade::Upgraded(writer) = reader.try_upgrade().await? {
        println!("the only reader has become the writer");
        writer.release().await?;
    }
    Ok(())
}
