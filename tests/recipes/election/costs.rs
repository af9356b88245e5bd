//! What a hand-over costs, and what an observer does not hear of.

use lockkeeper::Session;
use lockkeeper::testing::On;
use tokio::sync::mpsc;

use super::*;
use crate::support::on_every_backend;

const SIZES: [usize; 3] = [2, 100, 1_000];

/// How many hand-overs are looked at: a renewal of the session may fall into one of them.
const HAND_OVERS: usize = 5;

/// Some who stand, all through one session, and the one who leads.
struct Line {
    leader: Option<Leadership>,
    elected: mpsc::UnboundedReceiver<Result<Leadership, LockError>>,
}

impl Line {
    /// A line in which each has seen its place, and that has handed over before.
    async fn of(client: &Client, candidates: usize) -> Self {
        let election = Election::new(client, LOCK).unwrap();
        let leader = Some(election.campaign("same").await.unwrap());
        let (send, elected) = mpsc::unbounded_channel();
        for _ in 0..candidates + HAND_OVERS {
            let (election, send) = (election.clone(), send.clone());
            // When the test is over nobody wants to lead any more.
            tokio::spawn(async move { send.send(election.campaign("same").await).map_err(drop) });
        }
        let all = candidates + HAND_OVERS + 1;
        until(&client.current_session(), LOCK, |names| names.len() == all).await;
        let mut line = Self { leader, elected };
        for _ in 0..2 {
            line.hand_over().await;
        }
        line
    }

    async fn hand_over(&mut self) {
        self.leader.take().unwrap().resign().await.unwrap();
        self.leader = Some(self.elected.recv().await.unwrap().unwrap());
    }
}

/// What has gone through a session: requests, events and bytes.
type Cost = (u64, u64, u64);

/// Counts what goes through a session, but for its own questions.
struct Meter<'a> {
    world: &'a World,
    session: Session,
    /// What its own questions have cost.
    own: Cost,
}

impl<'a> Meter<'a> {
    fn of(world: &'a World, session: Session) -> Self {
        Self {
            world,
            session,
            own: (0, 0, 0),
        }
    }

    /// Waits until nothing is under way, and answers all that has gone through so far.
    async fn read(&mut self) -> Cost {
        loop {
            let before = self.world.traffic_of(&self.session);
            self.session.exists(&path(LOCK)).await.unwrap();
            tokio::task::yield_now().await;
            let after = self.world.traffic_of(&self.session);
            let between = after - before;
            self.own.0 += 1;
            self.own.2 += 2 * 64 + LOCK.len() as u64;
            if (between.requests(On::Any), between.replies, between.events) == (1, 1, 0) {
                let requests = after.requests(On::Any) - self.own.0;
                return (requests, after.events, after.bytes - self.own.2);
            }
        }
    }
}

fn since(before: Cost, after: Cost) -> Cost {
    (after.0 - before.0, after.1 - before.1, after.2 - before.2)
}

/// What the cheapest hand-over in a line of this size costs the candidates and an observer.
async fn cost_of_a_hand_over(world: &World, candidates: usize) -> [Cost; 2] {
    let client = world.client().await;
    let mut line = Line::of(&client, candidates).await;
    let watching = election(world).await;
    let mut changes = watching.observe();
    next(&mut changes).await;
    let mut standing = Meter::of(world, client.current_session());
    let mut seeing = Meter::of(world, watching.client().current_session());
    let mut costs = Vec::new();
    for _ in 0..HAND_OVERS {
        let before = (standing.read().await, seeing.read().await);
        line.hand_over().await;
        next(&mut changes).await;
        costs.push([
            since(before.0, standing.read().await),
            since(before.1, seeing.read().await),
        ]);
    }
    client.close().await.unwrap();
    world.until_count(0).await;
    [0, 1].map(|who| costs.iter().map(|cost| cost[who]).min().unwrap())
}

on_every_backend! {
    async fn a_hand_over_costs_the_same_however_many_stand(env: Env) {
        let world = World::new(env).await;
        let is_embedded = world.env.is_embedded();
        let mut costs = Vec::new();
        for candidates in SIZES {
            costs.push(cost_of_a_hand_over(&world, candidates).await);
        }
        for who in [0, 1] {
            let (requests, events, bytes) = costs[0][who];
            for cost in costs.iter().map(|cost| cost[who]) {
                assert_eq!((cost.0, cost.1), (requests, events), "{costs:?}");
                // The numbers in names and marks have more digits in a longer line.
                assert!(cost.2 <= bytes + 16, "{costs:?}");
            }
        }
        // The resignation, on ZooKeeper a look of the next candidate, and its watch on its own znode.
        let asked = if is_embedded { 2 } else { 3 };
        assert_eq!((costs[0][0].0, costs[0][0].1), (asked, 1), "{costs:?}");
        // The observer reads the next leader; in memory it asks first who that is.
        let looks = if is_embedded { 3 } else { 2 };
        assert_eq!((costs[0][1].0, costs[0][1].1), (looks, 1), "{costs:?}");
    }

    async fn an_observer_does_not_hear_of_candidates_that_come_and_go(env: Env) {
        let world = World::new(env).await;
        let leader = election(&world).await.campaign("leader").await.unwrap();
        let watching = election(&world).await;
        let mut changes = watching.observe();
        next(&mut changes).await;
        let mut seeing = Meter::of(&world, watching.client().current_session());
        let before = seeing.read().await;
        let one = election(&world).await;
        for round in 0..20 {
            let campaign = stand(&world, &one, &round.to_string()).await;
            campaign.abort();
            world.until_count(1).await;
        }
        let heard = since(before, seeing.read().await);
        assert_eq!(heard, (0, 0, 0), "it has asked nothing and heard nothing");
        let campaign = stand(&world, &one, "next").await;
        leader.resign().await.unwrap();
        until_shown(&mut changes, Some("next")).await;
        drop(elected(campaign).await);
    }
}
