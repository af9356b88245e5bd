//! Random requests and programs.

use std::time::Duration;

use bytes::Bytes;
use lockkeeper_store::{
    Acl, AclEntry, Blockers, Condition, Create, CreateMode, Enqueue, GetPredecessor, Op, ReadOp,
    Request, SHARED_MARKER, Secret, WatchMode, ZnodePath,
};
use proptest::prelude::*;
use proptest::sample::select;

use super::Step;

/// A TTL longer than any test.
const LONG_TTL: Duration = Duration::from_secs(100_000);

const PATHS: [&str; 13] = [
    "/t",
    "/t/a",
    "/t/a",
    "/t/ab",
    "/t/b",
    "/t/a/a",
    "/t/a/b",
    "/t/a/b/a",
    "/t/b/a",
    "/t/a/s-0000000000",
    "/t/a/s-0000000001",
    "/t/b/s-0000000000",
    "/t/b/s-0000000002",
];

fn path() -> impl Strategy<Value = ZnodePath> + Clone {
    select(&PATHS[..]).prop_map(|path| path.parse().unwrap())
}

fn data() -> impl Strategy<Value = Bytes> {
    select(&["", "x", "some data"][..]).prop_map(Bytes::from)
}

fn version() -> impl Strategy<Value = Option<i32>> {
    prop_oneof![3 => Just(None), 3 => (0..3i32).prop_map(Some), 1 => Just(Some(-1))]
}

fn create() -> impl Strategy<Value = Create> {
    let plain = (
        path(),
        select(vec![
            CreateMode::Persistent,
            CreateMode::Persistent,
            CreateMode::Ephemeral,
            CreateMode::Container,
            CreateMode::PersistentTtl(LONG_TTL),
        ]),
    );
    let numbered = (
        select(&["/t/s-", "/t/a/s-", "/t/a/s-", "/t/b/s-", "/t/b", "/t/ab/s-"][..])
            .prop_map(|path| path.parse().unwrap()),
        select(vec![
            CreateMode::PersistentSequential,
            CreateMode::EphemeralSequential,
            CreateMode::PersistentSequentialTtl(LONG_TTL),
        ]),
    );
    (prop_oneof![2 => plain, 1 => numbered], data()).prop_map(|((path, mode), data)| Create {
        path,
        data,
        mode,
        acl: Acl::open(),
    })
}

fn op(create: impl Strategy<Value = Create>) -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => create.prop_map(Op::Create),
        2 => (path(), version()).prop_map(|(path, version)| Op::Delete { path, version }),
        2 => (path(), data(), version())
            .prop_map(|(path, data, version)| Op::SetData { path, data, version }),
        1 => (path(), version()).prop_map(|(path, version)| Op::Check { path, version }),
    ]
}

fn read_op() -> impl Strategy<Value = ReadOp> {
    (path(), any::<bool>()).prop_map(|(path, list)| match list {
        true => ReadOp::GetChildren(path),
        false => ReadOp::GetData(path),
    })
}

/// Requests that every store answers alike.
fn request() -> impl Strategy<Value = Request> {
    let watch = any::<bool>();
    prop_oneof![
        8 => create().prop_map(Request::Create),
        3 => (path(), version()).prop_map(|(path, version)| Request::Delete { path, version }),
        1 => path().prop_map(|entry| Request::Withdraw { entry }),
        3 => (path(), data(), version())
            .prop_map(|(path, data, version)| Request::SetData { path, data, version }),
        3 => (path(), watch).prop_map(|(path, watch)| Request::Exists { path, watch }),
        3 => (path(), watch).prop_map(|(path, watch)| Request::GetData { path, watch }),
        3 => (path(), watch).prop_map(|(path, watch)| Request::GetChildren { path, watch }),
        3 => prop::collection::vec(op(create()), 1..5).prop_map(Request::Multi),
        1 => prop::collection::vec(read_op(), 1..4).prop_map(Request::MultiRead),
        1 => path().prop_map(|path| Request::Sync { path }),
        1 => path().prop_map(|prefix| Request::GetEphemerals { prefix }),
        1 => path().prop_map(|path| Request::GetAllChildrenNumber { path }),
        2 => (path(), select(&[WatchMode::Persistent, WatchMode::PersistentRecursive][..]))
            .prop_map(|(path, mode)| Request::AddWatch { path, mode }),
    ]
}

/// Lists with permissions for everyone or for proved identities, and invalid ones.
fn list() -> impl Strategy<Value = Acl> {
    let entry = |permissions, scheme: &str, id: &str| AclEntry {
        permissions,
        scheme: scheme.into(),
        id: id.into(),
    };
    let anyone = move |permissions| entry(permissions, "world", "anyone");
    let all = AclEntry::ALL;
    let lists = [
        vec![anyone(all)],
        vec![anyone(AclEntry::READ)],
        vec![anyone(all - AclEntry::READ)],
        vec![anyone(all - AclEntry::WRITE - AclEntry::CREATE)],
        vec![anyone(all - AclEntry::DELETE)],
        vec![anyone(AclEntry::ADMIN | AclEntry::CREATE)],
        vec![entry(all, "auth", "")],
        vec![anyone(AclEntry::READ), entry(all, "auth", "any")],
        vec![entry(all, "digest", ALICE), anyone(AclEntry::READ)],
        vec![
            entry(all, "digest", ALICE),
            entry(AclEntry::READ, "auth", ""),
        ],
        vec![anyone(1), anyone(1), entry(all, "digest", ALICE)],
        vec![entry(all, "world", "me")],
    ];
    let lists = lists.map(|list| {
        if list == [anyone(all)] {
            Acl::open()
        } else {
            Acl::new(list)
        }
    });
    prop_oneof![1 => Just(Acl::open()), 2 => select(lists.to_vec())]
}

/// Digest id for `alice:secret`.
const ALICE: &str = "alice:aYXlLOpEooaV1cRAvUL1fp9Qt7E=";

/// Requests that access control lists apply to, and requests that set them.
fn guarded_request() -> impl Strategy<Value = Request> {
    let listed = || (create(), list()).prop_map(|(create, acl)| Create { acl, ..create });
    let secret = select(&["alice:secret", "bob:secret", "alice:wrong"][..]);
    prop_oneof![
        10 => request(),
        3 => listed().prop_map(Request::Create),
        2 => prop::collection::vec(op(listed()), 1..5).prop_map(Request::Multi),
        3 => path().prop_map(|path| Request::GetAcl { path }),
        4 => (path(), list(), version())
            .prop_map(|(path, acl, version)| Request::SetAcl { path, acl, version }),
        1 => secret.prop_map(|secret| Request::AddAuth {
            scheme: "digest".into(),
            secret: Secret::new(secret),
        }),
    ]
}

/// An operation of a multi, possibly a condition unknown to ZooKeeper.
fn conditional_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => op(create()),
        1 => (path(), data()).prop_map(|(znode, data)| Op::Require(Condition::Data { znode, data })),
        1 => (path(), 0..3u32).prop_map(|(znode, limit)| Op::Require(Condition::Children { znode, limit })),
    ]
}

/// Requests that only our store implements.
fn own_request() -> impl Strategy<Value = Request> {
    let parent = select(&["/t/a", "/t/b"][..]).prop_map(|path| path.parse::<ZnodePath>().unwrap());
    let blockers = select(&[Blockers::All, Blockers::Exclusive][..]);
    let name = select(vec![
        "w-".to_owned(),
        format!("r{SHARED_MARKER}"),
        "s-".to_owned(),
    ]);
    prop_oneof![
        4 => (parent.clone(), name, data(), blockers.clone(), any::<bool>()).prop_map(
            |(parent, name, data, blockers, count)| {
                let (acl, conditions) = (Acl::open(), Vec::new());
                Request::Enqueue(Enqueue { parent, name, data, acl, blockers, conditions, count, queue_data: None })
            },
        ),
        2 => (parent.clone(), select(vec!["w-", "r__READ__", "s-"]), 0..6u8, blockers, any::<bool>())
            .prop_map(|(parent, name, number, blockers, count)| {
                let entry = parent.join(&format!("{name}{number:010}")).unwrap();
                Request::GetPredecessor(GetPredecessor { entry, blockers, conditions: Vec::new(), count })
            }),
        1 => (parent, 0..4usize).prop_map(|(parent, limit)| Request::GetQueue { parent, limit }),
        2 => prop::collection::vec(conditional_op(), 1..5).prop_map(Request::Multi),
    ]
}

pub(crate) fn programs(sessions: usize, steps: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        24 => (0..sessions, request()).prop_map(|(session, request)| Step::Ask { session, request }),
        1 => (0..sessions).prop_map(|session| Step::Reopen { session }),
        1 => (0..8usize).prop_map(|nth| Step::DropWatcher { nth }),
    ];
    prop::collection::vec(step, 1..=steps)
}

/// Programs with access control lists that run on every store.
pub(crate) fn guarded_programs(sessions: usize, steps: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        24 => (0..sessions, guarded_request())
            .prop_map(|(session, request)| Step::Ask { session, request }),
        1 => (0..sessions).prop_map(|session| Step::Reopen { session }),
        1 => (0..8usize).prop_map(|nth| Step::DropWatcher { nth }),
    ];
    prop::collection::vec(step, 1..=steps)
}

/// Programs with queues, in virtual time.
pub(crate) fn timed_programs(sessions: usize, steps: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        18 => (0..sessions, request()).prop_map(|(session, request)| Step::Ask { session, request }),
        8 => (0..sessions, own_request())
            .prop_map(|(session, request)| Step::Ask { session, request }),
        2 => (0..sessions).prop_map(|session| Step::Reopen { session }),
        1 => (0..8usize).prop_map(|nth| Step::DropWatcher { nth }),
        3 => (1..7_000u64).prop_map(|ms| Step::Advance { by: Duration::from_millis(ms) }),
    ];
    prop::collection::vec(step, 1..=steps)
}

/// Adds restarts in the middle.
pub(crate) fn with_restarts(
    programs: impl Strategy<Value = Vec<Step>>,
) -> impl Strategy<Value = Vec<Step>> {
    let restarts = prop::collection::vec(any::<prop::sample::Index>(), 1..=2);
    (programs, restarts).prop_map(|(mut program, restarts)| {
        for at in restarts {
            let at = at.index(program.len() + 1);
            program.insert(at, Step::Restart);
        }
        program
    })
}
