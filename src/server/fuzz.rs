//! Entry points of the server's fuzzers. `connection` feeds arbitrary bytes in pieces to one connection. In
//! `conversation` several clients talk to one server.

mod conversation;
mod dialogue;
mod pipe;
mod seeds;

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::{Builder, Runtime};

pub(crate) use self::conversation::conversation;
pub(crate) use self::seeds::conversations;
use super::admin::ListenAddresses;
use super::connection::{Client, CloseReason, run_session};
use super::connection_table::ConnectionGuard;
use super::handshake::{HandshakeOutcome, handshake};
use super::transport::Transport;
use super::{ServerOptions, Shared, shared_state};
use crate::engine::{Ending, Store, StoreOptions};
use crate::runtime::clock::Clock;
use crate::wire::{Frames, LARGEST_FRAME_BYTES};

#[derive(Clone)]
struct Script(Arc<Mutex<Inner>>);

struct Inner {
    input: Vec<u8>,
    read: usize,
    piece: usize,
    is_over: bool,
    waits: bool,
    output: Vec<u8>,
}

impl AsyncRead for Script {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut inner = self.0.lock();
        let rest = &inner.input[inner.read..];
        if rest.is_empty() && !inner.is_over {
            return Poll::Pending;
        }
        let count = inner.piece.min(rest.len()).min(buffer.remaining());
        buffer.put_slice(&rest[..count]);
        inner.read += count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Script {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut inner = self.0.lock();
        inner.waits = !inner.waits;
        if inner.waits {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let count = bytes.len().min(inner.piece);
        inner.output.extend_from_slice(&bytes[..count]);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A read is pending only after earlier reads have returned the whole input.
impl Transport for Script {
    fn is_readable(&self) -> bool {
        false
    }
}

/// Closing a connection needs a runtime for its timer. We never run this runtime, so the timer does not fire.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime without IO starts")
});

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

impl Script {
    fn play<T>(&self, talk: impl Future<Output = T>) -> T {
        let woken = Arc::<Woken>::default();
        let waker = Waker::from(woken.clone());
        let mut context = Context::from_waker(&waker);
        let mut talk = pin!(talk);
        loop {
            if let Poll::Ready(done) = talk.as_mut().poll(&mut context) {
                return done;
            }
            if !woken.0.swap(false, SeqCst) {
                let was_over = std::mem::replace(&mut self.0.lock().is_over, true);
                assert!(!was_over, "the client has gone, and nobody notices");
            }
        }
    }
}

pub(crate) fn connection(bytes: &[u8]) -> bool {
    let Some((piece, input)) = bytes.split_first() else {
        return false;
    };
    let script = Script(Arc::new(Mutex::new(Inner {
        input: input.to_vec(),
        read: 0,
        piece: usize::from(*piece).max(1),
        is_over: false,
        waits: false,
        output: Vec::new(),
    })));
    let clock = Clock::new_virtual();
    let store = Store::memory_with(StoreOptions::new().clock(clock.clone()));
    let shared = shared_state(&store, ServerOptions::new(), ListenAddresses::default());
    let shared = shared.expect("a store in memory can be shared");
    let guard = shared
        .table
        .enter(std::net::SocketAddr::from(([127, 0, 0, 1], 1)));
    let guard = guard.expect("there is room for one");
    let _here = RUNTIME.enter();
    let is_well = script.play(talk(script.clone(), &shared, &guard));
    drop((guard, shared, store));
    assert_all_ends(&clock);
    let inner = script.0.lock();
    let is_whole = is_answered(&inner.input[..inner.read], &inner.output);
    is_well && is_whole && inner.read == inner.input.len()
}

/// Asserts that no task outlives its store. A task that sleeps on a virtual clock would live forever, because the task
/// and the clock keep each other alive.
fn assert_all_ends(clock: &Clock) {
    clock.advance(Duration::from_secs(3_600));
    assert_eq!(clock.next_timer(), None, "a task outlives its store");
}

async fn talk(mut script: Script, shared: &Shared, guard: &ConnectionGuard) -> bool {
    match handshake(&mut script, guard, shared, false).await {
        Ok(HandshakeOutcome::Session(connection, agreed, _)) => {
            let client = Client {
                connection,
                agreed,
                identity: None,
                process: None,
            };
            let close = run_session(script, shared, guard, client).await;
            matches!(
                close,
                CloseReason::Client | CloseReason::Session(Ending::Closed)
            )
        }
        _ => false,
    }
}

fn is_answered(input: &[u8], output: &[u8]) -> bool {
    let (Some(asked), Some(mut told)) = (frames(input), frames(output)) else {
        return false;
    };
    if told.is_empty() {
        return false;
    }
    told.remove(0);
    let xid = |frame: &Vec<u8>| frame.first_chunk().map(|xid| i32::from_be_bytes(*xid));
    let asked: Vec<_> = asked.iter().skip(1).map(xid).collect();
    let told: Vec<_> = told.iter().map(xid).collect();
    const EVENT: Option<i32> = Some(crate::wire::xid::EVENT);
    if asked.contains(&EVENT) {
        return true; // its answer looks like an event
    }
    let answered: Vec<_> = told.into_iter().filter(|xid| *xid != EVENT).collect();
    assert!(asked.starts_with(&answered), "{asked:?}: {answered:?}");
    asked.len() == answered.len()
}

fn frames(bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut frames = Frames::new(LARGEST_FRAME_BYTES);
    frames.push(bytes);
    let mut found = Vec::new();
    while let Some(frame) = frames.next().ok()? {
        found.push(frame.to_vec());
    }
    (frames.waiting_bytes() == 0).then_some(found)
}
