//! [`Election::run`], which leads whenever it can.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper::testing::TestStore;
use lockkeeper::{Clock, ConnectOptions, FencingToken, LostReason, Role};
use lockkeeper_store::{Backend, BootInstant, BoxFuture, Connector};
use parking_lot::Mutex;
use testkit::on_every_backend;
use tokio::sync::mpsc;

use super::*;

type Run = JoinHandle<Result<(), LockError>>;

/// Runs forever and reports each term as it starts.
fn run(election: &Election, data: &str) -> (Run, mpsc::UnboundedReceiver<Arc<Leadership>>) {
    let (began, terms) = mpsc::unbounded_channel();
    let (election, data) = (election.clone(), data.to_owned());
    let running = tokio::spawn(async move {
        let work = |leadership: Arc<Leadership>| {
            began.send(leadership).unwrap();
            pending()
        };
        election.run(data, work).await
    });
    (running, terms)
}

on_every_backend! {
    async fn a_run_answers_the_works_output_and_has_resigned(env: Env) {
        let world = World::new(env).await;
        let one = election(&world).await;
        let mut kept = None;
        let output = one.run("one", |leadership| {
            kept = Some(leadership.clone());
            async move {
                leadership.set_data("at work").await.unwrap();
                leadership.data()
            }
        });
        assert_eq!(output.await.unwrap(), "at work");
        assert!(world.children().await.is_empty(), "the resignation is confirmed");
        // Even though the program kept a share of the leadership.
        let kept = kept.unwrap();
        assert!(!kept.is_held());
        assert_eq!(kept.lost().await, LostReason::Released);
        assert_eq!(one.state().current(), Role::Bystander);
        let _next = election(&world).await.campaign("two").await.unwrap();
        drop(kept);
        assert_eq!(world.children().await.len(), 1);
    }

    async fn a_run_leads_again_after_every_loss(env: Env) {
        let world = World::new(env).await;
        let one = election(&world).await;
        let (running, mut terms) = run(&one, "one");
        let mut epochs = Vec::new();
        for loss in ["expired", "revoked", "session closed", "expired", "revoked", "none"] {
            let term = terms.recv().await.unwrap();
            assert_eq!(term.data(), "one");
            epochs.push(term.epoch());
            let session = term.session().clone();
            match loss {
                "expired" => world.expire(one.client()).await.unwrap(),
                "revoked" => world.revoke(term.path()).await,
                // Close only the session. The client opens another.
                "session closed" => session.close().await.unwrap(),
                _ => {}
            }
            if loss != "none" {
                term.lost().await;
            }
        }
        assert!(epochs.is_sorted_by(|a, b| a < b), "{epochs:?}");
        assert!(!running.is_finished());
        running.abort();
        until_swept(&world, one.client()).await;
    }

    async fn a_run_that_loses_goes_to_the_end_of_the_line(env: Env) {
        let world = World::new(env).await;
        let (one, two) = (election(&world).await, election(&world).await);
        let (_one, mut ones) = run(&one, "one");
        let mut epoch = ones.recv().await.unwrap().epoch();
        let (_two, mut twos) = run(&two, "two");
        world.until_count(2).await;
        for _ in 0..4 {
            for (leading, next) in [(&one, &mut twos), (&two, &mut ones)] {
                world.expire(leading.client()).await.unwrap();
                let term = next.recv().await.unwrap();
                assert!(term.epoch() > epoch);
                epoch = term.epoch();
                world.until_count(2).await;
            }
        }
        assert!(ones.try_recv().is_err() && twos.try_recv().is_err(), "nobody led twice");
    }

    async fn the_works_future_is_dropped_at_a_loss(env: Env) {
        struct Told(mpsc::UnboundedSender<()>);
        impl Drop for Told {
            fn drop(&mut self) {
                // The test may be over.
                let _ = self.0.send(());
            }
        }
        let world = World::new(env).await;
        let one = election(&world).await;
        let (ended, mut ends) = mpsc::unbounded_channel();
        let running = tokio::spawn({
            let one = one.clone();
            async move {
                let mut terms = 0;
                one.run("one", move |_| {
                    terms += 1;
                    let (term, told) = (terms, Told(ended.clone()));
                    async move {
                        let _told = told;
                        if term < 3 {
                            pending::<()>().await;
                        }
                        term
                    }
                })
                .await
            }
        });
        for _ in 0..2 {
            one.state().wait_for(Role::is_leader).await.unwrap();
            world.expire(one.client()).await.unwrap();
            ends.recv().await.unwrap();
        }
        assert_eq!(running.await.unwrap(), Ok(3));
    }

    async fn work_that_meets_the_loss_first_does_not_end_the_run(env: Env) {
        let world = World::new(env).await;
        let one = election(&world).await;
        let running = tokio::spawn({
            let one = one.clone();
            async move {
                let mut terms = 0;
                one.run("one", move |leadership| {
                    terms += 1;
                    let term = terms;
                    async move {
                        let mut writes = 0;
                        if term == 3 {
                            return Ok::<_, LockError>(term);
                        }
                        // Sends only requests, so that the loss is noticed by a refused one.
                        loop {
                            writes += 1;
                            leadership.set_data(writes.to_string()).await?;
                            tokio::task::yield_now().await;
                        }
                    }
                })
                .await
            }
        });
        let mut changes = Election::new(&world.observer, LOCK).unwrap().observe();
        for _ in 0..2 {
            loop {
                if let LeaderChange::DataChanged(_) = next(&mut changes).await {
                    break;
                }
            }
            world.expire(one.client()).await.unwrap();
            // An observer may miss the gap and see the next term immediately.
            while let LeaderChange::DataChanged(_) = next(&mut changes).await {}
        }
        assert_eq!(running.await.unwrap().unwrap(), Ok(3));
    }

    async fn a_dropped_run_resigns_or_leaves_the_line(env: Env) {
        let world = World::new(env).await;
        let (one, two) = (election(&world).await, election(&world).await);
        let (leading, mut terms) = run(&one, "one");
        let term = terms.recv().await.unwrap();
        let (waiting, _) = run(&two, "two");
        world.until_count(2).await;
        waiting.abort();
        world.until_count(1).await;
        let next = stand(&world, &two, "three").await;
        leading.abort();
        let next = elected(next).await;
        assert_eq!(term.lost().await, LostReason::Released);
        assert!(next.epoch() > term.epoch());
    }

    async fn a_run_ends_with_its_client(env: Env) {
        let world = World::new(env).await;
        let (one, two) = (election(&world).await, election(&world).await);
        let (leading, mut terms) = run(&one, "one");
        terms.recv().await.unwrap();
        let (waiting, _) = run(&two, "two");
        world.until_count(2).await;
        for (client, running) in [(two.client(), waiting), (one.client(), leading)] {
            client.close().await.unwrap();
            let end = running.await.unwrap().unwrap_err();
            assert!(matches!(end, LockError::Store(Error::SessionClosed { .. })), "{end}");
        }
        world.until_count(0).await;
    }

    async fn a_run_has_options(env: Env) {
        let world = World::new(env).await;
        let _leader = election(&world).await.campaign("other").await.unwrap();
        let one = election(&world).await;
        let options = LockOptions::new().queue_limit(0);
        let refusal = one.run_with("one", options, |_| async {}).await;
        assert!(matches!(refusal, Err(LockError::QueueFull { .. })));
        let after = Duration::from_millis(20);
        let refusal = one.run_with("one", LockOptions::new().timeout(after), |_| async {}).await;
        assert!(matches!(refusal, Err(LockError::Timeout { .. })));
        world.until_count(1).await;
    }

    async fn a_removed_candidate_stands_again(env: Env) {
        let world = World::new(env).await;
        let leader = election(&world).await.campaign("other").await.unwrap();
        let (_running, mut terms) = run(&election(&world).await, "one");
        world.until_count(2).await;
        let names = world.children().await;
        let candidate = names.iter().find(|name| *name != leader.path().name()).unwrap();
        world.revoke(&path(&format!("{LOCK}/{candidate}"))).await;
        leader.resign().await.unwrap();
        assert!(terms.recv().await.unwrap().is_held());
    }
}

/// Opens sessions, but refuses some on request.
#[derive(Debug)]
struct Moody {
    inner: Arc<dyn Connector>,
    refuse: AtomicUsize,
    asked: Mutex<Vec<BootInstant>>,
}

impl Connector for Moody {
    fn open(
        &self,
        options: &ConnectOptions,
    ) -> BoxFuture<lockkeeper_store::Result<Arc<dyn Backend>>> {
        self.asked.lock().push(self.inner.clock().now());
        let left = self.refuse.load(Ordering::Relaxed);
        if left == 0 {
            return self.inner.open(options);
        }
        self.refuse.store(left - 1, Ordering::Relaxed);
        let error = Error::LimitReached {
            what: "sessions",
            limit: 0,
        };
        Box::pin(async { Err(error) })
    }

    fn clock(&self) -> &Clock {
        self.inner.clock()
    }

    fn expire(&self, backend: &Arc<dyn Backend>) -> BoxFuture<lockkeeper_store::Result<()>> {
        self.inner.expire(backend)
    }
}

/// A store in virtual time that sometimes opens no sessions.
struct Scene {
    store: TestStore,
    moody: Arc<Moody>,
    one: Election,
}

impl Scene {
    async fn new() -> Self {
        let store = TestStore::new();
        let moody = Arc::new(Moody {
            inner: Arc::new(store.faults().clone()),
            refuse: 0.into(),
            asked: Mutex::default(),
        });
        let options = ConnectOptions::new().session_timeout(LONG);
        let client = Client::open(moody.clone(), "memory:moody".into(), options)
            .await
            .unwrap();
        let one = Election::new(&client, LOCK).unwrap();
        Self { store, moody, one }
    }

    /// Expires the session, refuses this many attempts to open another, and returns the pauses between all attempts.
    async fn fail(&self, times: usize) -> Vec<Duration> {
        self.moody.refuse.store(times, Ordering::Relaxed);
        self.moody.asked.lock().clear();
        self.store.expire(self.one.client()).await.unwrap();
        let mut state = self.one.state();
        self.store
            .run(state.wait_for(|role| !role.is_leader()))
            .await
            .unwrap();
        self.store
            .run(state.wait_for(Role::is_leader))
            .await
            .unwrap();
        let asked = self.moody.asked.lock();
        asked
            .windows(2)
            .map(|pair| pair[1].since(pair[0]))
            .collect()
    }
}

#[tokio::test]
async fn failed_attempts_are_repeated_after_growing_pauses() {
    let scene = Scene::new().await;
    let (_running, mut terms) = run(&scene.one, "one");
    let mut epoch: Option<FencingToken> = None;
    for round in 0..2 {
        let term = terms.recv().await.unwrap();
        assert!(epoch < Some(term.epoch()));
        epoch = Some(term.epoch());
        let pauses = scene.fail(14).await;
        assert_eq!(pauses.len(), 14);
        for (failure, pause) in pauses.iter().enumerate() {
            // A term won in between restarts the pauses from the first.
            let full = Duration::from_millis(100 << failure).min(Duration::from_secs(30));
            assert!(
                (full / 2..=full).contains(pause),
                "round {round}, {failure}: {pauses:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_loss_is_no_failure_and_is_followed_by_a_campaign_at_once() {
    let scene = Scene::new().await;
    let (_running, mut terms) = run(&scene.one, "one");
    let began = scene.store.clock().now();
    for _ in 0..100 {
        let term = terms.recv().await.unwrap();
        scene.store.expire(term.session()).await.unwrap();
    }
    assert!(terms.recv().await.unwrap().is_held());
    assert_eq!(scene.store.clock().now(), began, "no time has passed");
}

#[tokio::test]
async fn an_observer_tries_again_where_no_session_is_to_be_had() {
    let scene = Scene::new().await;
    let mut changes = scene.one.observe();
    assert_eq!(next(&mut changes).await, LeaderChange::Vacant);
    scene.moody.refuse.store(5, Ordering::Relaxed);
    scene.moody.asked.lock().clear();
    scene.store.expire(scene.one.client()).await.unwrap();
    let other = Election::new(&scene.store.client().await.unwrap(), LOCK).unwrap();
    let _leadership = other.campaign("other").await.unwrap();
    scene
        .store
        .run(until_shown(&mut changes, Some("other")))
        .await;
    assert_eq!(scene.moody.asked.lock().len(), 6);
}

/// Two candidates of one client take turns and their session keeps expiring. Time must advance.
#[tokio::test]
async fn sessions_that_end_at_once_make_no_busy_loop() {
    let scene = Scene::new().await;
    let _leader = Election::new(&scene.store.client().await.unwrap(), LOCK)
        .unwrap()
        .campaign("other")
        .await
        .unwrap();
    let (running, _terms) = run(&scene.one, "one");
    scene.store.settle().await;
    let began = scene.store.clock().now();
    for _ in 0..12 {
        // Ends its session each time that it campaigns again.
        let asked = scene.moody.asked.lock().len();
        scene.store.expire(scene.one.client()).await.unwrap();
        let again = async {
            while scene.moody.asked.lock().len() == asked {
                scene.store.advance(Duration::from_millis(10)).await;
            }
        };
        again.await;
        scene.store.settle().await;
    }
    let passed = scene.store.clock().now().since(began);
    assert!(passed > Duration::from_secs(60), "{passed:?}");
    assert!(!running.is_finished());
}
