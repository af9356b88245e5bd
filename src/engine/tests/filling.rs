//! A log that is filled many times. As long as the disk is healthy, the log refuses no write.

use std::collections::VecDeque;

use super::world::{Random, World, options, scaled, wait};
use super::*;
use crate::core::CoreReply;
use crate::engine::connection::{Connection, SessionRequest};
use crate::engine::outbox::{Message, Taken};
use crate::engine::stats::NotAdmitting;
use crate::log::{Boot, Faults, SimDisk};
use crate::model::protocol::{Create, Request};
use crate::testing::seeds;

const DURABILITIES: [Durability; 3] = [
    Durability::Fsync,
    Durability::DelayedRestart,
    Durability::None,
];

const SEGMENTS: [(u64, u64); 3] = [
    (64 << 10, 64 << 10),
    (64 << 10, 256 << 10),
    (128 << 10, 512 << 10),
];

#[derive(Clone, Copy, Debug)]
struct Load {
    durability: Durability,
    segments: (u64, u64),
    writers: u64,
}

impl Load {
    fn open(self, disk: &SimDisk) -> Store {
        let (first, largest) = self.segments;
        let options = StoreOptions::new()
            .durability(self.durability)
            .segment_bytes(first, largest);
        World::open_with_threads(Boot::new(disk), &options)
            .unwrap()
            .store
    }

    fn largest_value(self) -> u64 {
        self.segments.0 / 4 / self.writers - 256
    }

    fn fill(self, store: &Store, seed: u64, bytes: u64) {
        let writers = (0..self.writers).map(|writer| {
            let backend = now(store.connector().open(&ConnectOptions::new())).unwrap();
            let random = Random(seed << 8 | writer);
            std::thread::spawn(move || {
                wait(self.write(backend, writer, random, bytes / self.writers));
            })
        });
        let writers: Vec<_> = writers.collect();
        for writer in writers {
            writer.join().unwrap();
        }
    }

    async fn write(self, backend: Arc<dyn Backend>, writer: u64, mut random: Random, bytes: u64) {
        let at = path(&format!("/w{writer}"));
        let created = backend.submit(create(&at)).await;
        assert!(matches!(created, Ok(_) | Err(Error::NodeExists { .. })));
        let (mut written, mut last) = (0, 0);
        while written < bytes {
            last = self.value(&mut random);
            let written_now = backend.submit(set(&at, last)).await;
            assert!(
                written_now.is_ok(),
                "{self:?}: {last} bytes after {written}: {written_now:?}"
            );
            written += last + 100;
        }
        let session = Session::new(backend, Acl::open());
        let (data, _) = session.get_data(&at).await.unwrap();
        assert_eq!(data.len() as u64, last);
    }

    fn value(self, random: &mut Random) -> u64 {
        let largest = self.largest_value();
        match random.below(4) {
            0 => random.below(100),
            1 => largest - random.below(100),
            2 => random.below(largest / 8),
            _ => random.below(largest),
        }
    }
}

fn create(at: &ZnodePath) -> Request {
    Request::Create(Create {
        path: at.clone(),
        data: "".into(),
        mode: CreateMode::Persistent,
        acl: Acl::open(),
    })
}

fn set(at: &ZnodePath, size: u64) -> Request {
    Request::SetData {
        path: at.clone(),
        data: vec![b'd'; size as usize].into(),
        version: None,
    }
}

fn fill_with(segments: (u64, u64), writers: u64) {
    for durability in DURABILITIES {
        let load = Load {
            durability,
            segments,
            writers,
        };
        let disk = SimDisk::new();
        load.fill(&load.open(&disk), 1, 100 * segments.1);
        drop(load.open(&disk));
    }
}

#[test]
fn one_writer_fills_segments_of_one_size() {
    fill_with(SEGMENTS[0], 1);
}

#[test]
fn one_writer_fills_segments_that_grow() {
    fill_with(SEGMENTS[1], 1);
    fill_with(SEGMENTS[2], 1);
}

#[test]
fn several_writers_fill_segments_of_one_size() {
    fill_with(SEGMENTS[0], 4);
}

#[test]
fn several_writers_fill_segments_that_grow() {
    fill_with(SEGMENTS[1], 3);
    fill_with(SEGMENTS[2], 4);
}

#[test]
fn a_log_goes_on_with_other_sizes_and_another_durability_after_a_restart() {
    for seed in seeds(scaled(4)) {
        let mut random = Random(seed);
        let disk = SimDisk::new();
        for life in 0..12 {
            let load = Load {
                durability: DURABILITIES[random.below(3) as usize],
                segments: SEGMENTS[random.below(3) as usize],
                writers: 1 + random.below(3),
            };
            let segments = 1 + random.below(20);
            load.fill(&load.open(&disk), seed + life, segments * load.segments.0);
        }
    }
}

/// A store whose log is written step by step, with a session that gives no sign of life.
struct Silence {
    disk: SimDisk,
    world: World,
    silent: Arc<dyn Backend>,
    writer: Arc<dyn Backend>,
}

impl Silence {
    fn new() -> Self {
        let (disk, clock) = (SimDisk::new(), Clock::new_virtual());
        let world = World::open(Boot::new(&disk), &options(&clock)).unwrap();
        let connect = |options: &ConnectOptions| now(world.store.connector().open(options));
        let timeout = ConnectOptions::new().session_timeout(Duration::from_secs(10));
        let silent = connect(&timeout).unwrap();
        let writer = connect(&ConnectOptions::new()).unwrap();
        Self {
            disk,
            silent,
            writer,
            world,
        }
    }

    fn ask(&mut self, request: Request) -> Result<()> {
        let response = self.writer.submit(request);
        self.write_all();
        now(response).map(drop)
    }

    fn write_all(&mut self) {
        let hand = self.world.hand.as_mut().unwrap();
        while hand.write() || hand.make_room() {}
    }

    fn create_nodes(&mut self) -> Vec<ZnodePath> {
        let nodes = (0..400).map(|number| path(&format!("/n{number}")));
        nodes
            .inspect(|node| self.ask(create(node)).unwrap())
            .collect()
    }

    fn delete_while_accepted(&mut self, nodes: &[ZnodePath]) -> usize {
        let delete = |path: &ZnodePath| Request::Delete {
            path: path.clone(),
            version: None,
        };
        let accepted = nodes
            .iter()
            .take_while(|node| self.ask(delete(node)).is_ok());
        accepted.count()
    }

    fn is_expired(&self) -> bool {
        self.world.clock.advance(Duration::from_secs(15));
        self.silent.status().state() == SessionState::Expired
    }

    fn forbid_growth(&self) {
        let full = Faults {
            room_bytes: Some(0),
            ..Faults::default()
        };
        self.disk.fail(0, full);
    }

    fn fill_disk(&mut self) {
        self.forbid_growth();
        while self.ask(set(&path("/n0"), 9_000)).is_ok() {}
        let refused = self.ask(set(&path("/n0"), 9_000));
        assert!(
            matches!(refused, Err(Error::DiskFull { .. })),
            "{refused:?}"
        );
    }
}

#[test]
fn sessions_expire_however_often_the_log_was_filled() {
    let mut store = Silence::new();
    let nodes = store.create_nodes();
    for _ in 0..500 {
        let _ = store.ask(set(&nodes[0], 9_000));
    }
    store.delete_while_accepted(&nodes);
    assert!(store.is_expired());
}

#[test]
fn sessions_expire_while_the_disk_is_full() {
    let mut store = Silence::new();
    store.create_nodes();
    store.fill_disk();
    assert!(store.is_expired());
}

#[test]
fn a_full_disk_admits_no_session_until_it_has_room_again() {
    let mut store = Silence::new();
    store.create_nodes();
    assert_eq!(store.world.store.check_admission(), Ok(()));
    store.forbid_growth();
    while store.ask(set(&path("/n0"), 10)).is_ok() {}
    let refused = store.world.store.check_admission();
    let full = matches!(refused, Err(NotAdmitting::Refused(Error::DiskFull { .. })));
    assert!(full, "{refused:?}");
    store.disk.fail(0, Faults::default());
    store.write_all();
    assert_eq!(store.world.store.check_admission(), Ok(()));
}

#[test]
fn a_failed_log_admits_no_session() {
    let mut store = Silence::new();
    let failing = Faults {
        sync_error_every: 1,
        ..Faults::default()
    };
    store.disk.fail(0, failing);
    store.ask(create(&path("/a"))).unwrap_err();
    store.disk.fail(0, Faults::default());
    store.write_all();
    let refused = store.world.store.check_admission();
    let failed = matches!(
        refused,
        Err(NotAdmitting::Refused(Error::StoreFailed { .. }))
    );
    assert!(failed, "{refused:?}");
}

#[test]
fn sessions_expire_while_the_disk_is_too_full_for_deletes() {
    let mut store = Silence::new();
    let nodes = store.create_nodes();
    store.fill_disk();
    let deleted = store.delete_while_accepted(&nodes);
    assert!((1..nodes.len()).contains(&deleted), "{deleted} deletes");
    assert!(store.is_expired());
}

#[test]
fn accepted_writes_fit_on_a_full_disk() {
    for seed in seeds(scaled(40)) {
        let mut random = Random(seed);
        let mut store = Silence::new();
        let at = path("/a");
        store.ask(create(&at)).unwrap();
        for _ in 0..random.below(40) {
            store.ask(set(&at, random.below(16_000))).unwrap();
        }
        store.forbid_growth();
        let mut refused = 0;
        while refused < 30 {
            let requests = (0..1 + random.below(5)).map(|_| set(&at, random.below(16_000)));
            let asked: Vec<_> = requests.map(|set| store.writer.submit(set)).collect();
            store.write_all();
            for mut response in asked {
                match poll(&mut response) {
                    Poll::Ready(Ok(_)) => {}
                    Poll::Ready(Err(_)) => refused += 1,
                    Poll::Pending => panic!("seed {seed}: it was accepted, and does not fit"),
                }
            }
        }
    }
}

/// The answers do not wait for the disk, and the client waits for each answer before it sends the next request.
#[test]
fn a_client_whose_writes_die_with_its_session_cannot_outrun_the_disk() {
    let load = Load {
        durability: Durability::DelayedRestart,
        segments: SEGMENTS[0],
        writers: 1,
    };
    let disk = SimDisk::new();
    let store = load.open(&disk);
    let remote = store.attach().unwrap();
    let mut random = Random(1);
    wait(async {
        let timeout = Duration::from_secs(60);
        let client = remote.open(timeout, 1 << 20).await.unwrap();
        let at = path("/e");
        let create = Request::Create(Create {
            path: at.clone(),
            data: "".into(),
            mode: CreateMode::Ephemeral,
            acl: Acl::open(),
        });
        answer(&client, create).await.unwrap();
        for number in 0..1_000 {
            let answered = answer(&client, set(&at, load.value(&mut random))).await;
            assert!(answered.is_ok(), "write {number}: {answered:?}");
        }
    });
}

async fn answer(client: &Connection, request: Request) -> Result<CoreReply> {
    let submitted = client.submit(&mut [SessionRequest::Request(request)].into());
    assert_eq!(submitted, 1, "it has outrun the disk");
    let mut said = std::collections::VecDeque::new();
    loop {
        let may_leave = |bound| client.may_leave(bound);
        if let Taken::Held(bound) = client.outbox().take(1, may_leave, &mut said) {
            client.passage(bound).await?;
        }
        if let Some(Message::Answer { answer, .. }) = said.pop_front() {
            return answer;
        }
    }
}

/// Batches of the largest size leave the most room unused at the end of a segment.
#[test]
fn accepted_writes_fit_behind_the_largest_batches() {
    let (almax_full, largest) = (7_900, 15_900);
    for before in 0..12 {
        let mut store = Silence::new();
        let at = path("/a");
        store.ask(create(&at)).unwrap();
        store.ask(set(&at, largest)).unwrap();
        for _ in 0..before {
            store.ask(set(&at, 4_000)).unwrap();
        }
        store.forbid_growth();
        let sizes = std::iter::repeat_n([almax_full, largest], 10).flatten();
        let sizes = sizes.chain([1_000; 20]).chain([10; 20]);
        let asked = sizes.map(|size| store.writer.submit(set(&at, size)));
        let asked: Vec<_> = asked.collect();
        store.write_all();
        // Panics if an accepted write gets no answer because it does not fit.
        let accepted = asked.into_iter().map(|response| now(response).is_ok());
        assert!(accepted.filter(|accepted| *accepted).count() > 1);
    }
}

#[test]
fn a_store_that_is_opened_with_other_sizes_takes_the_largest_request_at_once() {
    for earlier in SEGMENTS {
        for later in SEGMENTS {
            let (disk, clock) = (SimDisk::new(), Clock::new_virtual());
            for (first, largest) in [earlier, later] {
                let options = options(&clock).segment_bytes(first, largest);
                let world = World::open(Boot::new(&disk), &options).unwrap();
                let writer = now(world.store.connector().open(&ConnectOptions::new())).unwrap();
                let mut hand = world.hand.unwrap();
                for size in [first / 4 - 256, 100] {
                    drop(writer.submit(create(&path("/a"))));
                    let response = writer.submit(set(&path("/a"), size));
                    while hand.write() || hand.make_room() {}
                    let set = now(response);
                    assert!(set.is_ok(), "{size} of {first} after {earlier:?}: {set:?}");
                }
                drop(writer);
                hand.close();
            }
        }
    }
}

struct Burst {
    disk: SimDisk,
    world: World,
    client: Connection,
    asks: VecDeque<SessionRequest>,
    answers: Vec<Result<CoreReply>>,
}

impl Burst {
    const TIMEOUT: Duration = Duration::from_secs(10);
    const WRITES: usize = 60;

    fn new(durability: Durability) -> Self {
        let (disk, clock) = (SimDisk::new(), Clock::new_virtual());
        let options = options(&clock).durability(durability);
        let mut world = World::open(Boot::new(&disk), &options).unwrap();
        let client = Self::open(&mut world);
        let at = path("/a");
        let writes = std::iter::repeat_with(|| set(&at, 9_000)).take(Self::WRITES);
        Self {
            disk,
            client,
            asks: [create(&at)]
                .into_iter()
                .chain(writes)
                .map(SessionRequest::Request)
                .collect(),
            answers: Vec::new(),
            world,
        }
    }

    fn open(world: &mut World) -> Connection {
        let remote = world.store.attach().unwrap();
        let mut opening = Box::pin(remote.open(Self::TIMEOUT, 1 << 20));
        let client = match poll(&mut opening) {
            Poll::Ready(client) => client,
            Poll::Pending => {
                write_all(world);
                now(opening)
            }
        };
        client.unwrap()
    }

    fn fill_disk(&mut self) {
        let full = Faults {
            room_bytes: Some(0),
            ..Faults::default()
        };
        self.disk.fail(0, full);
        self.finish();
        let mut is_full = false;
        while !is_full {
            self.asks
                .push_back(SessionRequest::Request(set(&path("/a"), 0)));
            self.go_on();
            write_all(&mut self.world);
            self.go_on();
            is_full = self.answers.pop().is_some_and(|answer| answer.is_err());
        }
    }

    fn go_on(&mut self) -> bool {
        let sent = self.client.submit(&mut self.asks);
        let mut said = VecDeque::new();
        let may_leave = |bound| self.client.may_leave(bound);
        while self.client.outbox().take(1 << 20, may_leave, &mut said) == Taken::Some {}
        let answers = said.into_iter().filter_map(|what| match what {
            Message::Answer { answer, .. } => Some(answer),
            Message::WatchUpdate { .. } => None,
        });
        let before = self.answers.len();
        self.answers.extend(answers);
        sent > 0 || self.answers.len() > before
    }

    fn finish(&mut self) {
        while self.answers.len() <= Self::WRITES {
            while self.go_on() {}
            write_all(&mut self.world);
            assert!(self.go_on() || self.asks.is_empty(), "it waits without end");
        }
    }
}

fn write_all(world: &mut World) {
    let hand = world.hand.as_mut().unwrap();
    while hand.write() || hand.make_room() {}
}

#[test]
fn a_burst_of_large_writes_waits_for_the_disk_and_none_is_refused() {
    for durability in DURABILITIES {
        let mut burst = Burst::new(durability);
        while burst.go_on() {}
        let waits = !burst.asks.is_empty();
        burst.finish();
        for answer in &burst.answers {
            assert!(answer.is_ok(), "{durability:?}: {answer:?}");
        }
        assert!(waits, "{durability:?}: the log has room for all of it");
    }
}

#[test]
fn a_request_that_waits_for_the_disk_is_a_sign_of_life() {
    let mut burst = Burst::new(Durability::Fsync);
    for _ in 0..10 {
        while burst.go_on() {}
        burst.world.clock.advance(Burst::TIMEOUT / 2);
    }
    burst.finish();
    assert!(burst.answers.iter().all(Result::is_ok));
}

#[test]
fn a_burst_is_refused_by_a_disk_that_is_full() {
    let mut burst = Burst::new(Durability::Fsync);
    while burst.go_on() {}
    let full = Faults {
        room_bytes: Some(0),
        ..Faults::default()
    };
    burst.disk.fail(0, full);
    burst.finish();
    let refused = burst
        .answers
        .iter()
        .filter_map(|answer| answer.as_ref().err());
    let refused: Vec<_> = refused.collect();
    assert!(!refused.is_empty());
    for error in refused {
        assert!(matches!(error, Error::DiskFull { .. }), "{error:?}");
    }
}

#[test]
fn a_session_is_taken_up_again_on_a_full_disk() {
    let mut burst = Burst::new(Durability::Fsync);
    let remote = burst.world.store.attach().unwrap();
    burst.fill_disk();
    let (id, password) = (burst.client.id(), burst.client.password());
    let taken_up = now(remote.reattach(id, password, Burst::TIMEOUT, 1 << 20));
    assert!(taken_up.unwrap().is_ok());
}

fn has_ended(client: &Connection) -> bool {
    client.outbox().is_cut().is_some()
}

#[test]
fn a_session_ends_with_its_process_on_a_full_disk() {
    let mut burst = Burst::new(Durability::Fsync);
    burst.fill_disk();
    burst.client.end_exited();
    assert!(has_ended(&burst.client));
}

#[test]
fn a_session_whose_process_has_exited_waits_for_room_and_not_for_its_timeout() {
    let mut burst = Burst::new(Durability::Fsync);
    let clients: Vec<_> = (0..1_000).map(|_| Burst::open(&mut burst.world)).collect();
    burst.fill_disk();
    let waiting = clients.iter().find(|client| {
        client.end_exited();
        write_all(&mut burst.world);
        !has_ended(client)
    });
    let waiting = waiting.expect("there is room for the ends of all of them");
    burst.world.clock.advance(Burst::TIMEOUT / 5);
    assert!(!has_ended(waiting));
    burst.disk.fail(0, Faults::default());
    write_all(&mut burst.world);
    burst.world.clock.advance(Burst::TIMEOUT / 5);
    assert!(has_ended(waiting));
}

#[cfg(feature = "server")]
#[test]
fn a_server_answers_a_burst_of_large_writes() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let load = Load {
        durability: Durability::Fsync,
        segments: SEGMENTS[0],
        writers: 1,
    };
    let store = load.open(&SimDisk::new());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let options = crate::ServerOptions::new().listen(([127, 0, 0, 1], 0).into());
        let server = crate::Server::bind(&store, options).await.unwrap();
        let clients = (0..4).map(|client| {
            let address = server.local_addr().unwrap();
            tokio::spawn(async move {
                let stream = tokio::net::TcpStream::connect(address).await.unwrap();
                let (mut from, mut to) = stream.into_split();
                let sending = tokio::spawn(async move {
                    to.write_all(&burst_of_frames(client)).await.unwrap();
                    to
                });
                for number in 0..=BURST_WRITES {
                    let length = from.read_u32().await.unwrap();
                    let mut frame = vec![0; length as usize];
                    from.read_exact(&mut frame).await.unwrap();
                    let code = if number == 0 { &[0; 4] } else { &frame[12..16] };
                    assert_eq!(code, [0; 4], "client {client}, write {number}");
                }
                drop(sending.await);
            })
        });
        for client in clients.collect::<Vec<_>>() {
            client.await.unwrap();
        }
    });
}

#[cfg(feature = "server")]
const BURST_WRITES: i32 = 100;

#[cfg(feature = "server")]
fn burst_of_frames(client: u8) -> Vec<u8> {
    use crate::wire::put_frame;
    let mut frames = Vec::new();
    put_frame(&mut frames, |to| {
        to.extend_from_slice(&[0; 12]);
        to.extend_from_slice(&10_000_i32.to_be_bytes());
        to.extend_from_slice(&[0; 12]);
    });
    let put = |to: &mut Vec<u8>, bytes: &[u8]| {
        to.extend_from_slice(&(bytes.len() as i32).to_be_bytes());
        to.extend_from_slice(bytes);
    };
    for xid in 1..=BURST_WRITES {
        put_frame(&mut frames, |to| {
            to.extend_from_slice(&xid.to_be_bytes());
            to.extend_from_slice(&1_i32.to_be_bytes());
            put(to, format!("/n-{client}-{xid}").as_bytes());
            put(to, &[b'd'; 9_000]);
            to.extend_from_slice(&1_i32.to_be_bytes());
            to.extend_from_slice(&31_i32.to_be_bytes());
            put(to, b"world");
            put(to, b"anyone");
            to.extend_from_slice(&0_i32.to_be_bytes());
        });
    }
    frames
}
