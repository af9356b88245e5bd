//! What the transactions bring back.

use super::*;

impl Core {
    /// Everything that a client could see, and what a replay must restore beside.
    pub(super) fn dump(&self) -> Vec<String> {
        let mut dump = Vec::new();
        let mut open = vec![tree::ROOT];
        while let Some(index) = open.pop() {
            let node = self.tree.node(index);
            let queue: Vec<_> = self
                .tree
                .queue(index)
                .map(|node| node.path.as_str())
                .collect();
            dump.push(format!(
                "{} {:?} {:?} {:?} {:?} {queue:?}",
                node.path,
                node.data,
                node.acl,
                node.kind,
                node.stat()
            ));
            open.extend(self.tree.children(index).map(|(child, _)| child));
        }
        let mut sessions: Vec<_> = self
            .sessions
            .slots
            .iter()
            .map(|(_, session)| session)
            .collect();
        sessions.sort_by_key(|session| session.id);
        dump.extend(sessions.iter().map(|session| {
            let owned = session
                .ephemerals
                .iter(&self.tree.nodes, |node| &node.ephemerals);
            let owned: Vec<_> = owned.map(|(_, node)| node.path.as_str()).collect();
            format!(
                "{:?} {:?} {} {owned:?}",
                session.id, session.password, session.timeout_ms
            )
        }));
        dump
    }
}

/// A small, fixed source of random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn path(&mut self) -> &'static str {
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

    fn request(&mut self) -> Request {
        if self.below(4) == 0 {
            return Request::Multi((0..self.below(4)).map(|_| self.op()).collect());
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
            Op::Check { path, .. } => Request::Enqueue(Enqueue {
                parent: path,
                name: "q-".into(),
                data: Bytes::new(),
                acl: Acl::creator_all(),
                skip: Skip::None,
                count: false,
            }),
        }
    }
}

#[test]
fn a_replay_of_the_transactions_gives_the_same_store() {
    let mut multis = 0;
    for seed in 0..200 {
        let mut random = Random(seed);
        let mut store = Harness::new();
        let mut sessions = vec![store.session(), store.open(Some(8 * SECOND))];
        for _ in 0..200 {
            let session = sessions[random.below(sessions.len() as u64) as usize];
            match random.below(40) {
                0 | 3 => sessions.push(store.open(Some(8 * SECOND))),
                1 => drop(store.submit(session, Request::Close)),
                2 => store.advance(Duration::from_millis(random.below(20_000))),
                _ => {
                    let answer = store.submit(session, random.request());
                    multis += usize::from(matches!(answer, Ok(Answer::Multi(_))));
                }
            }
            store.next_deadline();
        }
        let mut copy = Core::new(options());
        let txns = store.core.take_recorded();
        assert!(txns.windows(2).all(|pair| pair[0].zxid < pair[1].zxid));
        for txn in txns {
            copy.replay(txn);
        }
        copy.restart_timeouts(store.now.moment);
        assert_eq!(copy.dump(), store.core.dump(), "seed {seed}");
        assert_eq!(copy.last_zxid(), store.core.last_zxid());
    }
    assert!(multis > 1_000, "the programs should do something: {multis}");
}

#[test]
fn a_replayed_session_gets_its_full_timeout() {
    let mut store = Harness::new();
    let me = store.open(Some(10 * SECOND));
    let mut copy = Core::new(options());
    store
        .core
        .take_recorded()
        .into_iter()
        .for_each(|txn| copy.replay(txn));
    copy.restart_timeouts(Moment::from_nanos(100_000_000_000));
    let deadline = copy.next_deadline(Moment::default);
    assert_eq!(deadline, Some(Moment::from_nanos(112_000_000_000)));
    let found = copy.reattach(
        me.id,
        &[7; 16],
        false,
        Now::default(),
        &mut Effects::default(),
    );
    assert!(found.is_some());
}
