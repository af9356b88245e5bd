//! Every contender gets its turn in order of arrival, however hard the others try.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use lockkeeper::{FencingToken, Mutex};
use parking_lot::Mutex as Cell;
use testkit::on_every_backend;
use tokio::task::yield_now;

use crate::common::*;

const CONTENDERS: usize = 6;
const ROUNDS: usize = 15;

type Turns = Arc<Cell<Vec<(Who, FencingToken)>>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Contender(usize),
    Barger,
}

/// Tries for the lock repeatedly without ever queueing, until stopped.
async fn barge(mutex: Mutex, turns: Turns, stop: Arc<AtomicBool>) -> usize {
    let mut tries = 0;
    while !stop.load(Ordering::SeqCst) {
        if let Some(guard) = mutex.try_lock().await.unwrap() {
            turns.lock().push((Who::Barger, guard.fencing_token()));
            guard.release().await.unwrap();
        }
        tries += 1;
        yield_now().await;
    }
    tries
}

on_every_backend! {
    async fn under_constant_contention_the_turns_go_round_and_no_try_comes_between(env: Env) {
        let world = World::new(env).await;
        let turns = Turns::default();
        let left = Arc::new(AtomicUsize::new(CONTENDERS));
        let over = Arc::<AtomicBool>::default();
        let first = world.mutex().await.lock().await.unwrap();

        let mut contenders = Vec::new();
        for me in 0..CONTENDERS {
            let (mutex, observing) = (world.mutex().await, world.observing().await);
            let (turns, left) = (turns.clone(), left.clone());
            contenders.push(tokio::spawn(async move {
                for round in 1..=ROUNDS {
                    let guard = mutex.lock().await.unwrap();
                    turns.lock().push((Who::Contender(me), guard.fencing_token()));
                    // Every contender with rounds left is queued before this one leaves the queue.
                    let all = left.load(Ordering::SeqCst);
                    until(&observing, LOCK, |names| names.len() >= all).await;
                    if round == ROUNDS {
                        left.fetch_sub(1, Ordering::SeqCst);
                    }
                    guard.release().await.unwrap();
                }
            }));
        }
        world.until_count(1 + CONTENDERS).await;
        let barger = tokio::spawn(barge(world.mutex().await, turns.clone(), over.clone()));
        first.release().await.unwrap();
        for contender in contenders {
            contender.await.unwrap();
        }
        over.store(true, Ordering::SeqCst);
        assert!(barger.await.unwrap() > 0, "it did try");

        world.until_count(0).await;
        let turns = turns.lock();
        let (contended, after) = turns.split_at(CONTENDERS * ROUNDS);
        for (turn, (who, _)) in contended.iter().enumerate() {
            assert_eq!(*who, contended[turn % CONTENDERS].0, "turn {turn} of {turns:?}");
        }
        assert!(after.iter().all(|(who, _)| *who == Who::Barger), "{turns:?}");
        // Tokens follow the order of arrival, so no contender was overtaken.
        assert!(turns.is_sorted_by_key(|(_, token)| *token), "{turns:?}");
    }

    async fn immediate_relocking_starves_no_waiter(env: Env) {
        let world = World::new(env).await;
        let granted = Arc::new(Cell::new(Vec::new()));
        let over = Arc::<AtomicBool>::default();
        let first = world.mutex().await.lock().await.unwrap();
        granted.lock().push(first.fencing_token());
        let mut greedy = Vec::new();
        for _ in 0..4 {
            let (mutex, granted, over) = (world.mutex().await, granted.clone(), over.clone());
            greedy.push(tokio::spawn(async move {
                let mut turns = 0;
                while !over.load(Ordering::SeqCst) {
                    let guard = mutex.lock().await.unwrap();
                    granted.lock().push(guard.fencing_token());
                    turns += 1;
                    // In memory nothing else would make it yield.
                    yield_now().await;
                    drop(guard);
                }
                turns
            }));
        }
        world.until_count(5).await;
        first.release().await.unwrap();
        // Ends only if each modest one gets in while the greedy never pause.
        for _ in 0..20 {
            let modest = world.mutex().await;
            let guard = modest.lock().await.unwrap();
            granted.lock().push(guard.fencing_token());
            guard.release().await.unwrap();
        }
        over.store(true, Ordering::SeqCst);
        for greedy in greedy {
            let turns: u32 = greedy.await.unwrap();
            assert!(turns > 0, "each of the greedy had a turn, too");
        }
        assert!(granted.lock().is_sorted(), "nobody was overtaken");
        world.until_count(0).await;
    }

    async fn cancelled_waiters_move_no_other_back(env: Env) {
        let world = World::new(env).await;
        let holder = world.mutex().await.lock().await.unwrap();
        let mut quitters = Vec::new();
        for _ in 0..3 {
            quitters.push(world.queue_up(&world.mutex().await).await);
        }
        let patient = world.queue_up(&world.mutex().await).await;
        for _ in 0..3 {
            quitters.push(world.queue_up(&world.mutex().await).await);
        }
        for quitter in quitters {
            quitter.abort();
        }
        world.until_count(2).await;
        let newcomer = world.queue_up(&world.mutex().await).await;
        holder.release().await.unwrap();
        let patient = granted(patient).await;
        assert!(!newcomer.is_finished(), "it came later");
        patient.release().await.unwrap();
        granted(newcomer).await.release().await.unwrap();
        world.until_count(0).await;
    }
}
