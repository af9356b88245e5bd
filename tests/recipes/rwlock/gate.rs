//! A store one of whose requests is held back, so that others can come before it.

use std::sync::Arc;

use lockkeeper::testing::{On, Plan, TestStore};
use lockkeeper::{Clock, ConnectOptions};
use lockkeeper_store::{Backend, BoxFuture, Connector, Request, Response, SessionStatus};
use tokio::sync::watch;

use crate::support::Env;

/// Holds back the requests of one kind, each until it is let through.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    connector: Arc<dyn Connector>,
    on: On,
    /// Number that have come.
    come: Arc<watch::Sender<u32>>,
    /// Number that may pass.
    let_through: Arc<watch::Sender<u32>>,
}

impl Gate {
    pub(crate) fn over(env: &Env, on: On) -> Self {
        Self {
            connector: env.connector().clone(),
            on,
            come: Arc::new(watch::Sender::new(0)),
            let_through: Arc::new(watch::Sender::new(0)),
        }
    }

    /// The store behind the gate.
    pub(crate) fn store(&self, env: &Env) -> TestStore {
        TestStore::wrapping(Arc::new(self.clone()), env.target(), Plan::calm())
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

impl Connector for Gate {
    fn open(
        &self,
        options: &ConnectOptions,
    ) -> BoxFuture<lockkeeper_store::Result<Arc<dyn Backend>>> {
        let (opening, gate) = (self.connector.open(options), self.clone());
        Box::pin(async move {
            let inner = opening.await?;
            Ok(Arc::new(Gated { inner, gate }) as Arc<dyn Backend>)
        })
    }

    fn clock(&self) -> &Clock {
        self.connector.clock()
    }

    fn expire(&self, backend: &Arc<dyn Backend>) -> BoxFuture<lockkeeper_store::Result<()>> {
        self.connector.expire(backend)
    }
}

#[derive(Debug)]
struct Gated {
    inner: Arc<dyn Backend>,
    gate: Gate,
}

impl Backend for Gated {
    fn submit(&self, request: Request) -> Response {
        if !self.gate.on.matches(&request) {
            return self.inner.submit(request);
        }
        let mut number = 0;
        self.gate.come.send_modify(|come| {
            *come += 1;
            number = *come;
        });
        let mut let_through = self.gate.let_through.subscribe();
        let inner = self.inner.clone();
        Response::pending(async move {
            let open = let_through.wait_for(|count| *count >= number).await;
            open.expect("the gate lives as long as its session");
            inner.submit(request).await
        })
    }

    fn status(&self) -> &Arc<SessionStatus> {
        self.inner.status()
    }

    fn store_id(&self) -> Option<&str> {
        self.inner.store_id()
    }
}
