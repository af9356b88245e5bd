//! From the end of a holder's process to the next grant: a process acquires the lock and is killed (SIGKILL) while a
//! client of this one waits for it.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use lockkeeper::{ConnectOptions, LockPath, Mutex};

use crate::common::fresh_name;
use crate::common::helper::{self, Helper};
use crate::common::kill::kill_to_grant;
use crate::figures::{Row, Times, WriteTimes};
use crate::rounds::Contender;
use crate::systems::Keeper;

/// Task of a holder.
const HOLD: &str = "hold";

/// Session timeout of a holder: after so long its lock is free in any case.
const TIMEOUT: Duration = Duration::from_secs(4);

/// Holds the lock of a parameter, if this process is a holder. Then it does not return.
pub(crate) fn help() {
    if let Some((task, parameter)) = helper::task()
        && task == HOLD
    {
        let (url, path) = parameter.split_once(' ').expect("a URL and a path");
        crate::common::runtime(1).block_on(hold(url, path));
    }
}

async fn hold(url: &str, path: &str) -> ! {
    helper::end_with_parent();
    let options = ConnectOptions::new().session_timeout(TIMEOUT);
    let client = lockkeeper::connect_with(url, options).await;
    let client = client.expect("the store answers");
    let mutex = Mutex::new(&client, path).expect("a valid path");
    let _guard = mutex.lock().await.expect("granted");
    helper::say("held");
    std::future::pending().await
}

/// Returns the contender on a store.
pub(crate) async fn contender(system: &str, keeper: &Keeper) -> Contender {
    let path = format!("/bench/{}", fresh_name());
    let lock_path = LockPath::new(&*path).expect("a valid path");
    let client = lockkeeper::connect(keeper.url()).await;
    let waiter = Mutex::new(&client.expect("the store answers"), lock_path).expect("a valid path");
    let (url, place) = (keeper.url().to_owned(), keeper.place());
    let waiter = Rc::new(RefCell::new(waiter));
    Contender::new(system, keeper.url(), move |time| {
        let (url, path, place) = (url.clone(), path.clone(), place.clone());
        let waiter = waiter.borrow().clone();
        async move {
            let (mut times, start) = (Times::default(), Instant::now());
            // At least one, where the timeout is longer than a round.
            while times.len() == 0 || start.elapsed() < time {
                let mut holder = Helper::start(&[], HOLD, &format!("{url} {path}"));
                let holder = holder.as_mut().expect("this program runs");
                holder.line().expect("it holds the lock");
                let time = kill_to_grant(&waiter, &place, || holder.kill()).await;
                times.push(time.expect("granted"));
            }
            let mut row = Row::new();
            row.insert("kills".into(), times.len() as f64);
            times.write(&mut row, "kill_to_grant");
            row
        }
    })
}
