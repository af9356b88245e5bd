//! Tests of the table of bounds in `work.rs`. Each operation runs in a small store and in a store that is a hundred
//! times larger, and its work may grow only as the table says.

use std::collections::BTreeSet;

use super::*;
use crate::model::entry::{EnqueueMode, NewEntry, ZnodeHandle};
use crate::model::identity::Secret;
use crate::model::protocol::{EntryName, EntryRole};
use crate::model::types::AclEntry;

const SMALL: usize = 100;
const LARGE: usize = 100 * SMALL;

const SLACK: u64 = 64;

struct Crowd {
    store: Harness,
    me: SessionRef,
    others: Vec<SessionRef>,
    last: ZnodePath,
    head: ZnodePath,
    most: u64,
}

impl Crowd {
    fn of(size: usize) -> Self {
        let mut options = options();
        options.limits.sessions = 1 << 20;
        options.limits.watches_per_session = 1 << 20;
        let mut store = Harness::with(options);
        let me = store.remote();
        let secret = b"me:secret";
        let mine = Identity::digest(secret);
        store.core.add_identity(me, mine.clone()).unwrap();
        let mut crowd = Self {
            me,
            others: Vec::new(),
            last: ZnodePath::root(),
            head: ZnodePath::root(),
            most: 0,
            store,
        };
        for at in ["/list", "/own", "/c", "/hot", "/cold", "/s"] {
            crowd.submit(me, Request::Create(create(at, Persistent)));
        }
        for at in ["/s/queue", "/s/short", "/s/leases", "/s/permits"] {
            crowd.submit(me, Request::Create(create(at, Persistent)));
        }
        let entries = (0..size / 10).map(|at| format!("somebody-{at}:hash"));
        let entries = entries.chain([mine.id.to_string()]).map(|id| AclEntry {
            permissions: AclEntry::ALL,
            scheme: "digest".into(),
            id,
        });
        let listed = Create {
            acl: Acl::new(entries.collect::<Vec<_>>()),
            ..create("/listed", Persistent)
        };
        crowd.submit(me, Request::Create(listed));
        // Compile the list now, so that this work is not counted below.
        crowd.submit(me, get_data("/listed"));
        crowd.most = 0;
        for number in 0..size {
            let other = crowd.store.remote();
            for (at, mode) in [
                (format!("/list/{number}"), Persistent),
                (format!("/c/{number}"), Container),
                (format!("/s/leases/{number}"), Persistent),
                (format!("/own/{number}"), Ephemeral),
            ] {
                crowd.submit(other, Request::Create(create(&at, mode)));
            }
            for name in ["n-", "n-__READ__"] {
                crowd.submit(other, Request::Enqueue(enqueue("/s/queue", name)));
            }
            crowd.submit(other, exists(&format!("/missing/{number}")));
            crowd.submit(other, get_data("/hot"));
            crowd.others.push(other);
        }
        (crowd.last, _) = crowd.store.enqueue(me, "/s/queue", "n-", Blockers::All);
        (crowd.head, _) = crowd.store.enqueue(me, "/s/short", "n-", Blockers::All);
        crowd
    }

    fn submit(&mut self, session: SessionRef, request: Request) {
        let before = self.store.core.work();
        self.store.submit(session, request).unwrap();
        self.most = self.most.max(self.store.core.work() - before);
    }

    fn work(&mut self, act: impl FnOnce(&mut Self)) -> u64 {
        let before = self.store.core.work();
        act(self);
        let work = self.store.core.work() - before;
        self.store.effects = Effects::default();
        work
    }
}

fn enqueue(parent: &str, name: &str) -> Enqueue {
    Enqueue {
        parent: path(parent),
        name: name.into(),
        data: Bytes::new(),
        acl: Acl::open(),
        blockers: Blockers::All,
        conditions: Vec::new(),
        count: true,
        queue_data: Some(Bytes::new()),
    }
}

fn requests(crowd: &Crowd) -> Vec<Request> {
    let look = |entry: &ZnodePath, blockers, conditions: &[Condition]| {
        Request::GetPredecessor(GetPredecessor {
            entry: entry.clone(),
            blockers,
            conditions: conditions.to_vec(),
            count: true,
        })
    };
    let set = |at: &str| Request::SetData {
        path: path(at),
        data: "new".into(),
        version: None,
    };
    let delete = |at: &str| Op::Delete {
        path: path(at),
        version: None,
    };
    let ops = vec![
        Op::Create(create("/list/of-a-multi", Persistent)),
        super::set("/list/1", "other"),
        check("/list/2"),
        has("/list/1", "other"),
        has_at_most("/listed", 10),
        delete("/list/of-a-multi"),
    ];
    let watch = |at: &str, mode| Request::AddWatch {
        path: path(at),
        mode,
    };
    let reads = ["/list/1", "/listed"].map(|at| ReadOp::GetData(path(at)));
    let seconds = Duration::from_secs(100);
    vec![
        Request::Create(create("/list/new", Persistent)),
        Request::Create(create("/listed/new", Persistent)),
        Request::Create(create("/s/queue/n-", EphemeralSequential)),
        Request::Create(create("/c/new", Container)),
        Request::Create(create("/c/timed", PersistentTtl(seconds))),
        Request::Delete {
            path: path("/list/3"),
            version: None,
        },
        set("/list/4"),
        set("/listed"),
        exists("/list"),
        exists("/missing/of-mine"),
        get_data("/list"),
        get_children("/cold"),
        Request::Multi(ops),
        Request::Multi(vec![check("/listed"); 100]),
        Request::MultiRead(reads.into()),
        Request::Sync { path: path("/") },
        Request::GetEphemerals { prefix: path("/") },
        Request::GetAllChildrenNumber {
            path: path("/list"),
        },
        watch("/cold", WatchMode::Persistent),
        watch("/cold", WatchMode::PersistentRecursive),
        Request::Enqueue(enqueue("/s/queue", "n-")),
        Request::Enqueue(enqueue("/some/queue/of/mine", "n-")),
        look(&crowd.last, Blockers::All, &[]),
        look(&crowd.last, Blockers::Exclusive, &[]),
        look(&crowd.head, Blockers::All, &permits("data", 1)),
        Request::GetQueue {
            parent: path("/s/queue"),
            limit: 10,
        },
        Request::GetAcl {
            path: path("/list"),
        },
        Request::SetAcl {
            path: path("/list/5"),
            acl: Acl::creator_all(),
            version: None,
        },
        Request::AddAuth {
            scheme: "digest".into(),
            secret: Secret::new("another:secret"),
        },
        Request::Withdraw {
            entry: crowd.last.clone(),
        },
        Request::Close,
    ]
}

/// Returns a number for each kind of request. Add a sample above for each new kind.
fn kind(request: &Request) -> usize {
    match request {
        Request::Create(_) => 0,
        Request::Delete { .. } => 1,
        Request::Withdraw { .. } => 2,
        Request::Exists { .. } => 3,
        Request::GetData { .. } => 4,
        Request::SetData { .. } => 5,
        Request::GetChildren { .. } => 6,
        Request::Multi(_) => 7,
        Request::MultiRead(_) => 8,
        Request::Sync { .. } => 9,
        Request::GetEphemerals { .. } => 10,
        Request::GetAllChildrenNumber { .. } => 11,
        Request::AddWatch { .. } => 12,
        Request::Enqueue(_) => 13,
        Request::GetPredecessor(_) => 14,
        Request::GetQueue { .. } => 15,
        Request::GetAcl { .. } => 16,
        Request::SetAcl { .. } => 17,
        Request::AddAuth { .. } => 18,
        Request::Close => 19,
    }
}

const KINDS: usize = 20;

type Act = fn(&mut Crowd);

const CALLS: [(&str, Act); 17] = [
    ("a ping", |it| {
        it.store
            .core
            .ping(it.me, it.store.now, &mut it.store.effects)
            .unwrap();
    }),
    ("watches brought back", |it| {
        let asked = SetWatches {
            since: Zxid(i64::MAX),
            data: vec![path("/list/6"), path("/listed")],
            exist: vec![path("/missing/7")],
            ..SetWatches::default()
        };
        let effects = &mut it.store.effects;
        it.store
            .core
            .set_watches(it.me, &asked, it.store.now, effects)
            .unwrap();
    }),
    ("a search of watches, and their removal", |it| {
        let found = it.store.find_watches(it.me, "/list/6", WatchFilter::Any);
        assert!(it.store.core.remove_watches(&found.unwrap()));
    }),
    ("a watch given back", |it| {
        let watch = it.store.watch(it.me, exists("/missing/8"));
        let effects = &mut it.store.effects;
        it.store
            .core
            .forget_watch(it.me, watch, it.store.now, effects)
            .unwrap();
    }),
    ("a search of ephemerals", |it| {
        let (now, effects) = (it.store.now, &mut it.store.effects);
        let mut found = it.store.core.begin_search(it.me);
        it.store
            .core
            .search_some(it.me, &path("/"), 10, &mut found, now, effects)
            .unwrap();
    }),
    ("an entry by reference", |it| {
        let queue = ZnodeHandle::new(path("/s/queue"));
        let new = NewEntry {
            queue: &queue,
            name: EntryName::new(1, EntryRole::Lock),
            mode: EnqueueMode::Queued(Blockers::All),
            data: Bytes::new(),
            queue_data: &Bytes::new(),
            acl: &Acl::open(),
            unix_ms: 0,
        };
        let (now, effects) = (it.store.now, &mut it.store.effects);
        let (entry, ahead) = it.store.core.enter(it.me, new, now, effects).unwrap();
        assert!(ahead.is_some());
        assert!(
            it.store
                .core
                .leave(it.me, entry, DeleteReason::Released, now, effects)
        );
    }),
    ("a condition by reference", |it| {
        let [queue, leases] = ["/s/short", "/s/leases"].map(|at| ZnodeHandle::new(path(at)));
        let limit = u32::MAX;
        let condition = Condition::Children {
            znode: &leases,
            limit,
        };
        let new = NewEntry {
            queue: &queue,
            name: EntryName::new(2, EntryRole::Lease),
            mode: EnqueueMode::When(&[condition]),
            data: Bytes::new(),
            queue_data: &Bytes::new(),
            acl: &Acl::open(),
            unix_ms: 0,
        };
        let (now, effects) = (it.store.now, &mut it.store.effects);
        assert!(it.store.core.enter(it.me, new, now, effects).is_some());
    }),
    ("a session opened, and moved to another connection", |it| {
        let session = it.store.remote();
        let (now, effects) = (it.store.now, &mut it.store.effects);
        assert!(!it.store.core.displace(session.id, &[7; 16]));
        let moved = it
            .store
            .core
            .reattach(session.id, &[7; 16], SECOND, now, effects);
        moved.unwrap();
    }),
    ("a session without proof, which gets one", |it| {
        let (now, effects) = (it.store.now, &mut it.store.effects);
        let opened = it
            .store
            .core
            .open_unproven(SessionId(-1), [7; 16], SECOND, now);
        let identity = Identity::digest(b"third:secret");
        it.store
            .core
            .identify(opened.unwrap().0, identity, Ok(()), now, effects)
            .unwrap();
    }),
    ("a connection closed", |it| {
        let session = it.store.remote();
        it.store.detach(session);
    }),
    ("a session ended by an operator", |it| {
        let (now, effects) = (it.store.now, &mut it.store.effects);
        let other = it.others.pop().unwrap();
        assert_eq!(
            it.store.core.kick(other.id, true, now, effects),
            Kicked::Ended
        );
    }),
    ("a session whose process has exited", |it| {
        let (now, effects) = (it.store.now, &mut it.store.effects);
        let other = it.others.pop().unwrap();
        assert!(it.store.core.end_exited(other, now, effects));
    }),
    ("a look for what is due", |it| {
        it.store.core.tick(it.store.now, &mut it.store.effects);
        it.store.next_deadline();
    }),
    ("counts", |it| {
        it.store.core.counts();
    }),
    ("a part of the sessions", |it| {
        it.store.core.expiring(None, 10);
        it.store.core.sessions_in(0..10, &mut |_| {});
    }),
    ("a part of the ephemerals", |it| {
        it.store.core.ephemerals_in(0..10, &mut |_, _| {})
    }),
    ("a part of the watches", |it| {
        it.store.core.watches_in(0..10, &mut |_| {})
    }),
];

/// Operations whose work grows with the listed children or the fired watches.
fn growing() -> Vec<Request> {
    vec![
        get_children("/list"),
        Request::MultiRead(vec![ReadOp::GetChildren(path("/list"))]),
        Request::GetQueue {
            parent: path("/s/queue"),
            limit: 0,
        },
        Request::SetData {
            path: path("/hot"),
            data: Bytes::new(),
            version: None,
        },
    ]
}

#[test]
fn the_work_of_each_operation_is_within_its_bound() {
    let mut stores = [SMALL, LARGE].map(Crowd::of);
    let check = |what: &str, growth: usize, work: [u64; 2]| {
        let [small, large] = work;
        let most = small + growth as u64 + SLACK;
        assert!(
            large <= most,
            "{what}: {large} units, in a small store {small}"
        );
    };
    for (what, act) in CALLS {
        check(what, 0, stores.each_mut().map(|it| it.work(act)));
    }
    let listed = growing();
    for request in &listed {
        let what = format!("{request:?}");
        let work = stores.each_mut().map(|it| {
            let me = it.me;
            it.work(|it| it.submit(me, request.clone()))
        });
        check(&what, 4 * LARGE, work);
    }
    let requests = stores.each_ref().map(requests);
    let samples = requests[0].iter().chain(&listed);
    let kinds = samples.map(kind).collect::<BTreeSet<_>>();
    assert!(kinds.into_iter().eq(0..KINDS), "each kind has a sample");
    let [small, large] = requests;
    for pair in small.into_iter().zip(large) {
        let what = format!("{:?}", pair.0);
        let mut pair = [pair.0, pair.1].into_iter();
        let work = stores.each_mut().map(|it| {
            let (me, request) = (it.me, pair.next().unwrap());
            it.work(|it| it.submit(me, request))
        });
        check(&what, 0, work);
    }
}

#[test]
fn a_store_grows_in_small_steps() {
    let [small, large] = [SMALL, LARGE].map(|size| Crowd::of(size).most);
    assert!(
        large <= small + SLACK,
        "{large} units, in a small store {small}"
    );
}
