//! [`Proxy`]: a connection between clients and a server that a test can observe, cut, hold back, and damage at chosen
//! bytes.
//!
//! Bytes are never reordered. They are changed only on request, to simulate another kind of server or to let a
//! ZooKeeper in an election be reached through a proxy.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A frame on the wire. Pings are omitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    pub to_server: bool,
    /// The request's number. -1 in an event, 0 in the handshake.
    pub xid: i32,
    /// ZooKeeper's number of the operation in a request. 0 in the handshake.
    pub operation: i32,
    /// Length of the frame, including its length field.
    pub bytes: usize,
}

const PING: i32 = -2;

const NO_OPERATION: i32 = 999;

const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections, including those closed immediately because the wire was cut.
    pub connections: usize,
    /// Handshakes that asked for a new session.
    pub new_sessions: usize,
    /// Requests, without handshakes and pings.
    pub requests: usize,
    pub pings: usize,
}

impl std::iter::Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |sum, each| Self {
            connections: sum.connections + each.connections,
            new_sessions: sum.new_sessions + each.new_sessions,
            requests: sum.requests + each.requests,
            pings: sum.pings + each.pings,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    ToServer,
    ToClient,
}

/// Damage to a connection after a number of bytes in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hurt {
    /// Both ends are closed (FIN).
    Close,
    /// Both ends are reset (RST). Bytes that they have not read are lost.
    Reset,
    /// The receiver sees the end of this direction, and further bytes in it are lost. The other direction continues.
    HalfClose,
    /// This direction silently stops forwarding.
    Stall,
    /// Like [`Stall`](Self::Stall), in both directions.
    Silence,
    /// The rest is forwarded after a delay.
    Delay(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub direction: Direction,
    /// Number of bytes that are forwarded first.
    pub after: usize,
    pub hurt: Hurt,
}

enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Address {
    async fn connect(&self) -> io::Result<TcpStream> {
        match self {
            Self::Tcp(address) => TcpStream::connect(address).await,
            Self::Unix(path) => as_tcp(UnixStream::connect(path).await?),
        }
    }
}

/// Wraps a Unix socket, because reads, writes and shutdowns are the same system calls.
fn as_tcp(stream: UnixStream) -> io::Result<TcpStream> {
    TcpStream::from_std(OwnedFd::from(stream.into_std()?).into())
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    async fn accept(&self) -> io::Result<TcpStream> {
        match self {
            Self::Tcp(listener) => Ok(listener.accept().await?.0),
            Self::Unix(listener) => as_tcp(listener.accept().await?.0),
        }
    }
}

pub struct Proxy {
    address: Address,
    shared: Arc<Shared>,
    accepting: AbortHandle,
}

struct Shared {
    server: Address,
    wire: watch::Sender<Wire>,
    kind: Kind,
}

/// The protocol that a proxy forwards.
enum Kind {
    /// Frames of ZooKeeper's protocol.
    Frames,
    Bytes,
    /// Bytes of connections that are damaged as planned. The first connection has number 0.
    Planned(Mutex<Box<dyn FnMut(usize) -> Option<Fault> + Send>>),
    /// Elections among ZooKeepers, which must reach the sender at this address.
    Election(SocketAddr),
}

#[derive(Default)]
struct Wire {
    /// New connections are refused.
    cut: bool,
    /// How often all connections were broken.
    breaks: u64,
    hold_requests: bool,
    hold_replies: bool,
    longest_timeout: Option<Duration>,
    /// Hides from clients that the server speaks Lockkeeper's extension.
    is_plain: bool,
    /// An operation that the server must not recognize.
    unknown: Option<i32>,
    frames: Vec<Frame>,
    counts: Counts,
    /// For each open connection, the number of breaks before it.
    open: Vec<u64>,
    /// Bytes forwarded over each connection, to the server and to the client.
    carried: Vec<[usize; 2]>,
}

impl Proxy {
    /// A proxy to a server of ZooKeeper's protocol.
    pub fn to(server: SocketAddr) -> Self {
        Self::listen(ANY_PORT, server, Kind::Frames).expect("loopback has a free port")
    }

    /// A proxy that damages each connection according to `plan`. The first connection has number 0.
    pub fn hurting(
        server: SocketAddr,
        plan: impl FnMut(usize) -> Option<Fault> + Send + 'static,
    ) -> Self {
        let kind = Kind::Planned(Mutex::new(Box::new(plan)));
        Self::listen(ANY_PORT, server, kind).expect("loopback has a free port")
    }

    /// A proxy for any bytes, listening on this address.
    pub fn of_bytes(address: SocketAddr, server: SocketAddr) -> io::Result<Self> {
        Self::listen(address, server, Kind::Bytes)
    }

    /// A proxy for elections among ZooKeepers. They reach the connecting one at the address `advertised`.
    pub fn of_elections(
        address: SocketAddr,
        server: SocketAddr,
        advertised: SocketAddr,
    ) -> io::Result<Self> {
        Self::listen(address, server, Kind::Election(advertised))
    }

    /// A proxy from a Unix socket at this path to a server's.
    pub fn between_sockets(path: PathBuf, server: PathBuf) -> Self {
        let _context = crate::runtime().enter();
        let listener = Listener::Unix(UnixListener::bind(&path).expect("the path is free"));
        Self::start(
            listener,
            Address::Unix(path),
            Address::Unix(server),
            Kind::Frames,
        )
    }

    fn listen(address: SocketAddr, server: SocketAddr, kind: Kind) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = Address::Tcp(listener.local_addr()?);
        let _context = crate::runtime().enter();
        let listener = Listener::Tcp(TcpListener::from_std(listener)?);
        Ok(Self::start(listener, address, Address::Tcp(server), kind))
    }

    fn start(listener: Listener, address: Address, server: Address, kind: Kind) -> Self {
        let shared = Arc::new(Shared {
            server,
            wire: watch::Sender::default(),
            kind,
        });
        let accepting = crate::runtime().spawn(accept(listener, shared.clone()));
        Self {
            address,
            shared,
            accepting: accepting.abort_handle(),
        }
    }

    /// Returns the address of this end, as `host:port` or the path of a socket.
    pub fn hosts(&self) -> String {
        match &self.address {
            Address::Tcp(address) => address.to_string(),
            Address::Unix(path) => path.display().to_string(),
        }
    }

    /// Returns the TCP address of this end.
    pub fn address(&self) -> SocketAddr {
        match &self.address {
            Address::Tcp(address) => *address,
            Address::Unix(path) => panic!("{} is no address", path.display()),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Wire)) {
        self.shared.wire.send_modify(change);
    }

    /// Breaks the connections. New ones are let through.
    pub fn break_off(&self) {
        self.change(|wire| wire.breaks += 1);
        self.wait_until(|wire| wire.open.iter().all(|breaks| *breaks == wire.breaks));
    }

    /// Breaks the connections, and lets none through until [`mend`](Self::mend).
    pub fn cut(&self) {
        self.change(|wire| {
            wire.cut = true;
            wire.breaks += 1;
        });
        self.wait_until_closed();
    }

    /// Lets connections and everything on them through again.
    pub fn mend(&self) {
        self.change(|wire| {
            wire.cut = false;
            wire.hold_requests = false;
            wire.hold_replies = false;
        });
    }

    /// Holds back what clients send, until [`mend`](Self::mend).
    pub fn hold_requests(&self) {
        self.change(|wire| wire.hold_requests = true);
    }

    /// Holds back the bytes that the server sends until [`mend`](Self::mend).
    pub fn hold_replies(&self) {
        self.change(|wire| wire.hold_replies = true);
    }

    /// Simulates an older server that does not know an operation, given by ZooKeeper's number.
    pub fn forget(&self, operation: i32) {
        self.change(|wire| wire.unknown = Some(operation));
    }

    /// Limits session timeouts from now on, as if the server had been restarted with this limit.
    pub fn limit_timeouts(&self, longest: Duration) {
        self.change(|wire| wire.longest_timeout = Some(longest));
    }

    /// If `true`, no handshake asks for Lockkeeper's extension from now on, as if the server had been replaced by one
    /// that does not know it.
    pub fn speak_plainly(&self, is_plain: bool) {
        self.change(|wire| wire.is_plain = is_plain);
    }

    /// Returns the frames since the last call.
    pub fn take_frames(&self) -> Vec<Frame> {
        let mut frames = Vec::new();
        self.change(|wire| frames = std::mem::take(&mut wire.frames));
        frames
    }

    /// Returns what clients have sent since the last call.
    pub fn take_counts(&self) -> Counts {
        let mut counts = Counts::default();
        self.change(|wire| counts = std::mem::take(&mut wire.counts));
        counts
    }

    /// Returns the bytes forwarded over each connection so far, to the server and to the client.
    pub fn carried(&self) -> Vec<[usize; 2]> {
        self.shared.wire.borrow().carried.clone()
    }

    /// Returns `true` while a client is connected.
    pub fn is_in_use(&self) -> bool {
        !self.shared.wire.borrow().open.is_empty()
    }

    /// Waits until no connection is left and everything sent over them has been forwarded.
    pub fn wait_until_closed(&self) {
        self.wait_until(|wire| wire.open.is_empty());
    }

    /// Waits until this many new sessions were requested since the last [`take_counts`](Self::take_counts).
    pub fn wait_for_new_sessions(&self, count: usize) {
        self.wait_until(|wire| wire.counts.new_sessions >= count);
    }

    /// Waits for such a frame that has not been taken yet.
    pub fn wait_for(&self, wanted: impl Fn(&Frame) -> bool) {
        self.wait_until(|wire| wire.frames.iter().any(&wanted));
    }

    /// Blocks this thread. That is fine even on a thread that runs tasks, because the proxy's run elsewhere.
    fn wait_until(&self, is_so: impl FnMut(&Wire) -> bool) {
        let _context = crate::runtime().enter();
        let mut wire = self.shared.wire.subscribe();
        let waiting = tokio::time::timeout(PATIENCE, wire.wait_for(is_so));
        if pollster::block_on(waiting).is_err() {
            let wire = self.shared.wire.borrow();
            panic!(
                "{} connections, and only these frames: {:?}",
                wire.open.len(),
                wire.frames
            );
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Wire {
    /// Changes the requested operation, which follows the frame's length and xid.
    fn make_unknown(&self, request: &mut [u8]) {
        let (Some(unknown), Some(operation)) = (self.unknown, request.get_mut(8..12)) else {
            return;
        };
        if *operation == unknown.to_be_bytes() {
            operation.copy_from_slice(&NO_OPERATION.to_be_bytes());
        }
    }

    /// Changes the handshake: after the frame's length are the version, a zxid and the timeout.
    fn change_handshake(&self, handshake: &mut [u8]) {
        if let (true, Some(version)) = (self.is_plain, handshake.get_mut(4..8)) {
            version.fill(0);
        }
        let (Some(longest), Some(asked)) = (self.longest_timeout, handshake.get_mut(16..20)) else {
            return;
        };
        let longest = i32::try_from(longest.as_millis()).unwrap();
        let timeout = i32::from_be_bytes(asked.try_into().unwrap()).min(longest);
        asked.copy_from_slice(&timeout.to_be_bytes());
    }

    fn holds(&self, direction: Direction) -> bool {
        match direction {
            Direction::ToServer => self.hold_requests,
            Direction::ToClient => self.hold_replies,
        }
    }
}

async fn accept(listener: Listener, shared: Arc<Shared>) {
    // Dropped with this task, which ends them.
    let mut connections = JoinSet::new();
    for number in 0.. {
        let Ok(client) = listener.accept().await else {
            continue;
        };
        let mut breaks = None;
        shared.wire.send_modify(|wire| {
            wire.counts.connections += 1;
            if !wire.cut {
                breaks = Some(wire.breaks);
                wire.open.push(wire.breaks);
                wire.carried.push([0; 2]);
            }
        });
        let Some(breaks) = breaks else { continue };
        let fault = match &shared.kind {
            Kind::Planned(plan) => (plan.lock().unwrap())(number),
            Kind::Frames | Kind::Bytes | Kind::Election(_) => None,
        };
        let connection = Connection {
            shared: shared.clone(),
            number: shared.wire.borrow().carried.len() - 1,
            fault,
        };
        connections.spawn(async move {
            let mut wire = connection.shared.wire.subscribe();
            tokio::select! {
                biased;
                _ = wire.wait_for(|wire| wire.breaks != breaks) => {}
                _ = connection.carry(client) => {}
            }
            connection.shared.wire.send_modify(|wire| {
                let closed = wire.open.iter().position(|of| *of == breaks);
                wire.open.swap_remove(closed.expect("it was open"));
            });
        });
        while connections.try_join_next().is_some() {}
    }
}

struct Connection {
    shared: Arc<Shared>,
    number: usize,
    fault: Option<Fault>,
}

/// Why one direction has ended.
enum End {
    /// Its sender has closed it.
    Closed,
    Hurt(Hurt),
}

impl Connection {
    async fn carry(&self, client: TcpStream) -> io::Result<()> {
        // A new connection is held back like a message.
        self.flow(Direction::ToServer).await;
        let server = self.shared.server.connect().await?;
        for end in [&client, &server] {
            // Unix sockets have no such option.
            let _ = end.set_nodelay(true);
        }
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        if let Kind::Election(advertised) = self.shared.kind {
            introduce(&mut from_client, &mut to_server, advertised).await?;
        }
        let end = {
            let out = self.one_way(Direction::ToServer, &mut from_client, &mut to_server);
            let back = self.one_way(Direction::ToClient, &mut from_server, &mut to_client);
            tokio::select! {
                end = out => end,
                end = back => end,
            }
        };
        match end {
            End::Hurt(Hurt::Reset) => {
                let client = from_client.reunite(to_client).expect("its halves");
                let server = from_server.reunite(to_server).expect("its halves");
                for stream in [client, server] {
                    // Closing a socket with zero linger time resets the connection.
                    stream.set_zero_linger()?;
                }
            }
            End::Hurt(Hurt::Silence) => std::future::pending().await,
            // Both ends are closed when dropped.
            _ => {}
        }
        Ok(())
    }

    /// Waits until bytes may pass.
    async fn flow(&self, direction: Direction) {
        let mut wire = self.shared.wire.subscribe();
        // The wire outlives its connections.
        let _ = wire.wait_for(|wire| !wire.holds(direction)).await;
    }

    /// Forwards bytes until the sender closes. Nothing passes while the direction is held, not even the end.
    async fn one_way(
        &self,
        direction: Direction,
        from: &mut OwnedReadHalf,
        to: &mut OwnedWriteHalf,
    ) -> End {
        let mut fault = self.fault.filter(|fault| fault.direction == direction);
        let (mut carried, mut is_handshake) = (0, true);
        loop {
            if let Some(Fault { hurt, .. }) = fault.filter(|fault| fault.after <= carried) {
                match hurt {
                    Hurt::Close | Hurt::Reset | Hurt::Silence => return End::Hurt(hurt),
                    Hurt::HalfClose | Hurt::Stall => {
                        if hurt == Hurt::HalfClose {
                            let _ = to.shutdown().await;
                        }
                        // Discard the rest until the other direction ends.
                        while from.read(&mut [0; 4096]).await.is_ok_and(|read| read > 0) {}
                        return End::Closed;
                    }
                    Hurt::Delay(pause) => tokio::time::sleep(pause).await,
                }
                fault = None;
            }
            let is_framed = matches!(self.shared.kind, Kind::Frames);
            let read = match is_framed {
                true => read_frame(from).await,
                false => {
                    let until_fault = fault.map_or(usize::MAX, |fault| fault.after - carried);
                    read_piece(from, until_fault).await
                }
            };
            let is_request = is_framed && direction == Direction::ToServer;
            self.flow(direction).await;
            let Ok(mut bytes) = read else {
                return End::Closed;
            };
            // After the timeout: the session to resume, or 0.
            let is_new = is_request && is_handshake && bytes.get(20..28) == Some(&[0; 8]);
            if is_request {
                let wire = self.shared.wire.borrow();
                match is_handshake {
                    true => wire.change_handshake(&mut bytes),
                    false => wire.make_unknown(&mut bytes),
                }
            }
            if to.write_all(&bytes).await.is_err() {
                match direction {
                    Direction::ToServer => return End::Closed,
                    // A client that no longer accepts replies has ended, but its last requests may still be unread
                    // here. The other direction carries them to the server before it ends the connection.
                    Direction::ToClient => std::future::pending().await,
                }
            }
            carried += bytes.len();
            self.note(
                direction,
                &bytes,
                is_framed.then_some((is_handshake, is_new)),
            );
            is_handshake = false;
        }
    }

    /// Records bytes after they were written. A test that has waited for a frame may thus rely on its delivery when it
    /// cuts the wire.
    fn note(&self, direction: Direction, bytes: &[u8], framed: Option<(bool, bool)>) {
        let to_server = direction == Direction::ToServer;
        self.shared.wire.send_if_modified(|wire| {
            wire.carried[self.number][direction as usize] += bytes.len();
            let Some((is_handshake, is_new)) = framed else {
                return false;
            };
            let word = |at: usize| match bytes.get(at..at + 4) {
                Some(word) if !is_handshake => i32::from_be_bytes(word.try_into().unwrap()),
                _ => 0,
            };
            let xid = word(4);
            if to_server {
                let counts = &mut wire.counts;
                *match (is_handshake, xid) {
                    (true, _) => &mut counts.new_sessions,
                    (false, PING) => &mut counts.pings,
                    (false, _) => &mut counts.requests,
                } += usize::from(!is_handshake || is_new);
            }
            if xid != PING {
                wire.frames.push(Frame {
                    to_server,
                    xid,
                    operation: if to_server { word(8) } else { 0 },
                    bytes: bytes.len(),
                });
            }
            true
        });
    }
}

/// Reads a frame including its length.
async fn read_frame(from: &mut OwnedReadHalf) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    from.read_exact(&mut frame).await?;
    let length = u32::from_be_bytes(frame[..4].try_into().unwrap()) as usize;
    frame.resize(4 + length, 0);
    from.read_exact(&mut frame[4..]).await?;
    Ok(frame)
}

/// Reads the available bytes, at most `longest`.
async fn read_piece(from: &mut OwnedReadHalf, longest: usize) -> io::Result<Vec<u8>> {
    let mut piece = vec![0; longest.min(16 << 10)];
    match from.read(&mut piece).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        read => {
            piece.truncate(read);
            Ok(piece)
        }
    }
}

/// Forwards the first message of an election connection with another address of its sender.
///
/// The message contains a version, the server's number, and the address with its length. If the connecting server has
/// the smaller number, the other one closes the connection and connects to that address itself.
async fn introduce(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    advertised: SocketAddr,
) -> io::Result<()> {
    let mut head = [0; 16];
    from.read_exact(&mut head).await?;
    let length = from.read_i32().await?;
    let mut address = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    from.read_exact(&mut address).await?;
    let advertised = advertised.to_string();
    let length = (advertised.len() as u32).to_be_bytes();
    let message = [&head[..], &length, advertised.as_bytes()].concat();
    to.write_all(&message).await
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_last_request_of_a_client_that_has_ended_is_carried_to_the_server() {
        // Eight bytes: the request's number and its operation.
        const FRAME: [u8; 12] = [0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 2];
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let proxy = Proxy::to(listener.local_addr().unwrap());
        let mut client = TcpStream::connect(proxy.hosts()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        server.write_all(&FRAME).unwrap();
        proxy.wait_for(|frame| !frame.to_server);

        // The client closes with that reply unread, which resets the connection, so the next reply cannot be
        // delivered.
        proxy.hold_requests();
        client.write_all(&FRAME).unwrap();
        drop(client);
        server.write_all(&FRAME).unwrap();
        proxy.mend();
        server.read_exact(&mut [0; FRAME.len()]).unwrap();
        proxy.wait_until_closed();
    }
}
