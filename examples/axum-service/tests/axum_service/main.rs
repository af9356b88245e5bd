//! Tests of the service over real connections. The service runs in this process on a store that loses locks on demand,
//! and as a separate program that receives SIGTERM.

mod http;
mod program;

use std::sync::Arc;
use std::time::Duration;

use axum_service::{Accounts, Options, router, serve};
use lockkeeper::testing::TestStore;
use lockkeeper::{Client, LockPath, LostReason, Mutex, observe, queue};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use http::{Request, Response};

/// Durations in virtual time, so the tests do not wait for them.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
const WORK: Duration = Duration::from_secs(1);

const ACCOUNT: &str = "EU/4711";
const TARGET: &str = "/accounts/EU%2F4711";

/// The service in this process. The clock of its store only moves when the test advances it.
struct World {
    store: TestStore,
    service: Client,
    observer: Client,
    address: std::net::SocketAddr,
}

impl World {
    async fn new(work: Duration) -> Self {
        let store = TestStore::new();
        let (service, observer) = (store.client().await.unwrap(), store.client().await.unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = router(&service, &Arc::<Accounts>::default(), options(work));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self {
            store,
            service,
            observer,
            address,
        }
    }

    /// Sends a posting in a new task, which returns the response.
    fn post(&self, body: &'static str) -> JoinHandle<Response> {
        let address = self.address;
        tokio::spawn(async move {
            let mut request = Request::open(address, "POST", TARGET, body.len(), "").await;
            request.send(body).await;
            request.answer().await
        })
    }

    async fn until_queued(&self, count: usize) {
        let mut snapshots = observe(&self.observer, lock()).unwrap();
        while snapshots.next().await.unwrap().unwrap().len() != count {}
    }

    async fn held_elsewhere(&self) -> lockkeeper::Guard {
        let client = self.store.client().await.unwrap();
        Mutex::new(&client, lock()).unwrap().lock().await.unwrap()
    }
}

fn options(work: Duration) -> Options {
    Options {
        lock_timeout: LOCK_TIMEOUT,
        work,
    }
}

fn lock() -> LockPath {
    LockPath::new("/lock").unwrap().key(ACCOUNT)
}

#[tokio::test]
async fn a_posting_is_carried_out_under_the_lock_of_its_account() {
    let world = World::new(Duration::ZERO).await;
    let first = world.post(r#"{"cents": 250}"#).await.unwrap();
    assert_eq!(first.status, 200, "{first:?}");
    assert_eq!(first.json()["account"], ACCOUNT);
    assert_eq!(first.json()["balance"], 250);
    let second = world.post(r#"{"cents": -50}"#).await.unwrap();
    assert_eq!(second.json()["balance"], 200);
    assert!(first.token() < second.token());
    assert!(queue(&world.observer, lock()).await.unwrap().is_empty());
}

#[tokio::test]
async fn postings_at_the_same_time_are_carried_out_one_after_the_other() {
    let world = World::new(WORK).await;
    let postings: Vec<_> = (0..10).map(|_| world.post(r#"{"cents": 1}"#)).collect();
    world.until_queued(postings.len()).await;
    let mut answers = Vec::new();
    for posting in postings {
        while !posting.is_finished() {
            // In total, advance by less than the lock timeout, because other requests wait behind the current one.
            world.store.advance(Duration::from_millis(100)).await;
            tokio::task::yield_now().await;
        }
        answers.push(posting.await.unwrap());
    }
    let (done, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 200);
    assert!(!done.is_empty(), "{answers:?}");
    assert!(
        refused.iter().all(|answer| answer.status == 503),
        "{answers:?}"
    );
    // Each request read the balance that the previous one wrote, so no update is lost.
    let mut seen: Vec<_> = done
        .iter()
        .map(|answer| (answer.token(), answer.json()["balance"].as_u64().unwrap()))
        .collect();
    seen.sort_unstable();
    let balances: Vec<_> = seen.iter().map(|(_, balance)| *balance).collect();
    assert_eq!(balances, (1..=done.len() as u64).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_lock_that_is_not_had_in_time_is_503_and_leaves_nothing() {
    let world = World::new(Duration::ZERO).await;
    let holder = world.held_elsewhere().await;
    let posting = world.post(r#"{"cents": 1}"#);
    world.until_queued(2).await;
    assert!(!posting.is_finished());
    world.store.advance(LOCK_TIMEOUT).await;
    let answer = posting.await.unwrap();
    assert_eq!(answer.status, 503);
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert!(
        answer.error().contains("was not granted within 2s"),
        "{answer:?}"
    );
    world.until_queued(1).await;
    assert!(holder.is_held());
}

#[tokio::test]
async fn a_lock_that_is_lost_during_the_work_is_503_and_nothing_is_written() {
    let world = World::new(WORK).await;
    let posting = world.post(r#"{"cents": 1}"#);
    world.until_queued(1).await;
    world.store.expire(&world.service).await.unwrap();
    let answer = posting.await.unwrap();
    assert_eq!(answer.status, 503);
    assert_eq!(answer.header("retry-after"), Some("1"));
    let reason = LostReason::SessionExpired;
    assert_eq!(answer.error(), format!("the lock was lost: {reason}"));

    // The service continues with a new session.
    let posting = world.post(r#"{"cents": 5}"#);
    world.until_queued(1).await;
    world.store.advance(WORK).await;
    assert_eq!(posting.await.unwrap().json()["balance"], 5);
}

#[tokio::test]
async fn a_caller_that_hangs_up_leaves_the_queue() {
    let world = World::new(Duration::ZERO).await;
    let holder = world.held_elsewhere().await;
    let body = r#"{"cents": 1}"#;
    let mut request = Request::open(world.address, "POST", TARGET, body.len(), "").await;
    request.send(body).await;
    world.until_queued(2).await;
    drop(request);
    world.until_queued(1).await;
    assert!(holder.is_held());
}

#[tokio::test]
async fn readiness_is_whether_the_store_answers() {
    let world = World::new(Duration::ZERO).await;
    let ask = || async {
        let request = Request::open(world.address, "GET", "/healthz", 0, "").await;
        request.answer().await
    };
    assert_eq!(ask().await.status, 200);
    world.store.disconnect(&world.service);
    let address = world.address;
    let asking = tokio::spawn(async move {
        let request = Request::open(address, "GET", "/healthz", 0, "").await;
        request.answer().await
    });
    assert_eq!(world.store.run(asking).await.unwrap().status, 503);
    world.store.reconnect(&world.service);
    assert_eq!(ask().await.status, 200);
}

#[tokio::test]
async fn what_waits_for_a_lock_at_the_shutdown_is_finished_before_the_client_is_closed() {
    let store = TestStore::new();
    let (client, observer) = (store.client().await.unwrap(), store.client().await.unwrap());
    let holder = Mutex::new(&observer, lock()).unwrap().lock().await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (shut_down, shutdown) = oneshot::channel::<()>();
    let serving = tokio::spawn(serve(
        listener,
        client.clone(),
        options(Duration::ZERO),
        async {
            shutdown.await.unwrap();
        },
    ));
    let body = r#"{"cents": 1}"#;
    let mut request = Request::open(address, "POST", TARGET, body.len(), "").await;
    request.send(body).await;
    let mut snapshots = observe(&observer, lock()).unwrap();
    while snapshots.next().await.unwrap().unwrap().len() != 2 {}

    shut_down.send(()).unwrap();
    http::until_refused(address).await;
    assert!(!serving.is_finished(), "a request is under way");
    holder.release().await.unwrap();
    assert_eq!(request.answer().await.status, 200);
    serving.await.unwrap().unwrap();
    assert!(client.session().await.is_err(), "the client is closed");
}
