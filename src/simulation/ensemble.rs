//! [`Ensemble`]: a model of ZooKeeper servers that replicate a store. The leader runs the real core, and followers
//! apply committed transactions to their replicas later.
//!
//! Each member speaks ZooKeeper's protocol. It answers reads, watches and pings from its replica, and forwards writes
//! to the leader. Only the leader expires sessions, and a new leader gives each session its full timeout. A follower
//! reports live sessions when it answers the leader's pings. As in ZooKeeper 3.9, a write that a follower forwards does
//! not prove to the leader that the session is alive (`LeaderZooKeeperServer.submitLearnerRequest`).
//!
//! An election and the catch-up of a joining member use no messages and take no time. Disks never fail, and a member
//! never loses a proposal that it has received.

mod client;
mod election;
mod leader;
mod member;

use std::future::poll_fn;
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, sleep_until};

use self::leader::{Entry, Write};
use self::member::Member;
use super::Time;
use crate::core::CoreOptions;
use crate::model::types::SessionId;
use crate::runtime::clock::Clock;
use crate::runtime::future::select;
use crate::runtime::simnet::{Network, SimSocket};
use crate::runtime::splitmix::Random;

/// Options of an ensemble.
#[derive(Clone, Debug)]
pub struct EnsembleOptions {
    /// The tick of the ensemble. The leader pings twice per tick.
    pub tick: Duration,
    /// Number of silent ticks after which a leader and a follower give up on each other.
    pub sync_limit: u32,
    /// Shortest and longest session timeout.
    pub session_timeouts: (Duration, Duration),
    /// Delay of messages between members.
    pub delay: Range<Duration>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EnsembleCounts {
    /// Elected leaders.
    pub elections: u64,
    /// Uncommitted proposals that were discarded.
    pub proposals_lost: u64,
    /// Sessions that moved to another member.
    pub sessions_moved: u64,
    /// Writes refused because their session had moved.
    pub writes_of_moved_sessions: u64,
    /// Sessions expired by a leader.
    pub sessions_expired: u64,
}

/// Servers that replicate a store. Clones share the servers, and dropping the last clone stops them.
#[derive(Clone)]
pub struct Ensemble(Arc<Inner>);

struct Inner {
    network: Network,
    time: Time,
    state: Mutex<State>,
}

/// All members and their messages. Except in an election, a member accesses only its own state.
struct State {
    members: Vec<Member>,
    links: Vec<Vec<mpsc::UnboundedSender<(Instant, Envelope)>>>,
    options: EnsembleOptions,
    network: Network,
    time: Time,
    random: Random,
    next_connection: u64,
    next_link: u64,
    counts: EnsembleCounts,
}

struct Envelope {
    /// Number of the period in which the follower follows this leader. Messages of earlier periods are ignored.
    link: u64,
    message: Message,
}

enum Message {
    Write(Write),
    Accepted {
        length: usize,
    },
    Pong {
        touched: Vec<SessionId>,
    },
    Revalidate {
        connection: u64,
        session: SessionId,
        password: [u8; 16],
        timeout: Duration,
    },
    Proposal(Entry),
    Commit {
        length: usize,
    },
    Ping,
    Revalidated {
        connection: u64,
        timeout: Option<Duration>,
    },
    /// The follower answers the sync after it has applied `length` entries.
    Synced {
        connection: u64,
        length: usize,
    },
}

const STEP: Duration = Duration::from_millis(50);

impl Ensemble {
    /// Starts one member per name and clock.
    pub fn start(
        network: &Network,
        time: &Time,
        members: Vec<(String, Clock)>,
        options: &EnsembleOptions,
        seed: u64,
    ) -> Self {
        let count = members.len();
        let mut receivers = Vec::new();
        let links = (0..count).map(|from| {
            let link = |to| {
                let (sender, receiver) = mpsc::unbounded_channel();
                receivers.push((from, to, receiver));
                sender
            };
            (0..count).map(link).collect()
        });
        let links = links.collect();
        let config: String = (1..=count)
            .map(|id| format!("server.{id}=host\n"))
            .collect();
        let config = Bytes::from(config);
        let members = members
            .into_iter()
            .map(|(name, clock)| Member::new(name, clock, config.clone(), options))
            .collect();
        let ensemble = Self(Arc::new(Inner {
            network: network.clone(),
            time: time.clone(),
            state: Mutex::new(State {
                members,
                links,
                options: options.clone(),
                network: network.clone(),
                time: time.clone(),
                random: Random(seed),
                next_connection: 0,
                next_link: 0,
                counts: EnsembleCounts::default(),
            }),
        }));
        for (from, to, receiver) in receivers {
            tokio::spawn(carry(Arc::downgrade(&ensemble.0), (from, to), receiver));
        }
        for member in 0..count {
            ensemble.accept(member);
        }
        tokio::spawn(run(Arc::downgrade(&ensemble.0)));
        ensemble
    }

    /// Returns the members' host names.
    pub fn hosts(&self) -> Vec<String> {
        let state = self.0.state.lock();
        state
            .members
            .iter()
            .map(|member| member.name.clone())
            .collect()
    }

    /// Returns the clock of a member's host.
    pub fn clock(&self, member: usize) -> Clock {
        self.0.state.lock().members[member].clock.clone()
    }

    /// Returns the leader. If several members consider themselves the leader, returns the member that was elected last.
    pub fn leader(&self) -> Option<usize> {
        self.0.state.lock().leader()
    }

    /// Returns true if a member's process runs.
    pub fn is_up(&self, member: usize) -> bool {
        self.0.state.lock().members[member].is_up
    }

    /// Returns the event counts so far.
    pub fn counts(&self) -> EnsembleCounts {
        self.0.state.lock().counts
    }

    /// Kills a member's process. Accepted proposals stay on its disk.
    pub fn kill(&self, member: usize) {
        let name = {
            let mut state = self.0.state.lock();
            state.kill(member);
            state.members[member].name.clone()
        };
        self.0.network.stop_listening(&name);
        self.0.network.reset(&name);
    }

    /// Starts a member's process again.
    pub fn restart(&self, member: usize) {
        let was_down = !std::mem::replace(&mut self.0.state.lock().members[member].is_up, true);
        if was_down {
            self.accept(member);
        }
    }

    /// Stops a member from applying transactions for `length`. It still answers reads and pings.
    pub fn lag(&self, member: usize, length: Duration) {
        let until = self.0.time.elapsed() + length;
        self.0.state.lock().members[member].lags_until = until;
    }

    fn accept(&self, member: usize) {
        let name = self.0.state.lock().members[member].name.clone();
        let accepting = self.0.network.listen(&name);
        tokio::spawn(accept(Arc::downgrade(&self.0), member, accepting));
    }
}

async fn run(ensemble: Weak<Inner>) {
    loop {
        sleep(STEP).await;
        let Some(ensemble) = ensemble.upgrade() else {
            return;
        };
        ensemble.time.sync();
        ensemble.state.lock().step();
    }
}

async fn carry(
    ensemble: Weak<Inner>,
    (from, to): (usize, usize),
    mut receiver: mpsc::UnboundedReceiver<(Instant, Envelope)>,
) {
    while let Some((due, envelope)) = receiver.recv().await {
        sleep_until(due).await;
        let Some(inner) = ensemble.upgrade() else {
            return;
        };
        let network = inner.network.clone();
        let hosts = {
            let state = inner.state.lock();
            [from, to].map(|member| state.members[member].name.clone())
        };
        drop(inner);
        network.carry(&hosts[0], &hosts[1]).await;
        let Some(inner) = ensemble.upgrade() else {
            return;
        };
        inner.state.lock().receive(from, to, envelope);
    }
}

async fn accept(
    ensemble: Weak<Inner>,
    member: usize,
    mut accepting: mpsc::UnboundedReceiver<SimSocket>,
) {
    while let Some(socket) = accepting.recv().await {
        let Some(inner) = ensemble.upgrade() else {
            return;
        };
        let attention = Arc::<Notify>::default();
        let accepted = inner
            .state
            .lock()
            .accept(member, socket.clone(), attention.clone());
        if let Some(connection) = accepted {
            let place = (member, connection);
            tokio::spawn(serve(ensemble.clone(), place, socket, attention));
        }
    }
}

async fn serve(
    ensemble: Weak<Inner>,
    (member, connection): (usize, u64),
    socket: SimSocket,
    attention: Arc<Notify>,
) {
    let mut buffer = vec![0; 4 << 10];
    loop {
        let is_blocked = {
            let Some(inner) = ensemble.upgrade() else {
                return;
            };
            let mut state = inner.state.lock();
            while let Ok(count) = socket.read(&mut buffer) {
                if count == 0 {
                    state.lose(member, connection);
                    return;
                }
                state.received(member, connection, &buffer[..count]);
            }
            let Some(is_blocked) = state.transmit(member, connection) else {
                return;
            };
            is_blocked
        };
        let mut is_over = false;
        select(attention.notified(), async {
            poll_fn(|context| socket.poll_ready(true, is_blocked, context)).await;
            let read = socket.read(&mut []);
            is_over = read.is_err_and(|error| error.kind() != ErrorKind::WouldBlock);
        })
        .await;
        if is_over && let Some(inner) = ensemble.upgrade() {
            inner.state.lock().lose(member, connection);
            return;
        }
    }
}

impl State {
    fn send(&mut self, from: usize, to: usize, message: Message) {
        let Some(link) = self.link(from, to) else {
            return;
        };
        let due = Instant::now() + self.random.time_within(&self.options.delay);
        let _ = self.links[from][to].send((due, Envelope { link, message }));
    }

    fn receive(&mut self, from: usize, to: usize, envelope: Envelope) {
        let Envelope { link, message } = envelope;
        if !self.members[to].is_up || self.link(to, from) != Some(link) {
            return;
        }
        match message {
            Message::Write(write) => self.lead_write(to, write),
            Message::Accepted { length } => self.note_accepted(to, from, length),
            Message::Pong { touched } => self.touch_all(to, from, touched),
            Message::Revalidate {
                connection,
                session,
                password,
                timeout,
            } => {
                let timeout = self.revalidate(to, from, session, password, timeout);
                let answer = Message::Revalidated {
                    connection,
                    timeout,
                };
                self.send(to, from, answer);
            }
            Message::Proposal(entry) => self.take_proposal(to, from, entry),
            Message::Commit { length } => self.take_commit(to, length),
            Message::Ping => self.answer_ping(to, from),
            Message::Revalidated {
                connection,
                timeout,
            } => self.revalidated(to, connection, timeout),
            Message::Synced { connection, length } => self.synced(to, connection, length),
        }
    }
}

fn core_options(options: &EnsembleOptions) -> CoreOptions {
    let (shortest_timeout, longest_timeout) = options.session_timeouts;
    CoreOptions {
        tick: options.tick,
        shortest_timeout,
        longest_timeout,
        ..CoreOptions::default()
    }
}
