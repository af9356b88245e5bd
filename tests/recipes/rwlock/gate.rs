//! A store that holds one kind of request back, so that others can overtake it.

use std::sync::Arc;

use lockkeeper::testing::{Plan, RequestKind, TestStore};
use lockkeeper_store::{Backend, Request, Response};
use testkit::{Env, Intercept, intercepted};
use tokio::sync::watch;

/// Holds back the requests of one kind, each until it is let through.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    on: RequestKind,
    /// Number that have come.
    come: Arc<watch::Sender<u32>>,
    /// Number that may pass.
    let_through: Arc<watch::Sender<u32>>,
}

impl Gate {
    pub(crate) fn new(on: RequestKind) -> Self {
        Self {
            on,
            come: Arc::new(watch::Sender::new(0)),
            let_through: Arc::new(watch::Sender::new(0)),
        }
    }

    /// The store behind the gate.
    pub(crate) fn store(&self, env: &Env) -> TestStore {
        let gate = self.clone();
        let connector = intercepted(env.connector().clone(), move || gate.clone());
        TestStore::wrapping(connector, env.target(), Plan::calm())
    }

    /// Waits until so many have come, the one that is held back included.
    pub(crate) async fn until_come(&self, count: u32) {
        let mut come = self.come.subscribe();
        come.wait_for(|come| *come >= count).await.unwrap();
    }

    /// Lets so many through in all.
    pub(crate) fn let_through(&self, count: u32) {
        self.let_through.send_replace(count);
    }
}

impl Intercept for Gate {
    fn submit(&self, inner: &Arc<dyn Backend>, request: Request) -> Response {
        if !self.on.matches(&request) {
            return inner.submit(request);
        }
        let mut number = 0;
        self.come.send_modify(|come| {
            *come += 1;
            number = *come;
        });
        let mut let_through = self.let_through.subscribe();
        let inner = inner.clone();
        Response::pending(async move {
            let open = let_through.wait_for(|count| *count >= number).await;
            open.expect("the gate lives as long as its session");
            inner.submit(request).await
        })
    }
}
