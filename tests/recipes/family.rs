//! What all recipes have in common: the interface of their guards, and the forms of their calls.
//!
//! The macros name every method of every type, so a recipe that lacks one does not compile.

use std::time::Duration;

use lockkeeper::{
    Client, Election, Guard, Leadership, LockError, LockEvent, LockGuard, LockOptions, LostReason,
    MultiGuard, Mutex, Permit, ReadGuard, ReentrantGuard, ReentrantMutex, RevokeTarget, Revoker,
    RwLock, Semaphore, WriteGuard, lock_all, lock_all_timeout, lock_all_with, lock_each,
    lock_each_timeout, lock_each_with, lock_events, try_lock_all, try_lock_all_with, try_lock_many,
    try_lock_many_with,
};
use testkit::on_every_backend;
use tokio::task::yield_now;

use crate::common::*;

/// The guards' inherent methods, with the trait out of scope.
mod inherent {
    use std::time::Duration;

    use lockkeeper::{
        Guard, Leadership, LostReason, MultiGuard, Permit, ReadGuard, ReentrantGuard, WriteGuard,
    };

    use crate::common::polled;

    macro_rules! have_the_interface {
        ($($check:ident: $guard:ty;)*) => {$(
            pub(super) async fn $check(guard: $guard, expected: usize) {
                assert!(guard.is_held());
                assert!(guard.fencing_token().as_i64() > 0);
                if let Some(until) = guard.held_until() {
                    assert!(until.remaining() > Duration::ZERO);
                }
                assert_eq!(polled(guard.lost(), 1).await, None);
                assert!(polled(guard.revocation_requested(), 1).await.is_none());
                assert_eq!(guard.protect(async { 7 }).await, Ok(7));
                guard.keep_alive().await.unwrap();
                assert_eq!(guard.metadata().kept_alive, Some(1));
                assert_eq!(guard.metadata().label.as_deref(), Some("family"));
                assert_eq!(super::paths(&guard), expected);
                assert!(guard.session().state().is_connected());
                assert!(format!("{guard:?}").contains(&guard.fencing_token().to_string()));
                guard.release().await.unwrap();
            }
        )*};
    }

    have_the_interface! {
        guard: Guard;
        read_guard: ReadGuard;
        write_guard: WriteGuard;
        reentrant_guard: ReentrantGuard;
        leadership: Leadership;
        permit: Permit;
        multi_guard: MultiGuard;
    }

    /// Loses guards and asserts that their whole interface reports it.
    macro_rules! are_lost {
        ($($check:ident: $guard:ty;)*) => {$(
            pub(super) async fn $check(guard: $guard, lost: LostReason) {
                assert_eq!(guard.lost().await, lost);
                assert!(!guard.is_held());
                assert_eq!(guard.revocation_requested().await, Err(lost));
                assert_eq!(guard.protect(std::future::pending::<()>()).await, Err(lost));
                assert_eq!(guard.keep_alive().await, Err(lost.into()));
                assert_eq!(guard.release().await, Err(lost.into()));
            }
        )*};
    }

    are_lost! {
        lost_guard: Guard;
        lost_read_guard: ReadGuard;
        lost_write_guard: WriteGuard;
        lost_reentrant_guard: ReentrantGuard;
        lost_leadership: Leadership;
        lost_permit: Permit;
        lost_multi_guard: MultiGuard;
    }
}

fn paths(guard: &impl LockGuard) -> usize {
    guard.paths().count()
}

struct Family {
    guard: Guard,
    read: ReadGuard,
    write: WriteGuard,
    reentrant: ReentrantGuard,
    leadership: Leadership,
    permit: Permit,
    multi: MultiGuard,
}

impl Family {
    async fn held_by(client: &Client) -> Self {
        let options = || LockOptions::new().label("family");
        let mutex = Mutex::new(client, "/family/mutex").unwrap();
        let one = RwLock::new(client, "/family/read").unwrap();
        let other = RwLock::new(client, "/family/write").unwrap();
        let owner = ReentrantMutex::new(client, "/family/reentrant")
            .unwrap()
            .owner();
        let election = Election::new(client, "/family/election").unwrap();
        let semaphore = Semaphore::new(client, "/family/semaphore", 5).unwrap();
        let keys = ["/family/many/1", "/family/many/2"];
        Self {
            guard: mutex.lock_with(options()).await.unwrap(),
            read: one.read_with(options()).await.unwrap(),
            write: other.write_with(options()).await.unwrap(),
            reentrant: owner.lock_with(options()).await.unwrap(),
            leadership: election.campaign_with("me", options()).await.unwrap(),
            permit: semaphore.acquire_with(3, options()).await.unwrap(),
            multi: lock_all_with(client, keys, options()).await.unwrap(),
        }
    }
}

async fn in_general(guard: impl LockGuard) {
    assert!(guard.is_held() && guard.held_until().is_none_or(|until| !until.has_passed()));
    assert!(
        guard
            .paths()
            .all(|path| path.as_str().starts_with("/family/"))
    );
    assert_eq!(polled(guard.lost(), 1).await, None);
    assert!(polled(guard.revocation_requested(), 1).await.is_none());
    assert_eq!(
        guard.protect(async { guard.fencing_token() }).await,
        Ok(guard.fencing_token())
    );
    guard.keep_alive().await.unwrap();
    assert_eq!(guard.metadata().kept_alive, Some(1));
    assert!(guard.session().state().is_connected());
    guard.release().await.unwrap();
}

/// Checks a recipe's calls (wait, with timeout, with options, try, try with options) with the lock free and held by
/// another client.
macro_rules! forms {
    ($held:expr; $wait:expr, $timeout:expr, $with:expr, $try:expr, $try_with:expr) => {{
        $wait.await.unwrap().release().await.unwrap();
        $timeout(LONG).await.unwrap().release().await.unwrap();
        let (sink, mut events) = lock_events();
        let with = LockOptions::new().timeout(LONG).label("with").events(sink);
        let guard = $with(with).await.unwrap();
        assert_eq!(guard.metadata().label.as_deref(), Some("with"));
        assert!(matches!(events.next().await, Some(LockEvent::Acquired { .. })));
        guard.release().await.unwrap();
        $try.await.unwrap().unwrap().release().await.unwrap();
        let (sink, mut events) = lock_events();
        let with = LockOptions::new().synced().timeout(LONG).label("try").events(sink);
        let guard = $try_with(with).await.unwrap().unwrap();
        assert_eq!(guard.metadata().label.as_deref(), Some("try"));
        assert!(matches!(events.next().await, Some(LockEvent::Acquired { .. })));
        guard.release().await.unwrap();

        let held = $held.await.unwrap();
        assert!($try.await.unwrap().is_none());
        assert!($try_with(LockOptions::new()).await.unwrap().is_none());
        assert!($try_with(LockOptions::new().synced().timeout(LONG)).await.unwrap().is_none());
        let limit = Duration::from_millis(20);
        let refused = $timeout(limit).await.err().unwrap();
        assert!(matches!(refused, LockError::Timeout { after, .. } if after == limit), "{refused}");
        let refused = $with(LockOptions::new().timeout(limit)).await.err().unwrap();
        assert!(matches!(refused, LockError::Timeout { after, .. } if after == limit), "{refused}");
        let refused = $with(LockOptions::new().queue_limit(0).timeout(LONG)).await.err().unwrap();
        assert!(matches!(refused, LockError::QueueFull { limit: 0, .. }), "{refused}");
        held.release().await.unwrap();
    }};
}

on_every_backend! {
    async fn every_guard_has_the_same_interface(env: Env) {
        let world = World::new(env).await;
        let family = Family::held_by(&world.client().await).await;
        inherent::guard(family.guard, 1).await;
        inherent::read_guard(family.read, 1).await;
        inherent::write_guard(family.write, 1).await;
        inherent::reentrant_guard(family.reentrant, 1).await;
        inherent::leadership(family.leadership, 1).await;
        inherent::permit(family.permit, 3).await;
        inherent::multi_guard(family.multi, 2).await;
    }

    async fn generic_code_takes_every_guard(env: Env) {
        let world = World::new(env).await;
        let family = Family::held_by(&world.client().await).await;
        in_general(family.guard).await;
        in_general(family.read).await;
        in_general(family.write).await;
        in_general(family.reentrant).await;
        in_general(family.leadership).await;
        in_general(family.permit).await;
        in_general(family.multi).await;
    }

    async fn every_guard_is_lost_with_its_session(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let family = Family::held_by(&client).await;
        client.close().await.unwrap();
        let lost = LostReason::SessionClosed;
        inherent::lost_guard(family.guard, lost).await;
        inherent::lost_read_guard(family.read, lost).await;
        inherent::lost_write_guard(family.write, lost).await;
        inherent::lost_reentrant_guard(family.reentrant, lost).await;
        inherent::lost_leadership(family.leadership, lost).await;
        inherent::lost_permit(family.permit, lost).await;
        inherent::lost_multi_guard(family.multi, lost).await;
    }

    async fn every_guard_hears_a_request_and_is_lost_by_force(env: Env) {
        let world = World::new(env).await;
        let family = Family::held_by(&world.client().await).await;
        let revoker = Revoker::new(&world.observer).by("ops: jane");
        let asked = [
            ("/family/mutex", family.guard.path()),
            ("/family/election", family.leadership.path()),
            ("/family/semaphore", family.permit.paths().last().unwrap()),
            ("/family/many/2", family.multi.paths().last().unwrap()),
        ];
        for (lock, entry) in asked {
            let target = RevokeTarget::entry(entry).unwrap();
            assert_eq!(revoker.request(&target).await.unwrap().len(), 1, "{lock}");
        }
        let by = |request: lockkeeper::RevocationRequest| request.by.unwrap();
        assert_eq!(by(family.guard.revocation_requested().await.unwrap()), "ops: jane");
        assert_eq!(by(family.leadership.revocation_requested().await.unwrap()), "ops: jane");
        assert_eq!(by(family.permit.revocation_requested().await.unwrap()), "ops: jane");
        assert_eq!(by(family.multi.revocation_requested().await.unwrap()), "ops: jane");
        for (_, entry) in asked {
            world.revoke(entry).await;
        }
        let lost = LostReason::Revoked;
        inherent::lost_guard(family.guard, lost).await;
        inherent::lost_leadership(family.leadership, lost).await;
        inherent::lost_permit(family.permit, lost).await;
        inherent::lost_multi_guard(family.multi, lost).await;
    }

    async fn every_recipe_has_the_same_forms(env: Env) {
        let world = World::new(env).await;
        let (us, other) = (world.client().await, world.client().await);

        let path = "/forms/mutex";
        let (ours, theirs) = (Mutex::new(&us, path).unwrap(), Mutex::new(&other, path).unwrap());
        forms!(theirs.lock(); ours.lock(), |t| ours.lock_timeout(t), |o| ours.lock_with(o),
            ours.try_lock(), |o| ours.try_lock_with(o));

        let path = "/forms/rwlock";
        let (ours, theirs) = (RwLock::new(&us, path).unwrap(), RwLock::new(&other, path).unwrap());
        forms!(theirs.write(); ours.read(), |t| ours.read_timeout(t), |o| ours.read_with(o),
            ours.try_read(), |o| ours.try_read_with(o));
        forms!(theirs.read(); ours.write(), |t| ours.write_timeout(t), |o| ours.write_with(o),
            ours.try_write(), |o| ours.try_write_with(o));

        let path = "/forms/reentrant";
        let owner = |client| ReentrantMutex::new(client, path).unwrap().owner();
        let (ours, theirs) = (owner(&us), owner(&other));
        forms!(theirs.lock(); ours.lock(), |t| ours.lock_timeout(t), |o| ours.lock_with(o),
            ours.try_lock(), |o| ours.try_lock_with(o));

        let path = "/forms/election";
        let election = |client| Election::new(client, path).unwrap();
        let (ours, theirs) = (election(&us), election(&other));
        forms!(theirs.campaign("they"); ours.campaign("we"), |t| ours.campaign_timeout("we", t),
            |o| ours.campaign_with("we", o), ours.try_campaign("we"), |o| ours.try_campaign_with("we", o));

        let keys = ["/forms/many/1", "/forms/many/2"];
        forms!(lock_all(&other, &keys[1..]); lock_all(&us, keys), |t| lock_all_timeout(&us, keys, t),
            |o| lock_all_with(&us, keys, o), try_lock_all(&us, keys), |o| try_lock_all_with(&us, keys, o));
    }

    async fn a_timeout_of_zero_allows_one_attempt(env: Env) {
        let world = World::new(env).await;
        let (us, other) = (world.client().await, world.client().await);
        let (zero, root) = (Duration::ZERO, path("/"));
        /// Checks a call while the lock is free, held by another client, and unreachable.
        macro_rules! one_attempt {
            ($held:expr; $call:expr) => {{
                $call.await.unwrap().release().await.unwrap();
                let held = $held.await.unwrap();
                let refused = $call.await.err().unwrap();
                assert!(matches!(refused, LockError::Timeout { ahead: Some(_), .. }), "{refused}");
                held.release().await.unwrap();
                world.disconnect(&us);
                let refused = $call.await.err().unwrap();
                assert!(matches!(refused, LockError::Timeout { ahead: None, .. }), "{refused}");
                world.reconnect(&us);
                us.current_session().exists(&root).await.unwrap();
            }};
        }
        let path = "/zero/mutex";
        let (ours, theirs) = (Mutex::new(&us, path).unwrap(), Mutex::new(&other, path).unwrap());
        one_attempt!(theirs.lock(); ours.lock_timeout(zero));
        let path = "/zero/rwlock";
        let (ours, theirs) = (RwLock::new(&us, path).unwrap(), RwLock::new(&other, path).unwrap());
        one_attempt!(theirs.write(); ours.read_timeout(zero));
        one_attempt!(theirs.read(); ours.write_timeout(zero));
        let path = "/zero/reentrant";
        let owner = |client| ReentrantMutex::new(client, path).unwrap().owner();
        let (ours, theirs) = (owner(&us), owner(&other));
        one_attempt!(theirs.lock(); ours.lock_timeout(zero));
        // The owner's other task waits, and delays the owner's calls but not the queue.
        let held = theirs.lock().await.unwrap();
        let (waiting, refused) = tokio::join!(polled(ours.lock(), 1), ours.lock_timeout(zero));
        assert!(waiting.is_none() && matches!(refused, Err(LockError::Timeout { .. })));
        held.release().await.unwrap();
        let path = "/zero/semaphore";
        let semaphore = |client| Semaphore::new(client, path, 1).unwrap();
        let (ours, theirs) = (semaphore(&us), semaphore(&other));
        one_attempt!(theirs.acquire(); ours.acquire_timeout(zero));
        let path = "/zero/election";
        let election = |client| Election::new(client, path).unwrap();
        let (ours, theirs) = (election(&us), election(&other));
        one_attempt!(theirs.campaign("they"); ours.campaign_timeout("we", zero));
        let keys = ["/zero/many/1", "/zero/many/2"];
        one_attempt!(lock_all(&other, &keys[1..]); lock_all_timeout(&us, keys, zero));
        let mut each = lock_each_timeout(&us, keys, zero).unwrap();
        while let Some(granted) = each.next().await {
            granted.unwrap().1.release().await.unwrap();
        }
    }

    async fn a_loop_on_a_free_lock_lets_other_tasks_run(env: Env) {
        let client = env.client().await;
        /// Checks that a long loop of calls that never wait still yields the thread.
        macro_rules! yields {
            ($($call:expr),*) => {$(
                // Start with the task's full budget.
                yield_now().await;
                let cycles = async {
                    for _ in 0..1000 {
                        let _ = $call.await.unwrap();
                    }
                };
                assert!(polled(cycles, 1).await.is_none(), stringify!($call));
            )*};
        }
        let mutex = Mutex::new(&client, "/loop/mutex").unwrap();
        yields!(mutex.lock(), mutex.lock_timeout(LONG), mutex.try_lock());
        let rwlock = RwLock::new(&client, "/loop/rwlock").unwrap();
        yields!(rwlock.read(), rwlock.write());
        let owner = ReentrantMutex::new(&client, "/loop/reentrant").unwrap().owner();
        let _held = owner.lock().await.unwrap();
        yields!(owner.lock(), owner.try_lock());
        let semaphore = Semaphore::new(&client, "/loop/semaphore", 2).unwrap();
        semaphore.acquire().await.unwrap().release().await.unwrap();
        yields!(semaphore.acquire(), semaphore.try_acquire());
        let election = Election::new(&client, "/loop/election").unwrap();
        yields!(election.campaign("me"));
        let keys = ["/loop/1", "/loop/2"];
        yields!(lock_all(&client, keys), try_lock_many(&client, keys));
        let session = client.current_session();
        let root = path("/");
        yields!(session.exists(&root));
    }

    async fn a_semaphore_has_the_same_forms(env: Env) {
        let world = World::new(env).await;
        let semaphore = |client| Semaphore::new(client, "/forms/semaphore", 1).unwrap();
        let (ours, theirs) = (semaphore(&world.client().await), semaphore(&world.client().await));
        ours.acquire().await.unwrap().release().await.unwrap();
        ours.acquire_many(1).await.unwrap().release().await.unwrap();
        ours.acquire_timeout(LONG).await.unwrap().release().await.unwrap();
        let with = || LockOptions::new().timeout(LONG).label("with").synced();
        let guard = ours.acquire_with(1, with()).await.unwrap();
        assert_eq!(guard.metadata().label.as_deref(), Some("with"));
        guard.release().await.unwrap();
        ours.try_acquire().await.unwrap().unwrap().release().await.unwrap();
        ours.try_acquire_many(1).await.unwrap().unwrap().release().await.unwrap();
        let guard = ours.try_acquire_with(1, with()).await.unwrap().unwrap();
        assert_eq!(guard.metadata().label.as_deref(), Some("with"));
        guard.release().await.unwrap();

        let held = theirs.acquire().await.unwrap();
        assert!(ours.try_acquire().await.unwrap().is_none());
        assert!(ours.try_acquire_with(1, with()).await.unwrap().is_none());
        let limit = Duration::from_millis(20);
        assert_timed_out(&ours.acquire_timeout(limit).await.unwrap_err(), "/forms/semaphore", limit);
        let with = LockOptions::new().timeout(limit);
        let refused = ours.acquire_with(1, with).await.unwrap_err();
        assert_timed_out(&refused, "/forms/semaphore", limit);
        held.release().await.unwrap();
    }

    async fn each_of_several_locks_has_the_same_forms(env: Env) {
        let world = World::new(env).await;
        let (us, other) = (world.client().await, world.client().await);
        let keys = ["/forms/each/1", "/forms/each/2"];
        let with = || LockOptions::new().timeout(LONG).label("with").synced();
        for mut each in [
            lock_each(&us, keys).unwrap(),
            lock_each_timeout(&us, keys, LONG).unwrap(),
            lock_each_with(&us, keys, with()).unwrap(),
        ] {
            while let Some(granted) = each.next().await {
                granted.unwrap().1.release().await.unwrap();
            }
        }
        for options in [None, Some(with())] {
            let tried = match options {
                None => try_lock_many(&us, keys).await.unwrap(),
                Some(options) => try_lock_many_with(&us, keys, options).await.unwrap(),
            };
            assert!(tried.contended.is_empty());
            for (_, guard) in tried.acquired {
                guard.release().await.unwrap();
            }
        }
        let held = lock_all(&other, &keys[..1]).await.unwrap();
        let tried = try_lock_many_with(&us, keys, with()).await.unwrap();
        assert_eq!((tried.acquired.len(), tried.contended.len()), (1, 1));
        drop(tried);
        let limit = Duration::from_millis(20);
        let mut each = lock_each_timeout(&us, &keys[..1], limit).unwrap();
        assert_timed_out(&each.next().await.unwrap().unwrap_err(), keys[0], limit);
        held.release().await.unwrap();
    }

    async fn a_try_ends_with_its_timeout_when_the_store_does_not_answer(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let limit = Duration::from_millis(20);
        let within = || LockOptions::new().timeout(limit);
        let lock = RwLock::new(&client, LOCK).unwrap();
        let semaphore = Semaphore::new(&client, "/forms/semaphore", 1).unwrap();
        let election = Election::new(&client, "/forms/election").unwrap();
        world.disconnect(&client);
        let refused = Mutex::new(&client, LOCK).unwrap().try_lock_with(within()).await;
        assert_timed_out(&refused.unwrap_err(), LOCK, limit);
        assert_timed_out(&lock.try_read_with(within()).await.unwrap_err(), LOCK, limit);
        assert_timed_out(&lock.try_write_with(within()).await.unwrap_err(), LOCK, limit);
        let refused = semaphore.try_acquire_with(1, within()).await.unwrap_err();
        assert_timed_out(&refused, "/forms/semaphore", limit);
        let refused = election.try_campaign_with("we", within()).await.unwrap_err();
        assert_timed_out(&refused, "/forms/election", limit);
        let refused = try_lock_many_with(&client, [LOCK], within()).await.unwrap_err();
        assert_timed_out(&refused, LOCK, limit);
        world.reconnect(&client);
    }
}
