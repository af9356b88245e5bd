//! A store that holds back one kind of request, so that others can overtake it.

use std::sync::Arc;

use lockkeeper::testing::{Plan, RequestKind, TestStore};
use lockkeeper_store::{Backend, Request, Response};
use testkit::{Env, Intercept, intercepted};
use tokio::sync::watch;

/// Holds back each request of one kind until it is let through.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    on: RequestKind,
    come: Arc<watch::Sender<u32>>,
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

    pub(crate) fn store(&self, env: &Env) -> TestStore {
        let gate = self.clone();
        let connector = intercepted(env.connector().clone(), move || gate.clone());
        TestStore::wrapping(connector, env.target(), Plan::calm())
    }

    /// Waits until this many have arrived, including the one held back.
    pub(crate) async fn until_come(&self, count: u32) {
        let mut come = self.come.subscribe();
        come.wait_for(|come| *come >= count).await.unwrap();
    }

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
