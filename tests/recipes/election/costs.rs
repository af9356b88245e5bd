//! Costs of an election's hand-overs, and changes that an observer misses.

use lockkeeper::Session;
use lockkeeper::testing::RequestKind;
use testkit::on_every_backend;

use super::*;
use crate::harness::costs::{Cost, HAND_OVERS, Queue, assert_flat, cost, sizes};

/// A line after a first hand-over. Each candidate has seen its place.
async fn line(client: &Client, candidates: usize) -> Queue<Leadership> {
    let election = Election::new(client, LOCK).unwrap();
    let held = vec![election.campaign("same").await.unwrap()];
    let wait = |_| {
        let election = election.clone();
        async move { election.campaign("same").await }
    };
    let waits = (0..candidates + HAND_OVERS).map(wait);
    let line = Queue::of(&client.current_session(), LOCK, held, waits).await;
    line.warmed_up(Leadership::resign).await
}

/// Counts a session's traffic except the meter's own requests.
struct Meter<'a> {
    world: &'a World,
    session: Session,
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

    /// Waits until nothing is in flight, and returns the traffic so far.
    async fn read(&mut self) -> Cost {
        loop {
            let before = self.world.traffic_of(&self.session);
            self.session.exists(&path(LOCK)).await.unwrap();
            tokio::task::yield_now().await;
            let after = self.world.traffic_of(&self.session);
            let between = after - before;
            self.own.0 += 1;
            self.own.2 += 2 * 64 + LOCK.len() as u64;
            if (
                between.requests(RequestKind::Any),
                between.replies,
                between.events,
            ) == (1, 1, 0)
            {
                return since(self.own, cost(after));
            }
        }
    }
}

fn since(before: Cost, after: Cost) -> Cost {
    (after.0 - before.0, after.1 - before.1, after.2 - before.2)
}

/// The cheapest hand-over in a line of this size, for the candidates and for an observer.
async fn cost_of_a_hand_over(world: &World, candidates: usize) -> [Cost; 2] {
    let client = world.client().await;
    let mut line = line(&client, candidates).await;
    let watching = election(world).await;
    let mut changes = watching.observe();
    next(&mut changes).await;
    let mut standing = Meter::of(world, client.current_session());
    let mut seeing = Meter::of(world, watching.client().current_session());
    let mut costs = Vec::new();
    for _ in 0..HAND_OVERS {
        let before = (standing.read().await, seeing.read().await);
        line.hand_over(Leadership::resign).await;
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
        let has_index = world.env.has_index();
        let mut costs = Vec::new();
        for &candidates in sizes(&world.env) {
            costs.push(cost_of_a_hand_over(&world, candidates).await);
        }
        for who in [0, 1] {
            let each: Vec<_> = costs.iter().map(|cost| cost[who]).collect();
            assert_flat(&each, 16);
        }
        // The resignation and the watch on the new leader's znode. On ZooKeeper the new leader also looks at the queue.
        let asked = if has_index { 2 } else { 3 };
        assert_eq!((costs[0][0].0, costs[0][0].1), (asked, 1), "{costs:?}");
        // The observer reads the next leader. In memory it first asks which entry leads.
        let looks = if has_index { 3 } else { 2 };
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
