//! Tests of a server's shutdown, handshakes and limits.

mod operators;
mod proofs;
mod turns;

use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::connection_table::Count;
use super::*;
use crate::engine::StoreOptions;
use crate::model::types::CreateMode;
use crate::runtime::clock::Clock;
use crate::wire::put_frame;

/// Returns a server, and a client that has requested large answers and reads none of them.
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
    // The first answer proves that the server has read the requests.
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
    assert!(handshake(last + 2).await.is_err());
    assert_eq!(server.shared.remote.last_zxid().0, last + 1);
}

async fn session_opened(server: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(server.local_addr().unwrap())
        .await
        .unwrap();
    greet(&mut stream).await;
    stream
}

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

#[tokio::test]
async fn a_session_is_listed_before_its_client_learns_of_it() {
    let options = ServerOptions::new().listen(([127, 0, 0, 1], 0).into());
    let server = Server::bind(&Store::memory(), options).await.unwrap();
    // The response does not fit into the stream, so the client can read its first byte while the server still sends the
    // rest.
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

/// Connects a client. `session` is an id and a password, or zeros for a new session.
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

async fn is_silent(stream: &mut TcpStream) -> bool {
    let mut first = [0];
    let mut first = tokio::io::ReadBuf::new(&mut first);
    std::future::poll_fn(|context| {
        let peeked = stream.poll_peek(context, &mut first);
        std::task::Poll::Ready(peeked.is_pending())
    })
    .await
}

async fn is_over(future: Pin<&mut impl Future>) -> bool {
    let mut future = future;
    std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await
}

#[tokio::test]
async fn a_server_is_idle_after_its_time_without_connections_when_all_sessions_are_over() {
    let (server, clock) = timeless(ServerOptions::new()).await;
    // This time is shorter than the session timeout.
    let time = Duration::from_secs(2);
    let mut idle = std::pin::pin!(server.idle(time));
    assert!(!is_over(idle.as_mut()).await);
    clock.advance(Duration::from_secs(1));
    assert!(!is_over(idle.as_mut()).await);

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
