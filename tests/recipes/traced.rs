//! Spans of waits and holds and their events, as recorded by a `tracing` subscriber.
//!
//! On ZooKeeper, threads of the client emit some of them, so tests that read those run in a separate process.

use lockkeeper::{Election, LockOptions, Mutex, RwLock, Semaphore};
use testkit::{Line, Log, alone, on_every_backend};
use tracing::Level;

use crate::common::*;

fn label(label: &str) -> LockOptions {
    LockOptions::new().label(label)
}

fn assert_span(span: &Line, name: &str, kind: &str, session: impl ToString) -> String {
    assert_eq!((span.level, &*span.message), (Level::DEBUG, name));
    assert_eq!(span.field("kind"), kind, "{span:?}");
    assert_eq!(span.field("session"), session.to_string());
    span.field("path").to_owned()
}

on_every_backend! {
    async fn a_wait_and_a_hold_have_a_span_each(env: Env) {
        if !alone() {
            return;
        }
        let world = World::new(env).await;
        let holder = world.mutex().await.lock().await.unwrap();
        let mutex = world.mutex().await;
        let log = Log::of_process(Level::DEBUG);
        let waiter = world.queue_up_with(&mutex, label("billing")).await;
        let queued = log.next("queued").await;
        assert_eq!((queued.level, queued.field("position")), (Level::DEBUG, "1"));
        assert_eq!(queued.field("ahead"), holder.path().as_str());
        let session = mutex.client().current_session().id();
        let wait = log.span_of(&queued);
        assert_eq!(assert_span(&wait, "wait", "mutex", session), LOCK);
        assert_eq!((wait.field("label"), wait.field("position")), ("billing", "1"));

        holder.release().await.unwrap();
        let guard = granted(waiter).await;
        let token = guard.fencing_token().to_string();
        let acquired = log.next("acquired").await;
        assert_eq!(acquired.span, queued.span);
        assert_eq!(acquired.field("token"), token);
        assert!(acquired.fields.contains_key("waited"));
        assert_eq!(log.span_of(&acquired).field("token"), token);

        let entry = guard.path().name().to_owned();
        log.until_open(1).await;
        guard.release().await.unwrap();
        let released = log.next("released").await;
        let hold = log.span_of(&released);
        assert_eq!(assert_span(&hold, "hold", "mutex", session), LOCK);
        assert_eq!((hold.field("label"), hold.field("token")), ("billing", &*token));
        assert_eq!(hold.field("entry"), entry);
        log.until_open(0).await;
    }

    async fn a_free_lock_has_both_spans_too(env: Env) {
        if !alone() {
            return;
        }
        let world = World::new(env).await;
        let mutex = world.mutex().await;
        let log = Log::of_process(Level::DEBUG);
        let guard = mutex.lock().await.unwrap();
        let acquired = log.next("acquired").await;
        let wait = log.span_of(&acquired);
        assert_eq!(wait.field("token"), guard.fencing_token().to_string());
        assert!(!wait.fields.contains_key("label") && !wait.fields.contains_key("position"));
        drop(guard);
        log.next("released").await;
    }

    async fn a_wait_that_is_given_up_is_abandoned(env: Env) {
        let world = World::new(env).await;
        let _holder = world.mutex().await.lock().await.unwrap();
        let mutex = world.mutex().await;
        let log = Log::of_thread(Level::DEBUG);
        let waiter = world.queue_up(&mutex).await;
        let queued = log.next("queued").await;
        waiter.abort();
        assert_eq!(log.next("abandoned").await.span, queued.span);
        waiter.await.unwrap_err();
        log.until_open(0).await;
    }

    async fn an_expiry_is_a_warning(env: Env) {
        if !alone() {
            return;
        }
        let world = World::new(env).await;
        let client = world.client().await;
        let log = Log::of_process(Level::WARN);
        world.end_session(&client).await;
        assert_eq!(log.next("the session has expired").await.level, Level::WARN);
    }

    /// At any level, because a loss matters even with debug off.
    async fn a_loss_is_a_warning_with_the_locks_fields(env: Env) {
        if !alone() {
            return;
        }
        let world = World::new(env).await;
        let mutex = world.mutex().await;
        let log = Log::of_process(Level::WARN);
        let guard = mutex.lock_with(label("billing")).await.unwrap();
        world.end_session(mutex.client()).await;
        guard.lost().await;
        let token = guard.fencing_token().to_string();
        let entry = guard.path().clone();
        guard.release().await.unwrap_err();
        let lost = log.next("a lock was lost").await;
        assert_eq!(lost.level, Level::WARN);
        assert_eq!((lost.field("path"), lost.field("kind")), (entry.as_str(), "mutex"));
        assert_eq!((lost.field("label"), lost.field("token")), ("billing", &*token));
        assert_eq!(lost.field("reason"), "the session has expired");
        let again = log.rest().into_iter().find(|line| line.message.contains("was lost"));
        assert!(again.is_none(), "{again:?}");
    }

    async fn each_recipe_names_its_kind_and_the_locks_own_path(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let session = client.session().await.unwrap().id();
        let log = Log::of_thread(Level::DEBUG);
        let rwlock = RwLock::new(&client, "/traced/rwlock").unwrap();
        rwlock.read().await.unwrap().release().await.unwrap();
        rwlock.write().await.unwrap().release().await.unwrap();
        let quota = Semaphore::new(&client, "/traced/quota", 2).unwrap();
        quota.acquire().await.unwrap().release().await.unwrap();
        let election = Election::new(&client, "/traced/election").unwrap();
        election.campaign("ann").await.unwrap().resign().await.unwrap();
        let mutex = Mutex::new(&client, "/traced/mutex").unwrap();
        mutex.try_lock().await.unwrap().unwrap().release().await.unwrap();
        let expected = [
            ("reader", "/traced/rwlock"),
            ("writer", "/traced/rwlock"),
            ("semaphore", "/traced/quota"),
            ("election", "/traced/election"),
            ("mutex", "/traced/mutex"),
        ];
        for (kind, path) in expected {
            let wait = log.span_of(&log.next("acquired").await);
            assert_eq!(assert_span(&wait, "wait", kind, session), path);
            let hold = log.span_of(&log.next("released").await);
            assert_eq!(assert_span(&hold, "hold", kind, session), path);
        }
        log.until_open(0).await;
    }

    async fn a_lost_connection_is_a_warning_of_the_session(env: Env) {
        if !alone() {
            return;
        }
        let world = World::new(env).await;
        let mutex = world.mutex().await;
        let guard = mutex.lock().await.unwrap();
        let log = Log::of_process(Level::INFO);
        let mut states = mutex.client().current_session().states();
        world.disconnect(mutex.client());
        states.next().await;
        let suspended = log.next("the connection is lost").await;
        assert_eq!(suspended.level, Level::WARN);
        assert_eq!(suspended.field("session"), guard.session().id().to_string());
        assert!(suspended.field("held_for").starts_with(|c: char| c.is_ascii_digit()), "{suspended:?}");
        world.reconnect(mutex.client());
        states.next().await;
        assert_eq!(log.next("the connection is back").await.level, Level::INFO);
    }
}
