//! Entries that also wait for conditions, as the entries of a semaphore wait for permits.

use bytes::Bytes;

use super::*;
use crate::model::protocol::{Condition, GetPredecessor, Op};
use crate::model::watch::Watcher;

const LOCKS: &str = "/s/locks";
const LEASES: &str = "/s/leases";
const PERMITS: &str = "/s/permits";

fn semaphore() -> (Store, (Client, Session)) {
    let store = Store::memory();
    let session = session_of(&store, None);
    for (at, data) in [("/s", ""), (LOCKS, ""), (LEASES, ""), (PERMITS, "1")] {
        now(session.1.create(&path(at), data, CreateMode::Persistent)).unwrap();
    }
    (store, session)
}

fn number(session: &Session) -> Option<Bytes> {
    now(session.get_data(&path(PERMITS)))
        .ok()
        .map(|(data, _)| data)
}

fn conditions(number: &Bytes, limit: u32) -> Vec<Condition> {
    vec![
        Condition::Data {
            znode: path(PERMITS),
            data: number.clone(),
        },
        Condition::Children {
            znode: path(LEASES),
            limit,
        },
    ]
}

fn held(session: &Session) -> u32 {
    let stat = now(session.exists(&path(LEASES))).unwrap();
    stat.map_or(0, |stat| stat.num_children as u32)
}

fn lease(session: &Session, number: u64) -> ZnodePath {
    let lease = path(&format!("{LEASES}/lease-{number}"));
    now(session.create(&lease, "", CreateMode::Ephemeral)).unwrap();
    lease
}

fn join(
    session: &Session,
    limit: u32,
    number: &Bytes,
) -> (ZnodePath, Option<(ZnodePath, Watcher)>) {
    let entered = session.enqueue(Enqueue {
        parent: path(LOCKS),
        name: "a-".to_owned(),
        data: "".into(),
        acl: session.acl().clone(),
        blockers: Blockers::All,
        conditions: conditions(number, limit),
        count: false,
        queue_data: None,
    });
    let (entry, _, ahead) = now(entered).unwrap();
    match ahead {
        Predecessor::Clear => (entry, None),
        Predecessor::Blocked { by, watcher, .. } => (entry, Some((by, watcher))),
        other => panic!("{other:?}"),
    }
}

fn clear(watcher: &mut Watcher) -> Option<bool> {
    match poll(watcher) {
        Poll::Pending => None,
        Poll::Ready(event) => Some(event.unwrap().predecessor_gone.unwrap().clear),
    }
}

#[test]
fn the_head_is_told_as_enough_leases_have_gone_and_not_before() {
    let (store, (_client, session)) = semaphore();
    let number = &Bytes::from("1");
    let leases = [0, 1].map(|number| lease(&session, number));
    let (first, turn) = join(&session, 1, number);
    let (by, mut turn) = turn.unwrap();
    assert_eq!(by.as_str(), LEASES);
    let (second, behind) = join(&session, 0, number);
    let (by, mut behind) = behind.unwrap();
    assert_eq!(by, first);

    now(session.delete(&leases[0], None)).unwrap();
    assert_eq!(clear(&mut turn), Some(true));
    assert_eq!(clear(&mut behind), None);
    // In one multi, the head leaves the queue and takes the free permit, so the next entry gets no event.
    let third = path(&format!("{LEASES}/lease-2"));
    let create = Op::Create(crate::model::protocol::Create {
        path: third.clone(),
        data: "".into(),
        mode: CreateMode::Ephemeral,
        acl: Acl::open(),
    });
    let (path, version) = (first, None);
    now(session.multi([Op::Delete { path, version }, create])).unwrap();
    assert_eq!(clear(&mut behind), None);
    now(session.delete(&leases[1], None)).unwrap();
    assert_eq!(clear(&mut behind), None, "one is held, and none may be");
    now(session.delete(&third, None)).unwrap();
    assert_eq!(clear(&mut behind), Some(true));
    now(session.delete(&second, None)).unwrap();
    assert_eq!(store.0.state.lock().core.counts().watches, 0);
}

#[test]
fn another_number_of_permits_ends_the_wait_of_the_head_alone() {
    let (_store, (_client, session)) = semaphore();
    let number = &Bytes::from("1");
    let held = lease(&session, 0);
    let (first, turn) = join(&session, 0, number);
    let (_, mut turn) = turn.unwrap();
    let (_, behind) = join(&session, 0, number);
    let (_, mut behind) = behind.unwrap();
    now(session.set_data(&path(PERMITS), "2", None)).unwrap();
    assert_eq!(clear(&mut turn), Some(true), "its limit counts no more");
    assert_eq!(clear(&mut behind), None);
    // The next entry's limit applies to an outdated number of permits, so the entry is notified when it becomes the
    // head.
    now(session.delete(&first, None)).unwrap();
    assert_eq!(clear(&mut behind), Some(true));

    let (_, third) = join(&session, 0, &Bytes::from("2"));
    let (by, mut third) = third.unwrap();
    assert!(by.as_str().starts_with(LOCKS));
    let names = now(session.get_children(&path(LOCKS))).unwrap().0;
    now(session.delete(&path(LOCKS).join(&names[0]).unwrap(), None)).unwrap();
    assert_eq!(clear(&mut third), None);
    now(session.delete(&path(PERMITS), None)).unwrap();
    assert_eq!(clear(&mut third), Some(true));
    now(session.delete(&held, None)).unwrap();
}

struct Waiting {
    session: usize,
    entry: ZnodePath,
    order: u64,
    limit: u32,
    number: Bytes,
    watcher: Option<Watcher>,
}

#[test]
fn each_is_told_when_nothing_blocks_it_and_never_before() {
    let mut told = 0;
    for seed in 0..60u64 {
        let (store, (_client, observer)) = semaphore();
        let mut sessions: Vec<_> = (0..3).map(|_| session_of(&store, None)).collect();
        let mut random = seed;
        let mut draw = move |below: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let mut waiting: Vec<Waiting> = Vec::new();
        let mut leases: Vec<(usize, ZnodePath)> = Vec::new();
        for step in 0..300u64 {
            let at = draw(3) as usize;
            match draw(16) {
                0..4 => {
                    let stale = draw(8) == 0;
                    let number = number(&observer).filter(|_| !stale);
                    let number = number.unwrap_or_else(|| "stale".into());
                    let limit = draw(3) as u32;
                    let (entry, turn) = join(&sessions[at].1, limit, &number);
                    waiting.push(Waiting {
                        session: at,
                        entry,
                        order: step,
                        limit,
                        number,
                        watcher: turn.map(|(_, watcher)| watcher),
                    });
                }
                4..7 if !waiting.is_empty() => {
                    let gone = waiting.swap_remove(draw(waiting.len() as u64) as usize);
                    now(sessions[at].1.delete(&gone.entry, None)).unwrap();
                }
                7..10 if now(observer.exists(&path(LEASES))).unwrap().is_some() => {
                    leases.push((at, lease(&sessions[at].1, step)));
                }
                10..13 if !leases.is_empty() => {
                    let (_, gone) = leases.swap_remove(draw(leases.len() as u64) as usize);
                    now(sessions[at].1.delete(&gone, None)).unwrap();
                }
                13 => match draw(3) {
                    0 => drop(now(observer.delete(&path(PERMITS), None))),
                    _ => {
                        let number = draw(3).to_string();
                        let set = now(observer.set_data(&path(PERMITS), number.clone(), None));
                        if set.is_err() {
                            let mode = CreateMode::Persistent;
                            now(observer.create(&path(PERMITS), number, mode)).unwrap();
                        }
                    }
                },
                14 => {
                    let _ = now(observer.delete(&path(LEASES), None));
                    let _ = now(observer.create(&path(LEASES), "", CreateMode::Persistent));
                }
                15 if draw(3) == 0 => {
                    sessions[at] = session_of(&store, None);
                    waiting.retain(|waiter| waiter.session != at);
                    leases.retain(|(session, _)| *session != at);
                }
                _ => {}
            }
            let (held, number) = (held(&observer), number(&observer));
            let orders: Vec<_> = waiting.iter().map(|waiter| waiter.order).collect();
            for waiter in &mut waiting {
                let is_first = orders.iter().all(|order| *order >= waiter.order);
                // The waiter's limit applies only while the number of permits is still the one that the waiter knows.
                let is_current = number.as_ref() == Some(&waiter.number);
                let is_full = is_current && held > waiter.limit;
                let is_blocked = !is_first || is_full;
                match waiter.watcher.as_mut().map(clear) {
                    None => {}
                    Some(None) => assert!(is_blocked, "seed {seed}, step {step}: not told"),
                    Some(Some(clear)) => {
                        assert!(
                            clear && !is_blocked,
                            "seed {seed}, step {step}: told too early"
                        );
                        waiter.watcher = None;
                        told += 1;
                    }
                }
                if draw(10) == 0 {
                    let look = GetPredecessor {
                        entry: waiter.entry.clone(),
                        blockers: Blockers::All,
                        conditions: conditions(&waiter.number, waiter.limit),
                        count: false,
                    };
                    let session = &sessions[waiter.session].1;
                    waiter.watcher = match now(session.get_predecessor(look)).unwrap() {
                        Predecessor::Clear => {
                            assert!(!is_blocked, "seed {seed}, step {step}");
                            None
                        }
                        Predecessor::Blocked { watcher, .. } => {
                            assert!(is_blocked, "seed {seed}, step {step}");
                            Some(watcher)
                        }
                        other => panic!("{other:?}"),
                    };
                }
            }
            store.0.state.lock().core.dump();
        }
    }
    assert!(told > 600, "{told}");
}
