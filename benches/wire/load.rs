//! Connections that keep a number of requests in flight.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use testkit::wire::PERSISTENT;

use crate::common::fresh_name;
use crate::common::socket::Address;
use crate::connection::Connection;
use crate::figures::{Row, Times, WriteTimes};
use crate::mix::{self, Done, KEYS, Mix, Slot};

#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) mix: Mix,
    pub(crate) connections: usize,
    pub(crate) in_flight: usize,
    /// Pause between an answer and the next request.
    pause: Option<Duration>,
}

/// Znodes and connections of a case on one server.
pub(crate) struct Ground {
    clients: Vec<Client>,
    /// Everything that was created for it, parents first.
    made: Vec<String>,
}

/// A connection and the slots that share it.
struct Client {
    connection: Connection,
    slots: Vec<Slot>,
}

/// Work of a connection in a round.
#[derive(Default)]
struct Tally {
    requests: usize,
    times: Times,
    acquires: Times,
    releases: Times,
}

impl Load {
    pub(crate) fn new(mix: Mix, connections: usize, in_flight: usize) -> Self {
        Self {
            mix,
            connections,
            in_flight,
            pause: None,
        }
    }

    /// Makes each connection pause after an answer.
    pub(crate) fn pausing(self, pause: Duration) -> Self {
        let pause = Some(pause);
        Self { pause, ..self }
    }

    /// Creates the znodes and opens the sessions.
    pub(crate) async fn prepare(&self, address: &Address, bytes: usize) -> Ground {
        let root = format!("/wire-{}", fresh_name());
        let mut made = vec![root.clone()];
        let mut clients = Vec::new();
        for number in 0..self.connections {
            let connection = Connection::open(address).await;
            let slot = |slot| {
                let number = number * self.in_flight + slot;
                let path = match self.mix {
                    Mix::Locks => root.clone(),
                    _ => format!("{root}/{number}"),
                };
                Slot::new(self.mix, path, bytes, number)
            };
            let slots: Vec<Slot> = (0..self.in_flight).map(slot).collect();
            clients.push(Client { connection, slots });
        }
        match self.mix {
            Mix::Locks => made.extend((0..KEYS).map(|key| format!("{root}/{key}"))),
            _ => {
                let slots = clients.iter().flat_map(|client| &client.slots);
                made.extend(slots.map(|slot| slot.path().to_owned()));
            }
        }
        let first = &mut clients[0].connection;
        let data = vec![b'x'; bytes];
        in_batches(first, &made, |to, path| {
            mix::create(to, path, &data, PERSISTENT);
        })
        .await;
        Ground { clients, made }
    }

    pub(crate) async fn clean(&self, mut ground: Ground) {
        let first = &mut ground.clients[0].connection;
        ground.made.reverse();
        in_batches(first, &ground.made, mix::delete).await;
    }

    /// Sends requests on all connections for `time`.
    pub(crate) async fn round(&self, ground: &mut Ground, time: Duration) -> Row {
        let start = Instant::now();
        let end = start + time;
        let clients: Vec<_> = ground
            .clients
            .drain(..)
            .map(|client| tokio::spawn(client.ask_until(end, self.pause)))
            .collect();
        let mut all = Tally::default();
        for client in clients {
            let (client, tally) = client.await.expect("a client ends well");
            ground.clients.push(client);
            all.add(tally);
        }
        let seconds = start.elapsed().as_secs_f64();
        let mut row = Row::new();
        row.insert("requests_per_s".into(), all.requests as f64 / seconds);
        if all.releases.count() > 0 {
            let cycles = all.releases.count() as f64;
            row.insert("cycles_per_s".into(), cycles / seconds);
        }
        all.times.write(&mut row, "request");
        all.acquires.write(&mut row, "acquire");
        all.releases.write(&mut row, "release");
        row
    }
}

impl Client {
    async fn ask_until(mut self, end: Instant, pause: Option<Duration>) -> (Self, Tally) {
        let mut tally = Tally::default();
        // Answers arrive in the order of the requests.
        let mut waiting: VecDeque<(usize, Instant)> = VecDeque::new();
        let now = Instant::now();
        for number in 0..self.slots.len() {
            self.ask(number, now, &mut waiting);
        }
        while !waiting.is_empty() {
            self.connection.flush().await;
            self.connection.read().await;
            // One clock reading for all replies that have arrived together.
            let mut now = Instant::now();
            while let Some(reply) = self.connection.arrived() {
                let (number, asked) = waiting.pop_front().expect("it was asked for");
                let done = self.slots[number].answered(&reply);
                tally.note(done, now - asked);
                if let Some(pause) = pause {
                    tokio::time::sleep(pause).await;
                    now = Instant::now();
                }
                // After the end, a slot continues until it has deleted its znode, because the next round starts without
                // any.
                if done != Done::Nothing && (now < end || !self.slots[number].is_clean()) {
                    self.ask(number, now, &mut waiting);
                }
            }
        }
        (self, tally)
    }

    fn ask(&mut self, number: usize, now: Instant, waiting: &mut VecDeque<(usize, Instant)>) {
        let requests = self.slots[number].ask(&mut self.connection);
        waiting.extend(std::iter::repeat_n((number, now), requests));
    }
}

impl Tally {
    fn note(&mut self, done: Done, took: Duration) {
        self.requests += 1;
        match done {
            Done::Nothing => {}
            Done::Request => self.times.push(took),
            Done::Acquire => self.acquires.push(took),
            Done::Release => self.releases.push(took),
        }
    }

    fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.times.append(other.times);
        self.acquires.append(other.acquires);
        self.releases.append(other.releases);
    }
}

/// Sends one request per path, in batches.
async fn in_batches(
    connection: &mut Connection,
    paths: &[String],
    put: impl Fn(&mut Connection, &str),
) {
    for batch in paths.chunks(500) {
        for path in batch {
            put(connection, path);
        }
        connection.flush().await;
        for path in batch {
            let reply = connection.next().await;
            assert_eq!(reply.error, 0, "{path} is made or deleted");
        }
    }
}
