//! Runs of a store that end with a power failure at any point, and the recoveries after them.

use bytes::Bytes;

use super::world::*;
use super::*;
use crate::log::{Boot, Faults, SimDisk, StepWriter};
use crate::model::protocol::{Create, Op, Request};
use crate::testing::seeds;

/// A failing run prints its seed, and `LOCKKEEPER_SEED=n` replays it exactly.
#[test]
fn told_writes_survive_every_crash() {
    for seed in seeds(scaled(60)) {
        let lives = |random: &mut Random, _: &SimDisk| match random.below(4) {
            0 => Ending::Close,
            1 => Ending::Kill,
            _ => Ending::Crash,
        };
        run(seed, lives, |_| Faults::default());
    }
}

#[test]
fn told_writes_survive_a_disk_that_fails() {
    for seed in seeds(scaled(60)) {
        let lives = |random: &mut Random, _: &SimDisk| match random.below(3) {
            0 => Ending::Kill,
            _ => Ending::Crash,
        };
        run(seed, lives, some_faults);
    }
}

fn some_faults(random: &mut Random) -> Faults {
    let mut faults = Faults::default();
    let seldom = 10 + random.below(200);
    match random.below(5) {
        0 => faults.write_error_every = seldom,
        1 => faults.short_write_every = seldom,
        2 => faults.sync_error_every = seldom,
        3 => faults.room_bytes = Some(random.below(400_000)),
        _ => {}
    }
    faults
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Close,
    Kill,
    Crash,
}

fn run(
    seed: u64,
    ending: impl Fn(&mut Random, &SimDisk) -> Ending,
    faults: impl Fn(&mut Random) -> Faults,
) {
    let told = Told(seed);
    let mut random = Random(seed);
    let (disk, clock) = (SimDisk::new(), Clock::new_virtual());
    let mut past = Past::default();
    for _ in 0..2 + random.below(5) {
        disk.fail(random.below(u64::MAX), faults(&mut random));
        let ending = ending(&mut random, &disk);
        live(&disk, &clock, &mut past, &mut random, ending);
    }
    let last = World::open(Boot::new(&disk), &options(&clock)).unwrap();
    past.check(&last);
    drop(told);
}

struct Told(u64);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("run again with LOCKKEEPER_SEED={}", self.0);
        }
    }
}

fn live(disk: &SimDisk, clock: &Clock, past: &mut Past, random: &mut Random, ending: Ending) {
    let boot = match ending {
        Ending::Close => Boot::new(disk),
        _ => Boot::until(disk, 1 + random.below(600)),
    };
    match World::open(boot, &options(clock)) {
        Ok(mut world) => {
            past.check(&world);
            begin(&mut world, past);
            for _ in 0..random.below(500) {
                act(&mut world, past, random);
            }
            end(world, past, ending);
        }
        Err(Error::StoreFailed { .. } | Error::DiskFull { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    match ending {
        Ending::Crash => disk.crash(random.below(u64::MAX)),
        _ => disk.fail(0, Faults::default()),
    }
}

fn begin(world: &mut World, past: &mut Past) {
    if world.connect().is_err() {
        return;
    }
    for top in ["/a", "/b"] {
        let asking = world.ask(past, 0, create(top, CreateMode::Persistent, 0), &[top]);
        world.sessions[0].expect(asking);
    }
}

fn end(mut world: World, past: &mut Past, ending: Ending) {
    world.listen(past);
    if world.failure().is_some() {
        world.sessions.iter_mut().for_each(Asker::check_end);
    } else if ending == Ending::Close {
        if let Some(hand) = world.hand.take() {
            hand.close();
        }
        world.listen(past);
        assert!(world.sessions.iter().all(|asker| asker.waits() == 0));
        past.closed();
    }
}

fn act(world: &mut World, past: &mut Past, random: &mut Random) {
    let sessions = world.sessions.len() as u64;
    match random.below(20) {
        0 if sessions < 4 => drop(world.connect()),
        1 if sessions > 0 && random.once_in(4) => {
            drop(world.sessions.swap_remove(random.below(sessions) as usize));
        }
        2 if random.once_in(4) => world.pass(past, Duration::from_secs(61)),
        3..=6 => drop(world.hand.as_mut().map(StepWriter::write)),
        7..=8 => drop(world.hand.as_ref().map(StepWriter::make_room)),
        9..=10 => world.listen(past),
        _ if sessions > 0 => {
            let of = random.below(sessions) as usize;
            let (request, touched) = request(random, past);
            let touched: Vec<&str> = touched.iter().map(String::as_str).collect();
            let asking = world.ask(past, of, request, &touched);
            world.sessions[of].expect(asking);
        }
        _ => {}
    }
}

fn request(random: &mut Random, past: &Past) -> (Request, Vec<String>) {
    let parent = ["/a", "/b", "/a", "/b", "/c"][random.below(5) as usize];
    let plain = format!("{parent}/k{}", random.below(4));
    let watch = random.once_in(2);
    let largest = [20, 400, 9_000][random.below(3) as usize];
    let size = random.below(largest);
    let children = format!("{parent}/");
    match random.below(16) {
        0..=1 => (create(&plain, CreateMode::Persistent, size), vec![plain]),
        2..=3 => {
            let path = format!("{parent}/s-");
            (
                create(&path, CreateMode::PersistentSequential, size),
                vec![],
            )
        }
        4 => (create("/c", CreateMode::Container, 3), vec![]),
        5 => {
            let path = format!("{parent}/e{}", random.below(4));
            (create(&path, CreateMode::Ephemeral, size), vec![])
        }
        6 => (enqueue(parent), vec![]),
        7 => (set(&plain, size), vec![plain]),
        8 => (delete(&plain), vec![plain]),
        9 => {
            let nth = random.below(past.numbered.len().max(1) as u64) as usize;
            let plain = past.numbered.iter().nth(nth).cloned().unwrap_or(plain);
            (delete(&plain), vec![plain])
        }
        10 => (multi(parent, random), vec![]),
        11 => (
            Request::Exists {
                path: path(&plain),
                watch,
            },
            vec![plain],
        ),
        12 => (
            Request::GetData {
                path: path(&plain),
                watch,
            },
            vec![plain],
        ),
        13 => {
            let path = path(parent);
            (
                Request::GetChildren { path, watch },
                vec![children, parent.into()],
            )
        }
        14 => {
            let parent = path(parent);
            (Request::GetQueue { parent, limit: 0 }, vec![children])
        }
        _ => (Request::Sync { path: path("/") }, vec![]),
    }
}

fn create(path: &str, mode: CreateMode, size: u64) -> Request {
    Request::Create(new(path, mode, size))
}

fn new(at: &str, mode: CreateMode, size: u64) -> Create {
    Create {
        path: path(at),
        data: data(size),
        mode,
        acl: Acl::open(),
    }
}

fn set(at: &str, size: u64) -> Request {
    Request::SetData {
        path: path(at),
        data: data(size),
        version: None,
    }
}

fn delete(at: &str) -> Request {
    Request::Delete {
        path: path(at),
        version: None,
    }
}

fn enqueue(parent: &str) -> Request {
    Request::Enqueue(Enqueue {
        parent: path(parent),
        name: "lock-".into(),
        data: Bytes::new(),
        acl: Acl::open(),
        blockers: Blockers::All,
        conditions: Vec::new(),
        count: true,
        queue_data: None,
    })
}

fn multi(parent: &str, random: &mut Random) -> Request {
    let child = |name: String| format!("{parent}/{name}");
    let ops = (0..1 + random.below(4)).map(|_| {
        let plain = path(&child(format!("k{}", random.below(4))));
        match random.below(5) {
            0 => Op::Create(new(
                &child("s-".into()),
                CreateMode::PersistentSequential,
                10,
            )),
            1 => Op::Create(new(
                &child("x-".into()),
                CreateMode::EphemeralSequential,
                10,
            )),
            2 => Op::Delete {
                path: plain,
                version: None,
            },
            3 => Op::Check {
                path: path(parent),
                version: None,
            },
            _ => Op::SetData {
                path: plain,
                data: data(30),
                version: None,
            },
        }
    });
    Request::Multi(ops.collect())
}

fn data(size: u64) -> Bytes {
    vec![b'd'; size as usize].into()
}
