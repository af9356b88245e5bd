//! [`Tree`]: all processes of a command.
//!
//! On Linux, reaper, guardian and front are *subreapers*. A process of the command that loses its parent becomes a
//! child of the nearest subreaper that is alive. On other systems, the tree is the process group of the command.

#[cfg(target_os = "linux")]
mod cgroup;
#[cfg(target_os = "linux")]
mod descendants;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use lockkeeper_store::Clock;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process_group, wait};

/// Interval between repeated kills. A process that was forked just as its parent was killed survives the first kill.
pub(super) const KILL_AGAIN: Duration = Duration::from_millis(50);

/// Interval between repeated kills in [`Tree::end`]. Must be shorter than the delay after which the guardian restarts a
/// killed server of the per-user store. Otherwise `end` could find a new server each time and would not return.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

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
    /// Returns the tree of a command that has not been executed yet. Creates a cgroup if possible, because the kernel
    /// can kill a cgroup in one step, even if its processes keep forking.
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

    /// Sends a signal to all processes of the command. Members of its process group receive the signal in one step.
    pub(super) fn signal(&self, signal: Signal) {
        let (mut is_group_left, mut apart) = (false, Vec::new());
        for process in descendants::without(&self.others) {
            // Check each process, because the id of a group that has ended may belong to another group by now.
            match rustix::process::getpgid(Some(process)) == Ok(self.group) {
                true => is_group_left = true,
                false => apart.push(process),
            }
        }
        if is_group_left {
            self.signal_group(signal);
        }
        for process in apart {
            let _ = rustix::process::kill_process(process, signal);
        }
    }

    /// Kills all processes. Processes that were just forked may survive, so the caller must repeat the call until the
    /// tree is empty.
    pub(super) fn kill(&self) {
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
        self.signal(Signal::KILL);
    }

    pub(super) fn is_empty(&self, children: &Children) -> bool {
        match children {
            Children::None => true,
            // Children are left. If there are no `others`, all of them belong to the command.
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
        let _ = kill_process_group(self.group, signal);
    }

    /// Kills all processes, including the reaper, until none is left. The caller takes over the reaper's role.
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

pub(super) fn adopt_orphans() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(())
}

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

pub(super) enum Children {
    None,
    Some,
    PerhapsMore,
}

/// Maximum number of children that one call of [`reap`] handles, so that a command whose children keep ending cannot
/// keep us busy.
const MOST_IN_A_LOOK: usize = 64;

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

/// Options of `wait`, which also report stopped children and, on Linux, children that end without SIGCHLD (`__WALL`).
#[cfg(target_os = "linux")]
const ALL: WaitOptions = WaitOptions::from_bits_retain(
    WaitOptions::NOHANG.bits() | WaitOptions::UNTRACED.bits() | 0x4000_0000,
);
#[cfg(not(target_os = "linux"))]
const ALL: WaitOptions = WaitOptions::NOHANG.union(WaitOptions::UNTRACED);
