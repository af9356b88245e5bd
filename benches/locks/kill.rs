//! Time from the end of a holder's process to the next grant. A process acquires the lock and gets SIGKILL while a
//! client of this process waits for the lock.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use lockkeeper::{ConnectOptions, LockPath, Mutex};

use crate::common::fresh_name;
use crate::common::helper::{self, Helper};
use crate::common::kill::kill_to_grant;
use crate::common::lock::Lock;
use crate::figures::{Row, Times, WriteTimes};
use crate::peers;
use crate::rounds::Contender;
use crate::systems::Keeper;

const HOLD: &str = "hold";

/// Session timeout of a holder, or lifetime of its lock or lease. Its lock is free after this time in any case.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(4);

/// If this process is a holder, holds the lock of its parameter and does not return.
pub(crate) fn help() {
    if let Some((task, parameter)) = helper::task()
        && task == HOLD
    {
        let words: Vec<&str> = parameter.split(' ').collect();
        let [system, address, key] = words[..] else {
            panic!("a system, an address and a key: {parameter:?}");
        };
        helper::end_with_parent();
        peers::runtime(1).block_on(async {
            if system == OURS {
                hold(address, key).await
            } else {
                peers::hold(system, address, key).await
            }
        });
    }
}

/// Name of our locks among the systems of holders.
const OURS: &str = "lockkeeper";

async fn hold(url: &str, path: &str) -> ! {
    let options = ConnectOptions::new().session_timeout(TIMEOUT);
    let client = lockkeeper::connect_with(url, options).await;
    let client = client.expect("the store answers");
    let mutex = Mutex::new(&client, path).expect("a valid path");
    let _guard = mutex.lock().await.expect("granted");
    wait_to_be_killed().await
}

/// Acquires a peer's lock and holds it until this process ends.
pub(crate) async fn hold_peer(lock: impl Lock) -> ! {
    let _guard = lock.lock().await.expect("granted");
    wait_to_be_killed().await
}

async fn wait_to_be_killed() -> ! {
    helper::say("held");
    std::future::pending().await
}

/// Starts a holder in another process. Returns once it holds the lock.
fn start_holder(target: &str) -> Helper {
    let mut holder = Helper::start(&[], HOLD, target).expect("this program runs");
    holder.line().expect("it holds the lock");
    holder
}

pub(crate) async fn contender(system: &str, keeper: &Keeper) -> Contender {
    let path = format!("/bench/{}", fresh_name());
    let lock_path = LockPath::new(&*path).expect("a valid path");
    let client = lockkeeper::connect(keeper.url()).await;
    let waiter = Mutex::new(&client.expect("the store answers"), lock_path).expect("a valid path");
    let (target, place) = (format!("{OURS} {} {path}", keeper.url()), keeper.place());
    let waiter = Rc::new(RefCell::new(waiter));
    Contender::new(system, keeper.url(), move |time| {
        let (target, place) = (target.clone(), place.clone());
        let waiter = waiter.borrow().clone();
        async move {
            let (mut times, start) = (Times::default(), Instant::now());
            // At least one, if the timeout is longer than a round.
            while times.count() == 0 || start.elapsed() < time {
                let mut holder = start_holder(&target);
                let time = kill_to_grant(&waiter, &place, || holder.kill()).await;
                times.push(time.expect("granted"));
            }
            row(&times, 0)
        }
    })
}

/// Returns the contender of a peer whose holders take the lock `key` at `address`.
pub(crate) fn of_peer<L: Lock>(system: &str, address: &str, key: &str, waiter: L) -> Contender {
    let target = format!("{system} {address} {key}");
    Contender::new(system, "", move |time| {
        let (target, waiter) = (target.clone(), waiter.clone());
        async move {
            let (mut times, mut violations, start) = (Times::default(), 0, Instant::now());
            while times.count() == 0 || start.elapsed() < time {
                let mut holder = start_holder(&target);
                let waiting = waiter.clone();
                let granted = tokio::spawn(async move {
                    let guard = waiting.lock().await.expect("granted");
                    (Instant::now(), guard)
                });
                waiter.settled(2).await.expect("the server answers");
                violations += usize::from(granted.is_finished());
                let killed = Instant::now();
                holder.kill();
                let (at, guard) = granted.await.expect("the waiter does not panic");
                times.push(at.saturating_duration_since(killed));
                L::unlock(guard).await.expect("released");
            }
            row(&times, violations)
        }
    })
}

fn row(times: &Times, violations: usize) -> Row {
    let mut row = Row::new();
    row.insert("kills".into(), times.count() as f64);
    row.insert("exclusion_violations".into(), violations as f64);
    times.write(&mut row, "kill_to_grant");
    row
}
