//! Tests of a server's shutdown, handshakes, proofs of identity and fairness.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::auth::{Admission, Policy};
use super::connection_table::Count;
use super::*;
use crate::clock::Clock;
use crate::engine::StoreOptions;
use crate::types::CreateMode;
use crate::wire::put_frame;

/// A server, and a client that has asked for much and reads nothing.
async fn with_a_client_that_does_not_read() -> (Server, TcpStream) {
    let store = Store::memory();
    let client = store.connect().await.unwrap();
    let large = vec![7; 500_000];
    let session = client.current_session();
    let made = session.create(&"/a".parse().unwrap(), large, CreateMode::Persistent);
    made.await.unwrap();
    let options = ServerOptions::new().listen(([127, 0, 0, 1], 0).into());
    let server = Server::bind(&store, options).await.unwrap();
    let mut stream = TcpStream::connect(server.local_addr().unwrap())
        .await
        .unwrap();
    let mut asked = Vec::new();
    // A handshake for a session of 10 s, without a password.
    put_frame(&mut asked, |to| {
        to.extend_from_slice(&[0; 12]);
        to.extend_from_slice(&10_000_i32.to_be_bytes());
        to.extend_from_slice(&[0; 12]);
    });
    for xid in 1..=100_i32 {
        put_frame(&mut asked, |to| {
            to.extend_from_slice(&xid.to_be_bytes());
            to.extend_from_slice(&[0, 0, 0, 4, 0, 0, 0, 2, b'/', b'a', 0]);
        });
    }
    stream.write_all(&asked).await.unwrap();
    // The server has read the requests for certain only once their first answer is here.
    stream.read_u8().await.unwrap();
    while server.shared.table.traffic().received <= 1 {
        tokio::task::yield_now().await;
    }
    (server, stream)
}

const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_server_that_is_dropped_closes_a_connection_whose_client_does_not_read() {
    let (server, stream) = with_a_client_that_does_not_read().await;
    let shared = server.shared.clone();
    assert!(
        shared.table.traffic().outstanding > 0,
        "it waits to be read"
    );
    drop(server);
    let emptied = tokio::time::timeout(PATIENCE, shared.table.emptied()).await;
    emptied.expect("no connection is left");
    drop(stream);
}

#[tokio::test]
async fn a_shutdown_leaves_no_connection_whose_client_does_not_read() {
    let (server, stream) = with_a_client_that_does_not_read().await;
    let shared = server.shared.clone();
    let shutdown = tokio::time::timeout(PATIENCE, server.shutdown()).await;
    shutdown.expect("it ends");
    assert_eq!(shared.table.connections(), 0);
    drop(stream);
}

/// It was connected to another store, or to this one before a restore: its locks there are worth nothing here.
#[tokio::test]
async fn a_client_that_has_seen_a_later_zxid_gets_no_session() {
    let store = Store::memory();
    let options = ServerOptions::new().listen(([127, 0, 0, 1], 0).into());
    let server = Server::bind(&store, options).await.unwrap();
    let last = server.shared.remote.last_zxid().0;
    let handshake = async |seen: i64| {
        let mut stream = TcpStream::connect(server.local_addr().unwrap())
            .await
            .unwrap();
        let mut asked = Vec::new();
        put_frame(&mut asked, |to| {
            to.extend_from_slice(&[0; 4]);
            to.extend_from_slice(&seen.to_be_bytes());
            to.extend_from_slice(&10_000_i32.to_be_bytes());
            to.extend_from_slice(&[0; 12]);
        });
        stream.write_all(&asked).await.unwrap();
        let answer = tokio::time::timeout(PATIENCE, stream.read_u8()).await;
        answer.expect("it is answered or closed")
    };
    assert!(handshake(last).await.is_ok());
    // One more than the session that was opened just now.
    assert!(handshake(last + 2).await.is_err());
    assert_eq!(server.shared.remote.last_zxid().0, last + 1);
}

/// A client with a session.
async fn session_opened(server: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(server.local_addr().unwrap())
        .await
        .unwrap();
    greet(&mut stream).await;
    stream
}

/// Opens a session over a stream of so many bytes in this process. Returns its other end, and the task that serves it.
async fn served(server: &Server, room: usize) -> (DuplexStream, JoinHandle<()>) {
    let (mut client, stream) = tokio::io::duplex(room);
    let seat = server
        .shared
        .table
        .enter(std::net::SocketAddr::from(([127, 0, 0, 1], 1)));
    let until = tokio::time::Instant::now() + PATIENCE;
    let serving = connection::serve(stream, seat.unwrap(), server.shared.clone(), until, None);
    let serving = tokio::spawn(serving);
    greet(&mut client).await;
    (client, serving)
}

async fn greet(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    ask_for_session(stream).await;
    answer(stream).await;
}

async fn ask_for_session(stream: &mut (impl AsyncWrite + Unpin)) {
    let mut asked = Vec::new();
    put_frame(&mut asked, |to| {
        to.extend_from_slice(&[0; 12]);
        to.extend_from_slice(&10_000_i32.to_be_bytes());
        to.extend_from_slice(&[0; 12]);
    });
    stream.write_all(&asked).await.unwrap();
}

/// A tool that asks `cons` or `mntr` from another connection, once its client has connected, must find the session.
#[tokio::test]
async fn a_session_is_listed_before_its_client_learns_of_it() {
    let options = ServerOptions::new().listen(([127, 0, 0, 1], 0).into());
    let server = Server::bind(&Store::memory(), options).await.unwrap();
    // The response to the handshake does not fit: its first byte arrives while the server still sends the rest.
    let (mut client, stream) = tokio::io::duplex(8);
    let guard = server
        .shared
        .table
        .enter(std::net::SocketAddr::from(([127, 0, 0, 1], 1)));
    let until = tokio::time::Instant::now() + PATIENCE;
    let serving = connection::serve(stream, guard.unwrap(), server.shared.clone(), until, None);
    tokio::spawn(serving);
    ask_for_session(&mut client).await;
    client.read_u8().await.unwrap();
    let listed = server.shared.table.each();
    assert!(listed.iter().any(|entry| entry.session().is_some()));
    assert_eq!(server.shared.table.traffic().received, 1);
}

async fn answer(stream: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
    let length = stream.read_u32().await.unwrap();
    let mut frame = vec![0; length as usize];
    stream.read_exact(&mut frame).await.unwrap();
    frame
}

/// Proves an identity, and hears that it counts.
async fn prove(stream: &mut TcpStream) {
    send_proof(stream, "a:b").await;
    assert_eq!(answer(stream).await[12..], [0; 4]);
}

async fn send_proof(stream: &mut TcpStream, secret: &str) {
    let mut auth = Vec::new();
    put_frame(&mut auth, |to| {
        to.extend_from_slice(&(-4_i32).to_be_bytes());
        to.extend_from_slice(&[0, 0, 0, 100, 0, 0, 0, 0]);
        for text in ["digest", secret] {
            to.extend_from_slice(&(text.len() as i32).to_be_bytes());
            to.extend_from_slice(text.as_bytes());
        }
    });
    stream.write_all(&auth).await.unwrap();
}

#[tokio::test]
async fn a_client_without_a_proof_in_time_is_cut_off_alone() {
    let options = ServerOptions::new()
        .listen(([127, 0, 0, 1], 0).into())
        .require_auth(true)
        .handshake_timeout(Duration::from_secs(1));
    let server = Server::bind(&Store::memory(), options).await.unwrap();
    let mut proven = session_opened(&server).await;
    prove(&mut proven).await;
    let mut silent = session_opened(&server).await;
    let end = tokio::time::timeout(PATIENCE, silent.read_u8()).await;
    assert!(end.expect("it is closed").is_err());
    // Its deadline was earlier than that of the silent client.
    let mut ping = Vec::new();
    put_frame(&mut ping, |to| {
        to.extend_from_slice(&[0xff, 0xff, 0xff, 0xfe, 0, 0, 0, 11]);
    });
    proven.write_all(&ping).await.unwrap();
    assert_eq!(answer(&mut proven).await[..4], [0xff, 0xff, 0xff, 0xfe]);
}

/// A client that has asked for this session, and has heard nothing yet.
async fn asking(server: &Server, session: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(server.local_addr().unwrap())
        .await
        .unwrap();
    let mut asked = Vec::new();
    put_frame(&mut asked, |to| {
        to.extend_from_slice(&[0; 12]);
        to.extend_from_slice(&10_000_i32.to_be_bytes());
        to.extend_from_slice(session);
    });
    stream.write_all(&asked).await.unwrap();
    stream
}

/// Connects a client with this session: its id and password as an answer has them, or zeros for a new one. Returns it
/// with those that the session's next client presents.
async fn taking_up(server: &Server, session: &[u8]) -> (TcpStream, Vec<u8>) {
    let mut stream = asking(server, session).await;
    let welcome = answer(&mut stream).await;
    (stream, welcome[8..36].to_vec())
}

async fn sessions_left_by(stream: TcpStream, server: &Server) -> usize {
    drop(stream);
    let emptied = tokio::time::timeout(PATIENCE, server.shared.table.emptied()).await;
    emptied.expect("the server hears of it");
    server.shared.store.counts().sessions
}

#[tokio::test]
async fn a_session_that_nobody_has_proved_ends_with_its_connection() {
    let options = |requires_auth| {
        ServerOptions::new()
            .listen(([127, 0, 0, 1], 0).into())
            .require_auth(requires_auth)
    };
    let server = Server::bind(&Store::memory(), options(true)).await.unwrap();
    let (unproven, _) = taking_up(&server, &[0; 12]).await;
    assert_eq!(sessions_left_by(unproven, &server).await, 0);

    // Also where it was taken up again.
    let (former, session) = taking_up(&server, &[0; 12]).await;
    let (unproven, _) = taking_up(&server, &session).await;
    drop(former);
    assert_eq!(sessions_left_by(unproven, &server).await, 0);

    let server = Server::bind(&Store::memory(), options(false))
        .await
        .unwrap();
    let (anybody, _) = taking_up(&server, &[0; 12]).await;
    assert_eq!(sessions_left_by(anybody, &server).await, 1);
}

#[tokio::test]
async fn a_session_that_was_proved_once_outlives_a_connection_that_has_not_proved_it_yet() {
    let options = ServerOptions::new()
        .listen(([127, 0, 0, 1], 0).into())
        .require_auth(true);
    let server = Server::bind(&Store::memory(), options).await.unwrap();
    let (mut proven, session) = taking_up(&server, &[0; 12]).await;
    prove(&mut proven).await;
    assert_eq!(sessions_left_by(proven, &server).await, 1);
    let (unproven, session) = taking_up(&server, &session).await;
    assert_eq!(sessions_left_by(unproven, &server).await, 1);
    let (mut again, _) = taking_up(&server, &session).await;
    prove(&mut again).await;
}

#[tokio::test]
async fn a_limit_of_frames_that_no_log_could_hold_is_refused() {
    let options = |bytes| {
        ServerOptions::new()
            .listen(([127, 0, 0, 1], 0).into())
            .max_frame_bytes(bytes)
    };
    let store = Store::memory();
    for bytes in [3 << 20, 16 << 20, usize::MAX, 10] {
        let Err(refused) = Server::bind(&store, options(bytes)).await else {
            panic!("{bytes} bytes are too many or too few");
        };
        assert!(refused.to_string().contains("frame"), "{refused}");
    }
    for bytes in [1 << 10, 2 << 20] {
        drop(Server::bind(&store, options(bytes)).await.unwrap());
    }
}

/// The list for whoAmI is kept, too.
#[test]
fn the_proofs_of_a_client_have_a_limit() {
    let policy = Policy {
        requires_auth: false,
        users: Vec::new(),
        superuser: None,
    };
    let mut admission = Admission::new(Arc::new(policy));
    for user in 0..200 {
        admission.prove("digest", format!("user-{user}:secret").as_bytes());
        let long = format!("{user}{}:secret", "n".repeat(100_000));
        admission.prove("digest", long.as_bytes());
    }
    let who = admission.who_am_i();
    let bytes: usize = who.iter().map(|(_, user)| user.len()).sum();
    assert!(
        who.len() <= 65 && bytes <= 100_000,
        "{} of {bytes} bytes",
        who.len()
    );
}

#[tokio::test]
async fn by_default_one_address_leaves_places_to_others() {
    let options = ServerOptions::new()
        .listen(([127, 0, 0, 1], 0).into())
        .max_connections(4);
    let server = Server::bind(&Store::memory(), options).await.unwrap();
    let _crowd = [
        session_opened(&server).await,
        session_opened(&server).await,
        session_opened(&server).await,
    ];
    let mut fourth = TcpStream::connect(server.local_addr().unwrap())
        .await
        .unwrap();
    let refused = tokio::time::timeout(PATIENCE, fourth.read(&mut [0])).await;
    assert!(matches!(refused.expect("it is closed"), Ok(0) | Err(_)));
    assert_eq!(server.shared.table.counted(Count::RefusedPerAddress), 1);
}

#[tokio::test]
async fn connections_that_prove_nothing_are_limited_as_those_without_a_session() {
    let options = ServerOptions::new()
        .listen(([127, 0, 0, 1], 0).into())
        .require_auth(true)
        .max_half_open(2);
    let server = Server::bind(&Store::memory(), options).await.unwrap();
    let mut proven = session_opened(&server).await;
    prove(&mut proven).await;
    let mut oldest = session_opened(&server).await;
    let _others = [session_opened(&server).await, session_opened(&server).await];
    let end = tokio::time::timeout(PATIENCE, oldest.read_u8()).await;
    assert!(end.expect("it is closed").is_err());
    assert_eq!(server.shared.table.half_open(), 2);
    assert_eq!(server.shared.table.counted(Count::Evicted), 1);
    prove(&mut proven).await;
}

/// A server in virtual time.
async fn timeless(options: ServerOptions) -> (Server, Clock) {
    let clock = Clock::new_virtual();
    let store = Store::memory_with(StoreOptions::new().clock(clock.clone()));
    let options = options.listen(([127, 0, 0, 1], 0).into());
    (Server::bind(&store, options).await.unwrap(), clock)
}

async fn until_counted(server: &Server, what: Count, count: u64) {
    while server.shared.table.counted(what) < count {
        tokio::task::yield_now().await;
    }
}

/// Returns true if nothing has come, nor the end.
async fn is_silent(stream: &mut TcpStream) -> bool {
    let mut first = [0];
    let mut first = tokio::io::ReadBuf::new(&mut first);
    std::future::poll_fn(|context| {
        let peeked = stream.poll_peek(context, &mut first);
        std::task::Poll::Ready(peeked.is_pending())
    })
    .await
}

#[tokio::test]
async fn a_wrong_password_is_answered_late_and_others_of_the_same_address_at_once() {
    let (server, clock) = timeless(ServerOptions::new()).await;
    let (_owner, session) = taking_up(&server, &[0; 12]).await;
    let mut wrong = session.clone();
    wrong[27] ^= 1;
    let mut guess = asking(&server, &wrong).await;
    until_counted(&server, Count::WrongPassword, 1).await;
    let (_next_owner, _) = taking_up(&server, &session).await;
    assert!(is_silent(&mut guess).await, "its answer is held back");
    assert_eq!(server.shared.table.half_open(), 1, "it has no session");
    clock.advance(Duration::from_millis(100));
    assert_eq!(answer(&mut guess).await[8..16], [0; 8], "no session");
}

#[tokio::test]
async fn a_failed_proof_is_answered_late_and_others_at_once() {
    let digest = "a:3OptnM09ILoVSfbZtd3mB0IViII=";
    let options = ServerOptions::new().require_auth(true).user(digest);
    let (server, clock) = timeless(options.unwrap()).await;
    let mut guess = session_opened(&server).await;
    send_proof(&mut guess, "a:wrong").await;
    until_counted(&server, Count::AuthFailed, 1).await;
    let mut honest = session_opened(&server).await;
    prove(&mut honest).await;
    assert!(is_silent(&mut guess).await, "its answer is held back");

    // One that goes meanwhile leaves nothing behind, and is counted.
    let mut gone = session_opened(&server).await;
    send_proof(&mut gone, "a:guess").await;
    until_counted(&server, Count::AuthFailed, 2).await;
    drop(gone);
    while server.shared.table.connections() > 2 {
        tokio::task::yield_now().await;
    }

    clock.advance(Duration::from_millis(100));
    const AUTH_FAILED: i32 = -115;
    assert_eq!(answer(&mut guess).await[12..], AUTH_FAILED.to_be_bytes());
    assert_eq!(server.shared.table.half_open(), 1, "it is not let in");
}

/// Appends a request.
fn put_request(to: &mut Vec<u8>, xid: i32, op: i32, body: impl FnOnce(&mut Vec<u8>)) {
    put_frame(to, |to| {
        to.extend_from_slice(&xid.to_be_bytes());
        to.extend_from_slice(&op.to_be_bytes());
        body(to);
    });
}

fn put_bytes(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend_from_slice(&(bytes.len() as i32).to_be_bytes());
    to.extend_from_slice(bytes);
}

fn put_create(to: &mut Vec<u8>, path: &str, flags: i32) {
    put_request(to, 1, 1, |to| {
        put_bytes(to, path.as_bytes());
        put_bytes(to, b"");
        to.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 31]);
        put_bytes(to, b"world");
        put_bytes(to, b"anyone");
        to.extend_from_slice(&flags.to_be_bytes());
    });
}

/// Lets one client send `count` requests for the znode /x at once, and another one create it, whose bytes the runtime
/// has not polled yet. Returns the number of the first client's requests that were executed before the creation.
async fn requests_before_another_client(flood: impl Fn(&mut Vec<u8>), count: usize) -> usize {
    const ROOM: usize = 8 << 20;
    let options = ServerOptions::new().listen(([127, 0, 0, 1], 0).into());
    let server = Server::bind(&Store::memory(), options).await.unwrap();
    let mut other = session_opened(&server).await;
    let (mut flooding, _serving) = served(&server, ROOM).await;
    let mut asked = Vec::new();
    (0..count).for_each(|_| flood(&mut asked));
    assert!(asked.len() <= ROOM, "all of it is there at once");
    let mut create = Vec::new();
    put_create(&mut create, "/x", 0);
    // Nothing is awaited between the two: the server has its first turn when both are there.
    other.try_write(&create).unwrap();
    flooding.write_all(&asked).await.unwrap();
    assert_eq!(answer(&mut other).await[12..16], [0; 4]);
    for before in 0..count {
        if answer(&mut flooding).await[12..16] == [0; 4] {
            return before;
        }
    }
    count
}

#[tokio::test]
async fn a_client_that_sends_many_requests_gives_way_to_another_after_a_turn() {
    let exists = |to: &mut Vec<u8>| {
        put_request(to, 1, 3, |to| {
            put_bytes(to, b"/x");
            to.push(0);
        });
    };
    let before = requests_before_another_client(exists, 20_000).await;
    assert!(before <= 2 * 64, "{before} requests come first");
}

#[tokio::test]
async fn a_client_that_sends_large_requests_gives_way_to_another_after_a_turn() {
    let set = |to: &mut Vec<u8>| {
        put_request(to, 1, 5, |to| {
            put_bytes(to, b"/x");
            put_bytes(to, &[7; 16 << 10]);
            to.extend_from_slice(&[0xff; 4]);
        });
    };
    let before = requests_before_another_client(set, 400).await;
    assert!(before <= 2 * 5, "{before} requests of 16 KiB come first");
}

/// Nothing of the server runs while the clock moves: the bytes of one client wait in the kernel when both deadlines
/// come.
#[tokio::test]
async fn rule_14_what_a_client_has_sent_is_read_before_its_session_expires() {
    let clock = Clock::new_virtual();
    let store = Store::memory_with(StoreOptions::new().clock(clock.clone()));
    let options = ServerOptions::new().listen(([127, 0, 0, 1], 0).into());
    let server = Server::bind(&store, options).await.unwrap();
    let mut pinging = session_opened(&server).await;
    let mut silent = session_opened(&server).await;
    let mut ping = Vec::new();
    put_request(&mut ping, -2, 11, |_| ());
    pinging.try_write(&ping).unwrap();
    clock.advance(Duration::from_secs(13));
    let pong = tokio::time::timeout(PATIENCE, pinging.read_u32()).await;
    assert!(pong.expect("it is answered or closed").is_ok());
    let end = tokio::time::timeout(PATIENCE, silent.read_u8()).await;
    assert!(
        end.expect("it is closed, without any other deadline")
            .is_err()
    );
    assert_eq!(server.shared.store.counts().sessions, 1);
}

/// Serves a client that sends many creates, of which the server carries out some in a turn, and then is as `end` makes
/// it. Returns how many of them were carried out when the server is done with the connection.
async fn carried_out_of(count: usize, end: impl AsyncFnOnce(DuplexStream)) -> usize {
    const ROOM: usize = 1 << 20;
    let store = Store::memory();
    let options = ServerOptions::new().listen(([127, 0, 0, 1], 0).into());
    let server = Server::bind(&store, options).await.unwrap();
    let (mut client, serving) = served(&server, ROOM).await;
    let mut asked = Vec::new();
    (0..count).for_each(|_| put_create(&mut asked, "/x-", 2));
    client.write_all(&asked).await.unwrap();
    end(client).await;
    tokio::time::timeout(PATIENCE, serving)
        .await
        .unwrap()
        .unwrap();
    let session = store.connect().await.unwrap().session().await.unwrap();
    let (names, _) = session.get_children(&"/".parse().unwrap()).await.unwrap();
    names.iter().filter(|name| name.starts_with("x-")).count()
}

#[tokio::test]
async fn what_a_client_sent_before_it_went_is_carried_out() {
    let count = 1_000;
    let goes = carried_out_of(count, async |client| drop(client)).await;
    assert_eq!(goes, count, "it ended without reading an answer");
    let half = carried_out_of(count, async |mut client| {
        client.shutdown().await.unwrap();
        for _ in 0..count {
            assert_eq!(answer(&mut client).await[12..16], [0; 4]);
        }
    });
    assert_eq!(half.await, count, "it sends no more, and reads");
}

/// A stream that notes, in a list that several share, which of them has written.
struct Noted {
    stream: DuplexStream,
    name: &'static str,
    written: Arc<parking_lot::Mutex<Vec<&'static str>>>,
}

impl AsyncRead for Noted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Noted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if written.is_ready() {
            self.written.lock().push(self.name);
        }
        written
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl transport::Transport for Noted {
    fn is_readable(&self) -> bool {
        false
    }
}

/// A server, a client that watches `/lock` for good, and one that changes it; and the names of those that were written
/// to.
struct Watching {
    _server: Server,
    watcher: DuplexStream,
    releaser: DuplexStream,
    written: Arc<parking_lot::Mutex<Vec<&'static str>>>,
}

impl Watching {
    async fn start() -> Self {
        let store = Store::memory();
        let session = store.connect().await.unwrap().current_session();
        let made = session.create(&"/lock".parse().unwrap(), "", CreateMode::Persistent);
        made.await.unwrap();
        let options = ServerOptions::new().listen(([127, 0, 0, 1], 0).into());
        let server = Server::bind(&store, options).await.unwrap();
        let written = Arc::default();
        let connect = async |name| {
            let (mut client, stream) = tokio::io::duplex(64 << 10);
            let stream = Noted {
                stream,
                name,
                written: Arc::clone(&written),
            };
            let address = SocketAddr::from(([127, 0, 0, 1], 1));
            let guard = server.shared.table.enter(address);
            let until = tokio::time::Instant::now() + PATIENCE;
            let shared = server.shared.clone();
            tokio::spawn(connection::serve(
                stream,
                guard.unwrap(),
                shared,
                until,
                None,
            ));
            greet(&mut client).await;
            client
        };
        let mut watcher = connect("event").await;
        let releaser = connect("answer").await;
        // addWatch, persistent.
        let watch = request(1, 106, "/lock", &[0, 0, 0, 0]);
        watcher.write_all(&watch).await.unwrap();
        assert_eq!(answer(&mut watcher).await[12..16], [0; 4]);
        written.lock().clear();
        Self {
            _server: server,
            watcher,
            releaser,
            written,
        }
    }
}

/// A frame of a request: its xid, its number, a path and the rest.
fn request(xid: i32, op: i32, path: &str, rest: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    put_frame(&mut frame, |to| {
        to.extend_from_slice(&xid.to_be_bytes());
        to.extend_from_slice(&op.to_be_bytes());
        to.extend_from_slice(&(path.len() as i32).to_be_bytes());
        to.extend_from_slice(path.as_bytes());
        to.extend_from_slice(rest);
    });
    frame
}

const DELETE: i32 = 2;
const SET_DATA: i32 = 5;

/// The next holder waits for the event; the former one has released the lock whether or not it knows that.
#[tokio::test]
async fn an_event_is_written_before_the_answer_to_the_request_that_fires_it() {
    let mut all = Watching::start().await;
    let delete = request(1, DELETE, "/lock", &[0xff; 4]);
    all.releaser.write_all(&delete).await.unwrap();
    let deleted = tokio::time::timeout(PATIENCE, answer(&mut all.releaser)).await;
    assert_eq!(deleted.expect("it is answered")[12..16], [0; 4]);
    assert_eq!(*all.written.lock(), ["event", "answer"]);
    assert_eq!(answer(&mut all.watcher).await[..4], [0xff; 4]);
}

/// Its requests arrive while it waits for the events of those before, and it never has all of them carried out.
#[tokio::test]
async fn a_client_of_which_each_request_fires_an_event_is_answered_in_between() {
    let all = Watching::start().await;
    // Without data, and of any version.
    let set = |xid| request(xid, SET_DATA, "/lock", &[0xff; 8]);
    let requests: Vec<u8> = (1..=1_000).flat_map(set).collect();
    let (mut answers, mut requester) = tokio::io::split(all.releaser);
    let sending = tokio::spawn(async move { requester.write_all(&requests).await });
    let answering = async {
        for xid in 1..=1_000_i32 {
            assert_eq!(answer(&mut answers).await[..4], xid.to_be_bytes());
        }
    };
    let answered = tokio::time::timeout(PATIENCE, answering).await;
    answered.expect("all are answered");
    sending.await.unwrap().unwrap();
    let written = all.written.lock();
    // The events of one turn leave in one write, and its answers follow.
    assert_eq!(written[..2], ["event", "answer"]);
}

async fn is_over(future: Pin<&mut impl Future>) -> bool {
    let mut future = future;
    std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await
}

#[tokio::test]
async fn a_server_is_idle_after_its_time_without_connections_when_all_sessions_are_over() {
    let (server, clock) = timeless(ServerOptions::new()).await;
    // Shorter than the session outlives its connection.
    let time = Duration::from_secs(2);
    let mut idle = std::pin::pin!(server.idle(time));
    assert!(!is_over(idle.as_mut()).await);
    clock.advance(Duration::from_secs(1));
    assert!(!is_over(idle.as_mut()).await);

    // A session of 10 s, in the middle of the time.
    let client = session_opened(&server).await;
    for _ in 0..3 {
        clock.advance(Duration::from_secs(2));
        assert!(!is_over(idle.as_mut()).await, "a client is connected");
    }
    drop(client);
    while server.shared.table.connections() > 0 {
        tokio::task::yield_now().await;
    }
    assert!(!is_over(idle.as_mut()).await);
    let mut seconds = 0;
    while !is_over(idle.as_mut()).await {
        clock.advance(Duration::from_secs(1));
        seconds += 1;
        assert!(seconds < 60, "it is idle");
    }
    assert!(seconds >= 2, "{seconds}");
    assert_eq!(server.shared.store.counts().sessions, 0);
}
