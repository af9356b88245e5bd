//! [`Pipe`]: a connection whose client is a script that may send in pieces, stop reading, close and reset.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::server::transport::Transport;

/// Wakes no task, because the script polls the server's task after each action.
#[derive(Clone)]
pub(super) struct Pipe(Arc<Mutex<Inner>>);

struct Inner {
    input: Vec<u8>,
    read: usize,
    output: Vec<u8>,
    piece: usize,
    is_closed: bool,
    is_reset: bool,
    is_stalled: bool,
    is_shut: bool,
}

impl Pipe {
    pub(super) fn new(piece: usize) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            input: Vec::new(),
            read: 0,
            output: Vec::new(),
            piece,
            is_closed: false,
            is_reset: false,
            is_stalled: false,
            is_shut: false,
        })))
    }

    pub(super) fn send(&self, bytes: &[u8]) -> bool {
        let mut inner = self.0.lock();
        let is_open = !inner.is_closed && !inner.is_reset;
        if is_open {
            inner.input.extend_from_slice(bytes);
        }
        is_open
    }

    pub(super) fn close(&self) {
        self.0.lock().is_closed = true;
    }

    pub(super) fn reset(&self) {
        self.0.lock().is_reset = true;
    }

    pub(super) fn stall(&self) {
        let mut inner = self.0.lock();
        inner.is_stalled = !inner.is_stalled;
    }

    pub(super) fn read_on(&self) {
        self.0.lock().is_stalled = false;
    }

    pub(super) fn is_shut(&self) -> bool {
        self.0.lock().is_shut
    }

    pub(super) fn take_output(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().output)
    }
}

impl AsyncRead for Pipe {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut inner = self.0.lock();
        let rest = &inner.input[inner.read..];
        match (rest.is_empty(), inner.is_reset, inner.is_closed) {
            (true, true, _) => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            (true, _, true) => return Poll::Ready(Ok(())),
            (true, ..) => return Poll::Pending,
            _ => {}
        }
        let count = inner.piece.min(rest.len()).min(buffer.remaining());
        buffer.put_slice(&rest[..count]);
        inner.read += count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut inner = self.0.lock();
        if inner.is_reset {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if inner.is_stalled {
            return Poll::Pending;
        }
        let count = bytes.len().min(inner.piece);
        inner.output.extend_from_slice(&bytes[..count]);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.lock().is_shut = true;
        Poll::Ready(Ok(()))
    }
}

impl Transport for Pipe {
    fn is_readable(&self) -> bool {
        let inner = self.0.lock();
        inner.read < inner.input.len() || inner.is_closed || inner.is_reset
    }
}
