//! A lock below a lock: children that are not contenders of the lock above, whatever their names.

use std::time::Duration;

use lockkeeper::{
    Client, Election, FencingEnforced, Guard, LockPath, Mutex, RevokeTarget, Revoker, RwLock,
    Semaphore, holders, lock_all, queue, try_lock_many,
};
use lockkeeper_store::{CreateMode, ZnodePath};
use testkit::{on_every_backend, on_every_znode_store};

use crate::common::*;

/// Keys that end like an entry's number or a wrapped counter.
const NUMBERS: [&str; 6] = [
    "0000000000",
    "42-0000000007",
    "12345678901",
    "1234567890123",
    "999999999999999999",
    "a--000000005",
];

/// Longer than a free lock takes on any backend.
const FREE: Duration = Duration::from_secs(5);

async fn lock_free(client: &Client, base: &LockPath) -> Guard {
    let mutex = Mutex::new(client, base).unwrap();
    let locked = mutex.lock_timeout(FREE).await;
    locked.unwrap_or_else(|error| panic!("{base} is free: {error}"))
}

/// Asserts that every recipe that looks at the lock sees it free, without holders or waiters.
async fn assert_free(client: &Client, base: &LockPath) {
    let entries = queue(client, base).await.unwrap();
    assert_eq!(holders(&entries), [], "{base}");
    let election = Election::new(client, base).unwrap();
    assert_eq!(election.leader().await.unwrap(), None, "{base}");
    let mutex = Mutex::new(client, base).unwrap();
    let guard = mutex.try_lock().await.unwrap();
    guard
        .unwrap_or_else(|| panic!("{base} is free"))
        .release()
        .await
        .unwrap();
    let lock = RwLock::new(client, base).unwrap();
    let reader = lock.try_read().await.unwrap();
    reader
        .unwrap_or_else(|| panic!("{base} is free"))
        .release()
        .await
        .unwrap();
    let mut tried = try_lock_many(client, [base]).await.unwrap();
    let (_, guard) = tried
        .acquired
        .pop()
        .unwrap_or_else(|| panic!("{base} is free"));
    guard.release().await.unwrap();
    lock_free(client, base).await.release().await.unwrap();
}

async fn make_child(world: &World, name: &str, mode: CreateMode) -> ZnodePath {
    world.make(LOCK).await;
    let session = world.observing().await;
    let at = path(&format!("{LOCK}/{name}"));
    session.create(&at, "", mode).await.unwrap().0
}

on_every_backend! {
    async fn a_lock_below_a_lock_is_no_contender(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        for number in NUMBERS {
            let base = LockPath::new(LOCK).unwrap().key("base").key(&format!("below {number}"));
            let below = LockPath::new(format!("{base}/{number}")).unwrap();
            let nested = lock_free(&client, &below).await;
            let key = lock_free(&client, &base.key(number)).await;
            assert_free(&world.client().await, &base).await;
            nested.release().await.unwrap();
            key.release().await.unwrap();
        }
    }

    async fn the_lock_above_and_the_one_below_are_two(env: Env) {
        let world = World::new(env).await;
        let [one, other] = [world.client().await, world.client().await];
        let base = LockPath::new(LOCK).unwrap();
        let below = LockPath::new(format!("{LOCK}/{}", NUMBERS[0])).unwrap();
        let above = lock_free(&one, &base).await;
        let nested = lock_free(&other, &below).await;
        let waiter = world.queue_up(&Mutex::new(&other, &base).unwrap()).await;
        let entries = queue(&world.observer, &base).await.unwrap();
        assert_eq!(entries.len(), 2, "{entries:?}");
        assert_eq!(holders(&entries)[0].path, *above.path());
        nested.release().await.unwrap();
        assert!(!waiter.is_finished());
        above.release().await.unwrap();
        granted(waiter).await.release().await.unwrap();
    }

    async fn a_writer_is_alone_above_a_lock(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let lock = RwLock::new(&client, LOCK).unwrap();
        let below = LockPath::new(format!("{LOCK}/{}", NUMBERS[0])).unwrap();
        let _nested = lock_free(&client, &below).await;
        let reader = lock.try_read().await.unwrap();
        let reader = reader.expect("nobody holds the lock");
        let lockkeeper::Upgrade::Upgraded(writer) = reader.try_upgrade().await.unwrap() else {
            panic!("nobody else is in the queue");
        };
        writer.release().await.unwrap();
    }

    async fn the_path_of_a_lock_in_use_is_not_reaped(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let base = LockPath::new(LOCK).unwrap();
        lock_free(&client, &base).await.release().await.unwrap();
        let nested = lock_free(&client, &base.key("nested")).await;
        // Once a server has removed another unused lock's path, it has swept.
        let left = LockPath::new("/lock/left").unwrap();
        lock_free(&client, &left).await.release().await.unwrap();
        let session = world.observing().await;
        if !world.env.is_embedded()
            && let (Some(_), watcher) = session.watch_exists(left.as_znode()).await.unwrap()
        {
            watcher.await.unwrap();
        }
        assert!(nested.is_held());
        assert_free(&world.client().await, &base).await;
        nested.release().await.unwrap();
    }

    async fn a_path_that_nobody_uses_is_reaped_as_a_whole(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let below = LockPath::new("/above/one/lock").unwrap();
        lock_free(&client, &below).await.release().await.unwrap();
        let semaphore = Semaphore::new(&client, "/above/other/permits", 1).unwrap();
        semaphore.acquire().await.unwrap().release().await.unwrap();
        let session = world.observing().await;
        // The number of permits stays until someone deletes it.
        session.delete(&path("/above/other/permits/permits"), None).await.unwrap();
        // A store in this process sweeps once a minute.
        while !world.env.is_embedded()
            && let (Some(_), watcher) = session.watch_exists(&path("/above")).await.unwrap()
        {
            watcher.await.unwrap();
        }
    }
}

/// Names that a recipe could give an entry.
const FORMS: [&str; 4] = [
    "lock-0000000000",
    "_c_00112233-4455-4677-8899-aabbccddeeff-lock-0000000001",
    "_c_00112233445566778899aabbccddeeff-lock-0000000002",
    "00112233445566778899aabbccddeeff__lock__0000000003",
];

on_every_backend! {
    async fn a_persistent_child_is_no_contender(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        for name in FORMS {
            make_child(&world, name, CreateMode::Persistent).await;
        }
        let base = LockPath::new(LOCK).unwrap();
        lock_free(&client, &base).await.release().await.unwrap();
        let entries = queue(&world.observer, LOCK).await.unwrap();
        assert_eq!(holders(&entries), []);
        let election = Election::new(&client, LOCK).unwrap();
        // Those would be a mutex's.
        assert_eq!(election.leader().await.unwrap(), None);
    }

    async fn a_lock_under_the_name_of_an_entry_is_no_contender(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let base = LockPath::new(LOCK).unwrap();
        let nested = lock_free(&client, &LockPath::new(format!("{LOCK}/{}", FORMS[0])).unwrap()).await;
        assert_free(&world.client().await, &base).await;
        nested.release().await.unwrap();
    }
}

on_every_znode_store! {
    async fn a_waiter_looks_past_a_persistent_child(env: Env) {
        let world = World::new(env).await;
        world.make(LOCK).await;
        let holder = world.mutex().await.lock().await.unwrap();
        // Behind the holder and ahead of the waiter.
        let between = make_child(&world, "lock-", CreateMode::PersistentSequential).await;
        let waiter = world.queue_up(&world.mutex().await).await;
        assert!(!waiter.is_finished());
        holder.release().await.unwrap();
        let guard = tokio::time::timeout(FREE, granted(waiter)).await;
        guard.unwrap_or_else(|_| panic!("{between} is nobody's")).release().await.unwrap();
    }

    async fn an_ephemeral_of_an_unknown_form_is_no_contender(env: Env) {
        let world = World::new(env).await;
        world.make(LOCK).await;
        let job = make_child(&world, "job-", CreateMode::EphemeralSequential).await;
        assert_free(&world.client().await, &LockPath::new(LOCK).unwrap()).await;
        // Behind the job, one with a known form is waited for.
        let holder = world.mutex().await.lock_timeout(FREE).await.unwrap();
        let waiter = world.queue_up(&world.mutex().await).await;
        let job = [job, make_child(&world, "job-", CreateMode::EphemeralSequential).await];
        let last = world.queue_up(&world.mutex().await).await;
        let entries = queue(&world.observer, LOCK).await.unwrap();
        assert_eq!(entries.len(), 3, "{entries:?}");
        holder.release().await.unwrap();
        granted(waiter).await.release().await.unwrap();
        tokio::time::timeout(FREE, granted(last)).await.expect("its turn has come").release().await.unwrap();
        assert_eq!(world.children().await.len(), job.len());
    }

    async fn a_child_without_a_number_tells_no_recipe(env: Env) {
        let world = World::new(env).await;
        for name in ["my-latch-a", "a__READ__", "x-lease-1", "my-permit-"] {
            make_child(&world, name, CreateMode::Ephemeral).await;
        }
        let client = world.client().await;
        lock_free(&client, &LockPath::new(LOCK).unwrap()).await.release().await.unwrap();
        let mutex = Mutex::new(&client, LOCK).unwrap();
        let tried = mutex.try_lock().await.unwrap();
        tried.expect("nobody holds it").release().await.unwrap();
    }
}

on_every_backend! {
    async fn a_key_is_never_a_part_of_the_lock_above(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let base = LockPath::new(LOCK).unwrap();
        let mut nested = Vec::new();
        for text in FORMS.into_iter().chain(NUMBERS).chain(["locks", "leases", "%00000000"]) {
            let key = base.key(text);
            assert_eq!(lockkeeper_store::sequence_of(key.as_znode().name()), None, "{text}");
            nested.push(lock_free(&client, &key).await);
        }
        assert_free(&world.client().await, &base).await;
    }

    async fn a_bad_pattern_is_refused(env: Env) {
        for pattern in ["job/", "job-1"] {
            let options = lockkeeper::ConnectOptions::new().entry_pattern(pattern);
            let client = Client::open(env.connector().clone(), env.target().to_owned(), options).await;
            let error = client.unwrap_err().to_string();
            assert!(error.contains(pattern), "{error}");
        }
    }
}

on_every_znode_store! {
    async fn a_pattern_makes_a_contender(env: Env) {
        let world = World::new(env).await;
        let options = lockkeeper::ConnectOptions::new().entry_pattern("job-");
        let client = world.env.client_with(options).await;
        let job = make_child(&world, "job-", CreateMode::EphemeralSequential).await;
        let other = make_child(&world, "other-", CreateMode::EphemeralSequential).await;
        let stays = make_child(&world, "job-", CreateMode::PersistentSequential).await;
        let mutex = Mutex::new(&client, LOCK).unwrap();
        assert!(mutex.try_lock().await.unwrap().is_none(), "{job} holds");
        let entries = queue(&client, LOCK).await.unwrap();
        assert_eq!(holders(&entries)[0].path, job);
        let waiter = world.queue_up(&mutex).await;
        let session = world.observing().await;
        session.delete(&other, None).await.unwrap();
        session.delete(&stays, None).await.unwrap();
        assert!(!waiter.is_finished());
        session.delete(&job, None).await.unwrap();
        granted(waiter).await.release().await.unwrap();
    }
}

on_every_backend! {
    async fn every_recipe_nests(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let base = LockPath::new(LOCK).unwrap();
        let below = |name: &str| LockPath::new(format!("{LOCK}/{name}")).unwrap();
        let _permit = Semaphore::new(&client, below("0000000000"), 2).unwrap().acquire().await.unwrap();
        let election = Election::new(&client, below("lock-0000000001")).unwrap();
        let _leadership = election.campaign("me").await.unwrap();
        let _reader = RwLock::new(&client, below("1234567890123")).unwrap().read().await.unwrap();
        assert_free(&world.client().await, &base).await;
        // You can ask for a lock and one below it together.
        let both = lock_all(&client, [base.clone(), base.key("0000000000")]).await.unwrap();
        let [one, two] = [&base, &base.key("0000000000")].map(|path| Mutex::new(&client, path).unwrap());
        assert!(one.try_lock().await.unwrap().is_none() && two.try_lock().await.unwrap().is_none());
        both.release().await.unwrap();
        assert_free(&world.client().await, &base).await;
    }
}

on_every_znode_store! {
    async fn a_znode_that_stays_is_never_taken_away(env: Env) {
        let world = World::new(env).await;
        let stays = make_child(&world, "lock-", CreateMode::PersistentSequential).await;
        let holder = world.mutex().await.lock_timeout(FREE).await.unwrap();
        let target = RevokeTarget::holder(LOCK).unwrap();
        let revoker = Revoker::new(&world.observer);
        assert_eq!(revoker.request(&target).await.unwrap(), [holder.path().clone()]);
        let deleted = revoker.force(&target, FencingEnforced).await.unwrap();
        assert_eq!(deleted, [holder.path().clone()]);
        assert_eq!(revoker.force(&target, FencingEnforced).await.unwrap(), []);
        let there = world.observing().await.exists(&stays).await.unwrap();
        assert!(there.is_some(), "{stays} is gone");
    }
}
