//! Hand-overs between all sides take equal requests and bytes for a thousand waiters as for two, and as few wakes as
//! possible.

use std::time::{Duration, Instant};

use lockkeeper::testing::{RequestKind, Traffic};
use lockkeeper::{Client, Guard};
use testkit::on_every_backend;

use super::*;
use crate::harness::costs::{self, Cost, HAND_OVERS, assert_flat, cost, sizes};

type Queue = costs::Queue<(Side, Guard)>;

async fn queue(client: &Client, sides: impl IntoIterator<Item = Side>) -> Queue {
    let lock = lock_of(client);
    let held = vec![(Write, take(&lock, Write).await)];
    let waits = sides.into_iter().map(|side| {
        let lock = lock.clone();
        async move {
            let guard = match side {
                Read => lock.read().await?.into_guard(),
                Write => lock.write().await?.into_guard(),
            };
            Ok((side, guard))
        }
    });
    Queue::of(&client.current_session(), LOCK, held, waits).await
}

impl Queue {
    async fn hand_over_to(&mut self, to: Side, count: usize) {
        for (_, holder) in self.held.drain(..) {
            holder.release().await.unwrap();
        }
        for _ in 0..count {
            let granted = self.next().await;
            assert_eq!(granted.0, to);
            self.held.push(granted);
        }
        // Readers learn of their grants in any order, but are released in queue order.
        self.held.sort_by_key(|(_, holder)| holder.fencing_token());
    }
}

async fn quiet(world: &World, client: &Client) -> Traffic {
    costs::quiet(world, &client.current_session()).await
}

/// The cheapest hand-overs to these sides in turn, with `behind` more waiters.
async fn costs(world: &World, to: [(Side, usize); 2], behind: usize) -> [Cost; 2] {
    let client = world.client().await;
    let turn = to.map(|(side, count)| vec![side; count]).concat();
    let sides = turn.repeat(1 + HAND_OVERS).into_iter();
    let mut queue = queue(&client, sides.chain(vec![Write; behind])).await;
    let mut cheapest = [(u64::MAX, 0, 0); 2];
    for round in 0..1 + HAND_OVERS {
        for (place, (side, count)) in to.into_iter().enumerate() {
            let before = quiet(world, &client).await;
            queue.hand_over_to(side, count).await;
            let cost = cost(world.traffic_of(&client) - before);
            assert_eq!(
                cost.1, count as u64,
                "each wakes once, of {behind} behind them nobody"
            );
            // The first one did not wait, so it knows no mark.
            if round > 0 {
                cheapest[place] = cheapest[place].min(cost);
            }
        }
    }
    client.close().await.unwrap();
    world.until_count(0).await;
    cheapest
}

/// Asserts that a cost does not depend on the number of waiters. Returns its requests.
fn flat(costs: &[Cost]) -> u64 {
    assert_flat(costs, 32 * costs[0].0).0
}

on_every_backend! {
    async fn a_hand_over_from_each_side_to_each_costs_the_same_however_many_wait(env: Env) {
        let world = World::new(env).await;
        // A store with an index notifies the next one. Without an index each waiter has to look.
        let (looks, of_asking) = if world.env.has_index() { (0, 1) } else { (1, 3) };
        let turns = [[(Write, 1), (Write, 1)], [(Read, 1), (Write, 1)], [(Read, 3), (Write, 1)]];
        for to in turns {
            let mut all = [Vec::new(), Vec::new()];
            for &behind in sizes(&world.env) {
                for (place, cost) in costs(&world, to, behind).await.into_iter().enumerate() {
                    all[place].push(cost);
                }
            }
            let [first, second] = all.map(|costs| flat(&costs));
            match to {
                [(Write, _), _] => assert_eq!([first, second], [1 + looks; 2], "the release, and a look"),
                [(_, readers), _] => {
                    assert_eq!(first, 1 + looks * readers as u64, "the release, and a look of each reader");
                    // The release of the last of them. Each of the others may have been watched too.
                    let releases = readers as u64;
                    assert_eq!(second, releases - 1 + of_asking, "a look, and who is there");
                }
            }
        }
    }

    async fn readers_wake_together_once_each_and_no_waiter_behind_the_next_writer(env: Env) {
        let world = World::new(env).await;
        for &readers in sizes(&world.env) {
            let client = world.client().await;
            let near = vec![Read; readers];
            let sides = near.into_iter().chain([Write]).chain(vec![Read; 50]);
            let mut queue = queue(&client, sides).await;
            let before = quiet(&world, &client).await;
            queue.hand_over_to(Read, readers).await;
            let cost = quiet(&world, &client).await - before;
            assert_eq!(cost.events, readers as u64);
            queue.hand_over_to(Write, 1).await;
            queue.hand_over_to(Read, 50).await;
            client.close().await.unwrap();
            world.until_count(0).await;
        }
    }

    async fn a_writer_behind_readers_wakes_at_max_once_for_each(env: Env) {
        let world = World::new(env).await;
        for readers in [2, 30, 300] {
            for order in [Order::NearestFirst, Order::FarthestFirst, Order::Mixed] {
                let mut holders = Vec::new();
                let reading = lock(&world).await;
                for _ in 0..readers {
                    holders.push(take(&reading, Read).await);
                }
                let waiting = lock(&world).await;
                let writer = queue_up(&world, &waiting, Write).await;
                let before = quiet(&world, waiting.client()).await;
                order.apply(&mut holders);
                for holder in holders {
                    assert!(!writer.is_finished());
                    holder.release().await.unwrap();
                    if order != Order::Mixed {
                        settled(&world, std::slice::from_ref(&waiting)).await;
                    }
                }
                let writer = granted(writer).await;
                let events = (world.traffic_of(waiting.client()) - before).events;
                match order {
                    Order::FarthestFirst => assert_eq!(events, 1),
                    Order::NearestFirst | Order::Mixed => assert!((1..=readers as u64).contains(&events), "{events}"),
                }
                writer.release().await.unwrap();
                world.until_count(0).await;
            }
        }
    }

    async fn a_writer_after_its_last_reader_does_not_list_waiters_behind_it(env: Env) {
        let world = World::new(env).await;
        let cost = loop {
            let started = Instant::now();
            let cost = cost_after_last_reader(&world, 100).await;
            // After 10 s, a waiter also looks whether it waits for itself.
            if started.elapsed() < Duration::from_secs(10) {
                break cost;
            }
        };
        assert_eq!(cost.events, 1);
        assert_eq!(cost.requests(RequestKind::GetChildren) + cost.requests(RequestKind::Enqueue), 0);
        if world.env.has_index() {
            assert_eq!(cost.requests(RequestKind::Any), 0, "it is told");
        } else {
            assert_eq!(cost.requests(RequestKind::GetPredecessor), 0, "that lists all names");
            assert_eq!(cost.requests(RequestKind::MultiRead), 3, "itself, the nearest 8, the others");
        }
    }
}

/// The traffic of a writer from the release of the first of 40 readers to its grant, with `behind` more waiters.
async fn cost_after_last_reader(world: &World, behind: usize) -> Traffic {
    let (reading, waiting) = (lock(world).await, lock(world).await);
    let mut readers = Vec::new();
    for _ in 0..40 {
        readers.push(take(&reading, Read).await);
    }
    let writer = queue_up(world, &waiting, Write).await;
    let others = world.client().await;
    let before = world.children().await.len();
    for _ in 0..behind {
        let lock = lock_of(&others);
        tokio::spawn(async move { lock.write().await.map(drop) });
    }
    world.until_count(before + behind).await;
    let traffic = quiet(world, waiting.client()).await;
    // The writer watches the last of them.
    for reader in readers {
        reader.release().await.unwrap();
    }
    let writer = granted(writer).await;
    let cost = world.traffic_of(waiting.client()) - traffic;
    others.close().await.unwrap();
    writer.release().await.unwrap();
    world.until_count(0).await;
    cost
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    NearestFirst,
    FarthestFirst,
    Mixed,
}

impl Order {
    fn apply(self, holders: &mut [Guard]) {
        match self {
            Self::NearestFirst => holders.reverse(),
            Self::FarthestFirst => {}
            Self::Mixed => {
                let (half, len) = (holders.len() / 2, holders.len());
                for at in (0..half).step_by(2) {
                    holders.swap(at, len - 1 - at);
                }
            }
        }
    }
}
