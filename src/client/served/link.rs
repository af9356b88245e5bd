//! [`Link`]: a session and its connection, behind one mutex. The thread that submits a request usually writes it to the
//! socket. The thread that reads handles all bytes that have arrived, including replies that other threads wait for.
//!
//! No user code runs under the mutex. While a thread holds the mutex, it only queues replies, events and changes of
//! state in the session's order. Then one thread at a time delivers the queued items in this order, without the mutex.
//! An event therefore reaches its watcher before a later reply completes (invariant 3).

mod delivery;
mod writer;

use std::cell::RefCell;
use std::fmt;
use std::io::{self, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use foldhash::HashMap;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use self::delivery::{Delivery, DeliveryQueue, ReplyCell};
use super::session::{ClientSession, Dial, Output, SessionOptions};
use super::socket::{Endpoint, Socket};
use super::stream::Stream;
use super::tls::{Tls, refused};
use super::watches::WatchKey;
use crate::backend::SessionStatus;
use crate::client::protocol_probe::refusal;
use crate::model::path::ZnodePath;
use crate::model::protocol::{Request, Response};
use crate::model::watch::{ArmedWatch, Unwatch, WatchCell};
use crate::runtime::clock::{BootInstant, Clock};
use crate::runtime::process::is_forked;
use crate::tls::TlsError;

pub(super) struct Link {
    pub(super) endpoint: Endpoint,
    pub(super) names: Vec<String>,
    pub(super) tls: Option<Tls>,
    pub(super) clock: Clock,
    inner: Mutex<Inner>,
    delivery: Mutex<DeliveryQueue>,
    status: OnceLock<Arc<SessionStatus>>,
    pub(super) attention: Notify,
    /// Wakes the reader on the user's runtime to write bytes. `own_outgoing` wakes the reader on our own thread.
    pub(super) outgoing: Notify,
    pub(super) own_outgoing: Notify,
    pub(super) progress: Notify,
    /// True while our own thread reads, because the user's runtime is busy or does not run.
    is_taken_over: AtomicBool,
    is_probed: AtomicBool,
}

struct Inner {
    session: ClientSession<Arc<ReplyCell>>,
    stream: Option<Stream>,
    /// Number of the current attempt to connect. Results of earlier attempts are ignored.
    attempt: u64,
    dial: Option<Dial>,
    server: usize,
    is_deferred: bool,
    /// True while a thread writes without holding the mutex. No other thread may write during this time, so that bytes
    /// keep their order.
    is_writing: bool,
    is_blocked: bool,
    /// True after a flush has timed out, until the socket accepts bytes again. Further flushes then return immediately.
    is_stuck: bool,
    read_at: BootInstant,
    /// True if the connection's reader may not be running, so that the supervisor must start another one.
    lacks_reader: bool,
    cells: HashMap<WatchKey, Arc<WatchCell>>,
    failure: Option<(Failure, usize)>,
}

#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// A certificate was refused, or only one side speaks TLS. Retrying does not help.
    Tls(TlsError),
    Down {
        reason: String,
        is_absent: bool,
    },
    Other(String),
}

#[derive(Debug, Default)]
pub(super) struct Duties {
    pub(super) connect: Option<(Dial, u64)>,
    pub(super) reader: Option<(Arc<dyn Socket>, u64)>,
    pub(super) next: Option<BootInstant>,
}

/// If a busy executor has read no bytes for the session timeout divided by this number, the supervisor itself reads the
/// connection, so that the session survives.
const UNREAD: u32 = 6;

/// With at least this many unanswered requests, a call leaves writing to the reader. The reader writes many requests
/// together, which wakes the server only once.
const DIRECT_WRITES: usize = 4;

const READ_BYTES: usize = 16 << 10;

thread_local! {
    /// Buffer shared by all sessions that a thread reads. A shared buffer stays in the CPU cache and is not cleared
    /// before each read.
    static READ_BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into());
}

/// Number of reads after which a reader yields to other tasks.
const READS: usize = 16;

impl Link {
    pub(super) fn new(
        endpoint: Endpoint,
        tls: Option<Tls>,
        options: SessionOptions,
        clock: Clock,
    ) -> Arc<Self> {
        let now = clock.now();
        Arc::new(Self {
            names: endpoint.names.clone(),
            endpoint,
            inner: Mutex::new(Inner {
                session: ClientSession::new(options, now),
                stream: None,
                attempt: 0,
                dial: None,
                server: 0,
                is_deferred: false,
                is_writing: false,
                is_blocked: false,
                is_stuck: false,
                read_at: now,
                lacks_reader: false,
                cells: HashMap::default(),
                failure: None,
            }),
            tls,
            clock,
            delivery: Mutex::default(),
            status: OnceLock::new(),
            attention: Notify::new(),
            outgoing: Notify::new(),
            own_outgoing: Notify::new(),
            progress: Notify::new(),
            is_taken_over: AtomicBool::new(false),
            is_probed: AtomicBool::new(false),
        })
    }

    pub(super) fn status(&self) -> Option<&Arc<SessionStatus>> {
        self.status.get()
    }

    pub(super) fn failure(&self) -> Option<Failure> {
        let inner = self.inner.lock();
        inner.failure.as_ref().map(|(failure, _)| failure.clone())
    }

    pub(super) fn hosts(&self) -> String {
        self.names.join(",")
    }

    pub(super) fn failed_host(&self) -> &str {
        let inner = self.inner.lock();
        let failed = inner.failure.as_ref().map(|(_, server)| *server);
        &self.names[failed.unwrap_or(inner.server)]
    }

    pub(super) fn set_chroot(&self, chroot: &ZnodePath) {
        self.inner.lock().session.set_chroot(chroot);
    }

    pub(super) fn submit(self: &Arc<Self>, request: Request) -> Response {
        let cell = Arc::<ReplyCell>::default();
        let is_close = request == Request::Close;
        self.drive(|inner, now| {
            inner.is_deferred = inner.session.requests_under_way() >= DIRECT_WRITES && !is_close;
            inner.session.submit(cell.clone(), request, now);
        });
        if is_close {
            // closeSession has a time limit, so the supervisor must compute its next deadline again.
            self.attention.notify_one();
        }
        let reply = cell.reply.lock().take();
        match reply {
            Some(reply) => Response::ready(reply),
            None => Response::shared(cell),
        }
    }

    /// Ends a session that was never handed to the caller, or whose last handle was dropped.
    pub(super) fn abandon(self: &Arc<Self>) {
        self.drive(|inner, now| match inner.session.is_opened() {
            true => inner.session.submit(Arc::default(), Request::Close, now),
            false => inner.session.abandon(),
        });
        self.attention.notify_one();
    }

    /// Ends the session after a panic, without closeSession. The server expires the session later.
    fn give_up(self: &Arc<Self>) {
        self.drive(|inner, _| inner.session.give_up());
        // Catch another panic here, because the tracing subscriber may be the code that panics.
        let ended = || tracing::error!(host = %self.hosts(), "a delivery panicked, so its session has ended");
        let _ = catch_unwind(AssertUnwindSafe(ended));
    }

    #[cfg(feature = "test-util")]
    pub(super) fn expire(self: &Arc<Self>) {
        self.drive(|inner, _| inner.session.expire_at_server());
    }

    pub(super) fn is_over(&self) -> bool {
        self.inner.lock().session.is_over()
    }

    pub(super) fn is_refused(&self) -> bool {
        self.inner.lock().session.is_refused()
    }

    /// Runs `part` under the mutex, writes pending bytes, and delivers the results.
    fn drive<R>(self: &Arc<Self>, part: impl FnOnce(&mut Inner, BootInstant) -> R) -> R {
        let now = self.clock.now();
        let mut inner = self.inner.lock();
        let done = part(&mut inner, now);
        let is_deferred = std::mem::take(&mut inner.is_deferred) && inner.stream.is_some();
        if !is_deferred {
            inner.transmit(now);
        }
        let is_news = self.collect(&mut inner);
        if is_deferred || inner.is_blocked {
            self.notify_outgoing();
        }
        drop(inner);
        if is_news {
            self.deliver();
        }
        done
    }

    fn collect(self: &Arc<Self>, inner: &mut MutexGuard<'_, Inner>) -> bool {
        let inner = &mut **inner;
        let mut queue = None;
        while let Some(output) = inner.session.next_output() {
            let delivery = match output {
                Output::Connect(dial) => {
                    inner.attempt += 1;
                    (inner.dial, inner.server) = (Some(dial), dial.server);
                    self.attention.notify_one();
                    continue;
                }
                Output::Disconnect => {
                    inner.close_stream();
                    self.attention.notify_one();
                    continue;
                }
                Output::Reply(cell, reply) => {
                    let cells = &mut inner.cells;
                    let with_cells = reply.map(|reply| {
                        reply.with_watchers(|key| {
                            let cell = Arc::<WatchCell>::default();
                            cells.insert(key, cell.clone());
                            ArmedWatch::new(cell, self.clone(), key)
                        })
                    });
                    Delivery::Reply(cell, with_cells)
                }
                Output::Event {
                    key,
                    is_last,
                    event,
                } => {
                    let cell = match is_last {
                        true => inner.cells.remove(&key),
                        false => inner.cells.get(&key).cloned(),
                    };
                    let Some(cell) = cell else { continue };
                    Delivery::Event(cell, event)
                }
                Output::Interrupted(key) => match inner.cells.get(&key) {
                    Some(cell) => Delivery::Interrupted(cell.clone()),
                    None => continue,
                },
                Output::Unwatched(key) => match inner.cells.remove(&key) {
                    Some(cell) => Delivery::Unwatched(cell),
                    None => continue,
                },
                Output::Opened(opened) => Delivery::Opened(opened),
                Output::Suspended => {
                    self.attention.notify_one();
                    Delivery::Suspended
                }
                Output::Ended(end) => {
                    self.attention.notify_one();
                    // Sort the watches, because the random order of the hash map would make simulated runs
                    // irreproducible.
                    let mut cells: Vec<_> = std::mem::take(&mut inner.cells).into_iter().collect();
                    cells.sort_unstable_by_key(|(key, _)| *key);
                    Delivery::Ended(end, cells.into_iter().map(|(_, cell)| cell).collect())
                }
            };
            queue
                .get_or_insert_with(|| self.delivery.lock())
                .items
                .push_back(delivery);
        }
        queue.is_some()
    }

    /// Handles everything that is due. Returns the work that the supervisor must do without the mutex.
    pub(super) fn supervise(self: &Arc<Self>) -> Duties {
        let reader = self.drive(|inner, now| {
            // Read before handling timeouts. After a pause of the process, time limits may have passed although the
            // server's replies are already in the socket.
            if inner.stream.is_some() && now >= inner.unread_until() {
                let heard = inner.session.heard();
                // Ignore an error, because `read` has already reported the lost connection to the session.
                let _ = inner.read(now, &self.names);
                // The connection's reader has left these bytes unread, so the reader's runtime is probably not running.
                inner.lacks_reader |= inner.session.heard() != heard && inner.stream.is_some();
            }
            inner.session.handle_timeout(now);
            inner.reader_due()
        });
        // Take `dial` only now, because `drive` sets `dial` if the session starts another attempt.
        let mut inner = self.inner.lock();
        let next = inner.session.next_timeout().map(|next| match inner.stream {
            Some(_) => next.min(inner.unread_until()),
            None => next,
        });
        Duties {
            connect: inner.dial.take().map(|dial| (dial, inner.attempt)),
            reader,
            next,
        }
    }

    /// Takes over a new connection. Returns a handle for its reader, or `None` if the attempt was given up.
    pub(super) fn attach(
        self: &Arc<Self>,
        socket: Arc<dyn Socket>,
        dial: Dial,
        attempt: u64,
    ) -> Option<Arc<dyn Socket>> {
        let tls = self.tls.as_ref().map(|tls| tls.start(dial.server));
        let tls = match tls.transpose() {
            Ok(tls) => tls,
            Err(error) => {
                self.failed(Failure::Other(error.to_string()), attempt);
                return None;
            }
        };
        let stream = Stream::new(socket, tls);
        let handle = stream.socket();
        self.drive(|inner, now| {
            if inner.attempt != attempt {
                return None;
            }
            (inner.stream, inner.is_blocked, inner.read_at) = (Some(stream), false, now);
            inner.session.connected(now);
            Some(handle)
        })
    }

    /// Returns true once if a connection has failed before the session was opened. The caller then probes whether only
    /// one side uses TLS.
    pub(super) fn is_probe_due(&self) -> bool {
        let is_due = self.status().is_none() && matches!(self.failure(), Some(Failure::Other(_)));
        is_due && !self.is_probed.swap(true, Ordering::Relaxed)
    }

    pub(super) fn failed(self: &Arc<Self>, failure: Failure, attempt: u64) {
        self.drive(|inner, now| {
            if inner.attempt == attempt {
                inner.fail(failure);
                inner.session.disconnected(now);
            }
        });
        self.attention.notify_one();
        self.progress.notify_one();
    }

    /// Reads the available bytes.
    ///
    /// # Errors
    /// `WouldBlock` if there are no more bytes. Any other error means that the connection is lost.
    pub(super) fn read(self: &Arc<Self>, attempt: u64) -> io::Result<()> {
        let read = self.drive(|inner, now| match inner.is_of(attempt) {
            true => inner.read(now, &self.names),
            false => Err(ErrorKind::NotConnected.into()),
        });
        if read
            .as_ref()
            .is_err_and(|error| error.kind() != ErrorKind::WouldBlock)
        {
            self.attention.notify_one();
            self.progress.notify_one();
        }
        read
    }

    /// Records that a reader on our own thread replaces the user's reader. Returns false if such a reader already runs.
    pub(super) fn take_over(&self) -> bool {
        !self.is_taken_over.swap(true, Ordering::AcqRel)
    }

    pub(super) fn hand_back(&self) {
        // Clear the flag only if it is set, because this function runs for every reply.
        if self.is_taken_over.load(Ordering::Acquire) {
            self.is_taken_over.store(false, Ordering::Release);
        }
    }

    pub(super) fn is_taken_over(&self) -> bool {
        self.is_taken_over.load(Ordering::Acquire)
    }

    /// Makes our own thread read the replies, because the calling thread is about to block and may be the usual reader.
    pub(super) fn read_elsewhere(&self) {
        self.inner.lock().lacks_reader = true;
        self.attention.notify_one();
    }

    pub(super) fn reader_lost(&self, attempt: u64) {
        let mut inner = self.inner.lock();
        inner.lacks_reader |= inner.is_of(attempt);
        drop(inner);
        self.attention.notify_one();
    }
}

impl Inner {
    fn is_of(&self, attempt: u64) -> bool {
        self.attempt == attempt && self.stream.is_some()
    }

    fn close_stream(&mut self) {
        self.stream = None;
        (self.is_blocked, self.lacks_reader, self.dial) = (false, false, None);
        self.attempt += 1;
    }

    fn fail(&mut self, failure: Failure) {
        self.failure = Some((failure, self.server));
    }

    fn unread_until(&self) -> BootInstant {
        self.read_at.after(self.session.timeout() / UNREAD)
    }

    fn reader_due(&mut self) -> Option<(Arc<dyn Socket>, u64)> {
        if !std::mem::take(&mut self.lacks_reader) {
            return None;
        }
        Some((self.stream.as_ref()?.socket(), self.attempt))
    }

    fn read(&mut self, now: BootInstant, names: &[String]) -> io::Result<()> {
        self.read_at = now;
        let host = &names[self.server];
        READ_BUFFER.with_borrow_mut(|buffer| self.read_into(buffer, now, host))
    }

    fn read_into(&mut self, buffer: &mut [u8], now: BootInstant, host: &str) -> io::Result<()> {
        for _ in 0..READS {
            let Some(stream) = &mut self.stream else {
                return Err(ErrorKind::NotConnected.into());
            };
            let is_plain = stream.is_plain();
            match stream.read(buffer) {
                Ok(0) => {
                    let error: io::Error = ErrorKind::UnexpectedEof.into();
                    self.lose_connection(&error, now);
                    return Err(error);
                }
                Ok(count) => {
                    self.session.received(&buffer[..count], now);
                    if let Some(why) = self.session.take_violation() {
                        self.fail(Failure::Other(refusal(why)));
                    }
                    if self.session.is_over() {
                        return Err(ErrorKind::NotConnected.into());
                    }
                    // A short read means that the socket is empty, so skip the read that would return `WouldBlock`. If
                    // the connection has ended, the runtime reports the socket as readable again, and the next read
                    // returns the end.
                    if count < READ_BYTES && is_plain {
                        return Err(ErrorKind::WouldBlock.into());
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(error),
                Err(error) => {
                    if let Some(refused) = refused(host, &error) {
                        self.fail(Failure::Tls(refused));
                        self.close_stream();
                        self.session.disconnected(now);
                        return Err(error);
                    }
                    self.lose_connection(&error, now);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn lose_connection(&mut self, error: &io::Error, now: BootInstant) {
        let is_tls = self.stream.as_ref().is_some_and(Stream::is_handshaking);
        self.fail(Failure::Other(match error.kind() {
            _ if is_tls => format!("the TLS handshake failed: {error}"),
            ErrorKind::UnexpectedEof => {
                "the server accepted the connection, and gave no session".to_owned()
            }
            _ => format!("the server accepted the connection, and gave no session: {error}"),
        }));
        self.close_stream();
        self.session.disconnected(now);
    }
}

impl Unwatch for Link {
    fn unwatch(&self, watch: u64) {
        // In a forked child, this mutex may be locked forever, because a thread of the parent may have held it during
        // the fork.
        if is_forked() {
            return;
        }
        let now = self.clock.now();
        let mut inner = self.inner.lock();
        let cell = inner.cells.remove(&watch);
        inner.session.unwatch(watch, now);
        inner.transmit(now);
        match inner.stream {
            None => self.attention.notify_one(),
            Some(_) if inner.is_blocked => self.notify_outgoing(),
            Some(_) => {}
        }
        drop(inner);
        // Drop the cell without holding the mutex, because its waker is user code.
        drop(cell);
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link({})", self.hosts())
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::client::served::session::tests::{TIMEOUT, options};
    use crate::wire::{Code, ConnectResponse, Jute, PASSWORD_BYTES, ReplyHeader, put_frame, xid};

    pub(super) fn new_link(clock: Clock) -> Arc<Link> {
        let endpoint = Endpoint::tcp(vec!["localhost:1".into()], false, false);
        Link::new(endpoint, None, options(), clock)
    }

    #[test]
    fn a_reply_that_arrived_during_a_pause_of_the_process_keeps_the_connection() {
        let clock = Clock::new_virtual();
        let link = new_link(clock.clone());
        let (dial, attempt) = link.supervise().connect.unwrap();
        let (client, mut server) = UnixStream::pair().unwrap();
        client.set_nonblocking(true).unwrap();
        link.attach(Arc::new(client), dial, attempt).unwrap();
        let mut send = |message: &dyn Fn(&mut Vec<u8>)| {
            let mut frame = Vec::new();
            put_frame(&mut frame, |to| message(to));
            server.write_all(&frame).unwrap();
        };
        let welcome = ConnectResponse {
            protocol_version: 0,
            timeout_ms: TIMEOUT.as_millis() as i32,
            session: 1,
            password: &[1; PASSWORD_BYTES],
            read_only: Some(false),
        };
        send(&|to| welcome.put(to));
        let read = link.read(attempt).unwrap_err();
        assert_eq!(read.kind(), ErrorKind::WouldBlock);
        assert!(link.status().is_some(), "the session is open");

        let pong = ReplyHeader::new(xid::PING, 0, Code::Ok);
        send(&|to| pong.put(to));
        clock.advance(TIMEOUT * 3 / 4);
        link.supervise();
        assert!(link.inner.lock().is_of(attempt), "connected again");
    }
}
