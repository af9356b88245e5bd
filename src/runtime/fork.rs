//! Detection of a fork without exec.
//!
//! The child has a copy of every handle, and none of the threads behind them: its timers never fire, its connections
//! are not read, and both processes would believe that they hold the same locks. So in the child every handle refuses,
//! no lock is believed to be held, and dropped handles send nothing to the store (invariant 5).

use std::sync::LazyLock;

/// Counter of forks from its first use on, by a handler of `pthread_atfork`: a check is two loads, not a system call.
static FIRST_USE: LazyLock<forkguard::Guard> = LazyLock::new(forkguard::new);

/// Returns true in a process that was forked from one which had used this library.
#[inline]
pub(crate) fn is_forked() -> bool {
    // A clone, since a guard reports each fork once.
    FIRST_USE.clone().detected_fork()
}
