//! A client of a served store under every runtime: its replies are read on the runtime that it was opened on, and on a
//! thread of the library where that one is missing, has no IO, is not being run, is busy, or is gone.

use std::future::Future;
use std::time::Duration;

use lockkeeper::{Client, ConnectOptions, Mutex, SessionState};
use tokio::runtime::{Builder, Runtime};

use crate::common::*;
use crate::support::{SWEEP, Served, within_reason};

/// Cycles of one test: some of them go through a reader that has just been replaced.
const CYCLES: usize = 20;

fn options() -> ConnectOptions {
    ConnectOptions::new().session_timeout(Duration::from_secs(3))
}

async fn client_of(served: &Served) -> Client {
    let url = format!("lockkeeper://{}", served.address());
    let connecting = lockkeeper::connect_with(url.as_str(), options());
    connecting.await.unwrap()
}

async fn cycles(client: &Client) {
    let mutex = Mutex::new(client, LOCK).unwrap();
    for _ in 0..CYCLES {
        mutex.lock().await.unwrap().release().await.unwrap();
    }
}

fn with_io() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Runs a future without any runtime, as `futures::executor::block_on` does.
fn without_runtime<T: Send>(work: impl Future<Output = T> + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            struct Unpark(std::thread::Thread);
            impl std::task::Wake for Unpark {
                fn wake(self: std::sync::Arc<Self>) {
                    self.0.unpark();
                }
            }
            let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
            let mut context = std::task::Context::from_waker(&waker);
            let mut work = std::pin::pin!(work);
            loop {
                if let std::task::Poll::Ready(done) = work.as_mut().poll(&mut context) {
                    return done;
                }
                std::thread::park();
            }
        });
        thread.join().unwrap()
    })
}

#[test]
fn no_runtime() {
    let served = Served::start(SWEEP);
    without_runtime(async { cycles(&client_of(&served).await).await });
}

#[test]
fn a_runtime_without_io() {
    let served = Served::start(SWEEP);
    let runtime = Builder::new_current_thread().build().unwrap();
    runtime.block_on(async { cycles(&client_of(&served).await).await });
}

#[test]
fn a_runtime_that_is_shut_down() {
    let served = Served::start(SWEEP);
    let runtime = with_io();
    let client = runtime.block_on(async {
        let client = client_of(&served).await;
        cycles(&client).await;
        client
    });
    drop(runtime);
    without_runtime(cycles(&client));
    let another = with_io();
    another.block_on(cycles(&client));
    assert_eq!(client.current_session().state(), SessionState::Connected);
}

#[test]
fn a_runtime_that_is_shut_down_with_requests_under_way() {
    let served = Served::start(SWEEP);
    let runtime = with_io();
    let client = runtime.block_on(client_of(&served));
    let session = client.current_session();
    let replies: Vec<_> = (0..100).map(|_| session.exists(&path("/"))).collect();
    drop(runtime);
    without_runtime(async {
        for reply in replies {
            reply.await.unwrap();
        }
    });
}

#[test]
fn a_runtime_that_is_not_being_run() {
    let served = Served::start(SWEEP);
    let runtime = with_io();
    let client = runtime.block_on(client_of(&served));
    without_runtime(cycles(&client));
    // It reads again once it is run.
    runtime.block_on(cycles(&client));
    without_runtime(cycles(&client));
    assert_eq!(client.current_session().state(), SessionState::Connected);
}

#[test]
fn a_runtime_that_is_busy_for_longer_than_the_timeout() {
    let served = Served::start(SWEEP);
    with_io().block_on(async {
        let client = client_of(&served).await;
        let mutex = Mutex::new(&client, LOCK).unwrap();
        let guard = mutex.lock().await.unwrap();
        let token = guard.fencing_token();
        // Until the clock has passed the end that the lease had: the proofs that came meanwhile have moved it on.
        let end = guard.held_until().unwrap();
        while !end.has_passed() {
            std::thread::sleep(end.remaining());
        }
        assert!(guard.is_held());
        assert_eq!(guard.fencing_token(), token);
        guard.release().await.unwrap();
        cycles(&client).await;
    });
}

#[test]
fn a_session_is_closed_from_a_thread_without_the_runtime() {
    let served = Served::start(SWEEP);
    let runtime = with_io();
    let client = runtime.block_on(client_of(&served));
    without_runtime(client.close()).unwrap();
    assert_eq!(client.current_session().state(), SessionState::Closed);
}

/// Each reply wakes one task of this runtime, which may itself submit: no order of them stops the session.
#[test]
fn many_tasks_on_many_threads_share_a_session() {
    let served = Served::start(SWEEP);
    let runtime = Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build();
    runtime.unwrap().block_on(within_reason(async {
        let client = client_of(&served).await;
        let tasks = (0..50).map(|number| {
            let client = client.clone();
            tokio::spawn(async move {
                let mutex = Mutex::new(&client, format!("/lock/{number}")).unwrap();
                for _ in 0..CYCLES {
                    drop(mutex.lock().await.unwrap());
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
    }));
}
