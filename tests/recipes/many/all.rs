//! `lock_all`: order, exclusion, no deadlocks, and refusals.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lockkeeper::{FencingGate, LockMetadata, LockPath, LostReason, Mutex, lock_events};
use testkit::{Random, on_every_backend, on_every_znode_store, scaled};

use super::*;

/// Resource behind a lock: one holder at a time, with increasing tokens.
#[derive(Default)]
struct Account {
    is_in_use: AtomicBool,
    gate: std::sync::Mutex<FencingGate>,
    uses: AtomicU64,
}

impl Account {
    fn enter(&self, guard: &MultiGuard) {
        assert!(!self.is_in_use.swap(true, Ordering::SeqCst), "two holders");
        let admitted = self.gate.lock().unwrap().admit(guard.fencing_token());
        admitted.unwrap();
        self.uses.fetch_add(1, Ordering::SeqCst);
    }

    fn leave(&self) {
        assert!(self.is_in_use.swap(false, Ordering::SeqCst));
    }
}

/// Returns a few distinct numbers below `bound` in a seeded order.
fn subset(seed: u64, bound: usize) -> Vec<usize> {
    let mut random = Random(seed);
    let mut numbers: Vec<_> = (0..bound).collect();
    for index in (1..bound).rev() {
        numbers.swap(index, random.index(index + 1));
    }
    numbers.truncate(1 + random.index(bound - 1));
    numbers
}

on_every_backend! {
    async fn all_are_held_or_none(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let guard = lock_all(&client, KEYS).await.unwrap();
        assert_eq!(world.standing().await, 3);
        assert!(guard.is_held());
        let keys: Vec<_> = guard.keys().map(LockPath::to_string).collect();
        assert_eq!(keys, KEYS);
        for key in guard.keys() {
            assert_eq!(guard.get(key).unwrap().fencing_token(), guard.fencing_token());
        }
        assert_eq!(guard.protect(async { 7 }).await, Ok(7));
        guard.keep_alive().await.unwrap();
        assert_eq!(guard.metadata().kept_alive, Some(1));
        let other = Mutex::new(&world.client().await, KEYS[1]).unwrap();
        assert!(other.try_lock().await.unwrap().is_none());
        guard.release().await.unwrap();
        assert_eq!(world.standing().await, 0);
        drop(lock_all(&client, KEYS).await.unwrap());
        world.until_nothing_is_left(&client).await;
    }

    async fn all_locks_share_one_token_which_observers_see(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let first = lock_all(&client, KEYS).await.unwrap();
        let token = first.fencing_token();
        for key in KEYS {
            let queue = lockkeeper::queue(&world.observer, key).await.unwrap();
            assert_eq!(queue[0].fencing_token, token);
            assert_eq!(queue[0].owner, first.session().id());
            let metadata: &LockMetadata = queue[0].metadata.as_ref().unwrap();
            assert_eq!(metadata.pid, Some(std::process::id()));
        }
        first.release().await.unwrap();
        let next = Mutex::new(&client, KEYS[2]).unwrap().lock().await.unwrap();
        assert!(next.fencing_token() > token, "a mutex's holder is newer");
        next.release().await.unwrap();
        let again = lock_all(&client, KEYS).await.unwrap();
        assert!(again.fencing_token() > token);
    }

    async fn grants_come_in_the_order_of_arrival(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let holder = lock_all(&client, KEYS).await.unwrap();
        let ab = world.queue_up_all(&world.client().await, &["/many/b", "/many/a"]).await;
        let single = Mutex::new(&world.client().await, "/many/a").unwrap();
        let single = tokio::spawn(async move { single.lock().await });
        world.until_each(&["/many/a"], 3).await;
        let ca = world.queue_up_all(&world.client().await, &["/many/c", "/many/a"]).await;
        holder.release().await.unwrap();
        let ab = all_granted(ab).await;
        assert!(!single.is_finished() && !ca.is_finished());
        ab.release().await.unwrap();
        let single = granted(single).await;
        // It is first at /many/c already, but not at /many/a.
        assert!(!ca.is_finished());
        single.release().await.unwrap();
        let ca = all_granted(ca).await;
        let keys: Vec<_> = ca.keys().map(LockPath::to_string).collect();
        assert_eq!(keys, ["/many/c", "/many/a"], "in the order of their naming");
        ca.release().await.unwrap();
        assert_eq!(world.standing().await, 0);
    }

    async fn callers_that_name_the_locks_in_opposite_orders_never_deadlock(env: Env) {
        let world = World::new(env).await;
        let accounts: Arc<Vec<Account>> = Arc::new((0..6).map(|_| Account::default()).collect());
        let mut workers = Vec::new();
        for worker in 0..8 {
            let (client, accounts) = (world.client().await, accounts.clone());
            workers.push(tokio::spawn(async move {
                let mut used = 0;
                for round in 0..scaled(12) {
                    let mut chosen = subset(worker * 1_000 + round, accounts.len());
                    if worker % 2 == 1 {
                        chosen.reverse();
                    }
                    let keys: Vec<_> = chosen.iter().map(|n| format!("/account/{n}")).collect();
                    let guard = lock_all(&client, keys).await.unwrap();
                    chosen.iter().for_each(|n| accounts[*n].enter(&guard));
                    tokio::task::yield_now().await;
                    chosen.iter().for_each(|n| accounts[*n].leave());
                    used += chosen.len() as u64;
                    guard.release().await.unwrap();
                }
                used
            }));
        }
        let mut used = 0;
        for worker in workers {
            used += worker.await.unwrap();
        }
        let uses = |account: &Account| account.uses.load(Ordering::SeqCst);
        assert_eq!(accounts.iter().map(uses).sum::<u64>(), used);
        let session = world.observing().await;
        for n in 0..accounts.len() {
            assert!(children(&session, &format!("/account/{n}")).await.is_empty());
        }
    }

    async fn losing_one_lock_loses_all(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let guard = lock_all(&client, KEYS).await.unwrap();
        let second: LockPath = KEYS[1].try_into().unwrap();
        let node = guard.get(&second).unwrap().path().clone();
        let lost = guard.lost();
        world.revoke(&node).await;
        assert_eq!(lost.await, LostReason::Revoked);
        assert!(!guard.is_held());
        let refusal = guard.protect(std::future::pending::<()>()).await;
        assert_eq!(refusal, Err(LostReason::Revoked));
        assert!(guard.keep_alive().await.is_err());
        let refusal = guard.release().await.unwrap_err();
        assert_eq!(refusal, LockError::Lost(LostReason::Revoked));
        assert_eq!(world.standing().await, 0, "the others are released all the same");
    }

    async fn the_end_of_the_session_loses_all(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let guard = lock_all(&client, KEYS).await.unwrap();
        let waiting = world.queue_up_all(&world.client().await, &KEYS).await;
        world.expire(&client).await.unwrap();
        assert_eq!(guard.lost().await, LostReason::SessionExpired);
        let next = all_granted(waiting).await;
        assert!(!guard.is_held() && next.is_held());
        assert!(next.fencing_token() > guard.fencing_token());
    }

    async fn invalid_arguments_are_refused_before_anything_is_sent(env: Env) {
        let world = World::new(env).await;
        refuses_bad_keys(&world, async |client, keys| lock_all(client, keys).await).await;
    }

    async fn each_lock_tells_its_own_events(env: Env) {
        let world = World::new(env).await;
        let holder = Mutex::new(&world.client().await, KEYS[1]).unwrap();
        let holder = holder.lock().await.unwrap();
        let (sink, mut events) = lock_events();
        let options = LockOptions::new().label("batch").events(sink);
        let waiting = world.queue_up_all_with(&world.client().await, &KEYS, options).await;
        let said = events.next().await.unwrap().to_string();
        assert!(said.starts_with("queued behind 1"), "{said}");
        holder.release().await.unwrap();
        let guard = all_granted(waiting).await;
        assert_eq!(guard.metadata().label.as_deref(), Some("batch"));
        for _ in KEYS {
            assert!(events.next().await.unwrap().to_string().starts_with("acquired"));
        }
        guard.release().await.unwrap();
        for _ in KEYS {
            assert_eq!(events.next().await.unwrap().to_string(), "released");
        }
        assert!(events.next().await.is_none());
    }
}

on_every_znode_store! {
    async fn the_largest_batch_that_is_not_refused_is_carried(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let long = "x".repeat(3_000);
        let keys = |count: usize| (0..count).map(|n| format!("/large/{n:04}{long}"));
        let mut count = 400;
        let guard = loop {
            match lock_all(&client, keys(count)).await {
                Ok(guard) => break guard,
                Err(LockError::BatchTooLarge { bytes, limit, .. }) => {
                    count -= (bytes - limit).div_ceil(bytes / count);
                }
                Err(error) => panic!("{error}"),
            }
        };
        assert!(count > 300, "{count} locks fill a request");
        assert!(guard.is_held());
        guard.release().await.unwrap();
        let session = world.observing().await;
        for key in keys(count) {
            assert!(children(&session, &key).await.is_empty());
        }
    }
}
