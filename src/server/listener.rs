//! Listening, and what all connections share.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::Instant;

use super::ServerError;
use super::admin::Admin;
use super::connection::{Close, Conversation};
use super::connection_entry::CloseRequest;
use super::connection_table::{ConnectionGuard, ConnectionTable, Count, Refusal};
use super::gate::{Admission, Policy};
use super::handshake::{Greeting, HandshakeError, greet};
use super::options::Limits;
use super::penalty::Penalties;
use super::protocol::{ProtocolState, ProtocolViolation};
use super::transport::Transport;
use super::unfinished::Unfinished;
use crate::clock::Clock;
use crate::engine::{Connection, Ending, Remote, Store};
use crate::identity::Identity;
use crate::wire::Frames;

/// What all connections of a server share.
pub(super) struct Shared {
    pub(super) store: Store,
    pub(super) remote: Remote,
    pub(super) limits: Limits,
    pub(super) policy: Arc<Policy>,
    pub(super) admin: Admin,
    pub(super) table: Arc<ConnectionTable>,
    pub(super) unfinished: Arc<Unfinished>,
    pub(super) penalties: Penalties,
}

impl Shared {
    pub(super) fn clock(&self) -> &Clock {
        self.store.clock()
    }

    /// Waits for as long as the answer to a wrong password that came from this address is held back.
    pub(super) fn penalty(&self, address: SocketAddr) -> impl Future<Output = ()> + Send + use<> {
        let clock = self.clock();
        clock.sleep(self.penalties.add(address, clock.now()))
    }
}

/// So many connections may wait to be taken.
pub(super) const BACKLOG: u32 = 4_096;

/// Begins to listen. Also tells where: the port may have been left open.
pub(super) fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), ServerError> {
    let listening = || {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let listener = socket.listen(BACKLOG)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    listening().map_err(|source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => ServerError::AddressInUse { address },
        _ => ServerError::Listen { address, source },
    })
}

/// Between two tries when the system has no more descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// What comes before ZooKeeper's handshake.
#[derive(Clone)]
pub(super) enum Door {
    Plain,
    #[cfg(feature = "tls")]
    Secured(Arc<super::tls::Acceptor>),
}

/// Takes connections, for as long as it is polled.
pub(super) async fn accept(listener: TcpListener, shared: Arc<Shared>, door: Door) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => take(stream, address, &shared, &door),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be taken");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

fn take(stream: TcpStream, address: SocketAddr, shared: &Arc<Shared>, door: &Door) {
    match shared.table.enter(address) {
        Ok(seat) => {
            // Only slower without.
            let _ = stream.set_nodelay(true);
            let (shared, until) = (shared.clone(), Instant::now() + shared.limits.handshake);
            match door.clone() {
                Door::Plain => tokio::spawn(serve(stream, seat, shared, until, None)),
                #[cfg(feature = "tls")]
                Door::Secured(acceptor) => {
                    tokio::spawn(super::tls::serve(acceptor, stream, seat, shared, until))
                }
            };
        }
        Err(Refusal::Shutdown) => {}
        Err(refusal) => {
            if let Some(untold) = shared.table.told.refused.tell(shared.clock().now()) {
                tracing::warn!(%address, %refusal, untold, "a connection is refused");
            }
        }
    }
}

/// One connection, from its first byte to its last. It has time for its handshake `until` then. `identity` is
/// what it has proved by being there.
pub(super) async fn serve<S>(
    mut stream: S,
    seat: ConnectionGuard,
    shared: Arc<Shared>,
    until: Instant,
    identity: Option<Identity>,
) where
    S: Transport,
{
    let is_proven = identity.as_ref().is_some_and(Identity::is_proof);
    let greeting = greet(&mut stream, seat.address(), &shared, is_proven);
    let greeting = tokio::time::timeout_at(until, greeting);
    let Some(greeting) = unless(seat.asked_to_leave(), greeting).await else {
        return;
    };
    match greeting {
        Err(_) => {
            shared.table.count(Count::HandshakeTimedOut);
            tracing::debug!(address = %seat.address(), "no handshake in time");
        }
        Ok(Err(unwelcome)) => {
            shared.table.count(Count::HandshakeFailed);
            let address = seat.address();
            match unwelcome {
                HandshakeError::Gone => {}
                HandshakeError::Http => {
                    if let Some(untold) = shared.table.told.http.tell(shared.clock().now()) {
                        tracing::info!(%address, untold, "an HTTP request is refused: this port speaks ZooKeeper's protocol; ask for the server's state by its four-letter words, such as ruok");
                    }
                }
                _ => {
                    if let Some(untold) = shared.table.told.unwelcome.tell(shared.clock().now()) {
                        tracing::info!(%address, ?unwelcome, untold, "a handshake is refused");
                    }
                }
            }
        }
        Ok(Ok(Greeting::Word(word))) => {
            let spoken = shared.admin.speak(word, &mut stream, &seat);
            let spoken = tokio::time::timeout(shared.limits.handshake, spoken);
            // Who does not read what it asked for is cut off, too.
            unless(seat.asked_to_leave(), spoken).await;
        }
        Ok(Ok(Greeting::Session(connection, frames, batch))) => {
            seat.note(&batch);
            let session = connection.id();
            let close = converse(&mut stream, &shared, &seat, connection, frames, identity).await;
            tell(close, &seat, session, &shared);
            if seat.leave() != Some(CloseRequest::Now) {
                part(&mut stream).await;
            }
        }
    }
}

/// The talk after a handshake, until it ends.
pub(super) async fn converse<S>(
    stream: S,
    shared: &Shared,
    seat: &ConnectionGuard,
    connection: Connection,
    frames: Frames,
    identity: Option<Identity>,
) -> Close
where
    S: Transport,
{
    let mut admission = Admission::new(shared.policy.clone(), seat.address().ip());
    let own = [Identity::ip(seat.address().ip())];
    for identity in own.into_iter().chain(identity) {
        // Two are below every limit, and one that is too long got through no handshake.
        let _ = admission.add(&identity);
        connection.identify(identity);
    }
    seat.greeted(connection.id(), connection.timeout());
    if admission.lets_in() {
        seat.let_in();
    }
    let talk = ProtocolState::new(shared.limits, admission, frames);
    Conversation::new(stream, shared, seat, connection, talk).await
}

/// How long a client that was told all may take to hang up.
const LINGER: Duration = Duration::from_secs(1);

/// How much it may say meanwhile.
const LAST_WORDS_BYTES: usize = 64 << 10;

/// Ends a connection so that what was sent arrives: closed with anything unread, it would be reset, and
/// the last words perhaps lost.
pub(super) async fn part<S>(stream: &mut S)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let parting = async {
        let mut bytes = [0; 512];
        let mut left = LAST_WORDS_BYTES;
        if stream.shutdown().await.is_err() {
            return;
        }
        while let Ok(count @ 1..) = stream.read(&mut bytes).await {
            left = left.saturating_sub(count);
            if left == 0 {
                return;
            }
        }
    };
    // A stream with a layer of its own may have to write before it ends, to a client that does not read.
    let _ = tokio::time::timeout(LINGER, parting).await;
}

/// What comes of a future, unless the other is done first.
pub(super) async fn unless<T, U>(
    stop: impl Future<Output = U>,
    other: impl Future<Output = T>,
) -> Option<T> {
    let (mut stop, mut other) = (pin!(stop), pin!(other));
    poll_fn(|context| {
        if stop.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        other.as_mut().poll(context).map(Some)
    })
    .await
}

fn tell(close: Close, seat: &ConnectionGuard, session: crate::types::SessionId, shared: &Shared) {
    let (address, now) = (seat.address(), shared.clock().now());
    match close {
        Close::Session(Ending::Overflow) => {
            if let Some(untold) = shared.table.told.not_read.tell(now) {
                tracing::warn!(%address, %session, untold, "the client does not read: its connection is closed");
            }
        }
        Close::ProtocolViolation(ProtocolViolation::Length) => {
            seat.table().count(Count::FrameTooLong);
            if let Some(untold) = shared.table.told.length.tell(now) {
                tracing::warn!(%address, %session, untold, "a frame has a length that none may have: its connection is closed");
            }
        }
        Close::Unfinished => {
            if let Some(untold) = shared.table.told.unfinished.tell(now) {
                tracing::warn!(%address, %session, untold, "a request does not come to its end, and others need the room: its connection is closed");
            }
        }
        close => tracing::debug!(%address, %session, ?close, "a connection is closed"),
    }
}
