//! Replay: the content that a replay of kept transactions restores.

use super::*;

pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    pub(super) fn path(&mut self) -> &'static str {
        ["/a", "/a/b", "/a/b/c", "/d", "/d/e-", "/d/n-0000000003"][self.below(6) as usize]
    }

    fn mode(&mut self) -> CreateMode {
        let ttl = PersistentTtl(5 * SECOND);
        let modes = [
            Persistent,
            Persistent,
            PersistentSequential,
            Ephemeral,
            EphemeralSequential,
            Container,
            ttl,
        ];
        modes[self.below(7) as usize]
    }

    fn version(&mut self) -> Option<i32> {
        [None, Some(0), Some(1)][self.below(3) as usize]
    }

    fn op(&mut self) -> Op {
        let path = path(self.path());
        let version = self.version();
        match self.below(5) {
            0 | 1 => Op::Create(create(path.as_str(), self.mode())),
            2 => Op::Delete { path, version },
            3 => Op::SetData {
                path,
                data: "x".into(),
                version,
            },
            _ => Op::Check { path, version },
        }
    }

    fn condition(&mut self) -> Op {
        let path = path(self.path());
        match self.below(2) {
            0 => Op::Require(Condition::Data {
                znode: path,
                data: "x".into(),
            }),
            _ => Op::Require(Condition::Children {
                znode: path,
                limit: self.below(3) as u32,
            }),
        }
    }

    fn part(&mut self) -> Op {
        match self.below(6) {
            0 => self.condition(),
            _ => self.op(),
        }
    }

    pub(super) fn request(&mut self) -> Request {
        if self.below(4) == 0 {
            return Request::Multi((0..self.below(4)).map(|_| self.part()).collect());
        }
        match self.op() {
            Op::Create(create) => Request::Create(create),
            Op::Delete { path, version } => Request::Delete { path, version },
            Op::SetData {
                path,
                data,
                version,
            } => Request::SetData {
                path,
                data,
                version,
            },
            Op::Require(_) => unreachable!("it is no operation of a single request"),
            Op::Check { path, .. } => Request::Enqueue(Enqueue {
                parent: path,
                name: "q-".into(),
                data: Bytes::new(),
                acl: Acl::creator_all(),
                blockers: Blockers::All,
                conditions: Vec::new(),
                count: false,
                queue_data: None,
            }),
        }
    }
}

fn grown(seed: u64, journal: Journal) -> (Harness, usize) {
    let mut random = Random(seed);
    let mut store = Harness::new();
    store.core.set_journal(journal);
    let mut multis = 0;
    let mut sessions = vec![store.session(), store.open(Some(8 * SECOND))];
    for _ in 0..200 {
        let session = sessions[random.below(sessions.len() as u64) as usize];
        match random.below(40) {
            0 | 3 => sessions.push(store.open(Some(8 * SECOND))),
            1 => drop(store.submit(session, Request::Close)),
            2 => store.advance(Duration::from_millis(random.below(20_000))),
            _ => {
                let answer = store.submit(session, random.request());
                multis += usize::from(matches!(answer, Ok(Reply::Multi(_))));
            }
        }
        store.next_deadline();
    }
    (store, multis)
}

fn replayed(store: &mut Harness) -> Core {
    let mut copy = Core::new(options());
    let txns = std::mem::take(store.core.kept());
    assert!(txns.windows(2).all(|pair| pair[0].zxid < pair[1].zxid));
    for txn in txns {
        copy.replay(txn).unwrap();
    }
    copy.restart_timeouts(store.now.moment);
    copy
}

#[test]
fn a_replay_of_the_transactions_gives_the_same_store() {
    let mut multis = 0;
    for seed in 0..200 {
        let (mut store, done) = grown(seed, Journal::All);
        multis += done;
        let copy = replayed(&mut store);
        assert_eq!(copy.dump(), store.core.dump(), "seed {seed}");
        // A multi with only checks is not logged and leaves a gap in the zxids.
        assert!(copy.last_zxid() <= store.core.last_zxid());
    }
    assert!(multis > 1_000, "the programs should do something: {multis}");
}

#[test]
fn the_images_of_a_store_give_the_same_store() {
    for seed in 0..200 {
        let (store, _) = grown(seed, Journal::Off);
        let mut copy = Core::new(options());
        for session in store.core.session_images() {
            copy.restore_session(session).unwrap();
        }
        for node in store.core.node_images() {
            copy.restore_node(node).unwrap();
        }
        copy.finish_restore(store.core.last_zxid());
        copy.restart_timeouts(store.now.moment);
        assert_eq!(copy.dump(), store.core.dump(), "seed {seed}");
        assert_eq!(copy.node_images().count(), store.core.node_count());
    }
}

#[test]
fn the_durable_journal_leaves_out_only_what_dies_with_the_process() {
    for seed in 0..200 {
        let (mut store, _) = grown(seed, Journal::Durable);
        let mut copy = replayed(&mut store);
        assert_eq!(copy.session_images().count(), 0);
        let ids: Vec<_> = store.core.session_images().map(|image| image.id).collect();
        for id in ids {
            let slot = store.core.sessions.find(id).unwrap();
            store
                .core
                .end_session(slot, End::Closed, store.now, &mut Effects::default());
        }
        let left = |core: &Core| -> Vec<_> {
            let images = core.node_images();
            images
                .map(|image| {
                    (
                        image.path,
                        image.data,
                        image.version,
                        image.kind,
                        image.mzxid,
                    )
                })
                .collect()
        };
        assert_eq!(left(&copy), left(&store.core), "seed {seed}");
        copy.finish_restore(store.core.last_zxid());
        for (one, other) in copy.node_images().zip(store.core.node_images()) {
            assert!(one.creates <= other.creates);
        }
    }
}

#[test]
fn a_transaction_that_cannot_be_is_damage() {
    let new = |at: &str, kind, creates| {
        TxnOp::Create(NewNode {
            path: path(at),
            data: Bytes::new(),
            acl: Acl::open(),
            kind,
            sequence: None,
            creates,
        })
    };
    let delete = |at: &str| TxnOp::Delete { path: path(at) };
    let mut core = Core::new(options());
    let mut zxid = 10;
    let mut replay = |op, by: i64| {
        zxid += by;
        let session = SessionId(1);
        let (zxid, unix_ms) = (Zxid(zxid), 0);
        core.replay(Txn {
            zxid,
            unix_ms,
            session,
            op,
        })
        .map_err(|damage| damage.0)
    };
    assert_eq!(replay(new("/a", NodeKind::Persistent, 1), 1), Ok(()));
    for (op, by, says) in [
        (new("/b", NodeKind::Persistent, 2), 0, "after"),
        (new("/a", NodeKind::Persistent, 2), 1, "a second /a"),
        (
            new("/b", NodeKind::Persistent, 1),
            1,
            "as child 1 after child 1",
        ),
        (new("/b", NodeKind::Ephemeral, 2), 1, "of session 0x1"),
        (
            new("/x/y", NodeKind::Persistent, 1),
            1,
            "whose parent is not there",
        ),
        (delete("/b"), 1, "a change of /b"),
        (delete("/zookeeper"), 1, "cannot be deleted"),
        (delete("/zookeeper/quota"), 1, "cannot be deleted"),
        (TxnOp::CloseSession(End::Closed), 1, "the end of session"),
        (
            TxnOp::Multi(vec![delete("/a"), delete("/a")]),
            1,
            "a change of /a",
        ),
    ] {
        let said = replay(op, by).expect_err(says);
        assert!(said.contains(says), "{said}");
    }
}

#[test]
fn a_delete_of_a_parent_is_damage() {
    let mut store = Harness::new();
    let me = store.session();
    for at in ["/a", "/a/b", "/a/c"] {
        store.create(me, at, Persistent).unwrap();
    }
    let mut copy = replayed(&mut store);
    for (at, is_damage) in [
        ("/a", true),
        ("/a/b", false),
        ("/a", true),
        ("/a/c", false),
        ("/a", false),
    ] {
        let txn = Txn {
            zxid: Zxid(copy.last_zxid().0 + 1),
            unix_ms: 0,
            session: SessionId(0),
            op: TxnOp::Delete { path: path(at) },
        };
        assert_eq!(copy.replay(txn).is_err(), is_damage, "{at}");
    }
}

#[test]
fn the_greatest_numbers_that_are_believed_are_replayed_and_no_greater_ones() {
    let replay = |zxid, creates| {
        let create = NewNode {
            path: path("/a"),
            data: Bytes::new(),
            acl: Acl::open(),
            kind: NodeKind::Persistent,
            sequence: None,
            creates,
        };
        Core::new(options()).replay(Txn {
            zxid: Zxid(zxid),
            unix_ms: 0,
            session: SessionId(0),
            op: TxnOp::Create(create),
        })
    };
    assert_eq!(replay(HIGHEST, HIGHEST), Ok(()));
    for beyond in [1, 2] {
        assert!(replay(HIGHEST + beyond, 1).is_err());
        assert!(replay(1, HIGHEST + beyond).is_err());
    }
}

#[test]
fn two_entries_in_one_place_of_a_queue_are_damage() {
    for name in ["w-", "__READ__"] {
        let mut store = Harness::new();
        let me = store.session();
        store.create(me, "/q", Persistent).unwrap();
        store.enqueue(me, "/q", name, Blockers::All);
        let mut copy = Core::new(options());
        copy.restore_session(store.core.session_images().next().unwrap())
            .unwrap();
        let images: Vec<_> = store.core.node_images().collect();
        for image in &images {
            copy.restore_node(image.clone()).unwrap();
        }
        let mut second = images.last().unwrap().clone();
        assert!(second.queue_key.is_some());
        second.path = path(&format!("/q/x-{name}0000000000"));
        let said = copy.restore_node(second).unwrap_err().0;
        assert!(said.contains("in the place of another"), "{said}");
    }
}

#[test]
fn a_child_of_an_ephemeral_znode_is_damage() {
    let mut store = Harness::new();
    let me = store.session();
    store.create(me, "/e", Ephemeral).unwrap();
    let mut copy = Core::new(options());
    copy.restore_session(store.core.session_images().next().unwrap())
        .unwrap();
    let mut image = store.core.node_images().last().unwrap();
    copy.restore_node(image.clone()).unwrap();
    image.path = path("/e/child");
    image.kind = NodeKind::Persistent;
    let said = copy.restore_node(image).unwrap_err().0;
    assert!(said.contains("whose parent is ephemeral"), "{said}");
    let txn = Txn {
        zxid: Zxid(100),
        unix_ms: 0,
        session: me.id,
        op: TxnOp::Create(NewNode {
            path: path("/e/child"),
            data: Bytes::new(),
            acl: Acl::open(),
            kind: NodeKind::Persistent,
            sequence: None,
            creates: 1,
        }),
    };
    let said = copy.replay(txn).unwrap_err().0;
    assert!(said.contains("whose parent is ephemeral"), "{said}");
}

#[test]
fn a_replayed_session_gets_its_full_timeout() {
    let mut store = Harness::new();
    let me = store.open(Some(10 * SECOND));
    let mut copy = Core::new(options());
    for txn in store.core.kept().drain(..) {
        copy.replay(txn).unwrap();
    }
    copy.restart_timeouts(BootInstant::from_nanos(100_000_000_000));
    let deadline = copy.next_deadline(BootInstant::default);
    assert_eq!(deadline, Some(BootInstant::from_nanos(112_000_000_000)));
    let found = copy.reattach(
        me.id,
        &[7; 16],
        SECOND,
        Now::default(),
        &mut Effects::default(),
    );
    assert!(found.is_ok());
}

#[test]
fn the_longest_timeout_is_that_of_other_processes_alone() {
    let mut store = Harness::new();
    assert_eq!(store.core.longest_remote_timeout_ms(), 0);
    store.opened(Some(20 * SECOND), true);
    assert_eq!(store.core.longest_remote_timeout_ms(), 0);
    for (seconds, longest) in [(8, 8_000), (10, 10_000), (9, 10_000)] {
        store.opened(Some(seconds * SECOND), false);
        assert_eq!(store.core.longest_remote_timeout_ms(), longest);
    }
}
