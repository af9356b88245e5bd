//! [`Network`]: the connections between hosts of one thread, in virtual time. Bytes arrive late, in pieces of any size,
//! in the order in which they were sent; or never, because the connection was cut between any two of them, or the hosts
//! are parted.
//!
//! All of it runs on one paused runtime of tokio, and a seed decides it.

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

/// Bytes on their way in one direction, beyond which the sender has to wait: as in a socket's buffer.
const CAPACITY: usize = 64 << 10;

/// A network. A clone is the same network.
#[derive(Clone, Debug)]
pub struct Network(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    /// Told of each change of the partitions.
    changed: Notify,
    /// Called before bytes arrive: the time has moved.
    on_arrival: Box<dyn Fn() + Send + Sync>,
}

struct State {
    random: Random,
    weather: Weather,
    listeners: HashMap<String, mpsc::UnboundedSender<SimSocket>>,
    /// Ways, by sender and receiver, on which nothing gets through.
    parted: BTreeSet<(String, String)>,
    /// Hosts that connect to nobody any more.
    dead: BTreeSet<String>,
    connections: Vec<Weak<Connection>>,
    counts: NetworkCounts,
}

/// The network's usual behaviour.
#[derive(Clone, Debug)]
pub struct Weather {
    /// The delay of each piece.
    pub delay: Range<Duration>,
    /// Probability that a piece is lost once, and sent again after [`resend`](Self::resend), with all behind it.
    pub loss: f64,
    /// Time until a lost piece is sent again.
    pub resend: Duration,
    /// Probability that bytes that are written together arrive in two pieces.
    pub split: f64,
    /// Probability that the connection is cut within the bytes of a write.
    pub cut: f64,
}

/// Events of a network so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkCounts {
    /// Connections that were made.
    pub connections: u64,
    /// Attempts that found nobody listening.
    pub refused: u64,
    /// Pieces that arrived.
    pub pieces: u64,
    /// Pieces that were lost once.
    pub lost: u64,
    /// Writes that arrived in two pieces.
    pub split: u64,
    /// Connections that were cut within a write.
    pub cut: u64,
    /// Pieces that waited for the end of a partition.
    pub held: u64,
}

/// A connection between two hosts.
struct Connection {
    network: Network,
    /// The host that has made the connection, and the one that has accepted it.
    hosts: [String; 2],
    /// By the side that writes.
    ways: [Mutex<Way>; 2],
}

/// One direction of a connection.
#[derive(Default)]
struct Way {
    in_flight: VecDeque<(Instant, Piece)>,
    in_flight_bytes: usize,
    arrived: VecDeque<u8>,
    /// True once the sender writes no more.
    is_shut: bool,
    /// True once the end has arrived.
    is_ended: bool,
    /// True once the connection was reset.
    is_reset: bool,
    /// Woken by each change.
    wakers: Vec<Waker>,
    /// The task that delivers.
    deliverer: Option<Waker>,
}

/// A piece of the bytes in flight.
enum Piece {
    Bytes(Vec<u8>),
    /// The sender writes no more.
    End,
    /// The connection is gone.
    Reset,
}

/// One end of a connection. A clone is the same end.
#[derive(Clone)]
pub(crate) struct SimSocket {
    connection: Arc<Connection>,
    side: usize,
}

impl Network {
    /// Creates a network. `on_arrival` is called before bytes arrive.
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

    /// Changes the usual behaviour from now on.
    pub fn set_weather(&self, weather: Weather) {
        self.0.state.lock().weather = weather;
    }

    /// Returns what has happened so far.
    pub fn counts(&self) -> NetworkCounts {
        self.0.state.lock().counts
    }

    /// Lets nothing through from one host to another, until [`heal`](Self::heal). What is sent meanwhile arrives then.
    pub fn part(&self, from: &str, to: &str) {
        let way = (from.to_owned(), to.to_owned());
        self.0.state.lock().parted.insert(way);
    }

    /// Lets nothing through from or to a host, until [`heal`](Self::heal).
    pub fn isolate(&self, host: &str) {
        self.part(host, ANYONE);
        self.part(ANYONE, host);
    }

    /// Ends all partitions.
    pub fn heal(&self) {
        self.0.state.lock().parted.clear();
        self.0.changed.notify_waiters();
    }

    /// Resets all connections of a host, as its kernel does when a process of its is killed: what has been sent before
    /// arrives.
    pub fn reset(&self, host: &str) {
        let connections: Vec<_> = self.0.state.lock().connections.clone();
        for connection in connections.iter().filter_map(Weak::upgrade) {
            if connection.hosts.iter().any(|known| known == host) {
                connection.reset();
            }
        }
    }

    /// Kills a host for good: its connections are reset, and it makes no other.
    pub fn kill(&self, host: &str) {
        self.0.state.lock().dead.insert(host.to_owned());
        self.reset(host);
    }

    /// Returns a random number of the run.
    pub(crate) fn draw(&self) -> u64 {
        self.0.state.lock().random.next()
    }

    /// Accepts connections to a host from now on; the last listener is replaced.
    pub(crate) fn listen(&self, host: &str) -> mpsc::UnboundedReceiver<SimSocket> {
        let (accepted, accepting) = mpsc::unbounded_channel();
        let mut state = self.0.state.lock();
        state.listeners.insert(host.to_owned(), accepted);
        accepting
    }

    /// Accepts no more connections to a host.
    pub(crate) fn stop_listening(&self, host: &str) {
        self.0.state.lock().listeners.remove(host);
    }

    /// Connects a host to another one. Waits for the end of a partition.
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

    /// Returns true if the way from one host to another is open.
    pub(crate) fn is_open(&self, from: &str, to: &str) -> bool {
        self.0.state.lock().is_open(from, to)
    }

    /// Waits until the way from one host to another is open, for what arrives now.
    pub(crate) async fn carry(&self, from: &str, to: &str) {
        self.pass(from, to).await;
        (self.0.on_arrival)();
    }

    /// Waits until the way from one host to another is open. Returns true if it was not.
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

/// The other end of the ways of a host that reaches nobody.
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

    /// Returns the pieces in which so many bytes arrive, each with its delay; and true if the connection is cut behind
    /// them.
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

/// Delivers what one side of a connection sends, until its end.
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
    /// Returns the time at which the next piece is due.
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
        // Nothing overtakes what was sent before.
        let last = self.in_flight.back().map(|(due, _)| *due);
        let due = last.map_or(due, |last| due.max(last));
        self.in_flight.push_back((due, piece));
        if let Some(deliverer) = self.deliverer.take() {
            deliverer.wake();
        }
    }

    /// Lets the next piece arrive. Returns true if it was the last.
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
    /// Ends both ways behind what is in flight.
    fn reset(&self) {
        for side in [0, 1] {
            self.cut(side);
        }
    }

    /// Ends one way behind what is in flight.
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

    /// Reads what has arrived, without waiting; 0 at the end.
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

    /// Writes as many bytes as there is room for, without waiting.
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

    /// Writes no more.
    pub(crate) fn shutdown_write(&self) {
        let delay = self.connection.network.0.state.lock().delay();
        let mut way = self.outgoing().lock();
        if !way.is_shut {
            way.is_shut = true;
            way.send(Instant::now() + delay, Piece::End);
        }
    }

    /// Ends the connection, in both directions: what arrives from now on is lost, and the other end is told.
    pub(crate) fn shutdown(&self) {
        self.shutdown_write();
        self.connection.cut(1 - self.side);
    }

    /// Completes when a read would not block.
    pub(crate) fn poll_readable(&self, context: &Context<'_>) -> Poll<()> {
        let mut way = self.incoming().lock();
        if !way.arrived.is_empty() || way.is_ended || way.is_reset {
            return Poll::Ready(());
        }
        way.register(context);
        Poll::Pending
    }

    /// Completes when a write would not block.
    pub(crate) fn poll_writable(&self, context: &Context<'_>) -> Poll<()> {
        let is_reset = self.incoming().lock().is_reset;
        let mut way = self.outgoing().lock();
        if is_reset || way.is_shut || way.in_flight_bytes < CAPACITY {
            return Poll::Ready(());
        }
        way.register(context);
        Poll::Pending
    }

    /// Completes when the socket is ready for one of the two.
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
