//! Bytes of a hand-over, in both directions of all connections. The clients connect through a relay that counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use lockkeeper::Mutex;
use testkit::TempFolder;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};

use crate::common::socket::{Address, Stream};
use crate::figures::Row;
use crate::rounds::Contender;
use crate::systems::Keeper;
use crate::workloads::{Case, Relayed, handed_over};

/// Returns the contender on a store, with its clients behind a relay.
///
/// A hand-over is the same as in w3: the holder releases, the next one is granted the lock, and the previous one queues
/// again, with `n` in the queue. The waiters share few sessions, so that heartbeats hardly count.
pub(crate) async fn contender(system: &str, keeper: &Keeper, case: Case) -> Contender {
    let bytes = Arc::new(AtomicU64::new(0));
    let url = relay(keeper.url(), bytes.clone()).await;
    let behind = Keeper::connect(&url).await;
    let locks: Arc<[_]> = behind.locks::<Mutex>(&case).await.into();
    Contender::new(system, keeper.url(), move |time| {
        let (locks, bytes) = (locks.clone(), bytes.clone());
        async move {
            // Subtracting a short round removes the fixed costs, mainly the waiters' first entries.
            let short = round(case, &locks, &bytes, SHORT).await;
            let long = round(case, &locks, &bytes, SHORT + time).await;
            let mut row = Row::new();
            let handovers = long.0 - short.0;
            row.insert("handovers".into(), handovers);
            row.insert("handover_bytes".into(), (long.1 - short.1) / handovers);
            row
        }
    })
}

/// Enough for a few hand-overs.
const SHORT: Duration = Duration::from_millis(20);

/// Returns the numbers of hand-overs and bytes.
async fn round<L: Relayed>(
    case: Case,
    locks: &Arc<[L]>,
    bytes: &AtomicU64,
    time: Duration,
) -> (f64, f64) {
    let before = bytes.load(Relaxed);
    let row = handed_over(case, locks.clone(), time).await;
    let after = bytes.load(Relaxed);
    (row["handovers"], (after - before) as f64)
}

/// Starts a relay to the server of a URL. Returns the relay's URL.
async fn relay(url: &str, bytes: Arc<AtomicU64>) -> String {
    let to = Address::of(url).expect("the URL names an address");
    match &to {
        Address::Tcp(_) => {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await;
            let listener = listener.expect("loopback has a free port");
            let address = listener.local_addr().expect("it is bound");
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    stream.set_nodelay(true).expect("a socket has that option");
                    tokio::spawn(carry(stream, to.clone(), bytes.clone()));
                }
            });
            let scheme = url.split(':').next().unwrap_or_default();
            format!("{scheme}://{address}")
        }
        Address::Unix(_) => {
            let folder = TempFolder::short();
            let socket = folder.at("socket");
            let listener = UnixListener::bind(&socket).expect("a new folder");
            tokio::spawn(async move {
                let _folder = folder;
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(carry(stream, to.clone(), bytes.clone()));
                }
            });
            format!("lockkeeper+unix://{}", socket.display())
        }
    }
}

async fn carry(client: impl Stream, to: Address, bytes: Arc<AtomicU64>) {
    let Ok(server) = to.connect().await else {
        return;
    };
    let (server_reader, server_writer) = tokio::io::split(server);
    let (client_reader, client_writer) = tokio::io::split(client);
    tokio::select! {
        () = copy(client_reader, server_writer, &bytes) => {}
        () = copy(server_reader, client_writer, &bytes) => {}
    }
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    bytes: &AtomicU64,
) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        bytes.fetch_add(count as u64, Relaxed);
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
