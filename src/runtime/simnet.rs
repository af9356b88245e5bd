//! [`Network`]: simulated connections between hosts, in virtual time.
//!
//! Bytes arrive with a delay and in pieces of any size, but in order. A connection can be cut within a write, and then
//! the rest of the bytes is lost. A partition between two hosts holds bytes back. All hosts run on one paused tokio
//! runtime, and a seed determines all delays and faults.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};

use crate::runtime::splitmix::Random;

/// Limit on the bytes in flight in one direction, like the size of a socket's buffer.
const CAPACITY: usize = 64 << 10;

/// A simulated network. Clones share it.
#[derive(Clone, Debug)]
pub struct Network(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    /// Notified when partitions end.
    changed: Notify,
    /// Called before bytes arrive, so that the hosts' clocks follow virtual time.
    on_arrival: Box<dyn Fn() + Send + Sync>,
}

struct State {
    random: Random,
    weather: Weather,
    listeners: HashMap<String, mpsc::UnboundedSender<SimSocket>>,
    /// Blocked directions, as sender and receiver.
    parted: BTreeSet<(String, String)>,
    dead: BTreeSet<String>,
    connections: Vec<Weak<Connection>>,
    counts: NetworkCounts,
}

/// The network's usual delays and faults.
#[derive(Clone, Debug)]
pub struct Weather {
    /// The delay of each piece.
    pub delay: Range<Duration>,
    /// Probability that a piece is lost once. The network sends the piece again after [`resend`](Self::resend), and
    /// this delays all later pieces.
    pub loss: f64,
    /// Time until a lost piece is sent again.
    pub resend: Duration,
    /// Probability that a write arrives in two pieces.
    pub split: f64,
    /// Probability that the connection is cut within a write.
    pub cut: f64,
}

/// Event counts of a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkCounts {
    /// Connections made.
    pub connections: u64,
    /// Connection attempts without a listener.
    pub refused: u64,
    /// Pieces that arrived.
    pub pieces: u64,
    /// Pieces lost once.
    pub lost: u64,
    /// Writes that arrived in two pieces.
    pub split: u64,
    /// Connections cut within a write.
    pub cut: u64,
    /// Pieces held back by a partition.
    pub held: u64,
}

struct Connection {
    network: Network,
    hosts: [String; 2],
    /// Indexed by the writing side.
    ways: [Mutex<Way>; 2],
}

#[derive(Default)]
struct Way {
    in_flight: VecDeque<(Instant, Piece)>,
    in_flight_bytes: usize,
    arrived: VecDeque<u8>,
    is_shut: bool,
    is_ended: bool,
    is_reset: bool,
    wakers: Vec<Waker>,
    deliverer: Option<Waker>,
}

enum Piece {
    Bytes(Vec<u8>),
    End,
    Reset,
}

/// One end of a connection. Clones share it.
#[derive(Clone)]
pub(crate) struct SimSocket {
    connection: Arc<Connection>,
    side: usize,
}

impl Network {
    pub(crate) fn new(
        seed: u64,
        weather: Weather,
        on_arrival: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Inner {
            state: Mutex::new(State {
                random: Random(seed),
                weather,
                listeners: HashMap::new(),
                parted: BTreeSet::new(),
                dead: BTreeSet::new(),
                connections: Vec::new(),
                counts: NetworkCounts::default(),
            }),
            changed: Notify::new(),
            on_arrival: Box::new(on_arrival),
        }))
    }

    /// Replaces the usual delays and faults.
    pub fn set_weather(&self, weather: Weather) {
        self.0.state.lock().weather = weather;
    }

    /// Returns the event counts so far.
    pub fn counts(&self) -> NetworkCounts {
        self.0.state.lock().counts
    }

    /// Blocks one direction between two hosts until [`heal`](Self::heal). Bytes sent in the meantime arrive after the
    /// heal.
    pub fn part(&self, from: &str, to: &str) {
        let way = (from.to_owned(), to.to_owned());
        self.0.state.lock().parted.insert(way);
    }

    /// Blocks all bytes from and to a host until [`heal`](Self::heal).
    pub fn isolate(&self, host: &str) {
        self.part(host, ANYONE);
        self.part(ANYONE, host);
    }

    /// Ends all partitions.
    pub fn heal(&self) {
        self.0.state.lock().parted.clear();
        self.0.changed.notify_waiters();
    }

    /// Resets all connections of a host, as its kernel does when a process is killed. Bytes already sent still arrive.
    pub fn reset(&self, host: &str) {
        let connections: Vec<_> = self.0.state.lock().connections.clone();
        for connection in connections.iter().filter_map(Weak::upgrade) {
            if connection.hosts.iter().any(|known| known == host) {
                connection.reset();
            }
        }
    }

    /// Kills a host for good. Resets its connections, and its later attempts to connect never complete.
    pub fn kill(&self, host: &str) {
        self.0.state.lock().dead.insert(host.to_owned());
        self.reset(host);
    }

    pub(crate) fn draw(&self) -> u64 {
        self.0.state.lock().random.next()
    }

    pub(crate) fn listen(&self, host: &str) -> mpsc::UnboundedReceiver<SimSocket> {
        let (accepted, accepting) = mpsc::unbounded_channel();
        let mut state = self.0.state.lock();
        state.listeners.insert(host.to_owned(), accepted);
        accepting
    }

    pub(crate) fn stop_listening(&self, host: &str) {
        self.0.state.lock().listeners.remove(host);
    }

    /// Connects one host to another. If a partition separates the hosts, waits until it ends.
    pub(crate) async fn connect(&self, from: &str, to: &str) -> io::Result<SimSocket> {
        for (from, to) in [(from, to), (to, from)] {
            self.pass(from, to).await;
            let delay = self.0.state.lock().delay();
            tokio::time::sleep(delay).await;
            (self.0.on_arrival)();
        }
        if self.0.state.lock().dead.contains(from) {
            std::future::pending::<()>().await;
        }
        let mut state = self.0.state.lock();
        let Some(listener) = state.listeners.get(to).cloned() else {
            state.counts.refused += 1;
            return Err(ErrorKind::ConnectionRefused.into());
        };
        let connection = Arc::new(Connection {
            network: self.clone(),
            hosts: [from.to_owned(), to.to_owned()],
            ways: Default::default(),
        });
        state.connections.retain(|it| it.strong_count() > 0);
        state.connections.push(Arc::downgrade(&connection));
        let socket = |side| SimSocket {
            connection: connection.clone(),
            side,
        };
        if listener.send(socket(1)).is_err() {
            state.counts.refused += 1;
            return Err(ErrorKind::ConnectionRefused.into());
        }
        state.counts.connections += 1;
        drop(state);
        for side in [0, 1] {
            tokio::spawn(deliver(connection.clone(), side));
        }
        Ok(socket(0))
    }

    pub(crate) fn is_open(&self, from: &str, to: &str) -> bool {
        self.0.state.lock().is_open(from, to)
    }

    pub(crate) async fn carry(&self, from: &str, to: &str) {
        self.pass(from, to).await;
        (self.0.on_arrival)();
    }

    async fn pass(&self, from: &str, to: &str) -> bool {
        let mut has_waited = false;
        loop {
            let changed = self.0.changed.notified();
            if self.0.state.lock().is_open(from, to) {
                return has_waited;
            }
            has_waited = true;
            changed.await;
        }
    }
}

const ANYONE: &str = "*";

impl State {
    fn is_open(&self, from: &str, to: &str) -> bool {
        let ways = [(from, to), (from, ANYONE), (ANYONE, to)];
        self.parted.is_empty()
            || !ways
                .into_iter()
                .any(|(from, to)| self.parted.contains(&(from.to_owned(), to.to_owned())))
    }

    fn delay(&mut self) -> Duration {
        let delay = self.weather.delay.clone();
        let mut delay = self.random.time_within(&delay);
        if self.random.chance(self.weather.loss) {
            self.counts.lost += 1;
            delay += self.weather.resend;
        }
        delay
    }

    /// Returns the pieces of a write with their delays, and true if the connection is cut after them.
    fn pieces(&mut self, bytes: usize) -> (Vec<(Duration, usize)>, bool) {
        let is_cut = self.random.chance(self.weather.cut);
        let bytes = match is_cut {
            true => {
                self.counts.cut += 1;
                self.random.next() as usize % (bytes + 1)
            }
            false => bytes,
        };
        let mut lengths = vec![bytes];
        if bytes > 1 && self.random.chance(self.weather.split) {
            self.counts.split += 1;
            let first = 1 + self.random.next() as usize % (bytes - 1);
            lengths = vec![first, bytes - first];
        }
        let lengths = lengths.into_iter().filter(|length| *length > 0);
        let pieces = lengths.map(|length| (self.delay(), length)).collect();
        (pieces, is_cut)
    }
}

async fn deliver(connection: Arc<Connection>, side: usize) {
    let network = connection.network.clone();
    let [from, to] = [side, 1 - side].map(|side| connection.hosts[side].clone());
    loop {
        let due = poll_fn(|context| connection.ways[side].lock().poll_due(context)).await;
        sleep_until(due).await;
        if network.pass(&from, &to).await {
            network.0.state.lock().counts.held += 1;
        }
        (network.0.on_arrival)();
        let is_over = connection.ways[side].lock().arrive();
        if is_over {
            return;
        }
        network.0.state.lock().counts.pieces += 1;
    }
}

impl Way {
    fn poll_due(&mut self, context: &Context<'_>) -> Poll<Instant> {
        match self.in_flight.front() {
            Some((due, _)) => Poll::Ready(*due),
            None => {
                self.deliverer = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    fn send(&mut self, due: Instant, piece: Piece) {
        // A piece never arrives before the piece that was sent ahead of it.
        let last = self.in_flight.back().map(|(due, _)| *due);
        let due = last.map_or(due, |last| due.max(last));
        self.in_flight.push_back((due, piece));
        if let Some(deliverer) = self.deliverer.take() {
            deliverer.wake();
        }
    }

    fn arrive(&mut self) -> bool {
        let is_over = match self.in_flight.pop_front() {
            Some((_, Piece::Bytes(bytes))) => {
                self.in_flight_bytes -= bytes.len();
                self.arrived.extend(bytes);
                false
            }
            Some((_, Piece::End)) => {
                self.is_ended = true;
                true
            }
            Some((_, Piece::Reset)) | None => {
                self.is_reset = true;
                true
            }
        };
        self.wake();
        is_over
    }

    fn wake(&mut self) {
        for waker in self.wakers.drain(..) {
            waker.wake();
        }
    }

    fn register(&mut self, context: &Context<'_>) {
        let waker = context.waker();
        if !self.wakers.iter().any(|known| known.will_wake(waker)) {
            self.wakers.push(waker.clone());
        }
    }
}

impl Connection {
    fn reset(&self) {
        for side in [0, 1] {
            self.cut(side);
        }
    }

    fn cut(&self, side: usize) {
        let delay = self.network.0.state.lock().delay();
        let mut way = self.ways[side].lock();
        if !way.is_shut {
            way.is_shut = true;
            way.send(Instant::now() + delay, Piece::Reset);
            way.wake();
        }
    }
}

impl SimSocket {
    fn incoming(&self) -> &Mutex<Way> {
        &self.connection.ways[1 - self.side]
    }

    fn outgoing(&self) -> &Mutex<Way> {
        &self.connection.ways[self.side]
    }

    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut way = self.incoming().lock();
        if way.arrived.is_empty() {
            return match (way.is_ended, way.is_reset) {
                (_, true) => Err(ErrorKind::ConnectionReset.into()),
                (true, _) => Ok(0),
                _ => Err(ErrorKind::WouldBlock.into()),
            };
        }
        let count = buffer.len().min(way.arrived.len());
        for (to, from) in buffer.iter_mut().zip(way.arrived.drain(..count)) {
            *to = from;
        }
        Ok(count)
    }

    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let is_reset = self.incoming().lock().is_reset;
        let room = {
            let way = self.outgoing().lock();
            if is_reset || way.is_shut {
                return Err(ErrorKind::BrokenPipe.into());
            }
            CAPACITY.saturating_sub(way.in_flight_bytes)
        };
        let count = bytes.len().min(room);
        if count == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let network = &self.connection.network;
        let (pieces, is_cut) = network.0.state.lock().pieces(count);
        let now = Instant::now();
        let mut rest = &bytes[..count];
        let mut way = self.outgoing().lock();
        for (delay, length) in pieces {
            let (piece, behind) = rest.split_at(length);
            rest = behind;
            way.in_flight_bytes += length;
            way.send(now + delay, Piece::Bytes(piece.to_vec()));
        }
        drop(way);
        if is_cut {
            self.connection.reset();
        }
        Ok(count)
    }

    pub(crate) fn shutdown_write(&self) {
        let delay = self.connection.network.0.state.lock().delay();
        let mut way = self.outgoing().lock();
        if !way.is_shut {
            way.is_shut = true;
            way.send(Instant::now() + delay, Piece::End);
        }
    }

    /// Closes both directions. The other end reads the end of the stream, and its writes fail.
    pub(crate) fn shutdown(&self) {
        self.shutdown_write();
        self.connection.cut(1 - self.side);
    }

    pub(crate) fn poll_readable(&self, context: &Context<'_>) -> Poll<()> {
        let mut way = self.incoming().lock();
        if !way.arrived.is_empty() || way.is_ended || way.is_reset {
            return Poll::Ready(());
        }
        way.register(context);
        Poll::Pending
    }

    pub(crate) fn poll_writable(&self, context: &Context<'_>) -> Poll<()> {
        let is_reset = self.incoming().lock().is_reset;
        let mut way = self.outgoing().lock();
        if is_reset || way.is_shut || way.in_flight_bytes < CAPACITY {
            return Poll::Ready(());
        }
        way.register(context);
        Poll::Pending
    }

    pub(crate) fn poll_ready(
        &self,
        for_reading: bool,
        for_writing: bool,
        context: &Context<'_>,
    ) -> Poll<()> {
        let is_readable = for_reading && self.poll_readable(context).is_ready();
        let is_writable = for_writing && self.poll_writable(context).is_ready();
        match is_readable || is_writable {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

impl fmt::Debug for SimSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimSocket({:?}, {})", self.connection.hosts, self.side)
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Network({:?})", self.state.lock().counts)
    }
}

impl AsyncRead for SimSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_readable(context));
        let count = self.read(buffer.initialize_unfilled())?;
        buffer.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SimSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_writable(context));
        Poll::Ready(self.write(bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shutdown_write();
        Poll::Ready(Ok(()))
    }
}
