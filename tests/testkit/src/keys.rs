//! The locks and registers that the workers share.

use lockkeeper::ZnodePath;

use crate::recipe::Recipe;

/// Locks by name. Curator's clients also contend for the mutexes, and `lock_all` takes both.
pub const LOCKS: [(&str, Recipe); 5] = [
    ("mutex-0", Recipe::Mutex),
    ("mutex-1", Recipe::Mutex),
    ("rwlock", Recipe::RwLock),
    ("semaphore", Recipe::Semaphore { permits: 3 }),
    ("election", Recipe::Election),
];

/// Number of concurrent registers. A small number makes the calls on each overlap.
pub const REGISTERS: u64 = 3;

/// Time in nanoseconds after which the workers switch to new registers, so that histories stay short enough to check.
pub const REGISTER_LIFE: u64 = 10_000_000_000;

/// Returns the recipe of a lock, or of the longer name that a worker uses by mistake.
pub fn recipe(key: &str) -> Option<Recipe> {
    let found = LOCKS.iter().find(|(name, _)| key.starts_with(name));
    found.map(|(_, recipe)| *recipe)
}

pub fn path(key: &str) -> String {
    format!("/{key}")
}

pub fn register(key: &str) -> ZnodePath {
    path(key).parse().expect("keys are parts of paths")
}
