//! A test for each known bug of other lock recipes, listed in docs/known-bugs.md.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkeeper::testing::{Plan, RequestKind, TestStore};
use lockkeeper::{
    Clock, Error, FencingGate, LockError, LockOptions, LostReason, Mutex, lock_all, queue,
};
use lockkeeper_store::{Backend, CreateMode, Op, Predecessor, Reply, Request, Response};
use testkit::{Env, Intercept, intercepted, on_every_backend, on_every_znode_store};

use crate::common::*;

/// A short session timeout.
const BRIEF: Duration = Duration::from_secs(2);

async fn number_of_the_only_entry(world: &World) -> String {
    let names = world.children().await;
    assert_eq!(names.len(), 1);
    names[0].rsplit('-').next().unwrap().to_owned()
}

mod orphans {
    use super::*;

    on_every_backend! {
        // Netflix/curator #3, go-zookeeper #229
        async fn the_reply_to_the_create_is_lost(env: Env) {
            let world = World::new(env).await;
            world.make(LOCK).await;
            let mutex = world.mutex().await;
            for on in [RequestKind::Enqueue, RequestKind::GetChildren, RequestKind::Exists] {
                world.lose_reply(mutex.client(), on);
            }
            let guard = mutex.lock().await.unwrap();
            assert_eq!(world.children().await, [guard.path().name()]);
            let waiter = world.queue_up(&world.mutex().await).await;
            guard.release().await.unwrap();
            granted(waiter).await.release().await.unwrap();
            world.until_swept(&mutex).await;
        }

        // As above.
        async fn the_reply_to_the_list_after_the_create_is_lost(env: Env) {
            let world = World::new(env).await;
            let between = Between::over(&world.env, Meddle::LoseLists);
            let mutex = Mutex::new(&between.client().await.unwrap(), LOCK).unwrap();
            let holder = world.mutex().await.lock().await.unwrap();
            let waiter = world.queue_up(&mutex).await;
            // Everything sent before, including the create, is answered once this is.
            until_carried_out(mutex.client(), &path(LOCK)).await;
            tokio::task::yield_now().await;
            assert!(!waiter.is_finished());
            holder.release().await.unwrap();
            granted(waiter).await.release().await.unwrap();
            mutex.lock().await.unwrap().release().await.unwrap();
            world.until_count(0).await;
        }

        // CURATOR-79, CURATOR-205
        async fn the_wait_is_cancelled_inside_the_create_and_inside_the_clean_up(env: Env) {
            let world = World::new(env).await;
            world.make(LOCK).await;
            let mutex = world.mutex().await;
            world.delay_replies(mutex.client(), Duration::from_millis(1));
            for lost in [RequestKind::Enqueue, RequestKind::GetChildren, RequestKind::Delete, RequestKind::Delete] {
                world.lose_reply(mutex.client(), lost);
            }
            assert!(polled(mutex.lock(), 1).await.is_none(), "cancelled inside the create");
            world.until_swept(&mutex).await;
        }

        // CURATOR-202
        async fn the_clean_up_fails_once_and_the_session_goes_on(env: Env) {
            let world = World::new(env).await;
            let holder = world.mutex().await.lock().await.unwrap();
            let mutex = world.mutex().await;
            for request_is_lost in [true, false] {
                let waiter = world.queue_up(&mutex).await;
                match request_is_lost {
                    true => world.lose_request(mutex.client(), RequestKind::Delete),
                    false => world.lose_reply(mutex.client(), RequestKind::Delete),
                }
                waiter.abort();
                world.until_count(1).await;
            }
            world.lose_request(holder.session(), RequestKind::Delete);
            drop(holder);
            world.until_swept(&mutex).await;
            assert!(mutex.client().current_session().status().is_alive());
        }

        // CURATOR-498
        async fn a_create_is_answered_after_the_session_has_expired(env: Env) {
            let world = World::new(env).await;
            let (late, mutex) = (world.mutex().await, world.mutex().await);
            world.make(LOCK).await;
            world.delay_replies(late.client(), LONG);
            let waiter = world.queue_up(&late).await;
            world.expire(late.client()).await.unwrap();
            let holder = mutex.lock().await.unwrap();
            world.heal();
            match waiter.await.unwrap() {
                // The answer arrived before the session's end.
                Ok(guard) => assert_eq!(guard.lost().await, LostReason::SessionExpired),
                Err(error) => assert!(error.is_session_end(), "{error}"),
            }
            assert!(holder.is_held());
            assert_eq!(world.children().await, [holder.path().name()]);
        }

        // kazoo #732
        async fn a_lagging_follower_hides_my_node(env: Env) {
            let world = World::new(env).await;
            let between = Between::over(&world.env, Meddle::LagBehind);
            let mutex = Mutex::new(&between.client().await.unwrap(), LOCK).unwrap();
            world.make(LOCK).await;
            between.lose_reply(mutex.client(), RequestKind::Enqueue);
            let waiting = mutex.clone();
            let waiter = tokio::spawn(async move { waiting.lock().await });
            let guard = tokio::select! {
                guard = waiter => guard.unwrap().unwrap(),
                () = world.until_count(2) => panic!("a second create waits for the first"),
            };
            assert_eq!(world.children().await, [guard.path().name()]);
        }
    }

    on_every_znode_store! {
        async fn a_failed_try_costs_a_node(env: Env) {
            let world = World::new(env).await;
            let _holder = world.mutex().await.lock().await.unwrap();
            let mutex = world.mutex().await;
            let before = world.traffic_of(mutex.client());
            for _ in 0..100 {
                assert!(mutex.try_lock().await.unwrap().is_none());
            }
            let cost = world.traffic_of(mutex.client()) - before;
            assert_eq!((cost.requests(RequestKind::Any), cost.requests(RequestKind::GetQueue)), (100, 100));
            assert_eq!(number_of_the_only_entry(&world).await, "0000000000");
        }
    }
}

mod ownership {
    use super::*;

    on_every_backend! {
        // CURATOR-620, CURATOR-696
        async fn after_a_reconnection_the_old_node_is_believed(env: Env) {
            let world = World::new(env).await;
            let mutex = Mutex::new(&world.client_for(BRIEF).await, LOCK).unwrap();
            let old = mutex.lock().await.unwrap();
            world.disconnect(mutex.client());
            assert_eq!(old.lost().await, LostReason::LeaseExpired);
            world.reconnect(mutex.client());
            // The session may have survived. Either way the new guard has another znode.
            let new = loop {
                match mutex.lock().await {
                    Ok(guard) => break guard,
                    Err(error) => assert!(error.is_session_end(), "{error}"),
                }
            };
            assert_ne!(old.path(), new.path());
            assert!(old.fencing_token() < new.fencing_token());
            assert!(!old.is_held());
        }

        // CURATOR-620
        async fn a_node_of_my_name_belongs_to_another_session(env: Env) {
            let world = World::new(env).await;
            let holder = world.mutex().await.lock().await.unwrap();
            let waiter = world.queue_up(&world.mutex().await).await;
            let mine = queue(&world.observer, LOCK).await.unwrap().remove(1).path;
            world.revoke(&mine).await;
            let session = world.observing().await;
            session.create(&mine, "", CreateMode::Ephemeral).await.unwrap();
            holder.release().await.unwrap();
            assert_eq!(refused(waiter).await, LockError::EntryDeleted { entry: mine.clone() });
        }

        // As above, after a reconnection. A list shows the name but not its owner.
        async fn a_node_of_my_name_belongs_to_another_session_after_a_reconnection(env: Env) {
            let world = World::new(env).await;
            let holder = world.mutex().await.lock().await.unwrap();
            let mutex = world.mutex().await;
            let waiter = world.queue_up(&mutex).await;
            let mine = queue(&world.observer, LOCK).await.unwrap().remove(1).path;
            world.disconnect(mutex.client());
            world.revoke(&mine).await;
            let session = world.observing().await;
            session.create(&mine, "", CreateMode::Ephemeral).await.unwrap();
            holder.release().await.unwrap();
            world.until_count(1).await;
            world.reconnect(mutex.client());
            assert_eq!(refused(waiter).await, LockError::EntryDeleted { entry: mine.clone() });
        }

        // etcd #22082
        async fn a_repeated_unlock_deletes_the_next_lock_of_the_session(env: Env) {
            let world = World::new(env).await;
            let mutex = world.mutex().await;
            let guard = mutex.lock().await.unwrap();
            world.lose_reply(mutex.client(), RequestKind::Delete);
            let release = guard.release();
            let next = mutex.lock().await.unwrap();
            release.await.unwrap();
            assert_eq!(world.children().await, [next.path().name()]);
            next.release().await.unwrap();
        }

        // etcd #19597
        async fn a_waiter_blocks_on_when_its_session_has_expired(env: Env) {
            let world = World::new(env).await;
            let _holder = world.mutex().await.lock().await.unwrap();
            let mutex = world.mutex().await;
            let waiter = world.queue_up(&mutex).await;
            world.expire(mutex.client()).await.unwrap();
            assert!(refused(waiter).await.is_session_end());
        }

        // etcd #9921, Jepsen on etcd 3.4.3
        async fn the_lock_is_granted_after_the_lease_has_expired(env: Env) {
            let world = World::new(env).await;
            let holder = world.mutex().await.lock().await.unwrap();
            let mutex = Mutex::new(&world.client_for(BRIEF).await, LOCK).unwrap();
            let waiter = world.queue_up(&mutex).await;
            let session = mutex.client().current_session();
            world.pause(mutex.client());
            holder.release().await.unwrap();
            let until = session.held_until().unwrap().moment();
            session.clock().sleep_until(until).await;
            world.resume(mutex.client());
            match waiter.await.unwrap() {
                Ok(guard) => {
                    assert!(guard.is_held());
                    assert_eq!(world.children().await, [guard.path().name()]);
                }
                Err(error) => assert!(error.is_session_end(), "{error}"),
            }
        }

        async fn the_loss_is_told_only_after_another_may_hold(env: Env) {
            let world = World::new(env).await;
            let mutex = Mutex::new(&world.client_for(BRIEF).await, LOCK).unwrap();
            let cut_off = mutex.lock().await.unwrap();
            let waiter = world.queue_up(&world.mutex().await).await;
            world.disconnect(mutex.client());
            let next = granted(waiter).await;
            // The store has let another one in, and this holder has not heard of it.
            assert!(!cut_off.is_held());
            assert!(next.is_held());
        }

        async fn a_stopped_process_goes_on_as_if_it_held(env: Env) {
            let world = World::new(env).await;
            let mut gate = FencingGate::default();
            let mutex = Mutex::new(&world.client_for(BRIEF).await, LOCK).unwrap();
            let stopped = mutex.lock().await.unwrap();
            gate.admit(stopped.fencing_token()).unwrap();
            let waiter = world.queue_up(&world.mutex().await).await;
            world.pause(mutex.client());
            let next = granted(waiter).await;
            gate.admit(next.fencing_token()).unwrap();
            world.resume(mutex.client());
            assert!(!stopped.is_held(), "at the first look");
            assert!(gate.admit(stopped.fencing_token()).is_err());
            assert!(gate.admit(next.fencing_token()).is_ok());
        }
    }

    on_every_znode_store! {
        async fn the_parent_is_reaped_between_two_locks(env: Env) {
            let world = World::new(env).await;
            let stale = world.mutex().await.lock().await.unwrap();
            world.revoke(stale.path()).await;
            // The server may have removed it already.
            let _ = world.observing().await.delete(&path(LOCK), None).await;
            let guard = world.mutex().await.lock().await.unwrap();
            assert_eq!(number_of_the_only_entry(&world).await, "0000000000", "numbers start again");
            assert!(stale.fencing_token() < guard.fencing_token());
            let refusal = stale.release().await;
            assert_eq!(refusal, Err(LockError::Lost(LostReason::Revoked)));
            assert_eq!(world.children().await, [guard.path().name()]);
        }
    }
}

mod sequence_numbers {
    use super::*;

    on_every_backend! {
        // Curator, kazoo #606 and #730

        // As above. ZooKeeper's counter cannot be set from outside, so its end is simulated.
        async fn the_counter_wraps_and_two_hold(env: Env) {
            let world = World::new(env).await;
            let between = Between::over(&world.env, Meddle::UseUpNumbers);
            let mutex = Mutex::new(&between.client().await.unwrap(), LOCK).unwrap();
            let used_up = Error::SequenceExhausted { path: LOCK.into() };
            assert_eq!(mutex.lock().await.unwrap_err(), LockError::Store(used_up.clone()));
            let batch = lock_all(&between.client().await.unwrap(), [LOCK]).await;
            assert_eq!(batch.unwrap_err(), LockError::Store(used_up));
            world.until_count(0).await;
        }

        // go-zookeeper
        async fn a_child_without_a_number_makes_every_lock_fail(env: Env) {
            let world = World::new(env).await;
            for name in ["status", "lock-", "lock-abc", "_c_x-lock-"] {
                world.make(&format!("{LOCK}/{name}")).await;
            }
            let mutex = world.mutex().await;
            mutex.lock().await.unwrap().release().await.unwrap();
            assert!(mutex.try_lock().await.unwrap().is_some());
        }
    }

    on_every_znode_store! {
        async fn numbers_are_sorted_as_text(env: Env) {
            let world = World::new(env).await;
            let names = [
                "a-lock-2147483647",
                "b-lock--000000005",
                "c-lock--000000010",
                "d-lock--2147483648",
                "e-lock-10000000000",
                "f-lock-9999999999",
            ];
            world.make(LOCK).await;
            let session = world.observing().await;
            for name in names {
                let entry = path(&format!("{LOCK}/{name}"));
                session.create(&entry, "", CreateMode::Ephemeral).await.unwrap();
            }
            // Two with negative numbers are ahead of a new one, and those with the greatest numbers are not.
            let waiter = world.queue_up(&world.mutex().await).await;
            let entries = queue(&world.observer, LOCK).await.unwrap();
            let order: Vec<_> = entries.iter().map(|entry| entry.sequence).collect();
            let greatest = [2_147_483_647, 9_999_999_999, 10_000_000_000];
            assert_eq!(order[..4], [-2_147_483_648, -10, -5, names.len() as i64]);
            assert_eq!(order[4..], greatest);
            for name in ["b-lock--000000005", "d-lock--2147483648"] {
                world.revoke(&path(&format!("{LOCK}/{name}"))).await;
            }
            tokio::task::yield_now().await;
            assert!(!waiter.is_finished());
            world.revoke(&path(&format!("{LOCK}/c-lock--000000010"))).await;
            assert!(granted(waiter).await.is_held());
        }
    }
}

mod waiting {
    use super::*;

    on_every_backend! {
        // CURATOR-527, CURATOR-107
        async fn the_one_ahead_goes_between_the_list_and_the_watch(env: Env) {
            let world = World::new(env).await;
            let holder = world.mutex().await.lock().await.unwrap();
            let gone = holder.path().clone();
            let mutex = world.mutex().await;
            world.delay_replies(mutex.client(), Duration::from_millis(50));
            let waiter = world.queue_up(&mutex).await;
            holder.release().await.unwrap();
            let guard = granted(waiter).await;
            // No watch is left on the deleted znode, so creating it again causes no event.
            let before = world.traffic_of(mutex.client()).events;
            world.make(gone.as_str()).await;
            guard.session().exists(&gone).await.unwrap();
            assert_eq!(world.traffic_of(mutex.client()).events, before);
        }

        // kazoo
        async fn the_timeout_starts_again_at_every_wake(env: Env) {
            let world = World::new(env).await;
            let ms = Duration::from_millis;
            let _holder = world.mutex().await.lock().await.unwrap();
            let ahead = world.mutex().await;
            let mut between = Vec::new();
            for _ in 0..40 {
                between.push(world.queue_up(&ahead).await);
            }
            let waiting = world.mutex().await;
            let wait = waiting.lock_timeout(ms(300));
            // The one ahead leaves repeatedly, well before the deadline.
            let churn = async {
                while let Some(nearest) = between.pop() {
                    Clock::system().sleep(ms(100)).await;
                    nearest.abort();
                }
            };
            tokio::select! {
                outcome = wait => assert!(matches!(outcome, Err(LockError::Timeout { .. }))),
                () = churn => panic!("the deadline never came"),
            }
        }

        // CURATOR-724
        async fn the_parent_is_reaped_while_the_client_is_disconnected(env: Env) {
            let world = World::new(env).await;
            let mutex = world.mutex().await;
            mutex.lock().await.unwrap().release().await.unwrap();
            world.disconnect(mutex.client());
            let waiting = mutex.clone();
            let waiter = tokio::spawn(async move { waiting.lock().await });
            tokio::task::yield_now().await;
            // The server may have removed it already.
            let _ = world.observing().await.delete(&path(LOCK), None).await;
            world.reconnect(mutex.client());
            assert!(granted(waiter).await.is_held());
        }

        // ZOOKEEPER-4698
        async fn an_event_is_lost_over_a_reconnection(env: Env) {
            let world = World::new(env).await;
            let holder = world.mutex().await.lock().await.unwrap();
            let mutex = world.mutex().await;
            let waiter = world.queue_up(&mutex).await;
            world.disconnect(mutex.client());
            holder.release().await.unwrap();
            world.until_count(1).await;
            world.reconnect(mutex.client());
            assert!(granted(waiter).await.is_held());
        }

        async fn my_own_node_is_deleted_while_i_wait(env: Env) {
            let world = World::new(env).await;
            let holder = world.mutex().await.lock().await.unwrap();
            let first = world.queue_up(&world.mutex().await).await;
            let second = world.queue_up_with(&world.mutex().await, LockOptions::new()).await;
            let mine = queue(&world.observer, LOCK).await.unwrap().remove(1).path;
            world.revoke(&mine).await;
            holder.release().await.unwrap();
            assert_eq!(refused(first).await, LockError::EntryDeleted { entry: mine });
            assert!(granted(second).await.is_held());
        }
    }
}

/// Interference between a client and its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meddle {
    LoseLists,
    /// After a create, the server asked does not know of it until a write passes through it.
    LagBehind,
    /// The parent's counter is exhausted.
    UseUpNumbers,
}

struct Between {
    meddle: Meddle,
    behind: AtomicBool,
}

impl Between {
    fn over(env: &Env, meddle: Meddle) -> TestStore {
        let between = intercepted(env.connector().clone(), move || Self {
            meddle,
            behind: AtomicBool::new(false),
        });
        TestStore::wrapping(between, env.target(), Plan::calm())
    }
}

impl Intercept for Between {
    fn submit(&self, inner: &Arc<dyn Backend>, request: Request) -> Response {
        let meddle = self.meddle;
        match &request {
            Request::Enqueue(enqueue) if meddle == Meddle::UseUpNumbers => {
                let path = enqueue.parent.to_string();
                return Response::ready(Err(Error::SequenceExhausted { path }));
            }
            Request::Multi(ops) if meddle == Meddle::UseUpNumbers => {
                let numbered = ops.iter().find_map(|op| match op {
                    Op::Create(create) if create.mode.is_sequential() => create.path.parent(),
                    _ => None,
                });
                if let Some(parent) = numbered {
                    let path = parent.to_string();
                    return Response::ready(Err(Error::SequenceExhausted { path }));
                }
            }
            Request::Enqueue(_) => self.behind.store(true, Ordering::Relaxed),
            request if request.is_write() => self.behind.store(false, Ordering::Relaxed),
            _ => {}
        }
        let lags = meddle == Meddle::LagBehind && self.behind.load(Ordering::Relaxed);
        let response = inner.submit(request);
        Response::pending(async move {
            Ok(match response.await? {
                Reply::Enqueued { path, czxid, .. } if meddle == Meddle::LoseLists => {
                    Reply::Enqueued {
                        path,
                        czxid,
                        ahead: Predecessor::Unknown,
                    }
                }
                Reply::Children { stat, watcher, .. } if lags => Reply::Children {
                    names: Vec::new(),
                    stat,
                    watcher,
                },
                reply => reply,
            })
        })
    }
}
