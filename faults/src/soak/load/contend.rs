//! Contenders for the locks that all clients of a store share.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper::{Client, LockError};

use super::{Load, violation};
use crate::keys;
use crate::random::Random;
use crate::recipe::{Held, Recipe, Way, wait_for_all};
use crate::soak::gate::{Closed, Part, Stay};

/// Keys of each contender of a client. The last one takes several at once.
pub(super) const KEYS: [&[&str]; 7] = [
    &["mutex-0"],
    &["mutex-1"],
    &["rwlock"],
    &["rwlock"],
    &["semaphore"],
    &["election"],
    &["mutex-0", "mutex-1"],
];

/// Contends until the load is over.
pub(super) async fn contend(
    load: Arc<Load>,
    client: Client,
    keys: &'static [&'static str],
    mut random: Random,
) {
    load.tally.contender_begins();
    while !load.is_finishing() {
        tokio::time::sleep(random.below_ms(30)).await;
        let began = Instant::now();
        match wait(&client, keys, &mut random).await {
            Ok(Some(held)) => {
                load.tally.granted(began.elapsed());
                hold(&load, keys, held, &mut random).await;
            }
            Ok(None) | Err(LockError::Timeout { .. }) => load.tally.add(&load.tally.cancelled, 1),
            Err(error) => load.failed("a wait", &error),
        }
    }
    load.tally.contender_ends();
}

async fn wait(
    client: &Client,
    keys: &[&str],
    random: &mut Random,
) -> Result<Option<Held>, LockError> {
    let clock = client.clock().clone();
    let way = match Way::draw(random) {
        // Of some thousand grants a second these are dropped in the queue, and not after it.
        Way::Dropped(limit) => Way::Dropped(limit / 20),
        way => way,
    };
    match keys {
        [key] => {
            let recipe = keys::recipe(key).expect("contenders know their keys");
            let path = keys::path(key);
            recipe
                .wait((client, &path, &mut None), way, random, &clock)
                .await
        }
        keys => {
            let paths: Vec<_> = keys.iter().map(|key| keys::path(key)).collect();
            let paths: Vec<_> = paths.iter().map(String::as_str).collect();
            wait_for_all(client, &paths, way, &clock).await
        }
    }
}

/// Uses the resources for a moment, and lets the lock go, which some do by a drop.
async fn hold(load: &Load, keys: &[&str], held: Held, random: &mut Random) {
    let Some(held) = stay(load, keys, held, random).await else {
        return;
    };
    // Nobody is at the resource meanwhile: readers are granted as soon as a writer becomes one.
    let held = match held.is_convertible() && random.once_in(4) {
        true => match held.converted().await {
            Ok((held, _)) => match stay(load, keys, held, random).await {
                Some(held) => held,
                None => return,
            },
            Err(error) => return load.failed("a conversion", &error),
        },
        false => held,
    };
    match random.within(0..3) {
        0 => drop(held),
        1 => drop(held.release()),
        _ => drop(held.release().await),
    }
}

/// Stays at the resources. Returns the guard, unless it is lost.
async fn stay(load: &Load, keys: &[&str], held: Held, random: &mut Random) -> Option<Held> {
    if !held.is_held() {
        load.tally.add(&load.tally.losses, 1);
        return None;
    }
    let stay = enter(load, keys, &held);
    let mut is_held = true;
    for _ in 0..random.within(1..4) {
        tokio::time::sleep(random.below_ms(4)).await;
        is_held = held.is_held();
        if !is_held {
            break;
        }
    }
    drop(stay);
    if !is_held {
        load.tally.add(&load.tally.losses, 1);
        return None;
    }
    Some(held)
}

/// Enters the resources of all keys, and takes note of others that are there.
fn enter(load: &Load, keys: &[&str], held: &Held) -> Vec<Stay> {
    let part = match held {
        Held::Permit(permit) => Part::Permits(permit.count(), permits(keys[0])),
        Held::Read(_) => Part::Shared,
        _ => Part::Exclusive,
    };
    let token = held.token();
    let enter = |key: &&str| match load.gate.enter(key, part, token) {
        Ok(Ok(stay)) => Some(stay),
        Ok(Err(closed)) => {
            eprintln!(
                "{}: {closed:?} at {key}, {part:?} with token {token}",
                load.name
            );
            let counter = match closed {
                Closed::Conflict => &load.tally.conflicts,
                Closed::Refused => &load.tally.refused,
            };
            load.tally.add(counter, 1);
            None
        }
        Err(error) => broken(&error),
    };
    keys.iter().filter_map(enter).collect()
}

fn broken(error: &io::Error) -> Option<Stay> {
    violation(&format!("error: a resource cannot be used: {error}"));
    None
}

fn permits(key: &str) -> u32 {
    match keys::recipe(key) {
        Some(Recipe::Semaphore { permits }) => permits,
        _ => 1,
    }
}

/// Pause between two turns of a task that could go on at once.
pub(super) async fn rest(random: &mut Random, longest_ms: u64) {
    tokio::time::sleep(Duration::from_millis(1) + random.below_ms(longest_ms)).await;
}
