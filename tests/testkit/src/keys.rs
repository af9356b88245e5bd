//! The locks and registers that the workers share.

use lockkeeper::ZnodePath;

use crate::recipe::Recipe;

/// Locks by name. Curator's clients contend for the mutexes, too, and `lock_all` takes both.
pub const LOCKS: [(&str, Recipe); 5] = [
    ("mutex-0", Recipe::Mutex),
    ("mutex-1", Recipe::Mutex),
    ("rwlock", Recipe::RwLock),
    ("semaphore", Recipe::Semaphore { permits: 3 }),
    ("election", Recipe::Election),
];

/// Number of registers at a time. Few, so that the calls on each are many and overlap.
pub const REGISTERS: u64 = 3;

/// Time in nanoseconds after which the workers go on to fresh registers: a history that is short enough to be checked.
pub const REGISTER_LIFE: u64 = 10_000_000_000;

/// Returns the recipe of a lock, and of one that a worker takes by mistake: its name is longer.
pub fn recipe(key: &str) -> Option<Recipe> {
    let found = LOCKS.iter().find(|(name, _)| key.starts_with(name));
    found.map(|(_, recipe)| *recipe)
}

/// Returns the path of a lock or of a register.
pub fn path(key: &str) -> String {
    format!("/{key}")
}

/// Returns the znode of a register.
pub fn register(key: &str) -> ZnodePath {
    path(key).parse().expect("keys are parts of paths")
}
