//! Clients of served stores under every runtime. On `lockkeeper://`, the runtime on which the client was opened reads its
//! replies. A thread of the library does so if that runtime does not exist, has no IO, is not running, is busy or is
//! gone, and always on `etcd://`.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Barrier;
use std::time::Duration;

use lockkeeper::{Client, ConnectOptions, Mutex, SessionState};
use testkit::{Proxy, SWEEP, Served, free_address, unique, within_reason};
use tokio::runtime::{Builder, Runtime};

use crate::common::*;

/// Cycles per test, some of them right after a reader was replaced.
const CYCLES: usize = 20;

fn options() -> ConnectOptions {
    ConnectOptions::new().session_timeout(Duration::from_secs(3))
}

/// A server, and the URL of its store.
struct Server {
    url: String,
    address: SocketAddr,
    _served: Option<Served>,
}

impl Server {
    fn served() -> Self {
        let served = Served::start(SWEEP);
        Self {
            url: format!("lockkeeper://{}", served.address()),
            address: served.address(),
            _served: Some(served),
        }
    }

    fn etcd() -> Self {
        let address = testkit::etcd().address();
        Self {
            url: format!("etcd://{address}{}", unique("/runtimes")),
            address,
            _served: None,
        }
    }

    async fn client(&self) -> Client {
        let connecting = lockkeeper::connect_with(self.url.as_str(), options());
        connecting.await.unwrap()
    }

    /// Returns a client that reaches the server through a proxy.
    async fn client_behind(&self, proxy: &Proxy) -> Client {
        let url = self.url.replace(&self.address.to_string(), &proxy.hosts());
        let connecting = lockkeeper::connect_with(url.as_str(), options());
        connecting.await.unwrap()
    }

    fn proxy(&self) -> Proxy {
        Proxy::of_bytes(free_address(), self.address).unwrap()
    }
}

/// Runs each test on both kinds of server.
macro_rules! on_each_server {
    ($($(#[$doc:meta])* fn $test:ident($server:ident) $body:block)*) => {$(
        mod $test {
            use super::*;

            #[test]
            fn served() {
                test(Server::served());
            }

            #[test]
            fn etcd() {
                test(Server::etcd());
            }

            $(#[$doc])*
            fn test($server: Server) $body
        }
    )*};
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

/// Takes the lock with a separate client, which anything left in the queue would block.
fn assert_free(server: &Server) {
    without_runtime(async {
        let client = server.client().await;
        let mutex = Mutex::new(&client, LOCK).unwrap();
        let taken = granted_in_time(&client, mutex.lock()).await;
        taken.release().await.unwrap();
        let left = children(&client.session().await.unwrap(), LOCK).await;
        assert_eq!(left, Vec::<String>::new());
    });
}

/// Asserts that the lock is granted within half a minute of the client's clock, because no runtime runs.
async fn granted_in_time(
    client: &Client,
    lock: impl Future<Output = Result<lockkeeper::Guard, lockkeeper::LockError>>,
) -> lockkeeper::Guard {
    let clock = client.connector().clock().clone();
    let mut sleep = std::pin::pin!(clock.sleep(Duration::from_secs(30)));
    let mut lock = std::pin::pin!(lock);
    std::future::poll_fn(|context| {
        if let std::task::Poll::Ready(taken) = lock.as_mut().poll(context) {
            return std::task::Poll::Ready(taken.unwrap());
        }
        assert!(sleep.as_mut().poll(context).is_pending(), "not granted");
        std::task::Poll::Pending
    })
    .await
}

on_each_server! {
    fn no_runtime(server) {
        without_runtime(async { cycles(&server.client().await).await });
    }

    fn a_runtime_without_io(server) {
        let runtime = Builder::new_current_thread().build().unwrap();
        runtime.block_on(async { cycles(&server.client().await).await });
    }

    fn a_runtime_that_is_shut_down(server) {
        let runtime = with_io();
        let client = runtime.block_on(async {
            let client = server.client().await;
            cycles(&client).await;
            client
        });
        drop(runtime);
        without_runtime(cycles(&client));
        let another = with_io();
        another.block_on(cycles(&client));
        assert_eq!(client.current_session().state(), SessionState::Connected);
    }

    fn a_runtime_that_is_shut_down_with_requests_under_way(server) {
        let runtime = with_io();
        let client = runtime.block_on(server.client());
        let session = client.current_session();
        let replies: Vec<_> = (0..100).map(|_| session.exists(&path("/"))).collect();
        drop(runtime);
        without_runtime(async {
            for reply in replies {
                reply.await.unwrap();
            }
        });
    }

    fn a_runtime_that_is_not_being_run(server) {
        let runtime = with_io();
        let client = runtime.block_on(server.client());
        without_runtime(cycles(&client));
        // It reads again once it runs.
        runtime.block_on(cycles(&client));
        without_runtime(cycles(&client));
        assert_eq!(client.current_session().state(), SessionState::Connected);
    }

    fn a_runtime_that_is_busy_for_longer_than_the_timeout(server) {
        with_io().block_on(async {
            let client = server.client().await;
            let mutex = Mutex::new(&client, LOCK).unwrap();
            let guard = mutex.lock().await.unwrap();
            let token = guard.fencing_token();
            // Until the clock has passed the lease's old end, which later proofs have extended.
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

    fn a_session_is_closed_from_a_thread_without_the_runtime(server) {
        let runtime = with_io();
        let client = runtime.block_on(server.client());
        without_runtime(client.close()).unwrap();
        assert_eq!(client.current_session().state(), SessionState::Closed);
    }

    /// Each reply wakes a task of this runtime, which may submit requests itself. No order of them may stop the session.
    fn many_tasks_on_many_threads_share_a_session(server) {
        let runtime = Builder::new_multi_thread()
            .worker_threads(4)
            .enable_all()
            .build();
        runtime.unwrap().block_on(within_reason(async {
            let client = server.client().await;
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

    fn a_runtime_that_is_shut_down_with_an_acquire_under_way(server) {
        let (holder, waiting) = (with_io(), with_io());
        let held = holder.block_on(async {
            let client = server.client().await;
            Mutex::new(&client, LOCK).unwrap().lock().await.unwrap()
        });
        let client = waiting.block_on(async {
            let client = server.client().await;
            let mutex = Mutex::new(&client, LOCK).unwrap();
            tokio::spawn(async move { mutex.lock().await });
            let session = client.session().await.unwrap();
            until(&session, LOCK, |names| names.len() == 2).await;
            client
        });
        drop(waiting);
        // The wait ended with its runtime, and its entry with the wait.
        without_runtime(async {
            let session = client.session().await.unwrap();
            until(&session, LOCK, |names| names.len() == 1).await;
        });
        holder.block_on(held.release()).unwrap();
        without_runtime(cycles(&client));
        assert_free(&server);
    }

    fn a_runtime_that_is_shut_down_with_an_enqueue_under_way(server) {
        let proxy = server.proxy();
        let runtime = with_io();
        let client = runtime.block_on(server.client_behind(&proxy));
        proxy.hold_requests();
        runtime.block_on(async {
            let mutex = Mutex::new(&client, LOCK).unwrap();
            let waiter = tokio::spawn(async move { mutex.lock().await });
            tokio::task::yield_now().await;
            assert!(!waiter.is_finished());
        });
        drop(runtime);
        proxy.mend();
        assert_free(&server);
        without_runtime(cycles(&client));
    }

    fn a_runtime_that_is_shut_down_with_a_release_under_way(server) {
        let proxy = server.proxy();
        let runtime = with_io();
        let (client, guard) = runtime.block_on(async {
            let client = server.client_behind(&proxy).await;
            let guard = Mutex::new(&client, LOCK).unwrap().lock().await.unwrap();
            (client, guard)
        });
        proxy.hold_requests();
        runtime.block_on(async {
            let release = tokio::spawn(guard.release());
            tokio::task::yield_now().await;
            assert!(!release.is_finished());
        });
        drop(runtime);
        proxy.mend();
        assert_free(&server);
        without_runtime(cycles(&client));
    }

    fn a_runtime_that_is_shut_down_by_a_blocking_thread_of_another(server) {
        let (first, second) = (with_io(), with_io());
        let client = first.block_on(server.client());
        let session = client.current_session();
        let replies: Vec<_> = (0..100).map(|_| session.exists(&path("/"))).collect();
        second.block_on(async {
            let dropped = tokio::task::spawn_blocking(move || drop(first));
            for reply in replies {
                reply.await.unwrap();
            }
            dropped.await.unwrap();
            cycles(&client).await;
        });
    }

    /// One runtime reads the client's replies and both await them. Then that one is gone.
    fn two_runtimes_share_a_client_until_one_is_shut_down(server) {
        let (first, second) = (with_io(), with_io());
        let client = first.block_on(server.client());
        let both = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                both.wait();
                first.block_on(cycles(&client));
                drop(first);
            });
            let other = scope.spawn(|| {
                both.wait();
                for _ in 0..5 {
                    second.block_on(cycles(&client));
                }
            });
            other.join().unwrap();
        });
        assert_eq!(client.current_session().state(), SessionState::Connected);
        assert_free(&server);
    }

    fn a_task_that_panics_releases_what_it_holds(server) {
        let runtime = with_io();
        runtime.block_on(async {
            let client = server.client().await;
            let mutex = Mutex::new(&client, LOCK).unwrap();
            let task = tokio::spawn(async move {
                let _guard = mutex.lock().await.unwrap();
                panic!("a fault in the holder's own work");
            });
            assert!(task.await.unwrap_err().is_panic());
            // Before the client's session ends.
            let _server = tokio::task::spawn_blocking(move || {
                assert_free(&server);
                server
            })
            .await
            .unwrap();
            cycles(&client).await;
        });
    }
}

/// A process without a free descriptor for the library's thread gets an error, and can connect later.
#[cfg(target_os = "linux")]
#[test]
fn a_system_without_resources_is_an_error_of_connect() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    if !testkit::alone() {
        return;
    }
    let server = Server::served();
    let before = getrlimit(Resource::Nofile);
    let none = Rlimit {
        current: Some(0),
        ..before
    };
    setrlimit(Resource::Nofile, none).unwrap();
    let connecting = lockkeeper::connect_with(server.url.as_str(), options());
    let refused = futures_executor::block_on(connecting);
    setrlimit(Resource::Nofile, before).unwrap();
    let refused = refused.expect_err("nothing can be opened").to_string();
    assert!(refused.contains("lockkeeper-client"), "{refused}");
    without_runtime(async { cycles(&server.client().await).await });
}
