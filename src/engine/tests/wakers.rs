//! Wakers are user code. A waker may panic, and dropping a waker drops everything that it owns.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::task::Wake;

use super::*;
use crate::runtime::clock::Sleep;

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("this waker panics, as the test wants it to");
    }
}

#[derive(Default)]
struct Noted(AtomicBool);

impl Wake for Noted {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

struct OnDrop<F: FnMut() + Send>(parking_lot::Mutex<F>);

impl<F: FnMut() + Send + 'static> OnDrop<F> {
    fn waker(run: F) -> Waker {
        Waker::from(Arc::new(Self(parking_lot::Mutex::new(run))))
    }
}

impl<F: FnMut() + Send> Wake for OnDrop<F> {
    fn wake(self: Arc<Self>) {}
}

impl<F: FnMut() + Send> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0.get_mut())();
    }
}

fn poll_with<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(waker))
}

fn returns(work: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || {
        work();
        done.send(()).unwrap();
    });
    wait.recv_timeout(Duration::from_secs(20))
        .expect("it waits for itself");
}

#[test]
fn a_panicking_waker_does_not_stop_the_timers_of_others() {
    let clock = Clock::system();
    let mut sleep: Sleep = clock.sleep(Duration::from_millis(1));
    assert!(poll_with(&mut sleep, &Waker::from(Arc::new(Panics))).is_pending());
    let (woken, wait) = mpsc::channel();
    crate::spawn_detached(async move {
        clock.sleep(Duration::from_millis(2)).await;
        woken.send(()).unwrap();
    });
    wait.recv_timeout(Duration::from_secs(20))
        .expect("the timer thread is gone");
}

#[test]
fn a_panicking_waker_does_not_stop_expiry() {
    let (store, clock) = virtual_store();
    let seconds = Duration::from_secs;
    let (_first, short) = session_of(&store, Some(seconds(4)));
    let (_second, long) = session_of(&store, Some(seconds(8)));
    let (_third, watching) = session_of(&store, None);
    let held = path("/held");
    now(short.create(&held, "", CreateMode::Ephemeral)).unwrap();
    let (_, mut watcher) = now(watching.watch_exists(&held)).unwrap();
    assert!(poll_with(&mut watcher, &Waker::from(Arc::new(Panics))).is_pending());
    short.status().set_closing();
    long.status().set_closing();
    for _ in 0..20 {
        let _ = catch_unwind(AssertUnwindSafe(|| clock.advance(seconds(1))));
    }
    assert_eq!(short.state(), SessionState::Expired);
    assert_eq!(long.state(), SessionState::Expired);
}

#[test]
fn a_waker_dropped_by_a_state_stream_may_drop_another() {
    let (store, _) = virtual_store();
    let (_client, session) = session_of(&store, None);
    returns(move || {
        let mut other = Some(session.states());
        let mut stream = session.states();
        let waker = OnDrop::waker(move || drop(other.take()));
        assert!(poll(&mut Box::pin(stream.next())).is_pending());
        assert!(poll_with(&mut Box::pin(stream.next()), &waker).is_pending());
        drop(waker);
        assert!(poll(&mut Box::pin(stream.next())).is_pending());
        let mut other = Some(session.states());
        let waker = OnDrop::waker(move || drop(other.take()));
        assert!(poll_with(&mut Box::pin(stream.next()), &waker).is_pending());
        drop(waker);
        drop(stream);
    });
}

#[test]
fn a_waker_dropped_by_a_sleep_may_drop_another() {
    let clock = Clock::new_virtual();
    returns(move || {
        let asleep = || {
            let mut sleep = clock.sleep(Duration::from_secs(1));
            assert!(poll(&mut sleep).is_pending());
            sleep
        };
        let mut sleep = clock.sleep(Duration::from_secs(2));
        let mut other = Some(asleep());
        let waker = OnDrop::waker(move || drop(other.take()));
        assert!(poll_with(&mut sleep, &waker).is_pending());
        drop(waker);
        assert!(poll(&mut sleep).is_pending());
        let mut other = Some(asleep());
        let waker = OnDrop::waker(move || drop(other.take()));
        assert!(poll_with(&mut sleep, &waker).is_pending());
        drop(waker);
        drop(sleep);
        assert_eq!(clock.next_timer(), None);
    });
}

mod logged {
    use super::*;
    use crate::log::DurabilityBarrier;

    #[test]
    fn a_panicking_waker_keeps_no_other_from_its_answer() {
        let barrier = Arc::new(DurabilityBarrier::new(Zxid(0)));
        let (mut first, mut second) = (barrier.passage(Zxid(1)), barrier.passage(Zxid(1)));
        let noted = Arc::new(Noted::default());
        assert!(poll_with(&mut first, &Waker::from(Arc::new(Panics))).is_pending());
        assert!(poll_with(&mut second, &Waker::from(noted.clone())).is_pending());
        let _ = catch_unwind(AssertUnwindSafe(|| barrier.open(Zxid(1))));
        assert!(noted.0.load(Ordering::SeqCst), "nobody woke it");
    }

    #[test]
    fn a_panicking_waker_does_not_fail_the_log() {
        let folder = crate::log::TempFolder::new();
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(async {
            let store = Store::file(folder.path()).unwrap();
            let client = store.connect().await.unwrap();
            let session = client.session().await.unwrap();
            let mut panics = session.create(&path("/one"), "", CreateMode::Persistent);
            let _ = poll_with(&mut panics, &Waker::from(Arc::new(Panics)));
            for name in ["/two", "/three"] {
                let created = session.create(&path(name), "", CreateMode::Persistent);
                created.await.unwrap();
            }
        });
    }
}
