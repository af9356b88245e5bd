//! [`Meter`]: the requests, events and bytes of one session.

use std::ops::Sub;
use std::time::Duration;

use lockkeeper::testing::{Plan, RequestKind, TestStore, Traffic};
use lockkeeper::{Client, ConnectOptions, LockPath, Session, ZnodePath};

use crate::common::fresh_number;

/// A store that counts everything.
pub(crate) struct Ground(TestStore);

/// Longer than a measurement, so that few hand-overs contain a renewal of the session. Only the cheapest counts.
const LONG: Duration = Duration::from_secs(60);

impl Ground {
    pub(crate) fn at(url: &str) -> Self {
        Self(TestStore::over(url, Plan::calm()).expect("a URL of a store"))
    }

    pub(crate) async fn client(&self) -> Client {
        let options = ConnectOptions::new().session_timeout(LONG);
        let client = self.0.client_with(options).await;
        client.expect("the store answers")
    }

    pub(crate) fn fresh_path(&self) -> LockPath {
        let (run, number) = (std::process::id(), fresh_number());
        // Of equal length in each run, because the bytes of paths are counted.
        LockPath::new(format!("/cost/{run:010}-{number:03}")).expect("a valid path")
    }

    pub(crate) fn meter(&self, client: &Client) -> Meter<'_> {
        Meter {
            store: &self.0,
            session: client.current_session(),
            own: Cost::default(),
        }
    }
}

/// Traffic of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cost {
    pub(crate) requests: u64,
    pub(crate) events: u64,
    pub(crate) bytes: u64,
}

impl Cost {
    fn of(traffic: Traffic) -> Self {
        Self {
            requests: traffic.requests(RequestKind::Any),
            events: traffic.events,
            bytes: traffic.bytes,
        }
    }
}

impl Sub for Cost {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            requests: self.requests - earlier.requests,
            events: self.events - earlier.events,
            bytes: self.bytes - earlier.bytes,
        }
    }
}

/// Counts the traffic of a session, except for its own requests.
pub(crate) struct Meter<'a> {
    store: &'a TestStore,
    session: Session,
    own: Cost,
}

/// Number of consecutive quiet answers that show that nothing is in flight. A task woken by one of them sends its
/// request before the next one, and requests of a session are answered in order.
const QUIET: u32 = 10;

impl Meter<'_> {
    /// Waits until nothing is in flight. Returns all traffic so far.
    pub(crate) async fn read(&mut self) -> Cost {
        let root = ZnodePath::root();
        let mut in_a_row = 0;
        while in_a_row < QUIET {
            let before = self.store.traffic_of(&self.session);
            self.session.exists(&root).await.expect("an answer");
            tokio::task::yield_now().await;
            let between = self.store.traffic_of(&self.session) - before;
            self.own.requests += 1;
            // A request and its answer of 64 bytes each, and the path.
            self.own.bytes += 2 * 64 + root.as_str().len() as u64;
            let quiet = (
                between.requests(RequestKind::Any),
                between.replies,
                between.events,
            ) == (1, 1, 0);
            in_a_row = if quiet { in_a_row + 1 } else { 0 };
        }
        Cost::of(self.store.traffic_of(&self.session)) - self.own
    }
}
