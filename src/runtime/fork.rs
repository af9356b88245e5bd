//! Detection of a fork without exec.
//!
//! A forked child gets a copy of every handle, but none of the threads behind the handles. Without a check, parent and
//! child would both believe that they hold the same locks. Therefore every handle in the child returns errors, no lock
//! counts as held, and dropped handles send nothing to the store (invariant 5).

use std::sync::LazyLock;

/// Counts forks with a `pthread_atfork` handler. A check takes two loads and no system call.
static FIRST_USE: LazyLock<forkguard::Guard> = LazyLock::new(forkguard::new);

/// Returns true in a process that was forked after its parent had used this library.
#[inline]
pub(crate) fn is_forked() -> bool {
    // Clone the guard, because a guard reports each fork only once.
    FIRST_USE.clone().detected_fork()
}
