//! Tests of turns: fairness among connections, and the order of events and answers.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::ReadBuf;

use super::*;

pub(super) fn put_request(to: &mut Vec<u8>, xid: i32, op: i32, body: impl FnOnce(&mut Vec<u8>)) {
    put_frame(to, |to| {
        to.extend_from_slice(&xid.to_be_bytes());
        to.extend_from_slice(&op.to_be_bytes());
        body(to);
    });
}

pub(super) fn put_bytes(to: &mut Vec<u8>, bytes: &[u8]) {
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

/// One client sends `count` requests for the znode /x, and then another client creates it. Returns how many of the
/// first client's requests were executed before the creation.
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
    // Await nothing in between, so that the requests of both clients have arrived before the server's first turn.
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
async fn clients_that_send_many_requests_take_turns_with_another_after_each() {
    const ROOM: usize = 8 << 20;
    let options = ServerOptions::new().listen(([127, 0, 0, 1], 0).into());
    let server = Server::bind(&Store::memory(), options).await.unwrap();
    let mut other = session_opened(&server).await;
    let mut asked = Vec::new();
    (0..10_000).for_each(|_| put_create(&mut asked, "/x-", 2));
    let mut flooding = Vec::new();
    for _ in 0..16 {
        let mut client = served(&server, ROOM).await;
        client.0.write_all(&asked).await.unwrap();
        flooding.push(client);
    }
    let znodes = || server.shared.store.counts().znodes;
    while znodes() < 16 * 100 {
        tokio::task::yield_now().await;
    }
    let mut create = Vec::new();
    put_create(&mut create, "/y", 0);
    let before = znodes();
    other.try_write(&create).unwrap();
    assert_eq!(answer(&mut other).await[12..16], [0; 4]);
    let between = znodes() - before;
    assert!(between <= 4 * 64, "{between} requests come first");
}

#[tokio::test]
async fn turns_are_short_while_a_client_sends_single_requests() {
    const ROOM: usize = 8 << 20;
    let options = ServerOptions::new().listen(([127, 0, 0, 1], 0).into());
    let server = Server::bind(&Store::memory(), options).await.unwrap();
    let mut single = session_opened(&server).await;
    let (mut flooding, _serving) = served(&server, ROOM).await;
    let mut asked = Vec::new();
    (0..20_000).for_each(|_| put_create(&mut asked, "/x-", 2));
    flooding.write_all(&asked).await.unwrap();
    let znodes = || server.shared.store.counts().znodes;
    let mut between = Vec::new();
    for count in 0..10 {
        while znodes() < 500 * (count + 1) {
            tokio::task::yield_now().await;
        }
        let mut create = Vec::new();
        put_create(&mut create, "/y-", 2);
        let before = znodes();
        single.try_write(&create).unwrap();
        assert_eq!(answer(&mut single).await[12..16], [0; 4]);
        between.push(znodes() - before);
    }
    let most = between[1..].iter().max();
    assert!(most <= Some(&24), "{between:?} requests come first");
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

pub(super) fn request(xid: i32, op: i32, path: &str, rest: &[u8]) -> Vec<u8> {
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

pub(super) const DELETE: i32 = 2;
const SET_DATA: i32 = 5;

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

/// The client sends requests while the server still sends the events of earlier requests, so some requests are always
/// left to execute.
#[tokio::test]
async fn a_client_of_which_each_request_fires_an_event_is_answered_in_between() {
    let all = Watching::start().await;
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
    assert_eq!(written[..2], ["event", "answer"]);
}
