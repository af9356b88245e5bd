//! The kill harness: a process under test is killed (SIGKILL) at a random moment, again and again, over the same
//! store. Tests of both packages use it; each supplies the work of the process, and the check of its results.

use std::path::Path;
use std::time::Duration;

use crate::{Random, scaled};

/// Number of lives in a full test of this kind: 20, or 100 with `tests/run --full`.
pub fn lives() -> u64 {
    scaled(20).min(100)
}

/// Returns the seed of a run: `LOCKKEEPER_KILL_SEED`, or this one. Children inherit the variable.
pub fn kill_seed(otherwise: u64) -> u64 {
    match std::env::var("LOCKKEEPER_KILL_SEED") {
        Ok(seed) => seed.parse().expect("LOCKKEEPER_KILL_SEED is a number"),
        Err(_) => otherwise,
    }
}

/// Moment at which a process is killed.
#[derive(Clone, Copy, Debug)]
pub enum KillPoint {
    /// So long after its start: in the middle of opening the store, or soon after. Here alone a test sleeps for a
    /// time: the kill may hit any moment, so no event is to be waited for.
    Start(Duration),
    /// After so many reports of acknowledged work.
    Reports(u64),
}

impl KillPoint {
    /// One in four is a [`Start`](Self::Start), within the given time; the others come after fewer than `reports`.
    pub fn random(dice: &mut Random, start: Duration, reports: u64) -> Self {
        match dice.below(4) {
            0 => Self::Start(Duration::from_micros(dice.below(start.as_micros() as u64))),
            _ => Self::Reports(dice.below(reports)),
        }
    }
}

/// Writes the history of a run to a file if the test fails, so that one can see why.
pub struct KeepOnFailure<F: FnMut(&Path)>(pub F);

impl<F: FnMut(&Path)> Drop for KeepOnFailure<F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let name = format!("kill-{}.history", std::process::id());
            let path = crate::target_tmp().join(name);
            (self.0)(&path);
            eprintln!("the history of the run is in {}", path.display());
        }
    }
}
