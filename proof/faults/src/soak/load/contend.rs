//! Contenders for the locks that all clients of a store share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper::{Client, LockError};
use testkit::Random;
use testkit::contender::{Stays, enter, wait};
use testkit::recipe::{AcquireMode, Held};
use testkit::resource::{Closed, CriticalSection};

use super::{Load, violation};

pub(super) struct Contender {
    pub(super) load: Arc<Load>,
    pub(super) client: Client,
    pub(super) keys: &'static [&'static str],
}

impl Contender {
    pub(super) async fn contend(mut self, mut random: Random) {
        let load = self.load.clone();
        load.tally.contender_begins();
        while !load.is_finishing() {
            tokio::time::sleep(random.below_ms(30)).await;
            let way = match AcquireMode::draw(&mut random) {
                // With thousands of grants per second, only a shorter limit drops waits while they are still queued.
                AcquireMode::Dropped(limit) => AcquireMode::Dropped(limit / 20),
                way => way,
            };
            let start = Instant::now();
            match wait(&self.client, self.keys, way, &mut random).await {
                Ok(Some(held)) => {
                    load.tally.granted(start.elapsed());
                    // Use no resource during a conversion, because readers are granted when a writer downgrades.
                    if let Err(error) = self.hold(held, &mut random).await {
                        load.failed("a conversion", &error);
                    }
                }
                Ok(None) | Err(LockError::Timeout { .. }) => {
                    load.tally.add(&load.tally.cancelled, 1)
                }
                Err(error) => load.failed("a wait", &error),
            }
        }
        load.tally.contender_ends();
    }
}

impl Stays for Contender {
    async fn stay(&mut self, held: Held, random: &mut Random) -> Option<Held> {
        let mut is_held = held.is_held();
        let stay = is_held.then(|| enter_all(&self.load, self.keys, &held));
        for _ in 0..random.within(1..4) {
            if !is_held {
                break;
            }
            tokio::time::sleep(random.below_ms(4)).await;
            is_held = held.is_held();
        }
        drop(stay);
        if !is_held {
            let tally = &self.load.tally;
            tally.add(&tally.losses, 1);
        }
        is_held.then_some(held)
    }
}

/// Enters the resources of all keys, and counts conflicts.
fn enter_all(load: &Load, keys: &[&str], held: &Held) -> Vec<CriticalSection> {
    enter(&load.gate, keys, held, |key, closed| {
        let counter = match closed {
            Ok(Closed::Conflict) => &load.tally.conflicts,
            Ok(Closed::Refused) => &load.tally.refused,
            Err(error) => return violation(&format!("error: no use of a resource: {error}")),
        };
        eprintln!("{}: {closed:?} at {key}, token {}", load.name, held.token());
        load.tally.add(counter, 1);
    })
}

/// Pause between two turns of a task.
pub(super) async fn rest(random: &mut Random, longest_ms: u64) {
    tokio::time::sleep(Duration::from_millis(1) + random.below_ms(longest_ms)).await;
}
