//! Temporary refusals and unreadable replies neither stop a clean-up nor leave a node in a session that continues.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper::testing::{Plan, RequestKind};
use lockkeeper::{Client, ConnectOptions, Error, LockError, Mutex, RwLock, Upgrade, lock_all};
use lockkeeper_store::{Backend, Connector, CreateMode, Op, Request, Response, Session, ZnodePath};
use testkit::{Intercept, intercepted, on_every_backend, on_every_znode_store};
use tokio::sync::watch;

use crate::common::*;
use crate::semaphore::Ground;

/// Refusals that pass: too much work, a full disk, and the client's reading of an unknown error code.
fn refusals() -> [Error; 3] {
    [
        Error::LimitReached {
            what: "requests under way",
            limit: 100_000,
        },
        Error::DiskFull { path: "/".into() },
        Error::Protocol("SystemError".to_owned()),
    ]
}

fn refuse(world: &World, client: &Client, on: &[RequestKind]) {
    for refusal in refusals() {
        for on in on {
            world.refuse(client, *on, refusal.clone());
        }
    }
}

/// Fails instead of waiting for a clean-up that never happens.
async fn soon<T>(work: impl Future<Output = T>) -> T {
    // Far longer than any clean-up takes on a busy machine.
    let limit = Duration::from_secs(60);
    let done = tokio::time::timeout(limit, work).await;
    done.expect("a node is left behind")
}

const KEYS: [&str; 2] = ["/batch/a", "/batch/b"];

async fn until_no_batch(world: &World) {
    for key in KEYS {
        until(&world.observing().await, key, |names| names.is_empty()).await;
    }
}

mod refused {
    use super::*;

    on_every_backend! {
        async fn the_clean_up_of_a_wait(env: Env) {
            let world = World::new(env).await;
            let holder = world.mutex().await.lock().await.unwrap();
            let mutex = world.mutex().await;
            let waiter = world.queue_up(&mutex).await;
            refuse(&world, mutex.client(), &[RequestKind::Delete]);
            waiter.abort();
            soon(world.until_count(1)).await;
            holder.release().await.unwrap();
        }

        async fn the_release_of_a_lock(env: Env) {
            let world = World::new(env).await;
            let mutex = world.mutex().await;
            let guard = mutex.lock().await.unwrap();
            refuse(&world, mutex.client(), &[RequestKind::Delete]);
            soon(guard.release()).await.unwrap();
            let guard = mutex.lock().await.unwrap();
            refuse(&world, mutex.client(), &[RequestKind::Delete]);
            drop(guard);
            soon(world.until_count(0)).await;
        }

        async fn the_release_that_is_not_awaited(env: Env) {
            let world = World::new(env).await;
            let mutex = world.mutex().await;
            world.delay_replies(mutex.client(), Duration::from_millis(1));
            for polls in [0, 1] {
                let guard = mutex.lock().await.unwrap();
                refuse(&world, mutex.client(), &[RequestKind::Delete]);
                assert!(polled(guard.release(), polls).await.is_none(), "dropped before the answer");
                soon(world.until_count(0)).await;
            }
        }

        async fn the_release_after_a_wait(env: Env) {
            let world = World::new(env).await;
            let first = world.mutex().await.lock().await.unwrap();
            let mutex = world.mutex().await;
            let waiter = world.queue_up(&mutex).await;
            first.release().await.unwrap();
            let guard = granted(waiter).await;
            refuse(&world, mutex.client(), &[RequestKind::Delete]);
            world.refuse(mutex.client(), RequestKind::Multi, refusals()[0].clone());
            soon(guard.release()).await.unwrap();
            assert!(world.children().await.is_empty());
        }

        async fn the_search_for_an_unanswered_create(env: Env) {
            let world = World::new(env).await;
            world.make(LOCK).await;
            let mutex = world.mutex().await;
            world.delay_replies(mutex.client(), Duration::from_millis(1));
            world.lose_reply(mutex.client(), RequestKind::Enqueue);
            refuse(&world, mutex.client(), &[RequestKind::Delete, RequestKind::GetChildren, RequestKind::Exists]);
            assert!(polled(mutex.lock(), 1).await.is_none(), "cancelled inside the create");
            soon(world.until_swept(&mutex)).await;
        }

        async fn the_search_for_an_unanswered_batch(env: Env) {
            let world = World::new(env).await;
            for key in KEYS {
                world.make(key).await;
            }
            let client = world.client().await;
            world.delay_replies(&client, Duration::from_millis(1));
            world.lose_reply(&client, RequestKind::Multi);
            refuse(&world, &client, &[RequestKind::Delete, RequestKind::MultiRead]);
            assert!(polled(lock_all(&client, KEYS), 1).await.is_none(), "cancelled inside the multi");
            until_carried_out(&client, &path(KEYS[0])).await;
            soon(until_no_batch(&world)).await;
        }

        async fn the_clean_up_of_permits(env: Env) {
            let ground = Ground::new(env, 2).await;
            let semaphore = ground.semaphore().await;
            let permit = semaphore.acquire_many(2).await.unwrap();
            refuse(&ground, semaphore.client(), &[RequestKind::Delete]);
            soon(permit.release()).await.unwrap();
            let permit = semaphore.acquire().await.unwrap();
            refuse(&ground, semaphore.client(), &[RequestKind::Delete]);
            drop(permit);
            soon(ground.until_held(0)).await;
        }
    }
}

mod refused_for_long {
    use super::*;

    on_every_backend! {
        async fn pending_clean_ups_are_counted(env: Env) {
            let world = World::new(env).await;
            let holder = world.mutex().await.lock().await.unwrap();
            let mutex = world.mutex().await;
            let waiter = world.queue_up(&mutex).await;
            assert_eq!(mutex.client().pending_cleanups(), 0);
            world.set_plan(Plan::new(0).refusals(1.0));
            waiter.abort();
            soon(async {
                while mutex.client().pending_cleanups() != 1 {
                    tokio::task::yield_now().await;
                }
            }).await;
            assert_eq!(world.children().await.len(), 2);
            world.heal();
            soon(world.until_count(1)).await;
            soon(async {
                while mutex.client().pending_cleanups() != 0 {
                    tokio::task::yield_now().await;
                }
            }).await;
            holder.release().await.unwrap();
        }

        async fn a_session_without_handles_is_not_kept_open(env: Env) {
            let world = World::new(env).await;
            let holder = world.mutex().await.lock().await.unwrap();
            let mutex = world.mutex().await;
            let waiter = world.queue_up(&mutex).await;
            world.set_plan(Plan::new(0).refusals(1.0));
            waiter.abort();
            let _ = waiter.await;
            drop(mutex);
            soon(world.until_count(1)).await;
            world.heal();
            holder.release().await.unwrap();
        }
    }
}

mod garbled {
    use super::*;

    on_every_backend! {
        async fn the_reply_to_a_create(env: Env) {
            let world = World::new(env).await;
            world.make(LOCK).await;
            let mutex = world.mutex().await;
            world.garble_reply(mutex.client(), RequestKind::Enqueue);
            let guard = mutex.lock().await.expect("the entry is found by its name");
            assert_eq!(world.children().await, [guard.path().name()]);
            guard.release().await.unwrap();
        }

        async fn the_reply_to_the_create_of_a_wait_that_is_cancelled(env: Env) {
            let world = World::new(env).await;
            world.make(LOCK).await;
            let mutex = world.mutex().await;
            world.delay_replies(mutex.client(), Duration::from_millis(1));
            world.garble_reply(mutex.client(), RequestKind::Enqueue);
            assert!(polled(mutex.lock(), 1).await.is_none(), "cancelled inside the create");
            soon(world.until_swept(&mutex)).await;
        }

        // The client must assume that a refused create was executed.
        async fn a_create_that_changed_nothing(env: Env) {
            let world = World::new(env).await;
            world.make(LOCK).await;
            let mutex = world.mutex().await;
            let refusal = Error::Protocol("SystemError".to_owned());
            world.refuse(mutex.client(), RequestKind::Enqueue, refusal.clone());
            let error = mutex.lock().await.unwrap_err();
            assert_eq!(error, LockError::Store(refusal));
            assert!(world.children().await.is_empty());
        }

        async fn the_reply_to_a_release(env: Env) {
            let world = World::new(env).await;
            let mutex = world.mutex().await;
            let guard = mutex.lock().await.unwrap();
            world.garble_reply(mutex.client(), RequestKind::Delete);
            soon(guard.release()).await.unwrap();
            assert!(world.children().await.is_empty());
        }

        async fn the_reply_to_a_batch(env: Env) {
            let world = World::new(env).await;
            for key in KEYS {
                world.make(key).await;
            }
            let client = world.client().await;
            world.garble_reply(&client, RequestKind::Multi);
            let guard = lock_all(&client, KEYS).await.expect("the entries are found by their name");
            guard.release().await.unwrap();
            until_no_batch(&world).await;

            world.delay_replies(&client, Duration::from_millis(1));
            world.garble_reply(&client, RequestKind::Multi);
            assert!(polled(lock_all(&client, KEYS), 1).await.is_none(), "cancelled inside the multi");
            client.current_session().exists(&path(KEYS[0])).await.unwrap();
            soon(until_no_batch(&world)).await;
        }

        async fn the_reply_to_a_grant_of_permits(env: Env) {
            let ground = Ground::new(env, 2).await;
            let semaphore = ground.semaphore().await;
            ground.garble_reply(semaphore.client(), RequestKind::Multi);
            let permit = semaphore.acquire_many(2).await.expect("the entry has left the queue");
            assert_eq!(ground.held().await, 2);
            permit.release().await.unwrap();

            ground.delay_replies(semaphore.client(), Duration::from_millis(1));
            for polls in 1..12 {
                ground.garble_reply(semaphore.client(), RequestKind::Multi);
                let permit = polled(semaphore.acquire_many(2), polls).await;
                drop(permit);
                // So that the next round starts with its own order of requests.
                let _ = semaphore.client().current_session().check(&path("/"), None).await;
                soon(ground.until_swept(&semaphore, 0)).await;
            }
        }

        async fn the_reply_to_a_conversion(env: Env) {
            let world = World::new(env).await;
            let lock = RwLock::new(&world.client().await, LOCK).unwrap();
            let writer = lock.write().await.unwrap();
            world.garble_reply(lock.client(), RequestKind::Multi);
            let reader = writer.downgrade().await.expect("the reader's node is there");
            world.garble_reply(lock.client(), RequestKind::Multi);
            match reader.try_upgrade().await.expect("the writer's node is there") {
                Upgrade::Upgraded(writer) => writer.release().await.unwrap(),
                Upgrade::Refused(_) => panic!("nobody else is there"),
            }
            assert!(world.children().await.is_empty());
        }

        async fn all_replies_to_a_conversion(env: Env) {
            let world = World::new(env).await;
            let lock = RwLock::new(&world.client().await, LOCK).unwrap();
            for on in [RequestKind::GetData, RequestKind::Exists] {
                let writer = lock.write().await.unwrap();
                world.garble_reply(lock.client(), RequestKind::Multi);
                world.garble_reply(lock.client(), on);
                if on == RequestKind::GetData {
                    // The first one reads the data that the conversion carries over.
                    world.garble_reply(lock.client(), on);
                }
                drop(writer.downgrade().await);
                soon(world.until_count(0)).await;
                // Uses up the remaining faults.
                let session = lock.client().current_session();
                let _ = session.get_data(&path("/")).await;
                let _ = session.exists(&path("/")).await;
                let _ = session.check(&path("/"), None).await;
            }
        }
    }
}

mod another_session_has_my_name {
    use super::*;

    on_every_backend! {
        async fn and_keeps_it_when_the_wait_is_given_up(env: Env) {
            let world = World::new(env).await;
            world.make(LOCK).await;
            let thief = Thief::new(&world).await;
            let mutex = Mutex::new(&thief.client().await, LOCK).unwrap();
            assert!(polled(mutex.lock(), 1).await.is_none(), "cancelled inside the create");
            thief.lose_the_reply().await;
            assert_eq!(world.children().await.len(), 1, "it was not mine to delete");
        }

        async fn and_keeps_it_when_a_batch_is_given_up(env: Env) {
            let world = World::new(env).await;
            for key in KEYS {
                world.make(key).await;
            }
            let thief = Thief::new(&world).await;
            let client = thief.client().await;
            assert!(polled(lock_all(&client, KEYS), 1).await.is_none(), "cancelled inside the multi");
            thief.lose_the_reply().await;
            for key in KEYS {
                assert_eq!(children(&world.observing().await, key).await.len(), 1);
            }
        }
    }

    on_every_znode_store! {
        async fn and_a_wait_stands_behind_it(env: Env) {
            let world = World::new(env).await;
            world.make(LOCK).await;
            let thief = Thief::new(&world).await;
            let mutex = Mutex::new(&thief.client().await, LOCK).unwrap();
            let waiter = tokio::spawn(async move { mutex.lock().await });
            world.until_count(1).await;
            thief.lose_the_reply().await;
            soon(world.until_count(2)).await;
            assert!(!waiter.is_finished());
            thief.give_back().await;
            soon(granted(waiter)).await.release().await.unwrap();
        }

        async fn and_a_batch_stands_behind_it(env: Env) {
            let world = World::new(env).await;
            for key in KEYS {
                world.make(key).await;
            }
            let thief = Thief::new(&world).await;
            let client = thief.client().await;
            let batch = tokio::spawn(async move { lock_all(&client, KEYS).await });
            for key in KEYS {
                until(&world.observing().await, key, |names| names.len() == 1).await;
            }
            thief.lose_the_reply().await;
            for key in KEYS {
                soon(until(&world.observing().await, key, |names| names.len() == 2)).await;
            }
            assert!(!batch.is_finished());
            thief.give_back().await;
            soon(batch).await.unwrap().unwrap().release().await.unwrap();
        }
    }
}

/// A connector that loses a client's first create in a queue, while another session creates the same names.
#[derive(Clone, Debug)]
struct Thief(Arc<Stolen>);

#[derive(Debug)]
struct Stolen {
    connector: Arc<dyn Connector>,
    session: Session,
    /// Set once the create has failed from the client's view.
    lost: watch::Sender<bool>,
    requests: AtomicUsize,
}

const FAR_TOO_MANY: usize = 1_000;

impl Thief {
    async fn new(world: &World) -> Self {
        Self(Arc::new(Stolen {
            connector: world.env.connector().clone(),
            session: world
                .env
                .session_with(ConnectOptions::new().session_timeout(LONG))
                .await,
            lost: watch::Sender::new(false),
            requests: AtomicUsize::new(0),
        }))
    }

    async fn client(&self) -> Client {
        let options = ConnectOptions::new().session_timeout(LONG);
        let (inner, thief) = (self.0.connector.clone(), self.clone());
        let connector = intercepted(inner, move || thief.clone());
        let client = Client::open(connector, "stolen".to_owned(), options);
        client.await.unwrap()
    }

    /// Loses the reply, and gives the client time to look for its node.
    async fn lose_the_reply(&self) {
        self.0.lost.send_replace(true);
        for _ in 0..20 {
            self.0.session.exists(&path("/")).await.unwrap();
            tokio::task::yield_now().await;
        }
    }

    async fn give_back(&self) {
        for path in self.0.session.get_ephemerals(&path("/")).await.unwrap() {
            self.0.session.delete(&path, None).await.unwrap();
        }
    }

    fn made(request: &Request) -> Vec<ZnodePath> {
        match request {
            Request::Enqueue(enqueue) => vec![enqueue.parent.join(&enqueue.name).unwrap()],
            Request::Multi(ops) => {
                let made = ops.iter().filter_map(|op| match op {
                    Op::Create(create) if create.mode.is_sequential() => Some(create.path.clone()),
                    _ => None,
                });
                made.collect()
            }
            _ => Vec::new(),
        }
    }
}

impl Intercept for Thief {
    fn submit(&self, inner: &Arc<dyn Backend>, request: Request) -> Response {
        let so_far = self.0.requests.fetch_add(1, Ordering::Relaxed);
        if so_far >= FAR_TOO_MANY {
            let what = "so many requests";
            return Response::ready(Err(Error::Unimplemented { what }));
        }
        let made = Self::made(&request);
        if made.is_empty() || *self.0.lost.borrow() {
            return inner.submit(request);
        }
        let session = &self.0.session;
        let made = made
            .iter()
            .map(|path| session.create(path, "", CreateMode::EphemeralSequential));
        let made: Vec<_> = made.collect();
        let mut lost = self.0.lost.subscribe();
        Response::pending(async move {
            for made in made {
                made.await.unwrap();
            }
            lost.wait_for(|lost| *lost).await.unwrap();
            Err(Error::ConnectionLoss)
        })
    }
}
