//! [`Response`]: the future of a reply, without a box where the reply is there at once.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::Reply;
use crate::error::Result;
use crate::future::BoxFuture;

/// The reply to a request, now or later. Dropping it does not take the request back.
#[must_use = "the request is under way; await its reply or drop it on purpose"]
pub struct Response(Inner);

enum Inner {
    Ready(Result<Reply>),
    Taken,
    Pending(BoxFuture<Result<Reply>>),
}

impl Response {
    /// A reply that is there already.
    #[inline]
    pub fn ready(reply: Result<Reply>) -> Self {
        Self(Inner::Ready(reply))
    }

    /// A reply that comes with a future. The request must have been sent.
    pub fn pending(reply: impl Future<Output = Result<Reply>> + Send + 'static) -> Self {
        Self(Inner::Pending(Box::pin(reply)))
    }

    /// Polls `reply` once, so that what it does before its first await is done now.
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

    /// The reply if it is there, else the response again.
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
            Inner::Pending(_) => f.write_str("Response(pending)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_no_larger_than_what_is_moved_without_a_call() {
        assert!(size_of::<Response>() <= 128, "{}", size_of::<Response>());
    }
}
