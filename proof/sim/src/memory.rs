//! [`Memory`]: a store in memory that all clients of a run share, without servers or network. A plan injects faults
//! into its sessions.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{Client, Clock, ConnectOptions, Store, StoreOptions, ZnodePath};
use lockkeeper_store::simulation::Time;
use lockkeeper_store::testing::{Plan, TestStore};
use lockkeeper_store::{Connector, Session};
use testkit::recipe::now_or_never;
use testkit::{etcd_rules, unindexed};
use tokio::task::unconstrained;

use crate::faults::LONGER;
use crate::world::{Random, World};

/// A store in memory, with and without faults.
pub(crate) struct Memory {
    hurt: TestStore,
    base: Store,
    /// Its requests never fail and are answered immediately.
    session: Session,
}

impl Memory {
    /// Draws one of six kinds of store. It may only list names, like a ZooKeeper server, or follow the rules of etcd. It
    /// may accept only a committed write as proof that a session is alive.
    pub(crate) fn draw(random: &mut Random, time: &Time) -> Self {
        let base = Store::memory_with(StoreOptions::new().clock(time.clock(0)));
        let connector: Arc<dyn Connector> = match random.within(0..3) {
            0 => base.connector(),
            1 => unindexed(base.connector()),
            _ => etcd_rules(base.connector()),
        };
        let hurt = TestStore::wrapping(connector, "memory:sim", plan(random));
        if random.once_in(2) {
            hurt.prove_by_quorum();
        }
        let client = answer(base.connect()).expect("nothing goes wrong");
        let session = client.current_session();
        Self {
            hurt,
            base,
            session,
        }
    }

    pub(crate) fn clock(&self) -> &Clock {
        self.hurt.clock()
    }

    /// Opens a client whose sessions suffer faults.
    pub(crate) async fn connect(&self, random: &mut Random) -> Client {
        let timeout = Duration::from_millis(random.within(1_000..12_000));
        let options = ConnectOptions::new().session_timeout(timeout);
        let client = self.hurt.client_with(options).await;
        client.expect("the plan hurts no session before it is open")
    }

    /// Opens a client without faults.
    pub(crate) async fn inspector(&self) -> Client {
        self.base.connect().await.expect("nothing goes wrong")
    }

    /// Lets the plan inject faults for this long, or longer in a run that would be too short, and then repairs
    /// everything.
    pub(crate) async fn run(&self, world: &World, length: Duration) {
        tokio::time::sleep(length).await;
        while world.is_short() && world.time().elapsed() < length + LONGER {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        world.time().sync();
        self.hurt.heal();
        world.tell("all faults have ended");
    }

    pub(crate) fn count_children(&self, path: &ZnodePath) -> usize {
        let children = answer(self.session.get_children(path));
        children.map_or(0, |(names, _)| names.len())
    }

    pub(crate) fn has(&self, path: &ZnodePath) -> bool {
        answer(self.session.exists(path)).is_ok_and(|stat| stat.is_some())
    }
}

/// Returns the answer to a request without faults, even if the task has used up its budget.
pub(crate) fn answer<T>(request: impl Future<Output = T>) -> T {
    now_or_never(unconstrained(request)).expect("a store in memory answers immediately")
}

/// Draws a plan in which each kind of fault occurs never, seldom or often.
fn plan(random: &mut Random) -> Plan {
    let ms = Duration::from_millis;
    let seed = random.next();
    let mut rate = || [0.0, 0.01, 0.05, 0.15][random.within(0..4) as usize];
    Plan::new(seed)
        .lose_requests(rate())
        .lose_replies(rate())
        .disconnects(rate())
        .expiries(rate() / 3.0)
        .pauses(rate() / 3.0, ms(1)..ms(30_000))
        .delays(rate() * 4.0, ms(0)..ms(2_000))
        .outages(ms(0)..ms(10_000))
        .refusals(rate())
}
