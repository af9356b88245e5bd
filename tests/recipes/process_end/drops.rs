//! When a drop waits until its release is written, and when it does not.

use std::sync::{Arc, Mutex as Lock};

use lockkeeper::{Client, ConnectOptions, Guard, Mutex, SessionState};
use lockkeeper_store::{Flushed, spawn_detached};
use testkit::{
    Intercept, Proxy, SWEEP, Served, alone, free_address, intercepted, unique, within_reason,
};

use crate::common::*;

const GUARDS: usize = 100;

/// Generates `name::served` and `name::zookeeper` from each `async fn name(world: Wired)`. Each runs in a separate
/// process, because all connections of a process share a thread.
macro_rules! over_a_wire {
    ($(async fn $name:ident($wired:ident: Wired) $body:block)*) => {$(
        mod $name {
            use super::*;

            async fn test($wired: Wired) $body

            #[tokio::test]
            async fn served() {
                if alone() {
                    let served = Served::start(SWEEP);
                    let wired = Wired::to("lockkeeper", served.address()).await;
                    within_reason(test(wired)).await;
                }
            }

            #[tokio::test]
            async fn zookeeper() {
                if alone() {
                    let wired = Wired::to("zookeeper", testkit::zookeeper().address()).await;
                    within_reason(test(wired)).await;
                }
            }
        }
    )*};
}

/// A client behind a proxy that records the result of each wait for the writing.
struct Wired {
    proxy: Proxy,
    client: Client,
    flushes: Flushes,
}

impl Wired {
    async fn to(scheme: &str, server: std::net::SocketAddr) -> Self {
        Self::over(Proxy::to(server), scheme).await
    }

    async fn over(proxy: Proxy, scheme: &str) -> Self {
        let url = format!("{scheme}://{}/{}", proxy.hosts(), unique("drops"));
        let options = ConnectOptions::new().create_chroot().session_timeout(LONG);
        let first = lockkeeper::connect_with(url.as_str(), options.clone())
            .await
            .unwrap();
        let flushes = Flushes::default();
        let noting = flushes.clone();
        let connector = intercepted(first.connector().clone(), move || noting.clone());
        let client = Client::open(connector, url, options).await.unwrap();
        Self {
            proxy,
            client,
            flushes,
        }
    }

    async fn guards(&self, count: usize) -> Vec<Guard> {
        let mut guards = Vec::new();
        for number in 0..count {
            let mutex = Mutex::new(&self.client, format!("/lock/{number}")).unwrap();
            guards.push(mutex.lock().await.unwrap());
        }
        guards
    }

    /// Runs `work` on the connections' thread, which receives a request's answer.
    fn on_the_io_thread(&self, work: impl FnOnce() + Send + 'static) {
        self.proxy.hold_replies();
        let answer = self.client.current_session().exists(&path("/"));
        spawn_detached(async move {
            let _ = answer.await;
            work();
        });
        self.proxy.mend();
    }

    /// Sends more than all buffers take to a server that does not read.
    fn fill(&self) {
        self.proxy.hold_requests();
        let session = self.client.current_session();
        let large = vec![0; 500_000];
        for _ in 0..100 {
            // The server refuses it for the missing znode once it reads again.
            drop(session.set_data(&path("/missing"), large.clone(), None));
        }
    }

    /// Drops a guard on the connections' thread. Returns the results of its waits.
    async fn drop_on_the_io_thread(&self) -> Vec<Flushed> {
        let guards = self.guards(1).await;
        let (dropped, done) = tokio::sync::oneshot::channel();
        self.on_the_io_thread(move || {
            drop(guards);
            dropped.send(()).unwrap();
        });
        done.await.unwrap();
        self.flushes.take()
    }

    async fn until(&self, state: SessionState) {
        let session = self.client.current_session();
        let mut states = session.states();
        while session.state() != state {
            states.next().await.expect("the session lives");
        }
    }
}

over_a_wire! {
    async fn a_server_that_does_not_read_is_waited_for_once(wired: Wired) {
        let mut guards = wired.guards(GUARDS + 1).await;
        let last = guards.pop();
        wired.fill();
        drop(guards);
        let mut outcomes = wired.flushes.take();
        assert_eq!(outcomes.remove(0), Flushed::TimedOut);
        assert_eq!(outcomes, [Flushed::Skipped; GUARDS - 1]);
        wired.proxy.mend();
        wired.client.current_session().exists(&path("/")).await.unwrap();
        drop(last);
        assert_eq!(wired.flushes.take(), [Flushed::Written]);
    }

    async fn a_drop_does_not_wait_for_a_lost_connection(wired: Wired) {
        let mut guards = wired.guards(2).await;
        wired.proxy.cut();
        wired.until(SessionState::Suspended).await;
        drop(guards.pop());
        assert_eq!(wired.flushes.take(), []);
        wired.proxy.mend();
        wired.until(SessionState::Reconnected).await;
        drop(guards.pop());
        assert_eq!(wired.flushes.take().len(), 1);
    }

    async fn a_drop_as_a_reply_is_delivered_writes_its_release_itself(wired: Wired) {
        assert_eq!(wired.drop_on_the_io_thread().await, [Flushed::Written]);
    }
}

#[tokio::test]
async fn an_etcd_that_does_not_read_is_waited_for_once() {
    let server = testkit::etcd().address();
    let proxy = Proxy::of_bytes(free_address(), server).unwrap();
    within_reason(async {
        let wired = Wired::over(proxy, "etcd").await;
        let guards = wired.guards(GUARDS).await;
        wired.proxy.hold_requests();
        drop(guards);
        let mut outcomes = wired.flushes.take();
        assert_eq!(outcomes.remove(0), Flushed::TimedOut);
        assert_eq!(outcomes, [Flushed::Skipped; GUARDS - 1]);
    })
    .await;
}

#[derive(Clone, Debug, Default)]
struct Flushes(Arc<Lock<Vec<Flushed>>>);

impl Flushes {
    fn take(&self) -> Vec<Flushed> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Intercept for Flushes {
    fn flushed(&self, outcome: Flushed) {
        self.0.lock().unwrap().push(outcome);
    }
}
