//! A fork without exec: the child has a copy of every handle but none of the library's threads. Each test runs in a
//! separate process, because a child inherits all locks as they were at the fork and would never see those of other
//! tests released.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use fork::Fork;
use lockkeeper::{Client, ConnectOptions, Guard, Mutex};
use testkit::{alone, on_every_backend};

use super::common::*;

/// Tries every handle in the child of a fork. Returns the first fault.
fn look_in_the_child((client, mutex, guard): (Client, Mutex, Guard)) -> Result<(), &'static str> {
    if guard.is_held() {
        return Err("the guard is held in two processes");
    }
    if client.current_session().status().is_alive() {
        return Err("the session is alive in two processes");
    }
    let refused = |error: &dyn std::error::Error| {
        let mut error = Some(error);
        while let Some(this) = error {
            if this.to_string().contains("fork") {
                return true;
            }
            error = this.source();
        }
        false
    };
    match at_once(mutex.lock()) {
        Some(Err(error)) if refused(&error) => {}
        _ => return Err("a lock is asked for, and not refused at once"),
    }
    match at_once(client.session()) {
        Some(Err(error)) if refused(&error) => {}
        _ => return Err("a session is handed out"),
    }
    let session = client.current_session();
    match at_once(session.get_children(mutex.path())) {
        Some(Err(error)) if refused(&error) => {}
        _ => return Err("a request is sent"),
    }
    match at_once(lockkeeper::connect("memory:after-the-fork")) {
        Some(Err(error)) if refused(&error) => {}
        _ => return Err("a connection without threads is opened"),
    }
    // This must return and not affect the parent's lock.
    drop(guard);
    drop((session, mutex, client));
    Ok(())
}

fn at_once<T>(work: impl Future<Output = T>) -> Option<T> {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}

/// Forks, runs `look` in the child, and fails if it reports a fault or does not return.
async fn fork_and(look: impl FnOnce() -> Result<(), &'static str>) {
    match fork::fork().expect("the system allows a fork") {
        Fork::Child => {
            let seen = look();
            if let Err(wrong) = seen {
                eprintln!("in the child of a fork: {wrong}");
            }
            std::process::exit(seen.is_err().into());
        }
        Fork::Parent(child) => {
            let waited = tokio::task::spawn_blocking(move || fork::waitpid(child));
            let status = tokio::time::timeout(LONG / 2, waited).await;
            if status.is_err() {
                // It waits for a thread that it does not have.
                let pid = rustix::process::Pid::from_raw(child).unwrap();
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
            let status = status.expect("the child does not come to its end");
            assert_eq!(status.unwrap().unwrap(), 0, "the child says what is wrong");
        }
    }
}

on_every_backend! {
    async fn the_child_of_a_fork_holds_nothing_and_is_told_so(env: Env) {
        if !alone() {
            return;
        }
        let options = ConnectOptions::new().session_timeout(LONG);
        let client = env.client_with(options.clone()).await;
        let mutex = Mutex::new(&client, LOCK).unwrap();
        let guard = mutex.lock().await.unwrap();
        let mut handles = Some((client, mutex, guard));
        fork_and(|| look_in_the_child(handles.take().unwrap())).await;
        let (_client, _mutex, guard) = handles.unwrap();
        assert!(guard.is_held(), "the parent's lock is untouched");
        let other = Mutex::new(&env.client_with(options).await, LOCK).unwrap();
        assert!(matches!(other.try_lock().await, Ok(None)), "it is in the queue still");
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn the_child_of_a_fork_leaves_the_store_in_a_folder_alone() {
    if !alone() {
        return;
    }
    let folder = testkit::TempFolder::new("forked");
    let store = lockkeeper::Store::file(folder.path()).unwrap();
    let lock_file = || std::fs::read_to_string(folder.path().join("LOCK")).unwrap();
    let before = lock_file();
    assert!(before.contains(&std::process::id().to_string()));
    let client = store.connect().await.unwrap();
    let mutex = Mutex::new(&client, LOCK).unwrap();
    let guard = mutex.lock().await.unwrap();
    let mut handles = Some((guard, mutex, client, store));
    fork_and(|| {
        drop(handles.take());
        Ok(())
    })
    .await;
    assert_eq!(lock_file(), before);
    let (guard, mutex, _client, _store) = handles.unwrap();
    guard.release().await.unwrap();
    mutex.lock().await.unwrap().release().await.unwrap();
}

/// The process forks while requests of a served session are in flight.
mod served {
    use std::os::unix::process::CommandExt;
    use std::process::Command;
    use std::sync::mpsc::channel;

    use lockkeeper::connect_with;
    use lockkeeper_store::Call;
    use tokio::runtime::{Builder, Runtime};

    use super::*;
    use testkit::{Proxy, SWEEP, Served};

    const EXISTS: i32 = 3;
    const CLOSE_SESSION: i32 = -11;
    const UNDER_WAY: usize = 20;

    /// A client whose requests a proxy holds back.
    struct Parent {
        // Dropped in this order.
        guard: Guard,
        replies: Vec<Call<Option<lockkeeper_store::Stat>>>,
        client: Client,
        runtime: Runtime,
    }

    impl Parent {
        fn start(proxy: &Proxy) -> Self {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            let (client, guard) = runtime.block_on(async {
                let url = format!("lockkeeper://{}", proxy.hosts());
                let options = ConnectOptions::new().session_timeout(LONG);
                let client = connect_with(url.as_str(), options).await.unwrap();
                let guard = Mutex::new(&client, LOCK).unwrap().lock().await.unwrap();
                // The reader is running.
                client.current_session().exists(&path("/")).await.unwrap();
                (client, guard)
            });
            // A frame is recorded after it was forwarded, so its reply may have arrived before.
            proxy.wait_for(|frame| frame.to_server && frame.operation == EXISTS);
            proxy.hold_requests();
            proxy.take_frames();
            let session = client.current_session();
            let replies = (0..UNDER_WAY).map(|_| session.exists(&path("/")));
            Self {
                replies: replies.collect(),
                guard,
                client,
                runtime,
            }
        }

        /// Asserts that everything is answered and only this process's requests crossed the wire.
        fn goes_on(self, proxy: &Proxy) {
            proxy.mend();
            self.runtime.block_on(async {
                for reply in self.replies {
                    reply.await.unwrap();
                }
            });
            let frames = proxy.take_frames();
            let asked: Vec<_> = frames.iter().filter(|frame| frame.to_server).collect();
            assert_eq!(asked.len(), UNDER_WAY, "{frames:?}");
            assert!(asked.iter().all(|frame| frame.operation != CLOSE_SESSION));
            assert!(self.guard.is_held());
            let id = self.client.current_session().id();
            self.runtime.block_on(async {
                self.guard.release().await.unwrap();
                let mutex = Mutex::new(&self.client, LOCK).unwrap();
                mutex.lock().await.unwrap().release().await.unwrap();
            });
            assert_eq!(self.client.current_session().id(), id);
        }
    }

    fn fork_and_wait(look: impl FnOnce()) {
        match fork::fork().expect("the system allows a fork") {
            Fork::Child => {
                look();
                std::process::exit(0);
            }
            Fork::Parent(child) => {
                let (sender, status) = channel();
                std::thread::spawn(move || sender.send(fork::waitpid(child)));
                let waited = status.recv_timeout(LONG / 2);
                if waited.is_err() {
                    // It waits for a thread that it does not have.
                    let pid = rustix::process::Pid::from_raw(child).unwrap();
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
                let status = waited.expect("the child does not come to its end");
                assert_eq!(status.unwrap(), 0, "the child fails");
            }
        }
    }

    #[test]
    fn the_child_drops_everything_and_writes_nothing() {
        if !alone() {
            return;
        }
        let served = Served::start(SWEEP);
        let proxy = Proxy::to(served.address());
        let mut parent = Some(Parent::start(&proxy));
        fork_and_wait(|| drop(parent.take()));
        parent.unwrap().goes_on(&proxy);
    }

    #[test]
    fn the_child_becomes_another_program_and_holds_no_socket() {
        if !alone() {
            return;
        }
        let served = Served::start(SWEEP);
        let proxy = Proxy::to(served.address());
        let parent = Parent::start(&proxy);
        // Fails if it inherited a socket, because the exec closes ours.
        let looks =
            "for fd in /proc/self/fd/*; do case $(readlink $fd) in socket:*) exit 1;; esac; done";
        fork_and_wait(|| {
            let error = Command::new("sh").args(["-c", looks]).exec();
            panic!("{error}");
        });
        parent.goes_on(&proxy);
    }
}
