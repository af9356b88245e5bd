//! The one door through which a session reaches a store.

mod cleanup;
mod lease;
mod request;
mod response;
mod states;
mod status;
#[cfg(feature = "zookeeper")]
pub(crate) mod zookeeper;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

pub use cleanup::Cleanup;
pub(crate) use lease::{Beat, Sent};
pub(crate) use request::unexpected;
pub use request::{
    Ahead, Create, Enqueue, LookAhead, Op, OpReply, ReadOp, ReadReply, Reply, Request,
    SEMAPHORE_PARTS, SHARED_MARK, Skip, sequence_of,
};
pub use response::Response;
pub use states::StateStream;
pub(crate) use status::DEFAULT_TICK;
pub use status::SessionStatus;

use crate::clock::Clock;
use crate::connect::ConnectOptions;
#[cfg(feature = "test-util")]
use crate::error::Error;
use crate::error::Result;

/// One session at a store.
///
/// The contract: a request is sent when it is submitted, not when its response is first polled;
/// requests of one session are carried out, and their responses completed, in the order of their
/// submission; a request that is submitted while the session is suspended waits for the
/// reconnection; a request that was under way when the connection broke fails with
/// [`ConnectionLoss`](crate::Error::ConnectionLoss), and one that finds the session over with
/// [`SessionExpired`](crate::Error::SessionExpired) or
/// [`SessionClosed`](crate::Error::SessionClosed). A watch event reaches its watcher before any
/// later response of that session completes. Dropping the backend closes the session.
pub trait Backend: Send + Sync + fmt::Debug + 'static {
    /// Sends a request.
    fn submit(&self, request: Request) -> Response;

    /// Where the session stands.
    fn status(&self) -> &Arc<SessionStatus>;

    /// The id of the store; `None` where there is none and none may be made.
    fn store_id(&self) -> Option<&str>;

    /// How many bytes stand before each path on the wire: a chroot's. They count when the size of a
    /// request is checked, so who wraps another backend passes its answer on.
    fn prefix_bytes(&self) -> usize {
        0
    }
}

/// A boxed future, for object-safe traits.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// A store that sessions can be opened at.
pub trait Connector: Send + Sync + fmt::Debug + 'static {
    /// Opens a session.
    fn open(&self, options: &ConnectOptions) -> BoxFuture<Result<Arc<dyn Backend>>>;

    /// The clock that the store's sessions live by.
    fn clock(&self) -> &Clock;

    /// Ends a session as the store would when its timeout has passed.
    #[cfg(feature = "test-util")]
    fn expire(&self, backend: &Arc<dyn Backend>) -> BoxFuture<Result<()>> {
        // A default, so that the feature asks nothing new of those who implement this.
        let _ = backend;
        let what = "ending a session for a test";
        Box::pin(std::future::ready(Err(Error::Unimplemented { what })))
    }
}
