//! A distributed semaphore: a quota of calls that all programs share and that can be changed while they run.
//!
//! ```text
//! cargo run --example semaphore                                 # in memory
//! cargo run --example semaphore -- zookeeper://127.0.0.1:2181   # or file:DIR, lockkeeper://HOST:PORT
//! ```
//!
//! Output:
//!
//! ```text
//! 3 calls at once are allowed
//! the batch holds 2 permits, 1 is available
//! a call holds 1 permit, 0 are available
//! another call is not granted a permit now
//! the quota is lowered to 2: nothing is taken away from the holders
//! the batch returns 1 permit, 0 are available
//! the call returns its permit, 1 is available
//! all is returned, 2 are available
//! ```

use std::error::Error;

use lockkeeper::{Semaphore, connect};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).unwrap_or("memory:".into());
    let (ann, bob) = (connect(url.as_str()).await?, connect(url.as_str()).await?);

    // The number of permits is stored and applies to all clients. If a program states a different number, its calls
    // fail with `LockError::PermitsMismatch`. `Semaphore::open` uses the stored number.
    let quota = Semaphore::new(&ann, "/example/semaphore", 3)?;
    println!("{} calls at once are allowed", quota.permits().await?);

    // Several permits are granted together or not at all, in the order of arrival.
    let mut batch = quota.acquire_many(2).await?;
    let available = quota.available().await?;
    println!(
        "the batch holds {} permits, {available} is available",
        batch.count()
    );

    let bobs_quota = Semaphore::open(&bob, "/example/semaphore")?;
    let call = bobs_quota.acquire().await?;
    let available = bobs_quota.available().await?;
    println!(
        "a call holds {} permit, {available} are available",
        call.count()
    );

    // `acquire` would wait here without a limit, and `acquire_timeout` for a limited time.
    if bobs_quota.try_acquire().await?.is_none() {
        println!("another call is not granted a permit now");
    }

    // Holders keep their permits, so three permits remain held until enough of them are returned.
    quota.set_permits(2).await?;
    println!("the quota is lowered to 2: nothing is taken away from the holders");

    // Permits of a batch can be returned one by one.
    let one = batch.split(1).ok_or("the batch has two permits")?;
    one.release().await?;
    println!(
        "the batch returns 1 permit, {} are available",
        quota.available().await?
    );
    call.release().await?;
    println!(
        "the call returns its permit, {} is available",
        quota.available().await?
    );
    batch.release().await?;
    println!(
        "all is returned, {} are available",
        quota.available().await?
    );

    // The number is still stored after the programs end, so restore it for the next run.
    quota.set_permits(3).await?;
    Ok(())
}
