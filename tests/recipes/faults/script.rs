//! Faults after each byte of either direction: a client connects, waits behind a holder, is granted the lock, and
//! releases or drops it. Whichever byte was last, it is granted the lock in its one session and leaves nothing in the
//! queue.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{
    Client, ConnectOptions, Guard, LockEvent, LockEvents, LockOptions, Mutex, lock_events,
};
use testkit::{
    Direction, Env, Fault, Hurt, Proxy, Random, connect_to, report, scaled, within_reason,
};
use tokio::task::JoinSet;

use crate::common::*;

const TOGETHER: usize = 16;

/// Bytes tried beyond the end of a run without faults, because names and numbers may be longer in another run.
const SPARE: usize = 16;

/// Shorter than a session of [`LONG`], so anything still waiting would wait forever.
const PATIENCE: Duration = Duration::from_secs(50);

/// A session that soon notices a silent connection.
const SHORT: Duration = Duration::from_secs(4);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Leave {
    Release,
    Drop,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    fault: Option<Fault>,
    leave: Leave,
    timeout: Duration,
}

impl Run {
    const UNHURT: Self = Self {
        fault: None,
        leave: Leave::Release,
        timeout: LONG,
    };
}

/// A served store, and a client without a proxy.
struct Place {
    env: Env,
    observer: Client,
}

impl Place {
    async fn new() -> Self {
        Self::of(Env::served().await).await
    }

    async fn of(env: Env) -> Self {
        let options = ConnectOptions::new().session_timeout(LONG);
        let observer = env.client_with(options).await;
        let place = Self { env, observer };
        // The first client of a store creates what later ones find.
        place.carry_out(Run::UNHURT, 0).await;
        place
    }

    /// Runs the script. Returns the bytes carried by its first connection.
    async fn carry_out(&self, run: Run, number: usize) -> [usize; 2] {
        let at = format!("/lock/script-{number:06}");
        let session = self.observer.session().await.unwrap();
        let direct = Mutex::new(&self.observer, at.as_str()).unwrap();
        let before = direct.lock().await.unwrap();

        let server = self.env.served_address();
        let proxy = Proxy::hurting(server, move |connection| {
            run.fault.filter(|_| connection == 0)
        });
        let direct_hosts = server.to_string();
        let url = self.env.target().replace(&direct_hosts, &proxy.hosts());
        let options = ConnectOptions::new()
            .session_timeout(run.timeout)
            .connect_timeout(PATIENCE);
        let client = connect_to(&url, options).await.unwrap();
        let id = client.current_session().id();

        let (sink, mut events) = lock_events();
        let mutex = Mutex::new(&client, at.as_str()).unwrap();
        let waiter = tokio::spawn({
            let options = LockOptions::new().events(sink);
            async move { mutex.lock_with(options).await }
        });
        until(&session, &at, |names| names.len() > 1).await;
        let token = before.fencing_token();
        before.release().await.unwrap();
        let guard = granted(waiter).await;
        assert!(guard.is_held());
        assert!(guard.fencing_token() > token);
        let token = guard.fencing_token();
        self.leave(run.leave, guard, &at).await;

        let after = direct.lock().await.unwrap();
        assert!(after.fencing_token() > token);
        after.release().await.unwrap();
        // The session is alive, so its end has not removed anything that was left behind.
        until(&session, &at, <[String]>::is_empty).await;
        client.session().await.unwrap();
        assert_eq!(client.current_session().id(), id, "a session was lost");
        check(&told(&mut events).await);
        let carried = proxy.carried()[0];
        drop(client);
        carried
    }

    async fn leave(&self, leave: Leave, guard: Guard, at: &str) {
        match leave {
            Leave::Drop => drop(guard),
            Leave::Release => {
                guard.release().await.unwrap();
                let session = self.observer.session().await.unwrap();
                let left = children(&session, at).await;
                assert_eq!(left, Vec::<String>::new(), "an acknowledged release");
            }
        }
    }
}

async fn told(events: &mut LockEvents) -> Vec<LockEvent> {
    let mut told = Vec::new();
    while let Some(event) = events.next().await {
        told.push(event);
    }
    told
}

/// Asserts the events of one wait, one grant and one release, with complete suspensions in between.
fn check(events: &[LockEvent]) {
    let (mut is_held, mut is_suspended, mut is_over) = (false, false, false);
    for event in events {
        assert!(!is_over, "something comes after the release: {events:?}");
        match event {
            LockEvent::Queued { .. } | LockEvent::Advanced { .. } => assert!(!is_held),
            LockEvent::Acquired { .. } => assert!(!std::mem::replace(&mut is_held, true)),
            LockEvent::Suspended { .. } => assert!(!std::mem::replace(&mut is_suspended, true)),
            LockEvent::Resumed => assert!(std::mem::replace(&mut is_suspended, false)),
            LockEvent::Released => {
                assert!(is_held);
                is_over = true;
            }
            other => panic!("{other:?} of {events:?}"),
        }
    }
    assert!(is_over, "{events:?}");
}

async fn carry_out_all(place: Place, runs: Vec<Run>) {
    let count = runs.len();
    let place = Arc::new(place);
    let (mut under_way, mut failed) = (JoinSet::new(), Vec::new());
    let mut left = runs.into_iter().enumerate();
    loop {
        while under_way.len() < TOGETHER
            && let Some((number, run)) = left.next()
        {
            let place = place.clone();
            under_way.spawn(async move {
                let one = async move { place.carry_out(run, number + 1).await };
                let outcome = tokio::spawn(tokio::time::timeout(PATIENCE, one)).await;
                let is_well = matches!(&outcome, Ok(Ok(_)));
                (!is_well).then_some((run, outcome.is_err()))
            });
        }
        match under_way.join_next().await {
            None => break,
            Some(outcome) => failed.extend(outcome.unwrap()),
        }
    }
    let hung: Vec<_> = failed.iter().filter(|(_, panicked)| !panicked).collect();
    assert!(
        failed.is_empty(),
        "{} of {count} failed, of which these hung: {hung:#?}; all: {failed:#?}",
        failed.len()
    );
}

/// Every byte of each direction, once or with each of these faults.
async fn every_byte(place: &Place, hurts: &[Hurt], timeout: Duration) -> Vec<Run> {
    let carried = place.carry_out(Run::UNHURT, 0).await;
    report(format_args!("{carried:?} bytes of the script's connection"));
    let mut runs = Vec::new();
    for direction in [Direction::ToServer, Direction::ToClient] {
        for after in 0..=carried[direction as usize] + SPARE {
            // Each byte gets only a few choices, or all with ten times the count.
            for choice in 0..scaled(1).min(2 * hurts.len() as u64) as usize {
                let choice = after + choice;
                let leave = [Leave::Release, Leave::Drop][choice / hurts.len() % 2];
                let hurt = hurts[choice % hurts.len()];
                let fault = Some(Fault {
                    direction,
                    after,
                    hurt,
                });
                runs.push(Run {
                    fault,
                    leave,
                    timeout,
                });
            }
        }
    }
    runs
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_after_any_byte_loses_no_entry_and_no_release() {
    let place = Place::new().await;
    let hurts = [Hurt::Close, Hurt::Reset, Hurt::HalfClose];
    let runs = every_byte(&place, &hurts, LONG).await;
    carry_out_all(place, runs).await;
}

/// The client notices on its own after two thirds of its timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silence_after_any_byte_loses_no_entry_and_no_release() {
    within_reason(async {
        let place = Place::new().await;
        let runs = every_byte(&place, &[Hurt::Stall, Hurt::Silence], SHORT).await;
        let mut random = Random(runs.len() as u64);
        let share = (runs.len() as u64).div_ceil(scaled(48)).max(1);
        let runs = runs.into_iter().filter(|_| random.below(share) == 0);
        let runs = runs.collect();
        carry_out_all(place, runs).await;
    })
    .await;
}

/// The same script with a ZooKeeper client, at some of the bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_client_loses_no_entry_and_no_release() {
    let place = Place::of(Env::foreign().await).await;
    let hurts = [Hurt::Close, Hurt::Reset, Hurt::HalfClose];
    let runs = every_byte(&place, &hurts, LONG).await;
    let mut random = Random(runs.len() as u64);
    let share = (runs.len() as u64).div_ceil(scaled(100)).max(1);
    let runs = runs.into_iter().filter(|_| random.below(share) == 0);
    carry_out_all(place, runs.collect()).await;
}
