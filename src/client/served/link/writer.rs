//! Writes requests. A caller writes its own request under the link's mutex. The reader writes the requests of many
//! callers together, without the mutex. Only one thread writes at a time, so that bytes keep their order.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use super::{Inner, Link};
use crate::backend::Flushed;
use crate::client::served::session::KEPT_BYTES;
use crate::client::served::socket::Socket;
use crate::model::types::HumanDuration;
use crate::runtime::clock::BootInstant;
use crate::runtime::process::is_forked;

enum Unwritten {
    Nothing,
    /// Another thread is writing the bytes.
    Elsewhere,
    /// The socket is full. The flush can wait until the socket accepts more bytes.
    Waits(Arc<dyn Socket>),
    /// Waiting does not help, because an earlier wait timed out or there is no connection.
    Stuck,
}

impl Link {
    /// Blocks until all submitted requests have been written, for at most `limit`.
    pub(in super::super) fn flush(self: &Arc<Self>, limit: Duration) -> Flushed {
        if is_forked() {
            return Flushed::Skipped;
        }
        let deadline = std::time::Instant::now() + limit;
        loop {
            let socket = match self.drive(|inner, now| inner.unwritten(now)) {
                Unwritten::Nothing => return Flushed::Written,
                // Yield instead of sleeping, because the other thread is in a system call that does not block.
                Unwritten::Elsewhere if std::time::Instant::now() < deadline => {
                    std::thread::yield_now();
                    continue;
                }
                Unwritten::Elsewhere => return Flushed::TimedOut,
                Unwritten::Stuck => return Flushed::Skipped,
                Unwritten::Waits(socket) => socket,
            };
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() || !socket.wait_writable(left) {
                self.inner.lock().is_stuck = true;
                tracing::warn!(limit = %HumanDuration(limit), "requests not written in time");
                return Flushed::TimedOut;
            }
        }
    }

    /// Writes all pending requests, including requests that are submitted in the meantime, without holding the mutex.
    /// `batch` is a buffer that is empty before and after the call.
    ///
    /// # Errors
    /// `WouldBlock` if the socket does not accept everything. Any other error if the connection is lost.
    pub(in super::super) fn write(
        self: &Arc<Self>,
        attempt: u64,
        batch: &mut Vec<u8>,
    ) -> io::Result<()> {
        while let Some(socket) = self.take_batch(attempt, batch) {
            let (sent, failed) = write_all(&*socket, batch);
            self.batch_written(attempt, &batch[sent..], failed);
            batch.clear();
            // Shrink the buffer, so that an idle connection does not keep the memory of a burst.
            batch.shrink_to(KEPT_BYTES);
        }
        self.drive(|inner, _| match inner.is_of(attempt) {
            true if inner.is_blocked => Err(ErrorKind::WouldBlock.into()),
            true => Ok(()),
            false => Err(ErrorKind::NotConnected.into()),
        })
    }

    fn take_batch(&self, attempt: u64, batch: &mut Vec<u8>) -> Option<Arc<dyn Socket>> {
        let mut inner = self.inner.lock();
        let is_free = !inner.is_writing && !inner.is_blocked && inner.is_of(attempt);
        let has_some = !inner.session.outgoing().is_empty();
        let stream = inner.stream.as_ref().filter(|_| is_free && has_some)?;
        let socket = stream.plain_socket()?;
        inner.session.take_outgoing(batch);
        inner.is_writing = true;
        Some(socket)
    }

    fn batch_written(self: &Arc<Self>, attempt: u64, rest: &[u8], failed: Option<io::Error>) {
        let now = self.clock.now();
        let mut inner = self.inner.lock();
        inner.batch_written(attempt, rest, failed, now);
        let is_news = self.collect(&mut inner);
        drop(inner);
        if is_news {
            self.deliver();
        }
    }

    pub(in super::super) fn has_unsent(&self) -> bool {
        let inner = self.inner.lock();
        inner.is_blocked || !inner.session.outgoing().is_empty()
    }

    pub(in super::super) fn is_blocked(&self) -> bool {
        self.inner.lock().is_blocked
    }

    pub(super) fn notify_outgoing(&self) {
        self.outgoing.notify_one();
        if self.is_taken_over() {
            self.own_outgoing.notify_one();
        }
    }
}

impl Inner {
    fn unwritten(&mut self, now: BootInstant) -> Unwritten {
        self.transmit(now);
        match &self.stream {
            // The session is suspended, so its requests wait for the next connection.
            None => Unwritten::Stuck,
            Some(_) if self.is_writing => Unwritten::Elsewhere,
            Some(_) if !self.is_blocked => Unwritten::Nothing,
            Some(_) if self.is_stuck => Unwritten::Stuck,
            Some(stream) => Unwritten::Waits(stream.socket()),
        }
    }

    fn batch_written(
        &mut self,
        attempt: u64,
        rest: &[u8],
        failed: Option<io::Error>,
        now: BootInstant,
    ) {
        self.is_writing = false;
        if !self.is_of(attempt) {
            // The batch belonged to an earlier connection. The new connection's handshake was not sent while
            // `is_writing` was set, so send it now.
            return self.transmit(now);
        }
        self.is_stuck = false;
        self.session.restore_outgoing(rest);
        match failed {
            None => {}
            Some(error) if error.kind() == ErrorKind::WouldBlock => self.is_blocked = true,
            Some(error) => self.lose_connection(&error, now),
        }
    }

    pub(super) fn transmit(&mut self, now: BootInstant) {
        if self.is_writing {
            return;
        }
        let Some(stream) = &mut self.stream else {
            return;
        };
        let written = loop {
            let bytes = self.session.outgoing();
            if bytes.is_empty() {
                break stream.flush();
            }
            match stream.write(bytes) {
                Ok(0) => break Err(ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.is_stuck = false;
                    self.session.advance(count);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        match written {
            Ok(()) => self.is_blocked = false,
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_blocked = true,
            Err(error) => self.lose_connection(&error, now),
        }
    }
}

fn write_all(socket: &dyn Socket, bytes: &[u8]) -> (usize, Option<io::Error>) {
    let mut sent = 0;
    while sent < bytes.len() {
        match socket.write(&bytes[sent..]) {
            Ok(0) => return (sent, Some(ErrorKind::WriteZero.into())),
            Ok(count) => sent += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return (sent, Some(error)),
        }
    }
    (sent, None)
}
