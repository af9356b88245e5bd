//! Connectors whose sessions pass through an [`Intercept`], to simulate stores that misbehave.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_store::{
    Backend, BoxFuture, Clock, ConnectOptions, Connector, Flushed, Request, Response, Result,
    SessionStatus,
};

/// Intercepts the calls between a session and its store.
pub trait Intercept: Send + Sync + 'static {
    fn submit(&self, inner: &Arc<dyn Backend>, request: Request) -> Response {
        inner.submit(request)
    }

    fn store_id<'a>(&self, inner: &'a Arc<dyn Backend>) -> Option<&'a str> {
        inner.store_id()
    }

    fn flushed(&self, _outcome: Flushed) {}
}

/// Wraps a connector. Each of its sessions passes through an interceptor from `new`.
pub fn intercepted<I: Intercept>(
    inner: Arc<dyn Connector>,
    new: impl Fn() -> I + Send + Sync + 'static,
) -> Arc<dyn Connector> {
    Arc::new(Intercepted { inner, new })
}

struct Intercepted<F> {
    inner: Arc<dyn Connector>,
    new: F,
}

impl<F> fmt::Debug for Intercepted<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Intercepted").field(&self.inner).finish()
    }
}

impl<I: Intercept, F: Fn() -> I + Send + Sync + 'static> Connector for Intercepted<F> {
    fn open(&self, options: &ConnectOptions) -> BoxFuture<Result<Arc<dyn Backend>>> {
        let (opening, intercept) = (self.inner.open(options), (self.new)());
        Box::pin(async move {
            let inner = opening.await?;
            Ok(Arc::new(InterceptedSession { inner, intercept }) as Arc<dyn Backend>)
        })
    }

    fn clock(&self) -> &Clock {
        self.inner.clock()
    }

    fn expire(&self, backend: &Arc<dyn Backend>) -> BoxFuture<Result<()>> {
        self.inner.expire(backend)
    }
}

struct InterceptedSession<I> {
    inner: Arc<dyn Backend>,
    intercept: I,
}

impl<I> fmt::Debug for InterceptedSession<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<I: Intercept> Backend for InterceptedSession<I> {
    fn submit(&self, request: Request) -> Response {
        self.intercept.submit(&self.inner, request)
    }

    fn status(&self) -> &Arc<SessionStatus> {
        self.inner.status()
    }

    fn store_id(&self) -> Option<&str> {
        self.intercept.store_id(&self.inner)
    }

    fn prefix_bytes(&self) -> usize {
        self.inner.prefix_bytes()
    }

    fn flush(&self, limit: Duration) -> Flushed {
        let outcome = self.inner.flush(limit);
        self.intercept.flushed(outcome);
        outcome
    }

    fn read_elsewhere(&self) {
        self.inner.read_elsewhere();
    }
}
