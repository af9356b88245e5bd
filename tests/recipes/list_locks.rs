//! Lists of all locks below a prefix.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper::testing::RequestKind;
use lockkeeper::{
    Acl, Client, ConnectOptions, Election, Error, LockInfo, LockKind, LockOptions, LockPath,
    LockPrefix, Mutex, RevokeTarget, Revoker, RwLock, Semaphore, Session, list_locks, lock_queue,
    lock_queue_part, observe_locks,
};
use lockkeeper_store::{Backend, CreateMode, Op, ReadOp, Request, Response, ZnodePath};
use testkit::{
    Intercept, intercepted, on_every_backend, on_every_backend_without_users, on_every_znode_store,
};

use crate::common::*;

async fn locks(client: &Client, prefix: &str) -> Vec<LockInfo> {
    let list = list_locks(client, prefix).await.unwrap();
    assert_eq!(list.unreadable, []);
    list.locks
}

fn short(locks: &[LockInfo]) -> Vec<(&str, LockKind, usize, usize)> {
    let short = |lock: &LockInfo| (lock.kind, lock.holders.len(), lock.waiters);
    let all = locks.iter().map(|lock| (lock.path.as_str(), short(lock)));
    all.map(|(path, (kind, holders, waiters))| (path, kind, holders, waiters))
        .collect()
}

/// Creates an entry. Its name is unique, because etcd adds its number to the path only.
async fn enter(session: &Session, name: &str) -> ZnodePath {
    static ENTERED: AtomicUsize = AtomicUsize::new(0);
    let number = ENTERED.fetch_add(1, Ordering::Relaxed);
    let at = path(&name.replace("_c_x", &format!("_c_x{number}")));
    let parent = at.parent().unwrap();
    session
        .create_all(&parent, CreateMode::Persistent)
        .await
        .unwrap();
    let made = session.create(&at, "", CreateMode::EphemeralSequential);
    made.await.unwrap().0
}

on_every_backend! {
    async fn locks_of_all_recipes_are_listed_with_their_holders(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        assert_eq!(locks(&world.observer, "/l").await, [], "nothing is there");
        let options = LockOptions::new().label("billing").expected_hold(Duration::from_secs(5));
        let mutex = Mutex::new(&client, "/l/mutex").unwrap();
        let guard = mutex.lock_with(options).await.unwrap();
        let waiting = Mutex::new(&world.client().await, "/l/mutex").unwrap();
        let waiter = world.queue_up_at("/l/mutex", async move { waiting.lock().await }).await;
        let shared = RwLock::new(&client, "/l/rw").unwrap();
        let _readers = (shared.read().await.unwrap(), shared.read().await.unwrap());
        let writer = world.queue_up_at("/l/rw", async move { shared.write().await }).await;
        let permits = Semaphore::new(&client, "/l/permits", 3).unwrap();
        let _permits = permits.acquire_many(2).await.unwrap();
        let more = world
            .queue_up_at("/l/permits/locks", async move { permits.acquire_many(2).await })
            .await;
        let election = Election::new(&client, "/l/leader").unwrap();
        let _leader = election.campaign("me").await.unwrap();
        let free = Mutex::new(&client, "/l/free").unwrap();
        free.lock().await.unwrap().release().await.unwrap();

        let seen = locks(&world.observer, "/l").await;
        assert_eq!(
            short(&seen),
            [
                ("/l/leader", LockKind::Election, 1, 0),
                ("/l/mutex", LockKind::Mutex, 1, 1),
                ("/l/permits", LockKind::Semaphore, 2, 1),
                ("/l/rw", LockKind::ReadWriteLock, 2, 1),
            ]
        );
        assert_eq!(seen, locks(&world.observer, "/").await);
        assert_eq!(seen[1..2], locks(&world.observer, "/l/mutex").await);
        let holder = &seen[1].holders[0];
        assert_eq!(holder.fencing_token, guard.fencing_token());
        assert_eq!(holder.path, *guard.path());
        assert_eq!(holder.owner, client.current_session().id());
        let metadata = holder.metadata.as_ref().unwrap();
        assert_eq!(metadata.label.as_deref(), Some("billing"));
        assert_eq!(metadata.pid, Some(std::process::id()));
        // Computed from the znode's times, not from local clocks.
        let age = Duration::from_secs(7);
        let later = holder.joined_at_ms + 7_000;
        assert_eq!(holder.age(later), age);
        // It found the lock free, which ZooKeeper and etcd do not record.
        let is_recorded = world.env.has_index() && !world.env.is_etcd();
        let granted = is_recorded.then_some(holder.joined_at_ms);
        assert_eq!((holder.granted_at_ms, holder.held_for(later)), (granted, granted.map(|_| age)));
        let overdue = granted.map(|_| Duration::from_secs(2));
        assert_eq!(holder.overdue_by(later), overdue);
        assert_eq!(holder.overdue_by(later - 3_000), None);
        assert_eq!(holder.due_at_ms(), granted.map(|_| later - 2_000));
        // A request is no sign of life, but a `keep_alive` is.
        let revoker = Revoker::new(&world.observer);
        revoker.request(&RevokeTarget::holder("/l/mutex").unwrap()).await.unwrap();
        let asked = &locks(&world.observer, "/l/mutex").await[0].holders[0];
        assert_eq!((asked.version, asked.overdue_by(later)), (1, overdue));
        guard.keep_alive().await.unwrap();
        let alive = &locks(&world.observer, "/l/mutex").await[0].holders[0];
        let written = alive.written_at_ms;
        let has_time = !world.env.is_etcd();
        let overdue = has_time.then_some(Duration::from_millis(1));
        assert_eq!(alive.overdue_by(written + 5_001), overdue);
        assert_eq!(alive.overdue_by(written + 4_999), None);
        assert_eq!(alive.due_at_ms(), has_time.then_some(written + 5_000));
        let seen = locks(&world.observer, "/l").await;
        assert_eq!(holder.age(holder.joined_at_ms - 1_000), Duration::ZERO);
        for lock in &seen {
            let queue = lock_queue(&world.observer, &lock.path).await.unwrap();
            let part = lock_queue_part(&world.observer, &lock.path, 100, 0..100).await.unwrap();
            let waiters: Vec<_> = queue.waiters.iter().cloned().enumerate().collect();
            assert_eq!((part.kind, &part.holders, &part.waiters), (queue.kind, &queue.holders, &waiters));
            assert_eq!((part.holder_count, part.waiter_count), (queue.holders.len(), waiters.len()));
            let part = lock_queue_part(&world.observer, &lock.path, 1, 7..9).await.unwrap();
            assert_eq!((&part.holders[..], part.waiters), (&queue.holders[..1], vec![]));
            assert_eq!((part.holder_count, part.waiter_count), (queue.holders.len(), waiters.len()));
            let found = (queue.kind, queue.holders, queue.waiters.len());
            assert_eq!(found, (lock.kind, lock.holders.clone(), lock.waiters));
        }
        assert_eq!(lock_queue(&world.observer, "/l/none").await.unwrap().holders, []);
        let none = lock_queue_part(&world.observer, "/l/none", 1, 0..1).await.unwrap();
        assert_eq!((none.holders, none.holder_count, none.waiter_count), (vec![], 0, 0));
        waiter.abort();
        writer.abort();
        more.abort();
    }

    async fn a_part_of_a_queue_has_its_positions_and_the_counts_of_all(env: Env) {
        let world = World::new(env).await;
        let session = world.client().await.session().await.unwrap();
        // Looks like the head but is no contender.
        session.create_all(&path("/l/a/lock-0000000000"), CreateMode::Persistent).await.unwrap();
        let mut entries = Vec::new();
        for _ in 0..5 {
            entries.push(enter(&session, "/l/a/_c_x-lock-").await);
        }
        let part = lock_queue_part(&world.observer, "/l/a", 3, 1..3).await.unwrap();
        let holders: Vec<_> = part.holders.iter().map(|it| it.path.clone()).collect();
        assert_eq!((holders, part.holder_count, part.waiter_count), (vec![entries[0].clone()], 1, 4));
        assert_eq!(part.holders[0].due_at_ms(), None);
        let waiters: Vec<_> = part.waiters.iter().map(|(at, it)| (*at, it.path.clone())).collect();
        assert_eq!(waiters, [(1, entries[2].clone()), (2, entries[3].clone())]);
    }

    async fn keys_are_listed_by_their_beginning(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let parent = LockPath::new("/l").unwrap();
        let mut guards = Vec::new();
        for key in ["jobs/a", "jobs/b", "jobs", "other", "jobs/a\n\u{1b}[31m"] {
            let mutex = Mutex::new(&client, parent.key(key)).unwrap();
            guards.push(mutex.lock().await.unwrap());
        }
        let prefix = LockPrefix::keys(parent.clone(), "jobs/");
        let list = list_locks(&world.observer, prefix).await.unwrap();
        let keys = list.locks.iter().map(|lock| parent.key_text(&lock.path).unwrap());
        assert_eq!(keys.collect::<Vec<_>>(), ["jobs/a", "jobs/a\n\u{1b}[31m", "jobs/b"]);
    }

    async fn an_observer_sees_each_lock_that_changes(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let session = world.client().await.session().await.unwrap();
        let mut changes = observe_locks(&client, "/l").unwrap();
        let mut next = async || changes.next().await.unwrap().unwrap();
        assert_eq!(next().await, Default::default(), "the first comes at once");
        let first = enter(&session, "/l/a/_c_x-lock-").await;
        assert_eq!(short(&next().await.changed), [("/l/a", LockKind::Mutex, 1, 0)]);
        enter(&session, "/elsewhere/_c_x-lock-").await;
        let permit = enter(&session, "/l/s/leases/_c_x-lease-").await;
        assert_eq!(short(&next().await.changed), [("/l/s", LockKind::Semaphore, 1, 0)]);
        enter(&session, "/l/s/locks/_c_x-lock-").await;
        assert_eq!(short(&next().await.changed), [("/l/s", LockKind::Semaphore, 1, 1)]);
        session.delete(&permit, None).await.unwrap();
        assert_eq!(short(&next().await.changed), [("/l/s", LockKind::Semaphore, 0, 1)]);
        session.set_data(&first, "{\"v\":1}", None).await.unwrap();
        assert_eq!(next().await.changed[0].holders[0].version, 1);
        // Changes without a connection or between two sessions are seen later.
        world.disconnect(&client);
        session.delete(&first, None).await.unwrap();
        world.reconnect(&client);
        assert_eq!(next().await.freed, [path("/l/a")]);
        world.expire(&client).await.unwrap();
        enter(&session, "/l/a/_c_x-lock-").await;
        assert_eq!(short(&next().await.changed), [("/l/a", LockKind::Mutex, 1, 0)]);
    }

    async fn a_lost_reply_is_asked_for_again(env: Env) {
        let world = World::new(env).await;
        let session = world.client().await.session().await.unwrap();
        enter(&session, "/l/a/_c_x-lock-").await;
        let client = world.client().await;
        world.lose_reply(&client, RequestKind::MultiRead);
        assert_eq!(locks(&client, "/l").await.len(), 1);
    }

    async fn holders_that_leave_while_they_are_read_make_way_for_the_next(env: Env) {
        let world = World::new(env).await;
        let session = world.client().await.session().await.unwrap();
        let mut entries = Vec::new();
        for _ in 0..40 {
            entries.push(enter(&session, "/l/a/_c_x-lock-").await);
        }
        enter(&session, "/l/b/_c_x-lock-").await;
        let entries = Arc::new(entries);
        let left = Arc::new(AtomicUsize::new(0));
        for leaving in [1, 7] {
            let (session, entries, left) = (session.clone(), entries.clone(), left.clone());
            let leaver = Leaver { session, leaving, left: left.clone(), entries: entries.clone() };
            let connector = intercepted(world.env.connector().clone(), move || leaver.clone());
            let target = world.env.target().to_owned();
            let client = Client::open(connector, target, ConnectOptions::new()).await.unwrap();
            let before = left.load(Ordering::SeqCst);
            let seen = locks(&client, "/l/a").await;
            let gone = left.load(Ordering::SeqCst);
            assert!(gone > before, "nothing has left");
            assert_eq!(short(&seen), [("/l/a", LockKind::Mutex, 1, 40 - gone - 1)]);
            assert_eq!(seen[0].holders[0].path, entries[gone]);
        }
        // If all entries leave, the lock is not reported.
        let leaver = Leaver { session: session.clone(), leaving: 40, left, entries };
        let connector = intercepted(world.env.connector().clone(), move || leaver.clone());
        let target = world.env.target().to_owned();
        let client = Client::open(connector, target, ConnectOptions::new()).await.unwrap();
        assert_eq!(locks(&client, "/l/a").await, []);
        assert_eq!(short(&locks(&client, "/l").await), [("/l/b", LockKind::Mutex, 1, 0)]);
    }
}

on_every_znode_store! {
    async fn locks_nest_and_other_znodes_are_no_locks(env: Env) {
        let world = World::new(env).await;
        let session = world.client().await.session().await.unwrap();
        let upper = enter(&session, "/l/a/_c_x-lock-").await;
        // Below a lock, with a numeric key, with an entry's name, and next to a semaphore's parts.
        for lock in ["/l/a/b", "/l/a/1234567890123", "/l/a/lock-0000000001", "/l/s/locks/x"] {
            enter(&session, &format!("{lock}/_c_x-lock-")).await;
        }
        enter(&session, "/l/s/leases/_c_x-lease-").await;
        enter(&session, "/l/s/nested/_c_x-lock-").await;
        // `locks` is a directory here and a mutex there.
        enter(&session, "/l/app/locks/_c_x-lock-").await;
        enter(&session, "/l/app/locks/y/_c_x-lock-").await;
        // A persistent znode with an entry's name holds nothing, and neither does an ephemeral one without.
        world.make("/l/no/lock-0000000007").await;
        session.create(&path("/l/no/presence"), "", CreateMode::Ephemeral).await.unwrap();
        world.make("/l/behind/lock-0000000000").await;
        let behind = enter(&session, "/l/behind/n_").await;

        let seen = locks(&world.observer, "/l").await;
        let mutex = |path| (path, LockKind::Mutex, 1, 0);
        assert_eq!(
            short(&seen),
            [
                mutex("/l/a"),
                mutex("/l/a/1234567890123"),
                mutex("/l/a/b"),
                mutex("/l/a/lock-0000000001"),
                mutex("/l/app/locks"),
                mutex("/l/app/locks/y"),
                mutex("/l/behind"),
                ("/l/s", LockKind::Semaphore, 1, 0),
                mutex("/l/s/locks/x"),
                mutex("/l/s/nested"),
            ]
        );
        assert_eq!(seen[0].holders[0].path, upper);
        assert_eq!(seen[6].holders[0].path, behind);
    }

    async fn many_locks_are_read_in_few_requests(env: Env) {
        const LOCKS: usize = 3_000;
        let world = World::new(env).await;
        let session = world.client().await.session().await.unwrap();
        let parent = LockPath::new("/l").unwrap();
        session.create_all(parent.as_znode(), CreateMode::Persistent).await.unwrap();
        let create = |path: ZnodePath, mode| {
            let acl = session.acl().clone();
            Op::Create(lockkeeper_store::Create { path, data: "{\"v\":1}".into(), mode, acl })
        };
        for chunk in (0..LOCKS).collect::<Vec<_>>().chunks(500) {
            let ops = chunk.iter().flat_map(|number| {
                let lock = parent.key(&format!("{number}"));
                let entry = lock.as_znode().join("_c_x-lock-").unwrap();
                let persistent = create(lock.as_znode().clone(), CreateMode::Persistent);
                [persistent, create(entry, CreateMode::EphemeralSequential)]
            });
            session.multi(ops.collect::<Vec<_>>()).await.unwrap();
        }
        let client = world.client().await;
        client.session().await.unwrap();
        let before = world.traffic_of(&client);
        let seen = locks(&client, "/l").await;
        let cost = world.traffic_of(&client) - before;
        assert_eq!(seen.len(), LOCKS);
        assert!(seen.iter().all(|lock| lock.holders.len() == 1));
        // Two reads per lock, 512 per request except for the first few.
        assert!(cost.requests(RequestKind::Any) <= 24, "{cost:?}");
    }
}

/// Makes some of the first entries leave before each read of entries at `/l/a`.
#[derive(Clone)]
struct Leaver {
    session: Session,
    leaving: usize,
    left: Arc<AtomicUsize>,
    entries: Arc<Vec<ZnodePath>>,
}

impl Intercept for Leaver {
    fn submit(&self, inner: &Arc<dyn Backend>, request: Request) -> Response {
        let Request::MultiRead(ops) = &request else {
            return inner.submit(request);
        };
        let is_entry = |op: &&ReadOp| matches!(op, ReadOp::GetEntry(path) if path.as_str().starts_with("/l/a/"));
        // Only once, because later reads are of the remaining entries.
        let Some(ReadOp::GetEntry(head)) = ops.iter().find(is_entry) else {
            return inner.submit(request);
        };
        let first = self.left.load(Ordering::SeqCst);
        if self.entries.get(first) != Some(head) || ops.len() > 1 {
            return inner.submit(request);
        }
        let (session, inner) = (self.session.clone(), inner.clone());
        let leaving = self.leaving.min(40 - first);
        self.left.fetch_add(leaving, Ordering::SeqCst);
        let entries = self.entries.clone();
        Response::pending(async move {
            for entry in &entries[first..first + leaving] {
                session.delete(entry, None).await.unwrap();
            }
            inner.submit(request).await
        })
    }
}

on_every_backend_without_users! {
    async fn a_lock_that_may_not_be_read_is_told_and_hides_no_other(env: Env) {
        let world = World::new(env).await;
        let options = || ConnectOptions::new().auth("digest", "ann:secret");
        let ann = world.env.client_with(options()).await.session().await.unwrap();
        enter(&ann, "/l/public/_c_x-lock-").await;
        let hidden = enter(&ann, "/l/hidden/_c_x-lock-").await;
        enter(&ann, "/l/hidden/_c_y-lock-").await;
        enter(&ann, "/l/closed/_c_x-lock-").await;
        let own = Acl::creator_all();
        ann.set_acl(&hidden, own.clone(), None).await.unwrap();
        ann.set_acl(&path("/l/closed"), own, None).await.unwrap();
        let list = list_locks(&world.observer, "/l").await.unwrap();
        assert_eq!(short(&list.locks), [("/l/public", LockKind::Mutex, 1, 0)]);
        let [(closed, why), (entry, _)] = &list.unreadable[..] else { panic!("{list:?}") };
        assert_eq!(closed.as_str(), "/l/closed");
        assert!(matches!(why, Error::NoAuth { .. }), "{why}");
        assert_eq!(*entry, hidden, "the one behind it does not hold");
        let all = world.env.client_with(options()).await;
        assert_eq!(locks(&all, "/l").await.len(), 3);
    }
}
