//! [`Tree`]: all processes of a command, including descendants that have moved elsewhere.
//!
//! On Linux, the reaper is a *subreaper* of these processes, and so are the guardian and the front, which are its
//! ancestors. When a process of the command loses its parent, it becomes a child of the nearest subreaper that is
//! alive. On other systems, the tree is the process group of the command.

#[cfg(target_os = "linux")]
mod cgroup;
#[cfg(target_os = "linux")]
mod descendants;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use lockkeeper_store::Clock;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process_group, wait};

/// Interval between repeated kills. Repetition is necessary for processes that were forked while their parents died.
pub(super) const KILL_AGAIN: Duration = Duration::from_millis(50);

/// Interval between repeated kills in [`Tree::end`]. When the guardian calls it, the processes to kill include a server
/// of the per-user store that the guardian has started. The interval must be shorter than the guardian's delay before
/// it starts that server again. Otherwise, `end` could find a new server each time and would not return.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The processes of a command, as seen by a process above it.
pub(super) struct Tree {
    group: Pid,
    #[cfg(target_os = "linux")]
    cgroup: Option<cgroup::Cgroup>,
    /// Children of this process that do not belong to the command.
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
    /// Returns the tree of a command that has been started but not executed yet. Creates a cgroup if possible, because
    /// the kernel can kill all processes of a cgroup in one step, even if they keep forking.
    ///
    /// # Errors
    /// If there is no cgroup and /proc does not show which processes to kill.
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

    /// Returns the tree of a command that another process has started. `others` are children of this process that do
    /// not belong to the command.
    pub(super) fn known(group: Pid, cgroup: Option<PathBuf>, others: Vec<Pid>) -> Self {
        Self {
            group,
            cgroup: cgroup.map(cgroup::Cgroup::at),
            others,
        }
    }

    pub(super) fn cgroup(&self) -> Option<PathBuf> {
        self.cgroup.as_ref().map(|cgroup| cgroup.path().to_owned())
    }

    /// Sends a signal to all processes of the command. Members of the command's process group receive the signal in one
    /// step, and all others one by one. Ignores processes that have ended.
    pub(super) fn signal(&self, signal: Signal) {
        let (mut is_group_left, mut apart) = (false, Vec::new());
        for process in descendants::without(&self.others) {
            // Check each process, because the number of an ended group may belong to another group by now.
            match rustix::process::getpgid(Some(process)) == Ok(self.group) {
                true => is_group_left = true,
                false => apart.push(process),
            }
        }
        if is_group_left {
            self.signal_group(signal);
        }
        for process in apart {
            // Ignore an error, which means that the process has ended or belongs to another user.
            let _ = rustix::process::kill_process(process, signal);
        }
    }

    /// Kills all processes. Processes that were just forked may survive, so the caller must repeat this until the tree
    /// is empty.
    pub(super) fn kill(&self) {
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
        self.signal(Signal::KILL);
    }

    pub(super) fn is_empty(&self, children: &Children) -> bool {
        match children {
            Children::None => true,
            // Children are left. The tree is only empty if all of them are `others`. If `others` is empty, every child
            // belongs to the command.
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
    pub(super) fn signal_group(&self, signal: Signal) {
        // An error means that all processes of the group have ended.
        let _ = kill_process_group(self.group, signal);
    }

    /// Kills all processes until none is left. This includes the reaper, whose role the caller takes over.
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

/// Makes this process the parent of its orphaned descendants.
pub(super) fn adopt_orphans() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(())
}

/// Checks that we could end a command, whatever processes it starts. The error is a message for the user.
pub(super) fn can_be_ended() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    descendants::can_be_seen().or_else(|error| {
        let created = cgroup::Cgroup::empty(rustix::process::getpid());
        created.map(drop).map_err(|_| error)
    })?;
    Ok(())
}

pub(super) fn children() -> Vec<Pid> {
    #[cfg(target_os = "linux")]
    return descendants::children();
    #[cfg(not(target_os = "linux"))]
    return Vec::new();
}

/// The children that are left after a call of [`reap`].
pub(super) enum Children {
    None,
    Some,
    /// The call has reached its limit, so there may be more.
    PerhapsMore,
}

/// Limit of children that one call of [`reap`] processes, so that a command whose children end all the time cannot keep
/// us busy.
const MOST_IN_A_LOOK: usize = 64;

/// Reaps children that have ended or were stopped, without blocking.
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

/// Options of `wait`. They include stopped children and, on Linux, children that end without SIGCHLD (`__WALL`).
#[cfg(target_os = "linux")]
const ALL: WaitOptions = WaitOptions::from_bits_retain(
    WaitOptions::NOHANG.bits() | WaitOptions::UNTRACED.bits() | 0x4000_0000,
);
#[cfg(not(target_os = "linux"))]
const ALL: WaitOptions = WaitOptions::NOHANG.union(WaitOptions::UNTRACED);
