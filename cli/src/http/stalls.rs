//! [`Unstalled`]: a socket that fails when its peer has read nothing for too long.
//!
//! An event stream has no end, so a time limit on the whole response would not catch a client that does not read.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

pub(super) struct Unstalled {
    stream: TcpStream,
    limit: Duration,
    /// Timer of the current write. `None` unless a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Unstalled {
    pub(super) fn new(stream: TcpStream, limit: Duration) -> Self {
        Self {
            stream,
            limit,
            stalled: None,
        }
    }

    /// Returns an error instead of `Pending` if a write has waited too long.
    fn limited<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let limit = self.limit;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(limit)));
        match stalled.as_mut().poll(context) {
            Poll::Ready(()) => {
                stalled.as_mut().reset(Instant::now() + limit);
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Unstalled {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Unstalled {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.limited(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.limited(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn a_peer_that_does_not_read_is_given_up_and_one_that_reads_is_not() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().unwrap().block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let connect = TcpStream::connect(listener.local_addr().unwrap());
            let (mut peer, accepted) = tokio::try_join!(connect, listener.accept()).unwrap();
            let mut stream = Unstalled::new(accepted.0, Duration::from_secs(1));
            let bytes = vec![0; 1 << 20];
            let failure = loop {
                if let Err(failure) = stream.write_all(&bytes).await {
                    break failure;
                }
            };
            assert_eq!(failure.kind(), io::ErrorKind::TimedOut);
            // When the peer reads, the socket can accept more bytes.
            let mut buffer = vec![0; 1 << 20];
            for _ in 0..16 {
                let (written, read) =
                    tokio::join!(stream.write(&bytes), peer.read_exact(&mut buffer));
                assert!(written.unwrap() > 0 && read.unwrap() > 0);
            }
        });
    }
}
