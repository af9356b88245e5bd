//! Scenes: hand-overs between the modes of a recipe.

use lockkeeper::{Client, LockGuard};

use crate::common::recipes::{BenchLock, Side};
use crate::line::{Leaving, Line};
use crate::meter::{Cost, Ground};

/// Number of contenders of a turn: one, or the size of the case.
#[derive(Clone, Copy)]
enum Count {
    One,
    N,
}

impl Count {
    fn at(self, n: usize) -> usize {
        match self {
            Self::One => 1,
            Self::N => n,
        }
    }
}

/// A measured hand-over and the ones that precede it.
pub(crate) struct Scene {
    pub(crate) suffix: &'static str,
    /// Number of initial holders, taken as writers.
    holders: usize,
    /// The next holders, turn by turn. Only the last turn is measured.
    turns: &'static [(Side, Count)],
    is_newest_first: bool,
}

pub(crate) const PERMITS: u32 = 3;

/// Number of measured hand-overs. Several, because a renewal of the session may fall into one.
const HAND_OVERS: usize = 5;

/// The same where each hand-over is to or from `n` holders.
const HAND_OVERS_OF_N: usize = 2;

/// Number of unmeasured hand-overs first. A holder that never waited leaves no release marker, so its hand-over
/// differs.
const WARM_UP: usize = 2;

const READ: (Side, Count) = (Side::Read, Count::One);
const WRITE: (Side, Count) = (Side::Write, Count::One);
const READERS: (Side, Count) = (Side::Read, Count::N);

impl Scene {
    /// From one to the next, while `n` wait behind.
    pub(crate) const ONE_BY_ONE: Self = Self::between("", &[WRITE]);

    /// The oldest of several holders makes room for the next, while `n` wait behind.
    pub(crate) const OF_SEMAPHORE: Self = Self {
        holders: PERMITS as usize,
        ..Self::ONE_BY_ONE
    };

    /// Single ones while `n` wait behind, then `n` readers together.
    pub(crate) const OF_RWLOCK: [Self; 6] = [
        Self::between(" write to write", &[WRITE]),
        Self::between(" write to read", &[WRITE, READ]),
        Self::between(" read to write", &[READ, WRITE]),
        Self::between(" write to n readers", &[WRITE, READERS]),
        Self::between(" n readers to write, oldest first", &[READERS, WRITE]),
        Self {
            is_newest_first: true,
            ..Self::between(" n readers to write, newest first", &[READERS, WRITE])
        },
    ];

    const fn between(suffix: &'static str, turns: &'static [(Side, Count)]) -> Self {
        Self {
            suffix,
            holders: 1,
            turns,
            is_newest_first: false,
        }
    }

    /// Returns the cost of the cheapest hand-over, measured until nothing is in flight.
    pub(crate) async fn hand_over<S: BenchLock>(
        &self,
        ground: &Ground,
        client: &Client,
        subject: &S,
        n: usize,
    ) -> Cost {
        let mut line = Line::held_by(subject, self.holders).await;
        let (warm_up, rounds, behind) = self.rounds(n);
        for (side, count) in self.turns.repeat(rounds) {
            line.queue_up(side, count.at(n)).await;
        }
        line.queue_up(Side::Write, behind).await;
        let mut meter = ground.meter(client);
        let (mut leaving, mut cheapest) = (1, None);
        for round in 0..rounds {
            for (turn, (side, count)) in self.turns.iter().enumerate() {
                let is_last = turn == self.turns.len() - 1;
                let who = match is_last && self.is_newest_first {
                    true => Leaving::NewestFirst,
                    false => Leaving::OldestFirst(leaving),
                };
                leaving = count.at(n);
                let before = meter.read().await;
                line.hand_over(who, (*side, leaving), &mut meter).await;
                let cost = meter.read().await - before;
                if is_last && round >= warm_up {
                    cheapest = Some(cheapest.map_or(cost, |least: Cost| least.min(cost)));
                }
            }
        }
        line.end().await;
        cheapest.expect("some are measured")
    }

    /// Returns the numbers of unmeasured rounds, of all rounds, and of waiters behind them.
    fn rounds(&self, n: usize) -> (usize, usize, usize) {
        match self
            .turns
            .iter()
            .any(|(_, count)| matches!(count, Count::N))
        {
            true => (1, 1 + HAND_OVERS_OF_N, 0),
            false => (WARM_UP, WARM_UP + HAND_OVERS, n),
        }
    }
}

/// Returns the costs of the cheapest acquire of a free lock and of the cheapest release.
pub(crate) async fn when_free<S: BenchLock>(
    ground: &Ground,
    client: &Client,
    subject: &S,
    side: Side,
) -> [Cost; 2] {
    let mut meter = ground.meter(client);
    let (mut acquires, mut releases) = (Vec::new(), Vec::new());
    // The first acquire also creates the missing parents, so it is not measured.
    let free = subject.take(side).await.expect("granted");
    free.release().await.expect("released");
    for _ in 0..HAND_OVERS {
        let before = meter.read().await;
        let held = subject.take(side).await.expect("granted");
        let taken = meter.read().await;
        held.release().await.expect("released");
        acquires.push(taken - before);
        releases.push(meter.read().await - taken);
    }
    [acquires, releases].map(|costs| costs.into_iter().min().expect("there are several"))
}
