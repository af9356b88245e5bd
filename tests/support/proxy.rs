//! A wire between a client and a ZooKeeper, which a test can cut, hold back and read.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

/// One frame that went over the wire, pings left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) to_server: bool,
    /// The request's number: −1 in an event; 0 in the handshake.
    pub(crate) xid: i32,
    /// ZooKeeper's number of the operation, in a request. 0 in the handshake.
    pub(crate) operation: i32,
    /// Length of the frame, its length field included.
    pub(crate) bytes: usize,
}

const PING: i32 = -2;

/// An operation that no server knows.
const NO_OPERATION: i32 = 999;

/// Traffic of clients towards the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Connections, including those that were closed immediately because the wire was cut.
    pub(crate) connections: usize,
    /// Handshakes that asked for a new session.
    pub(crate) new_sessions: usize,
    /// Requests, without handshakes and pings.
    pub(crate) requests: usize,
    pub(crate) pings: usize,
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

/// Address of a proxy or of its server.
enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Address {
    /// Connects. A Unix socket is wrapped in a `TcpStream` as well: reads, writes and shutdowns are the same calls.
    fn connect(&self) -> io::Result<TcpStream> {
        match self {
            Self::Tcp(address) => TcpStream::connect(address),
            Self::Unix(path) => UnixStream::connect(path).map(as_tcp),
        }
    }
}

fn as_tcp(stream: UnixStream) -> TcpStream {
    OwnedFd::from(stream).into()
}

/// A proxy in front of a server. Dropping it closes its connections, and refuses new ones.
pub(crate) struct Proxy {
    address: Address,
    shared: Arc<Shared>,
}

struct Shared {
    server: Address,
    wire: Mutex<Wire>,
    changed: Condvar,
}

#[derive(Default)]
struct Wire {
    /// New connections are refused.
    cut: bool,
    over: bool,
    hold_requests: bool,
    hold_replies: bool,
    longest_timeout: Option<Duration>,
    /// No client is to learn that the server speaks Lockkeeper's extension.
    is_plain: bool,
    /// Handshakes of clients without a session are held back.
    hold_new_sessions: bool,
    /// An operation that the server is not to know.
    unknown: Option<i32>,
    frames: Vec<Frame>,
    counts: Counts,
    open: Vec<TcpStream>,
    /// Directions of connections that are still carried.
    carried: usize,
}

impl Shared {
    fn wire(&self) -> MutexGuard<'_, Wire> {
        self.wire.lock().unwrap()
    }

    fn change(&self, change: impl FnOnce(&mut Wire)) {
        change(&mut self.wire());
        self.changed.notify_all();
    }
}

impl Proxy {
    /// A new wire to a server.
    pub(crate) fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = Address::Tcp(listener.local_addr().unwrap());
        Self::start(address, Address::Tcp(server), move || {
            Ok(listener.accept()?.0)
        })
    }

    /// A new wire from a Unix socket at this path to a server's.
    pub(crate) fn between_sockets(path: PathBuf, server: PathBuf) -> Self {
        let listener = UnixListener::bind(&path).unwrap();
        let accepted = move || Ok(as_tcp(listener.accept()?.0));
        Self::start(Address::Unix(path), Address::Unix(server), accepted)
    }

    fn start(
        address: Address,
        server: Address,
        accepted: impl FnMut() -> io::Result<TcpStream> + Send + 'static,
    ) -> Self {
        let shared = Arc::new(Shared {
            server,
            wire: Mutex::default(),
            changed: Condvar::new(),
        });
        let accepting = shared.clone();
        thread::spawn(move || accept(accepted, &accepting));
        Self { address, shared }
    }

    /// The address of this end, as `host:port` or the path of a socket.
    pub(crate) fn hosts(&self) -> String {
        match &self.address {
            Address::Tcp(address) => address.to_string(),
            Address::Unix(path) => path.display().to_string(),
        }
    }

    /// Breaks the connections; new ones are let through.
    pub(crate) fn break_off(&self) {
        self.shared.change(Wire::close_all);
    }

    /// Breaks the connections, and lets none through until [`mend`](Self::mend).
    pub(crate) fn cut(&self) {
        self.shared.change(|wire| {
            wire.cut = true;
            wire.close_all();
        });
    }

    /// Lets connections through again, and everything on them.
    pub(crate) fn mend(&self) {
        self.shared.change(|wire| {
            wire.cut = false;
            wire.hold_requests = false;
            wire.hold_replies = false;
            wire.hold_new_sessions = false;
        });
    }

    /// Holds back what clients send, until [`mend`](Self::mend).
    pub(crate) fn hold_requests(&self) {
        self.shared.change(|wire| wire.hold_requests = true);
    }

    /// Holds replies and events of the server back, until [`mend`](Self::mend).
    pub(crate) fn hold_replies(&self) {
        self.shared.change(|wire| wire.hold_replies = true);
    }

    /// Leaves clients that want a new session without an answer, until [`mend`](Self::mend).
    pub(crate) fn refuse_new_sessions(&self) {
        self.shared.change(|wire| wire.hold_new_sessions = true);
    }

    /// Makes a server of it that does not know an operation, by ZooKeeper's number, as an older one does not.
    pub(crate) fn forget(&self, operation: i32) {
        self.shared.change(|wire| wire.unknown = Some(operation));
    }

    /// From now on no session is given more than this: as if the server had been restarted so.
    pub(crate) fn limit_timeouts(&self, longest: Duration) {
        self.shared
            .change(|wire| wire.longest_timeout = Some(longest));
    }

    /// From now on no handshake asks for Lockkeeper's extension: as if the server had been replaced by one that does not
    /// know it; with false, by one that does.
    pub(crate) fn speak_plainly(&self, is_plain: bool) {
        self.shared.change(|wire| wire.is_plain = is_plain);
    }

    /// Returns the frames that went over the wire since the last call.
    pub(crate) fn take_frames(&self) -> Vec<Frame> {
        std::mem::take(&mut self.shared.wire().frames)
    }

    /// Returns what clients have sent since the last call.
    pub(crate) fn take_counts(&self) -> Counts {
        std::mem::take(&mut self.shared.wire().counts)
    }

    /// Returns true while a client is connected.
    pub(crate) fn is_in_use(&self) -> bool {
        self.shared.wire().carried > 0
    }

    /// Waits until no connection is left, and all that came over them has been passed on.
    pub(crate) fn wait_until_closed(&self) {
        self.wait_until(|wire| wire.carried == 0);
    }

    /// Waits until so many new sessions have been asked for, since the last [`take_counts`](Self::take_counts).
    pub(crate) fn wait_for_new_sessions(&self, count: usize) {
        self.wait_until(|wire| wire.counts.new_sessions >= count);
    }

    /// Waits until such a frame has gone over the wire and was not taken yet.
    pub(crate) fn wait_for(&self, wanted: impl Fn(&Frame) -> bool) {
        self.wait_until(|wire| wire.frames.iter().any(&wanted));
    }

    fn wait_until(&self, is_so: impl Fn(&Wire) -> bool) {
        let limit = Duration::from_secs(120);
        let (wire, over) = self
            .shared
            .changed
            .wait_timeout_while(self.shared.wire(), limit, |wire| !is_so(wire))
            .unwrap();
        assert!(
            !over.timed_out(),
            "{} directions are carried, and only these frames were: {:?}",
            wire.carried,
            wire.frames
        );
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.change(|wire| {
            wire.over = true;
            wire.close_all();
        });
        // Wakes the accepting thread, so that it sees the end.
        let _ = self.address.connect();
    }
}

impl Wire {
    fn close_all(&mut self) {
        for connection in self.open.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Changes what a request asks for, behind the frame's length and its own number.
    fn make_unknown(&self, request: &mut [u8]) {
        let (Some(unknown), Some(operation)) = (self.unknown, request.get_mut(8..12)) else {
            return;
        };
        if *operation == unknown.to_be_bytes() {
            operation.copy_from_slice(&NO_OPERATION.to_be_bytes());
        }
    }

    fn holds_new_sessions(&self) -> bool {
        self.hold_new_sessions && !self.over
    }

    /// Changes what a handshake asks for: behind the frame's length stand the version, a zxid and the timeout.
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

    fn holds(&self, to_server: bool) -> bool {
        !self.over
            && if to_server {
                self.hold_requests
            } else {
                self.hold_replies
            }
    }
}

fn accept(mut accepted: impl FnMut() -> io::Result<TcpStream>, shared: &Arc<Shared>) {
    loop {
        let client = accepted();
        if shared.wire().over {
            return;
        }
        let Ok(client) = client else { continue };
        shared.wire().counts.connections += 1;
        let _ = join(client, shared);
    }
}

/// Joins a client to the server, unless the wire is cut.
fn join(client: TcpStream, shared: &Arc<Shared>) -> io::Result<()> {
    let server = shared.server.connect()?;
    let mut wire = shared.wire();
    if wire.cut || wire.over {
        return Ok(());
    }
    for end in [&client, &server] {
        // A Unix socket has no such option.
        let _ = end.set_nodelay(true);
        wire.open.push(end.try_clone()?);
    }
    wire.carried += 2;
    drop(wire);
    for (from, to, to_server) in [
        (client.try_clone()?, server.try_clone()?, true),
        (server, client, false),
    ] {
        let shared = shared.clone();
        thread::spawn(move || {
            let ended = pump(&from, &to, to_server, &shared);
            // A client that no longer takes replies has ended, and its last requests may still be unread here. The
            // other direction carries them to the server before it closes both ends.
            if to_server || ended.is_ok() {
                let _ = from.shutdown(Shutdown::Both);
                let _ = to.shutdown(Shutdown::Both);
            }
            shared.change(|wire| wire.carried -= 1);
        });
    }
    Ok(())
}

/// Carries frames one way until the sender closes; fails if the receiver does.
fn pump(from: &TcpStream, mut to: &TcpStream, to_server: bool, shared: &Shared) -> io::Result<()> {
    let mut handshake = true;
    loop {
        let Ok(mut frame) = read_frame(from) else {
            return Ok(());
        };
        // Behind the timeout: the session that the client comes back to.
        let is_new = handshake && to_server && frame.get(20..28) == Some(&[0; 8]);
        let held = shared.wire();
        drop(
            shared
                .changed
                .wait_while(held, |wire| {
                    wire.holds(to_server) || is_new && wire.holds_new_sessions()
                })
                .unwrap(),
        );
        if to_server {
            match handshake {
                true => shared.wire().change_handshake(&mut frame),
                false => shared.wire().make_unknown(&mut frame),
            }
        }
        to.write_all(&frame)?;
        let word = |at: usize| match handshake {
            true => 0,
            false => frame
                .get(at..at + 4)
                .map_or(0, |word| i32::from_be_bytes(word.try_into().unwrap())),
        };
        // Noted after it was written: a test that has waited for a frame may rely on its delivery when it cuts the
        // wire.
        let xid = word(4);
        if to_server {
            shared.change(|Wire { counts, .. }| {
                *match (handshake, xid) {
                    (true, _) => &mut counts.new_sessions,
                    (false, PING) => &mut counts.pings,
                    (false, _) => &mut counts.requests,
                } += usize::from(!handshake || is_new);
            });
        }
        if xid != PING {
            let operation = if to_server { word(8) } else { 0 };
            let bytes = frame.len();
            shared.change(|wire| {
                wire.frames.push(Frame {
                    to_server,
                    xid,
                    operation,
                    bytes,
                })
            });
        }
        handshake = false;
    }
}

/// Reads a frame, with its length.
fn read_frame(mut from: &TcpStream) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    from.read_exact(&mut frame)?;
    let length = u32::from_be_bytes(frame[..4].try_into().unwrap()) as usize;
    frame.resize(4 + length, 0);
    from.read_exact(&mut frame[4..])?;
    Ok(frame)
}

#[cfg(test)]
mod tests {
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

        // The client closes with that reply unread, which resets the connection: the next one cannot be delivered.
        proxy.hold_requests();
        client.write_all(&FRAME).unwrap();
        drop(client);
        server.write_all(&FRAME).unwrap();
        let wire = proxy.shared.wire();
        let carried = proxy
            .shared
            .changed
            .wait_while(wire, |wire| wire.carried > 1);
        drop(carried);

        proxy.mend();
        server.read_exact(&mut [0; FRAME.len()]).unwrap();
        proxy.wait_until_closed();
    }
}
