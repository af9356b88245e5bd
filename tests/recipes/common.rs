//! Helpers for all tests.

use std::fmt::Debug;
use std::future::poll_fn;
use std::ops::Deref;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use lockkeeper::testing::{Plan, RequestKind, TestStore};
use lockkeeper::{Client, ConnectOptions, Error, Guard, LockError, LockOptions, Mutex, Session};
use lockkeeper_store::{CreateMode, ZnodePath};
use testkit::Env;
use tokio::task::JoinHandle;

/// The lock of most tests.
pub(crate) const LOCK: &str = "/lock/orders";

/// Longer than any test, so that no session expires by accident.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) fn path(path: &str) -> ZnodePath {
    path.parse().unwrap()
}

pub(crate) type Waiter = JoinHandle<Result<Guard, LockError>>;

/// Lost messages of a client: requests, then replies.
pub(crate) type Losses = (&'static [RequestKind], &'static [RequestKind]);

/// A separate store for a test, behind a wrapper that injects faults, and an observer.
pub(crate) struct World {
    pub(crate) env: Env,
    pub(crate) observer: Client,
    store: TestStore,
}

impl World {
    pub(crate) async fn new(env: Env) -> Self {
        let store = TestStore::wrapping(env.connector().clone(), env.target(), Plan::calm());
        let observer = env
            .client_with(ConnectOptions::new().session_timeout(LONG))
            .await;
        Self {
            env,
            observer,
            store,
        }
    }

    pub(crate) async fn client(&self) -> Client {
        self.client_for(LONG).await
    }

    pub(crate) async fn client_for(&self, timeout: Duration) -> Client {
        let options = ConnectOptions::new().session_timeout(timeout);
        self.store.client_with(options).await.unwrap()
    }

    pub(crate) async fn mutex(&self) -> Mutex {
        Mutex::new(&self.client().await, LOCK).unwrap()
    }

    pub(crate) async fn observing(&self) -> Session {
        self.observer.session().await.unwrap()
    }

    /// Creates a persistent znode and its ancestors.
    pub(crate) async fn make(&self, at: &str) {
        let session = self.observing().await;
        session
            .create_all(&path(at), CreateMode::Persistent)
            .await
            .unwrap();
    }

    pub(crate) async fn children(&self) -> Vec<String> {
        children(&self.observing().await, LOCK).await
    }

    pub(crate) async fn until_count(&self, count: usize) {
        until(&self.observing().await, LOCK, |names| names.len() == count).await;
    }

    /// Waits until this client has nothing in the queue or on its way there.
    pub(crate) async fn until_swept(&self, mutex: &Mutex) {
        until_carried_out(mutex.client(), mutex.path()).await;
        self.until_count(0).await;
    }

    /// Starts a wait, and returns once its entry is in the queue.
    pub(crate) async fn queue_up(&self, mutex: &Mutex) -> Waiter {
        self.queue_up_with(mutex, LockOptions::new()).await
    }

    pub(crate) async fn queue_up_with(&self, mutex: &Mutex, options: LockOptions) -> Waiter {
        let mutex = mutex.clone();
        self.queue_up_at(LOCK, async move { mutex.lock_with(options).await })
            .await
    }

    /// Spawns a wait, and returns once its entry is in the queue at this path.
    pub(crate) async fn queue_up_at<T: Send + 'static>(
        &self,
        at: &str,
        wait: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let session = self.observing().await;
        // Read before the wait starts, because its entry is the one that is not in this list.
        let before = children(&session, at).await;
        let waiter = tokio::spawn(wait);
        until_joined(&session, at, &before).await;
        waiter
    }

    /// Loses messages of a client. Each answer arrives in a separate poll, on every backend.
    pub(crate) fn lose(&self, client: &Client, losses: Losses) {
        self.delay_replies(client, Duration::from_millis(1));
        lose(self, client, losses);
    }

    /// Ends a client's session, and waits until the client knows. Before that it would still hand out the old one.
    pub(crate) async fn end_session(&self, client: &Client) {
        let mut states = client.current_session().states();
        self.expire(client).await.unwrap();
        // The stream ends with the session's last state.
        while states.next().await.is_some() {}
    }

    /// Deletes an entry like an administrator would.
    pub(crate) async fn revoke(&self, entry: &ZnodePath) {
        self.observing().await.delete(entry, None).await.unwrap();
    }
}

impl Deref for World {
    type Target = TestStore;

    fn deref(&self) -> &TestStore {
        &self.store
    }
}

pub(crate) async fn children(session: &Session, at: &str) -> Vec<String> {
    match session.get_children(&path(at)).await {
        Ok((names, _)) => names,
        Err(Error::NoNode { .. }) => Vec::new(),
        Err(error) => panic!("{error}"),
    }
}

pub(crate) fn lose(store: &TestStore, client: &Client, (requests, replies): Losses) {
    for on in requests {
        store.lose_request(client, *on);
    }
    for on in replies {
        store.lose_reply(client, *on);
    }
}

/// Waits until everything a client has sent is executed, or its session has ended.
pub(crate) async fn until_carried_out(client: &Client, at: &ZnodePath) {
    let session = client.current_session();
    while let Err(Error::ConnectionLoss) = session.exists(at).await {}
}

pub(crate) async fn until_joined(session: &Session, at: &str, before: &[String]) {
    let is_new = |name: &String| !before.contains(name);
    until(session, at, |names| names.iter().any(is_new)).await;
}

pub(crate) async fn until(session: &Session, at: &str, wanted: impl Fn(&[String]) -> bool) {
    loop {
        let (names, watcher) = match session.watch_children(&path(at)).await {
            Ok((names, _, watcher)) => (names, watcher),
            Err(Error::NoNode { .. }) => match session.watch_exists(&path(at)).await.unwrap() {
                (None, watcher) => (Vec::new(), watcher),
                // It was created in between.
                (Some(_), _) => continue,
            },
            Err(error) => panic!("{error}"),
        };
        if wanted(&names) {
            return;
        }
        watcher.await.unwrap();
    }
}

pub(crate) async fn granted(waiter: Waiter) -> Guard {
    waiter.await.unwrap().unwrap()
}

pub(crate) async fn refused(waiter: Waiter) -> LockError {
    waiter.await.unwrap().unwrap_err()
}

/// Returns the error of a wait that times out in the queue. If it times out before the store has answered, as the error
/// says, it is retried with a longer timeout.
pub(crate) async fn timed_out_in_queue<T: Debug>(
    mut limit: Duration,
    wait: impl AsyncFn(Duration) -> Result<T, LockError>,
) -> LockError {
    loop {
        match wait(limit).await.unwrap_err() {
            LockError::Timeout { ahead: None, .. } => limit *= 2,
            error => return error,
        }
    }
}

/// Asserts that a wait timed out. On a busy machine the store may not have answered before.
pub(crate) fn assert_timed_out(error: &LockError, at: &str, limit: Duration) {
    let LockError::Timeout { path, after, .. } = error else {
        panic!("{error:?}");
    };
    assert_eq!((path.as_str(), *after), (at, limit));
}

/// Polls a future at most this often, each time when woken, and then drops it.
pub(crate) async fn polled<T>(future: impl Future<Output = T>, times: usize) -> Option<T> {
    let mut future = pin!(future);
    let mut left = times;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
