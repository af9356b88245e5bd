//! Tests of the fault wrapper over a minimal store ([`Fake`]).

mod answers;
mod outages;
mod passing_through;
mod plans;
mod time;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::fake::Fake;
use super::{Plan, RequestKind, SessionSelector, TestStore};
use crate::backend::ConnectOptions;
use crate::client::connect::Client;
use crate::client::session::{Call, Session};
use crate::model::error::{Error, Result};
use crate::model::path::ZnodePath;
use crate::model::protocol::{Blockers, Enqueue, Predecessor, Request};
use crate::model::types::{CreateMode, SessionState, Stat};
use crate::model::watch::{DeleteReason, EventKind, PredecessorGone, WatchMode};
use crate::runtime::clock::Clock;

const MS: Duration = Duration::from_millis(1);

struct World {
    fake: Arc<Fake>,
    store: TestStore,
}

impl World {
    fn new() -> Self {
        Self::with(Plan::calm())
    }

    fn lossy() -> Self {
        Self::with(Plan::calm().outages(10 * MS..10 * MS))
    }

    fn with(plan: Plan) -> Self {
        let fake = Fake::new(Clock::new_virtual());
        let store = TestStore::wrapping(fake.clone(), "fake:", plan);
        Self { fake, store }
    }

    fn open(&self) -> (Client, Session) {
        self.open_with(ConnectOptions::new())
    }

    fn open_with(&self, options: ConnectOptions) -> (Client, Session) {
        let client = now(self.store.client_with(options)).unwrap().unwrap();
        let session = client.current_session();
        (client, session)
    }

    fn advance(&self, by: Duration) {
        self.store.clock().advance(by);
    }

    fn log(&self) -> Vec<String> {
        self.fake.tree().log.clone()
    }
}

fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    look(pin!(future))
}

fn look<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}

fn peek<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
    look(std::pin::Pin::new(future))
}

fn path(text: &str) -> ZnodePath {
    text.parse().unwrap()
}

fn create(session: &Session, at: &str) -> Call<(ZnodePath, Stat)> {
    session.create(&path(at), "", CreateMode::Ephemeral)
}

fn kind_of(event: Option<Result<crate::WatchedEvent>>) -> Option<EventKind> {
    event.map(|event| event.unwrap().kind)
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        if let Some(done) = look(work.as_mut()) {
            return done;
        }
    }
}
