//! [`Quorum`]: a store in memory that looks like an ensemble to its sessions.

use std::sync::Arc;

use lockkeeper_store::{
    Backend, BoxFuture, Clock, ConnectOptions, Connector, Request, Response, Result, SessionStatus,
    spawn_detached,
};

/// Wraps a connector. Its sessions believe committed writes alone, as at the followers of an ensemble.
#[derive(Debug)]
pub(crate) struct Quorum(pub(crate) Arc<dyn Connector>);

impl Connector for Quorum {
    fn open(&self, options: &ConnectOptions) -> BoxFuture<Result<Arc<dyn Backend>>> {
        let (sent, opening) = (self.clock().now(), self.0.open(options));
        Box::pin(async move {
            let inner = opening.await?;
            let theirs = inner.status().clone();
            let status = Arc::new(SessionStatus::new(
                theirs.id(),
                theirs.clock().clone(),
                theirs.timeout(),
                true,
                sent,
            ));
            let (mut states, published) = (theirs.states(), status.clone());
            spawn_detached(async move {
                while let Some(state) = states.next().await {
                    published.set_state(state);
                }
            });
            Ok(Arc::new(Member { inner, status }) as Arc<dyn Backend>)
        })
    }

    fn clock(&self) -> &Clock {
        self.0.clock()
    }

    fn expire(&self, backend: &Arc<dyn Backend>) -> BoxFuture<Result<()>> {
        self.0.expire(backend)
    }
}

#[derive(Debug)]
struct Member {
    inner: Arc<dyn Backend>,
    status: Arc<SessionStatus>,
}

impl Backend for Member {
    fn submit(&self, request: Request) -> Response {
        self.inner.submit(request)
    }

    fn status(&self) -> &Arc<SessionStatus> {
        &self.status
    }

    fn store_id(&self) -> Option<&str> {
        self.inner.store_id()
    }
}
