//! [`Body`]: the body of a response. Also reads the body of a request.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::StatusCode;
use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use tokio::sync::mpsc::Receiver;

const BODY_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) enum Body {
    Text(Bytes),
    Stream(Receiver<Bytes>),
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Self {
        Self::Text(Bytes::from_static(text.as_bytes()))
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = match &mut *self {
            Self::Text(text) if text.is_empty() => None,
            Self::Text(text) => Some(std::mem::take(text)),
            Self::Stream(pieces) => ready!(pieces.poll_recv(context)),
        };
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Text(text) if text.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Text(text) => SizeHint::with_exact(text.len() as u64),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}

pub(crate) async fn read_all(
    body: Incoming,
    limit: usize,
) -> Result<Vec<u8>, (StatusCode, &'static str)> {
    let too_large = Err((StatusCode::PAYLOAD_TOO_LARGE, "the body is too large"));
    if body.size_hint().lower() > limit as u64 {
        return too_large;
    }
    let read = async {
        let mut body = pin!(body);
        let mut bytes = Vec::new();
        while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
            let Ok(frame) = frame else {
                return Err((StatusCode::BAD_REQUEST, "the body is incomplete"));
            };
            let data = frame.into_data().unwrap_or_default();
            if bytes.len() + data.len() > limit {
                return too_large;
            }
            bytes.extend_from_slice(&data);
        }
        Ok(bytes)
    };
    let read = tokio::time::timeout(BODY_TIMEOUT, read).await;
    read.unwrap_or(Err((StatusCode::REQUEST_TIMEOUT, "the body is too slow")))
}
