//! [`Tree`]: the processes of a command, its grandchildren included, wherever they have moved.
//!
//! Under Linux the reaper is their *subreaper*, and guardian and front are above it: a process whose parent has ended
//! becomes a child of the nearest of them that lives. Elsewhere the tree is the process group.

#[cfg(target_os = "linux")]
mod cgroup;
#[cfg(target_os = "linux")]
mod descendants;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use lockkeeper_store::Clock;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process_group, wait};

/// Interval at which processes are killed again that were forked while their parents died.
pub(super) const KILL_AGAIN: Duration = Duration::from_millis(50);

/// The same in [`Tree::end`]. Shorter than a guardian's pause before it starts the server of the user's own store again: that
/// server is among the processes that are killed, if the guardian has started it.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The processes of a command, as seen by a process above it.
pub(super) struct Tree {
    group: Pid,
    #[cfg(target_os = "linux")]
    cgroup: Option<cgroup::Cgroup>,
    /// Children of this process that are no part of the command.
    #[cfg(target_os = "linux")]
    others: Vec<Pid>,
}

impl Tree {
    pub(super) fn group(&self) -> Pid {
        self.group
    }
}

#[cfg(target_os = "linux")]
impl Tree {
    /// The tree of a command that has just been started and not executed yet. It is given a cgroup where that is
    /// possible: the kernel kills all processes of one in one step, also those that fork all the time.
    ///
    /// # Errors
    /// There is no cgroup, and /proc does not tell which processes to kill.
    pub(super) fn of_new(group: Pid) -> io::Result<Self> {
        let cgroup = cgroup::Cgroup::create(group).ok();
        if cgroup.is_none() {
            descendants::can_be_seen()?;
        }
        Ok(Self {
            group,
            cgroup,
            others: Vec::new(),
        })
    }

    /// The tree of a command that another process has started, without these children of this process.
    pub(super) fn known(group: Pid, cgroup: Option<PathBuf>, others: Vec<Pid>) -> Self {
        Self {
            group,
            cgroup: cgroup.map(cgroup::Cgroup::at),
            others,
        }
    }

    /// Returns the directory of the cgroup.
    pub(super) fn cgroup(&self) -> Option<PathBuf> {
        self.cgroup.as_ref().map(|cgroup| cgroup.path().to_owned())
    }

    /// Sends a signal to all processes, to those of the group in one step. One that has ended does not mind.
    pub(super) fn signal(&self, signal: Signal) {
        let (mut is_group_left, mut apart) = (false, Vec::new());
        for process in descendants::without(&self.others) {
            // The number of a group that has ended may be another's by now.
            match rustix::process::getpgid(Some(process)) == Ok(self.group) {
                true => is_group_left = true,
                false => apart.push(process),
            }
        }
        if is_group_left {
            self.signal_group(signal);
        }
        for process in apart {
            // It has ended, or belongs to another user.
            let _ = rustix::process::kill_process(process, signal);
        }
    }

    /// Kills all processes. Those that a dying one has just forked may be left: to be called until the tree is empty.
    pub(super) fn kill(&self) {
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
        self.signal(Signal::KILL);
    }

    /// Returns true if no process is left.
    pub(super) fn is_empty(&self, children: &Children) -> bool {
        match children {
            Children::None => true,
            // All of them are known to be others, or none is.
            Children::Some => {
                !self.others.is_empty() && descendants::without(&self.others).is_empty()
            }
            Children::PerhapsMore => false,
        }
    }
}

#[cfg(not(target_os = "linux"))]
impl Tree {
    pub(super) fn of_new(group: Pid) -> io::Result<Self> {
        Ok(Self { group })
    }

    pub(super) fn known(group: Pid, _cgroup: Option<PathBuf>, _others: Vec<Pid>) -> Self {
        Self { group }
    }

    pub(super) fn cgroup(&self) -> Option<PathBuf> {
        None
    }

    pub(super) fn signal(&self, signal: Signal) {
        self.signal_group(signal);
    }

    pub(super) fn kill(&self) {
        self.signal_group(Signal::KILL);
    }

    pub(super) fn is_empty(&self, _children: &Children) -> bool {
        rustix::process::test_kill_process_group(self.group) == Err(rustix::io::Errno::SRCH)
    }
}

impl Tree {
    /// Sends a signal to the process group alone.
    pub(super) fn signal_group(&self, signal: Signal) {
        // An error: all have ended.
        let _ = kill_process_group(self.group, signal);
    }

    /// Kills all processes until none is left, the reaper included, whose place the caller takes.
    pub(super) async fn end(&self, clock: &Clock) {
        loop {
            self.kill();
            if self.is_empty(&reap(|_, _| ())) {
                return;
            }
            clock.sleep(LOOK_AGAIN).await;
        }
    }
}

/// Makes this process the new parent of all its descendants whose parents end.
pub(super) fn adopt_orphans() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(())
}

/// Checks that a command could be ended, whatever processes it starts.
///
/// # Errors
/// A sentence for the user.
pub(super) fn can_be_ended() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    descendants::can_be_seen().or_else(|error| {
        let created = cgroup::Cgroup::empty(rustix::process::getpid());
        created.map(drop).map_err(|_| error)
    })?;
    Ok(())
}

/// Returns the children of this process.
pub(super) fn children() -> Vec<Pid> {
    #[cfg(target_os = "linux")]
    return descendants::children();
    #[cfg(not(target_os = "linux"))]
    return Vec::new();
}

/// The children of this process that have not ended, after a look at them.
pub(super) enum Children {
    None,
    Some,
    /// The look was cut short.
    PerhapsMore,
}

/// Children that one look waits for at most: some that end all the time must not keep this process from anything else.
const MOST_IN_A_LOOK: usize = 64;

/// Waits for the children that have ended, or were stopped, without waiting for one that has not.
pub(super) fn reap(mut changed: impl FnMut(Pid, WaitStatus)) -> Children {
    for _ in 0..MOST_IN_A_LOOK {
        match rustix::io::retry_on_intr(|| wait(ALL)) {
            Ok(Some((pid, status))) => changed(pid, status),
            Ok(None) => return Children::Some,
            Err(_) => return Children::None,
        }
    }
    Children::PerhapsMore
}

/// Stopped children, too, and under Linux those whose end sends no SIGCHLD (`__WALL`).
#[cfg(target_os = "linux")]
const ALL: WaitOptions = WaitOptions::from_bits_retain(
    WaitOptions::NOHANG.bits() | WaitOptions::UNTRACED.bits() | 0x4000_0000,
);
#[cfg(not(target_os = "linux"))]
const ALL: WaitOptions = WaitOptions::NOHANG.union(WaitOptions::UNTRACED);
