//! Entries created by reference behave like entries created by request.

use bytes::Bytes;

use super::*;
use crate::model::entry::{
    EnqueueMode, Enqueued, EntryKey, NewEntry, PredecessorWatch, ZnodeHandle,
};
use crate::model::protocol::{Condition, EntryName, EntryRole, GetPredecessor, Op};
use crate::model::watch::Watcher;

fn name(id: u128, role: EntryRole) -> EntryName {
    EntryName::new(id, role)
}

fn enter(session: &Session, queue: &ZnodeHandle, name: EntryName) -> Option<Enqueued> {
    enter_at(session, queue, name, EnqueueMode::Queued(blockers(name)))
}

fn enter_at(
    session: &Session,
    queue: &ZnodeHandle,
    name: EntryName,
    mode: EnqueueMode<'_>,
) -> Option<Enqueued> {
    session.enter(NewEntry {
        queue,
        name,
        mode,
        data: Bytes::from_static(b"data"),
        queue_data: &Bytes::from_static(b"queue"),
        acl: session.acl(),
        unix_ms: 1_234,
    })
}

fn blockers(name: EntryName) -> Blockers {
    match name.role() {
        EntryRole::Read => Blockers::Exclusive,
        _ => Blockers::All,
    }
}

fn enqueue(session: &Session, name: EntryName) -> (ZnodePath, Zxid, Predecessor) {
    let entered = session.enqueue(Enqueue {
        parent: path("/q"),
        name: name.to_string(),
        data: Bytes::from_static(b"data"),
        acl: session.acl().clone(),
        blockers: blockers(name),
        conditions: Vec::new(),
        count: false,
        queue_data: None,
    });
    now(entered).unwrap()
}

fn queue() -> (Store, ZnodeHandle) {
    let store = Store::memory();
    let (_client, session) = session_of(&store, None);
    now(session.create(&path("/q"), "", CreateMode::Persistent)).unwrap();
    (store, ZnodeHandle::new(path("/q")))
}

fn draws(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut random = seed;
    move |below| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    }
}

fn watches(store: &Store) -> usize {
    store.0.state.lock().core.counts().watches
}

#[test]
fn an_entry_by_reference_is_the_znode_that_a_request_creates() {
    let (store, queue) = queue();
    let (_client, session) = session_of(&store, None);
    let lock = |id| name(id, EntryRole::Lock);
    let first = enter(&session, &queue, lock(1)).unwrap();
    let (by_request, czxid, ahead) = enqueue(&session, lock(2));
    let third = enter(&session, &queue, lock(3)).unwrap();
    assert!(first.turn.is_none());
    assert!(czxid > first.entry.czxid() && czxid < third.entry.czxid());

    let first_path = first.entry.path(&queue, lock(1));
    assert_eq!(
        first_path.as_str(),
        "/q/_c_00000000-0000-0000-0000-000000000001-lock-0000000000"
    );
    assert!(matches!(ahead, Predecessor::Blocked { by, .. } if by == first_path));
    let third_path = third.entry.path(&queue, lock(3));
    let (names, _) = now(session.get_children(queue.path())).unwrap();
    let paths = [&first_path, &by_request, &third_path];
    assert_eq!(names, paths.map(|path| path.name().to_owned()));

    let mut stats = Vec::new();
    for path in paths {
        let (data, stat) = now(session.get_data(path)).unwrap();
        assert_eq!(data, "data");
        assert_eq!(stat.ephemeral_owner, session.id());
        assert_eq!((stat.mzxid, stat.pzxid), (stat.czxid, stat.czxid));
        stats.push((stat.version, stat.aversion, stat.cversion, stat.data_length));
    }
    assert!(stats.iter().all(|stat| *stat == stats[0]));
    let (_, stat) = now(session.get_data(&first_path)).unwrap();
    assert_eq!((stat.czxid, stat.ctime), (first.entry.czxid(), 1_234));

    now(session.delete(&first_path, None)).unwrap();
    assert!(!session.has_entry(first.entry));
    assert!(!session.leave(first.entry, DeleteReason::Released));
    assert!(session.leave(third.entry, DeleteReason::Released));
    assert_eq!(now(session.exists(&third_path)).unwrap(), None);
}

#[test]
fn nothing_is_done_where_a_request_is_needed() {
    let (store, queue) = queue();
    let lock = name(1, EntryRole::Lock);
    let (client, session) = session_of(&store, None);
    let (_other_client, other) = session_of(&store, None);
    let (_timed_client, timed) = session_of(&store, Some(Duration::from_secs(9)));
    let before = store.0.state.lock().core.last_zxid();
    assert!(
        enter(&timed, &queue, lock).is_none(),
        "its answers renew a lease"
    );
    let large = NewEntry {
        queue: &queue,
        name: lock,
        mode: EnqueueMode::Queued(Blockers::All),
        data: vec![0; crate::LARGEST_REQUEST_BYTES].into(),
        queue_data: &Bytes::new(),
        acl: &Acl::open(),
        unix_ms: 0,
    };
    assert!(session.enter(large).is_none());
    assert_eq!(store.0.state.lock().core.last_zxid(), before);

    let entered = enter(&session, &queue, lock).unwrap();
    assert!(!other.has_entry(entered.entry), "it is another session's");
    assert!(!other.leave(entered.entry, DeleteReason::Released));
    assert!(session.has_entry(entered.entry));

    // With the child `leases`, the queue's children have to be listed, and only a request lists them.
    now(session.create(&path("/q/leases"), "", CreateMode::Persistent)).unwrap();
    assert!(enter(&session, &queue, name(2, EntryRole::Lock)).is_none());
    now(session.delete(&path("/q/leases"), None)).unwrap();

    let read_only = Acl::new([crate::AclEntry {
        permissions: crate::AclEntry::READ | crate::AclEntry::ADMIN,
        scheme: "world".into(),
        id: "anyone".into(),
    }]);
    now(session.set_acl(&path("/q"), read_only, None)).unwrap();
    assert!(enter(&session, &queue, name(3, EntryRole::Lock)).is_none());
    assert!(!session.leave(entered.entry, DeleteReason::Released));
    now(session.set_acl(&path("/q"), Acl::open(), None)).unwrap();

    now(client.close()).unwrap();
    assert!(enter(&session, &queue, name(4, EntryRole::Lock)).is_none());
    assert!(!session.has_entry(entered.entry));
    let (names, _) = now(other.get_children(queue.path())).unwrap();
    assert!(names.is_empty(), "{names:?}");
}

#[test]
fn a_number_leads_to_no_other_name() {
    let (store, queue) = queue();
    let (_client, session) = session_of(&store, None);
    let lock = name(1, EntryRole::Lock);
    let entered = enter(&session, &queue, lock).unwrap();
    let stranger = path("/q/stranger-0000000000");
    assert_eq!(now(session.exists(&stranger)).unwrap(), None);
    assert!(matches!(
        now(session.delete(&stranger, None)),
        Err(Error::NoNode { .. })
    ));
    now(session.create(&stranger, "", CreateMode::Ephemeral)).unwrap();
    now(session.delete(&stranger, None)).unwrap();
    assert!(session.has_entry(entered.entry));
    let entry = entered.entry.path(&queue, lock);
    let again = session.create(&entry, "", CreateMode::Ephemeral);
    assert!(matches!(now(again), Err(Error::NodeExists { .. })));
}

#[test]
fn a_queue_that_was_deleted_and_created_anew_is_found_again() {
    let (store, queue) = queue();
    let (_client, session) = session_of(&store, None);
    let entered = enter(&session, &queue, name(1, EntryRole::Lock)).unwrap();
    assert!(session.leave(entered.entry, DeleteReason::Released));
    now(session.delete(queue.path(), None)).unwrap();
    // Another znode takes the queue's slot.
    now(session.create(&path("/other"), "", CreateMode::Persistent)).unwrap();
    let again = enter(&session, &queue, name(3, EntryRole::Lock)).unwrap();
    assert!(!session.has_entry(entered.entry), "its znode is gone");
    assert!(!session.leave(entered.entry, DeleteReason::Released));
    assert!(session.has_entry(again.entry));
    assert_eq!(
        again.entry.path(&queue, name(3, EntryRole::Lock)).parent(),
        Some(path("/q"))
    );

    // The handle also works for sessions of another store, where the queue has another slot.
    let elsewhere = Store::memory();
    let (_client, session) = session_of(&elsewhere, None);
    let there = enter(&session, &queue, name(4, EntryRole::Lock)).unwrap();
    assert!(session.has_entry(there.entry));
}

#[test]
fn a_turn_comes_with_the_way_in_which_the_entry_ahead_left() {
    let (store, queue) = queue();
    let (_client, session) = session_of(&store, None);
    let (_reviser_client, reviser) = session_of(&store, None);
    let lock = |id| name(id, EntryRole::Lock);
    for (id, reason) in [
        (10, DeleteReason::Released),
        (20, DeleteReason::Unknown),
        (30, DeleteReason::Removed),
        (40, DeleteReason::Died),
    ] {
        let (dying_client, dying) = session_of(&store, None);
        let holder = match reason {
            DeleteReason::Died => &dying,
            _ => &session,
        };
        let held = enter(holder, &queue, lock(id)).unwrap();
        let waits = enter(&session, &queue, lock(id + 1)).unwrap();
        let mut turn = waits.turn.unwrap();
        assert_eq!(turn.ahead(), Some(EntryRole::Lock));
        assert_eq!(turn.is_own(), *holder == session);
        assert!(poll(&mut turn).is_pending());
        match reason {
            DeleteReason::Removed => {
                now(reviser.delete(&held.entry.path(&queue, lock(id)), None)).unwrap();
            }
            DeleteReason::Died => drop((dying_client, dying)),
            reason => assert!(session.leave(held.entry, reason)),
        }
        assert_eq!(
            poll(&mut turn),
            Poll::Ready(Ok(PredecessorGone::new(true, reason)))
        );
        assert!(session.leave(waits.entry, DeleteReason::Released));
        assert_eq!(watches(&store), 0);
    }
}

#[test]
fn the_end_of_the_session_ends_its_turns() {
    let (store, queue) = queue();
    let (_client, session) = session_of(&store, None);
    let (waiting_client, waiting) = session_of(&store, None);
    let held = enter(&session, &queue, name(1, EntryRole::Lock)).unwrap();
    let waits = enter(&waiting, &queue, name(2, EntryRole::Lock)).unwrap();
    let mut turn = waits.turn.unwrap();
    assert!(poll(&mut turn).is_pending());
    now(waiting_client.close()).unwrap();
    assert!(matches!(poll(&mut turn), Poll::Ready(Err(error)) if error.is_session_end()));
    assert_eq!(watches(&store), 0);
    assert!(session.leave(held.entry, DeleteReason::Released));
}

struct Contender {
    number: i64,
    name: EntryName,
    session: usize,
    entry: Result<EntryKey, ZnodePath>,
    wait: Wait,
}

enum Wait {
    Over,
    Turn(PredecessorWatch),
    Watcher(Watcher),
}

impl Contender {
    fn is_blocked_by(&self, other: &Self) -> bool {
        let is_shared = |name: EntryName| name.role() == EntryRole::Read;
        other.number < self.number && !(is_shared(self.name) && is_shared(other.name))
    }

    fn path(&self, queue: &ZnodeHandle) -> ZnodePath {
        match &self.entry {
            Ok(key) => key.path(queue, self.name),
            Err(path) => path.clone(),
        }
    }
}

#[test]
fn entries_by_reference_and_by_request_queue_as_one() {
    for seed in 0..60u64 {
        let (store, queue) = queue();
        let sessions = [(); 3].map(|()| session_of(&store, None));
        let session = |at: usize| &sessions[at].1;
        let mut draw = draws(seed);
        let mut all: Vec<Contender> = Vec::new();
        let mut next = 0;
        for _ in 0..200 {
            if all.is_empty() || draw(2) == 0 {
                let role = [EntryRole::Read, EntryRole::Write][draw(2) as usize];
                let (name, at) = (name(next as u128, role), draw(3) as usize);
                let (entry, wait) = match draw(2) {
                    0 => {
                        let entered = enter(session(at), &queue, name).unwrap();
                        (
                            Ok(entered.entry),
                            entered.turn.map_or(Wait::Over, Wait::Turn),
                        )
                    }
                    _ => match enqueue(session(at), name) {
                        (path, _, Predecessor::Clear) => (Err(path), Wait::Over),
                        (path, _, Predecessor::Blocked { watcher, .. }) => {
                            (Err(path), Wait::Watcher(watcher))
                        }
                        (.., other) => panic!("{other:?}"),
                    },
                };
                let contender = Contender {
                    number: next,
                    name,
                    session: at,
                    entry,
                    wait,
                };
                let is_blocked = all.iter().any(|other| contender.is_blocked_by(other));
                assert_eq!(
                    !matches!(contender.wait, Wait::Over),
                    is_blocked,
                    "seed {seed}"
                );
                all.push(contender);
                next += 1;
            } else {
                let gone = all.remove(draw(all.len() as u64) as usize);
                if let Wait::Turn(turn) = &gone.wait {
                    session(gone.session).cancel_watch(turn);
                }
                let is_by_reference = gone.entry.is_ok() && draw(3) > 0;
                match gone.entry {
                    Ok(key) if is_by_reference => {
                        assert!(session(gone.session).leave(key, DeleteReason::Released))
                    }
                    _ => now(session(gone.session).delete(&gone.path(&queue), None)).unwrap(),
                }
            }
            for at in 0..all.len() {
                let is_blocked = all.iter().any(|other| all[at].is_blocked_by(other));
                let told = match &mut all[at].wait {
                    Wait::Over => {
                        assert!(!is_blocked, "seed {seed}");
                        continue;
                    }
                    Wait::Turn(turn) => poll(turn),
                    Wait::Watcher(watcher) => {
                        poll(watcher).map_ok(|event| event.predecessor_gone.unwrap())
                    }
                };
                let Poll::Ready(gone) = told else {
                    assert!(is_blocked, "seed {seed}: nobody told {}", all[at].number);
                    continue;
                };
                assert_eq!(gone.unwrap().clear, !is_blocked, "seed {seed}");
                let look = GetPredecessor {
                    entry: all[at].path(&queue),
                    blockers: blockers(all[at].name),
                    conditions: Vec::new(),
                    count: false,
                };
                all[at].wait = match now(session(all[at].session).get_predecessor(look)).unwrap() {
                    Predecessor::Clear => Wait::Over,
                    Predecessor::Blocked { watcher, .. } => Wait::Watcher(watcher),
                    other => panic!("{other:?}"),
                };
            }
            let (names, _) = now(session(0).get_queue(queue.path(), 0)).unwrap();
            let expected: Vec<_> = all
                .iter()
                .map(|it| it.path(&queue).name().to_owned())
                .collect();
            assert_eq!(names, expected, "seed {seed}");
            store.0.state.lock().core.dump();
        }
    }
}

#[test]
fn a_missing_queue_in_memory_is_created_with_its_first_entry() {
    let store = Store::memory();
    let (_client, session) = session_of(&store, None);
    let queue = ZnodeHandle::new(path("/new/queue"));
    let first = enter(&session, &queue, name(1, EntryRole::Lock)).unwrap();
    assert!(first.turn.is_none());
    let (data, stat) = now(session.get_data(queue.path())).unwrap();
    assert_eq!((&*data, stat.num_children), (&b"queue"[..], 1));
    let second = enter(&session, &queue, name(2, EntryRole::Lock)).unwrap();
    assert_eq!(session.count_ahead(first.entry), Some(0));
    assert_eq!(session.count_ahead(second.entry), Some(1));
    assert!(session.leave(second.entry, DeleteReason::Unknown));
    assert_eq!(session.count_ahead(second.entry), None);

    let ephemeral = now(session.create(&path("/no-parent"), "", CreateMode::Ephemeral));
    ephemeral.unwrap();
    let below = ZnodeHandle::new(path("/no-parent/made/queue"));
    assert!(enter(&session, &below, name(3, EntryRole::Lock)).is_none());
}

#[test]
fn an_entry_that_waits_for_nobody_is_created_where_none_blocks_it() {
    use EntryRole::{Lock, Read, Write};
    for (there, new, is_free) in [
        (Read, Read, true),
        (Read, Write, false),
        (Write, Read, false),
        (Lock, Lock, false),
    ] {
        let (store, queue) = queue();
        let (_client, session) = session_of(&store, None);
        let first = enter(&session, &queue, name(1, there)).unwrap();
        let new = name(2, new);
        let mode = EnqueueMode::IfFree(blockers(new));
        let before = store.0.state.lock().core.last_zxid();
        match enter_at(&session, &queue, new, mode) {
            Some(entered) => assert!(is_free && entered.turn.is_none()),
            None => {
                assert!(!is_free, "{new} beside an entry of {there:?}");
                assert_eq!(store.0.state.lock().core.last_zxid(), before);
                assert!(session.leave(first.entry, DeleteReason::Released));
                assert!(enter_at(&session, &queue, new, mode).is_some());
            }
        }
    }
}

struct Parts {
    queue: ZnodeHandle,
    number: ZnodeHandle,
    waiters: ZnodeHandle,
}

impl Parts {
    fn new() -> Self {
        let [queue, number, waiters] = ["/q", "/number", "/waiters"].map(path);
        Self {
            queue: ZnodeHandle::new(queue),
            number: ZnodeHandle::new(number),
            waiters: ZnodeHandle::new(waiters),
        }
    }

    fn enter(&self, session: &Session, id: u128, data: &[u8], limit: u32) -> Option<Enqueued> {
        let conditions = [
            Condition::Data {
                znode: &self.number,
                data,
            },
            Condition::Children {
                znode: &self.queue,
                limit,
            },
            Condition::Children {
                znode: &self.waiters,
                limit: 0,
            },
        ];
        session.enter(NewEntry {
            queue: &self.queue,
            name: name(id, EntryRole::Lease),
            mode: EnqueueMode::When(&conditions),
            data: Bytes::from_static(b"data"),
            queue_data: &Bytes::new(),
            acl: &Acl::open(),
            unix_ms: 1_234,
        })
    }

    fn hold(&self, session: &Session, data: &[u8], limit: u32) -> bool {
        let children = |znode: &ZnodeHandle, limit| Condition::Children {
            znode: znode.path().clone(),
            limit,
        };
        let conditions = [
            Condition::Data {
                znode: self.number.path().clone(),
                data: Bytes::copy_from_slice(data),
            },
            children(&self.queue, limit),
            children(&self.waiters, 0),
        ];
        now(session.multi(conditions.map(Op::Require))).is_ok()
    }
}

#[test]
fn conditions_by_reference_are_those_of_a_multi() {
    let unreadable = Acl::new([crate::AclEntry {
        permissions: crate::AclEntry::ALL & !crate::AclEntry::READ,
        scheme: "world".into(),
        id: "anyone".into(),
    }]);
    let mut outcomes = [0; 2];
    for seed in 0..40u64 {
        let store = Store::memory();
        let (_client, session) = session_of(&store, None);
        let (_other_client, other) = session_of(&store, None);
        let parts = Parts::new();
        let mut draw = draws(seed);
        let numbers: [&[u8]; 2] = [b"1", b"2"];
        let mut entered = Vec::new();
        for step in 0..300u128 {
            let znode = [&parts.queue, &parts.number, &parts.waiters][draw(3) as usize].path();
            let child = znode.join(&format!("child-{}", draw(2))).unwrap();
            let data = numbers[draw(2) as usize];
            let _ = match draw(24) {
                0..5 => now(other.create(znode, data, CreateMode::Persistent)).err(),
                5 => now(other.delete(znode, None)).err(),
                6 | 7 => now(other.set_data(znode, data, None)).err(),
                8 => now(other.create(&child, "", CreateMode::Ephemeral)).err(),
                9..12 => now(other.delete(&child, None)).err(),
                12 => now(other.set_acl(znode, unreadable.clone(), None)).err(),
                13..16 => now(other.set_acl(znode, Acl::open(), None)).err(),
                _ => None,
            };
            if entered.len() > 1 {
                let entry: EntryKey = entered.swap_remove(draw(entered.len() as u64) as usize);
                assert!(session.leave(entry, DeleteReason::Released));
            }
            let (data, limit) = (numbers[draw(2) as usize], draw(4) as u32);
            let exists = now(session.exists(parts.queue.path()));
            let may = exists.is_ok_and(|stat| stat.is_some()) && parts.hold(&session, data, limit);
            let before = store.0.state.lock().core.last_zxid();
            match parts.enter(&session, step, data, limit) {
                Some(taken) => {
                    assert!(may, "seed {seed}, step {step}");
                    assert!(taken.turn.is_none() && session.has_entry(taken.entry));
                    entered.push(taken.entry);
                }
                None => {
                    assert!(!may, "seed {seed}, step {step}");
                    assert_eq!(store.0.state.lock().core.last_zxid(), before);
                }
            }
            outcomes[usize::from(may)] += 1;
        }
        store.0.state.lock().core.dump();
    }
    assert!(outcomes.iter().all(|count| *count > 500), "{outcomes:?}");
}

/// The answer must wait for the log if the condition shows a write of another session. Only a request can wait.
#[test]
fn in_a_folder_a_request_is_needed_where_a_condition_shows_what_the_log_has_not() {
    use super::bench::{Bench, close, write_all};

    let bench = Bench::new(Durability::Fsync);
    let mut world = bench.open();
    let (_client, session) = session_of(&world.store, None);
    let (_writer_client, writer) = session_of(&world.store, None);
    let parts = Parts::new();
    let mut created = writer.create(parts.queue.path(), "", CreateMode::Persistent);
    let mut number = writer.create(parts.number.path(), "1", CreateMode::Persistent);
    assert!(poll(&mut created).is_pending() && poll(&mut number).is_pending());
    assert!(parts.enter(&session, 1, b"1", 9).is_none());
    write_all(&mut world);
    now(created).unwrap();
    now(number).unwrap();
    assert!(parts.enter(&session, 2, b"1", 9).is_some());

    let mut number = writer.set_data(parts.number.path(), "2", None);
    assert!(poll(&mut number).is_pending());
    assert!(parts.enter(&session, 3, b"2", 9).is_none());
    write_all(&mut world);
    now(number).unwrap();
    assert!(parts.enter(&session, 4, b"2", 9).is_some());

    let waiter = path("/q/other");
    let mut waiter = writer.create(&waiter, "", CreateMode::Persistent);
    assert!(poll(&mut waiter).is_pending());
    assert!(parts.enter(&session, 5, b"2", 9).is_none());
    write_all(&mut world);
    now(waiter).unwrap();
    assert!(parts.enter(&session, 6, b"2", 9).is_some());
    close(world);
}

/// An answer must not leave before the log has what it shows. Only a request can wait for the log (invariant 2).
#[test]
fn in_a_folder_a_request_is_needed_where_an_answer_waits_for_the_log() {
    use super::bench::{Bench, close, write_all};

    let bench = Bench::new(Durability::Fsync);
    let mut world = bench.open();
    let (_client, session) = session_of(&world.store, None);
    let queue = ZnodeHandle::new(path("/q"));
    let mut created = session.create(queue.path(), "", CreateMode::Persistent);
    assert!(poll(&mut created).is_pending(), "it is not synced yet");
    let lock = |id| name(id, EntryRole::Lock);
    assert!(enter(&session, &queue, lock(1)).is_none());
    write_all(&mut world);
    now(created).unwrap();
    let entered = enter(&session, &queue, lock(2)).unwrap();
    assert!(
        !world.hand.as_mut().unwrap().write(),
        "the log has nothing to keep"
    );

    let remote = world.store.attach().unwrap();
    write_all(&mut world);
    assert!(enter(&session, &queue, lock(3)).is_none());
    assert!(session.has_entry(entered.entry));
    assert!(!session.leave(entered.entry, DeleteReason::Released));
    let mut left = session.delete(&entered.entry.path(&queue, lock(2)), None);
    assert!(poll(&mut left).is_pending());
    write_all(&mut world);
    now(left).unwrap();
    drop((_client, session, remote));
    close(world);
}
