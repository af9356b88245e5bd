//! Several locks: two tellers move money between the same accounts, which they name in opposite orders.
//!
//! If each teller took the locks one by one, both could hold one lock and wait for the other. `lock_all` joins all
//! queues in one step, so the order of the names does not matter.
//!
//! ```text
//! cargo run --example lock_all                                 # in memory
//! cargo run --example lock_all -- zookeeper://127.0.0.1:2181   # or file:DIR, lockkeeper://HOST:PORT
//! ```
//!
//! Output:
//!
//! ```text
//! 200 transfers are done
//! balances: 1100 and 900, 2000 in all
//! 1 lock is free, 1 is held by another
//! ```

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use lockkeeper::{Mutex, connect, lock_all, try_lock_many};

const LOCKS: [&str; 2] = ["/example/account/7", "/example/account/4"];

/// Two balances that lose updates if two tellers change them at the same time.
type Accounts = Arc<[AtomicI64; 2]>;

/// Moves money a hundred times, under the locks of both accounts.
async fn teller(
    url: String,
    accounts: Accounts,
    [from, to]: [usize; 2],
    cents: i64,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let client = connect(url.as_str()).await?;
    for _ in 0..100 {
        // Name the payer first, so that the two tellers name the locks in opposite orders.
        let guard = lock_all(&client, [LOCKS[from], LOCKS[to]]).await?;
        // One token is valid for all locks. A real account would check it (see `mutex.rs`).
        let _token = guard.fencing_token();
        let (payer, payee) = (accounts[from].load(Relaxed), accounts[to].load(Relaxed));
        tokio::task::yield_now().await; // Without the locks, the other teller would read now.
        accounts[from].store(payer - cents, Relaxed);
        accounts[to].store(payee + cents, Relaxed);
        guard.release().await?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let url = std::env::args().nth(1).unwrap_or("memory:".into());
    let accounts = Accounts::new([1000.into(), 1000.into()]);
    let there = tokio::spawn(teller(url.clone(), accounts.clone(), [0, 1], 2));
    let back = tokio::spawn(teller(url.clone(), accounts.clone(), [1, 0], 3));
    there.await??;
    back.await??;
    println!("200 transfers are done");
    let [a, b] = [0, 1].map(|account: usize| accounts[account].load(Relaxed));
    println!("balances: {a} and {b}, {} in all", a + b);

    // `try_lock_many` takes the free locks and does not wait for the others.
    let (client, other) = (connect(url.as_str()).await?, connect(url.as_str()).await?);
    let held = Mutex::new(&other, LOCKS[0])?.lock().await?;
    let tried = try_lock_many(&client, LOCKS).await?;
    let (free, contended) = (tried.acquired.len(), tried.contended.len());
    println!("{free} lock is free, {contended} is held by another");
    for (_, guard) in tried.acquired {
        guard.release().await?;
    }
    held.release().await?;
    Ok(())
}
