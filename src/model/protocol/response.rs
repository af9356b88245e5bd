//! [`Response`]: the future of a reply, without an allocation if the reply is ready.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::{Proof, Reply};
use crate::model::error::Result;
use crate::runtime::future::BoxFuture;

/// Future of a reply. Dropping the future does not cancel the request, which has already been sent.
#[must_use = "the request is under way; await its reply or drop it on purpose"]
pub struct Response(Inner);

enum Inner {
    Ready(Result<Reply>),
    Taken,
    /// Slot into which a backend puts the reply. `Pending` would need one more allocation for every request to a served
    /// store.
    #[cfg_attr(
        not(feature = "client"),
        allow(dead_code, reason = "of served stores alone")
    )]
    Shared(Arc<dyn SharedReply>, Option<Proof>),
    Pending(BoxFuture<Result<Reply>>),
}

pub(crate) trait SharedReply: Send + Sync {
    fn poll_take(&self, context: &mut Context<'_>) -> Poll<Result<Reply>>;
}

impl Response {
    /// Wraps a reply that is already known.
    #[inline]
    pub fn ready(reply: Result<Reply>) -> Self {
        Self(Inner::Ready(reply))
    }

    /// Wraps a future of a reply. The request must already be sent.
    pub fn pending(reply: impl Future<Output = Result<Reply>> + Send + 'static) -> Self {
        Self(Inner::Pending(Box::pin(reply)))
    }

    #[cfg(feature = "client")]
    pub(crate) fn shared(reply: Arc<dyn SharedReply>) -> Self {
        Self(Inner::Shared(reply, None))
    }

    /// Returns a response that renews the session's lease when it completes, if the reply proves that the session was
    /// alive.
    pub(crate) fn proving(self, proof: Proof) -> Self {
        match self.0 {
            Inner::Shared(reply, None) => Self(Inner::Shared(reply, Some(proof))),
            response => Self::pending(async move {
                let reply = Self(response).await;
                proof.judge(&reply);
                reply
            }),
        }
    }

    /// Wraps a future that sends the request before its first await. Polls it once, so that the request is sent now.
    pub fn eager(reply: impl Future<Output = Result<Reply>> + Send + 'static) -> Self {
        let mut reply: BoxFuture<_> = Box::pin(reply);
        match reply
            .as_mut()
            .poll(&mut Context::from_waker(std::task::Waker::noop()))
        {
            Poll::Ready(reply) => Self::ready(reply),
            Poll::Pending => Self(Inner::Pending(reply)),
        }
    }

    /// Returns the reply if it is ready, and otherwise the response.
    #[expect(
        clippy::result_large_err,
        reason = "the hot path returns `Ok`, and a box would cost it an allocation"
    )]
    #[inline]
    pub fn now_or_never(self) -> Result<Result<Reply>, Response> {
        match self.0 {
            Inner::Ready(reply) => Ok(reply),
            _ => Err(self),
        }
    }
}

impl Future for Response {
    type Output = Result<Reply>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Inner::Pending(reply) => reply.as_mut().poll(context),
            Inner::Shared(shared, proof) => {
                let polled = shared.poll_take(context);
                if let (Poll::Ready(reply), Some(proof)) = (&polled, proof) {
                    proof.judge(reply);
                }
                polled
            }
            inner => match std::mem::replace(inner, Inner::Taken) {
                Inner::Ready(reply) => Poll::Ready(reply),
                _ => panic!("a response was polled after it was taken"),
            },
        }
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Inner::Ready(reply) => f.debug_tuple("Response").field(reply).finish(),
            Inner::Taken => f.write_str("Response(taken)"),
            Inner::Shared(..) | Inner::Pending(_) => f.write_str("Response(pending)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_small_enough_to_be_moved_without_a_call() {
        assert!(size_of::<Response>() <= 128, "{}", size_of::<Response>());
    }
}
