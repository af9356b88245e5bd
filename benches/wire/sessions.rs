//! Many idle sessions with one watch each: their cost, and the time until the last of them has its event.

use std::sync::atomic::{AtomicUsize, Ordering::AcqRel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use testkit::wire::{EVENT, Out, PERSISTENT, op, read, set_data};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::args::Args;
use crate::common::echo::{EchoFloor, Transport};
use crate::common::process::memory_bytes;
use crate::common::socket::Address;
use crate::connection::{self, Connection, TIMEOUT};
use crate::figures::{Row, Times, WriteTimes, medians};
use crate::mix;
use crate::store_server::StoreServer;
use crate::usage::Usage;

const OPENED_AT_ONCE: usize = 64;

pub(crate) async fn measure(args: &Args, server: &StoreServer, floor: &mut EchoFloor) {
    let address = connection::address_of(server.url());
    let mut setter = Connection::open(&address).await;
    let path = format!("/wire-watched-{}", std::process::id());
    mix::create(&mut setter, &path, b"", PERSISTENT);
    expect_answer(&mut setter).await;
    let watched = Arc::new(Watched::new(path));
    let resident_bytes = || memory_bytes(server.process()?, "VmRSS:");
    let before = resident_bytes();
    let mut sessions = JoinSet::new();
    for &count in &args.sessions {
        let opened = open_until(count, &mut sessions, &address, &watched).await;
        let mut row = Row::new();
        row.insert("opened_per_s".into(), opened);
        if let (Some(before), Some(now)) = (before, resident_bytes()) {
            row.insert("bytes_per_session".into(), (now - before) / count as f64);
            row.insert("server_bytes".into(), now);
        }
        let transport = Transport::of(server.url());
        row.extend(floor.round(transport, 1, args.timing.floor()).await);
        fan_out(args, &mut setter, &watched, count, &mut row).await;
        let used = Usage::of(server.process());
        ping_for(&mut setter, args.rest).await;
        used.write_since(&mut row);
        let line = args.line(server.url(), "sessions");
        line.with("sessions", count).print(&row);
    }
    sessions.shutdown().await;
    mix::delete(&mut setter, &watched.path);
    expect_answer(&mut setter).await;
}

/// Opens the missing sessions. Returns how many were opened per second.
async fn open_until(
    count: usize,
    sessions: &mut JoinSet<()>,
    address: &Address,
    watched: &Arc<Watched>,
) -> f64 {
    let (start, missing) = (Instant::now(), count.saturating_sub(sessions.len()));
    let turns = Arc::new(tokio::sync::Semaphore::new(OPENED_AT_ONCE));
    for number in 0..missing {
        let (watched, turns) = (watched.clone(), turns.clone());
        let address = address.clone();
        // Spread the pings over the interval.
        let first_ping = PING_EVERY.mul_f64(number as f64 / missing as f64);
        sessions.spawn(async move {
            let turn = turns.acquire_owned().await;
            let connection = Connection::open(&address).await;
            drop(turn);
            watch(connection, &watched, first_ping).await;
        });
    }
    watched.wait_until(&watched.armed, count).await;
    missing as f64 / start.elapsed().as_secs_f64()
}

/// As often as common clients do.
const PING_EVERY: Duration = Duration::from_millis(TIMEOUT.as_millis() as u64 / 3);

/// The znode that all sessions watch, with the counts of their watches and events.
struct Watched {
    path: String,
    armed: AtomicUsize,
    heard: AtomicUsize,
    times: Mutex<Vec<Instant>>,
    changed: Notify,
}

impl Watched {
    fn new(path: String) -> Self {
        Self {
            path,
            armed: AtomicUsize::new(0),
            heard: AtomicUsize::new(0),
            times: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Waits until a counter has reached `count`.
    async fn wait_until(&self, counter: &AtomicUsize, count: usize) {
        loop {
            // Before the check, because a change between check and await would wake no waiter.
            let changed = self.changed.notified();
            if counter.load(std::sync::atomic::Ordering::Acquire) >= count {
                return;
            }
            changed.await;
        }
    }

    /// Counts, and wakes the task that waits for the count.
    fn count(&self, counter: &AtomicUsize) {
        counter.fetch_add(1, AcqRel);
        self.changed.notify_waiters();
    }
}

async fn watch(mut connection: Connection, watched: &Watched, first_ping: Duration) {
    let mut next_ping = tokio::time::Instant::now() + first_ping;
    arm(&mut connection, &watched.path).await;
    loop {
        let mut heard = false;
        while let Some(reply) = connection.arrived() {
            assert_eq!(reply.error, 0, "a watching session is answered");
            match reply.xid {
                EVENT => heard = true,
                ARMING => watched.count(&watched.armed),
                _ => {}
            }
        }
        if heard {
            let now = Instant::now();
            watched.times.lock().expect("no panic").push(now);
            watched.count(&watched.heard);
            arm(&mut connection, &watched.path).await;
        }
        tokio::select! {
            () = connection.read() => {}
            () = tokio::time::sleep_until(next_ping) => {
                connection.put(-2, op::PING, &Out::new());
                connection.flush().await;
                next_ping += PING_EVERY;
            }
        }
    }
}

/// The xid of the request that arms a watch.
const ARMING: i32 = 1;

async fn arm(connection: &mut Connection, path: &str) {
    connection.put(ARMING, op::GET_DATA, &read(path, true));
    connection.flush().await;
}

/// Sets the znode and waits for the last event, several times.
async fn fan_out(
    args: &Args,
    setter: &mut Connection,
    watched: &Watched,
    count: usize,
    row: &mut Row,
) {
    let mut rounds = Vec::new();
    for _ in 0..args.timing.rounds {
        watched.wait_until(&watched.armed, count).await;
        watched.armed.store(0, std::sync::atomic::Ordering::Release);
        watched.heard.store(0, std::sync::atomic::Ordering::Release);
        watched.times.lock().expect("no panic").clear();
        let asked = Instant::now();
        setter.put(1, op::SET_DATA, &set_data(&watched.path, &[b'x'; 100]));
        expect_answer(setter).await;
        watched.wait_until(&watched.heard, count).await;
        let (mut events, mut last) = (Times::default(), asked);
        for &at in watched.times.lock().expect("no panic").iter() {
            events.push(at.saturating_duration_since(asked));
            last = last.max(at);
        }
        let mut round = Row::new();
        events.write(&mut round, "event");
        round.insert("last_event_us".into(), (last - asked).as_micros() as f64);
        rounds.push(round);
    }
    watched.wait_until(&watched.armed, count).await;
    row.extend(medians(&rounds));
}

/// The setter is a session too.
async fn ping_for(setter: &mut Connection, time: Duration) {
    let end = Instant::now() + time;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        tokio::time::sleep(left.min(PING_EVERY)).await;
        setter.put(-2, op::PING, &Out::new());
        expect_answer(setter).await;
    }
}

async fn expect_answer(connection: &mut Connection) {
    connection.flush().await;
    let reply = connection.next().await;
    assert_eq!(reply.error, 0, "the request is carried out");
}
