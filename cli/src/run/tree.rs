//! [`Tree`]: the processes of a command, its grandchildren included, wherever they have moved.
//!
//! Under Linux guardian and front are *subreapers*: a process whose parent has ended becomes a child of the guardian, or
//! of the front if that has ended too, and never gets out of reach. So the tree is empty when the guardian has no child
//! left, whatever groups and sessions its processes have made. Elsewhere the tree is the process group.

#[cfg(target_os = "linux")]
mod cgroup;
#[cfg(target_os = "linux")]
mod descendants;

#[cfg(target_os = "linux")]
use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process_group, wait};

use crate::local::LocalStore;

/// Interval at which processes are killed again that were forked while their parents died.
pub(super) const KILL_AGAIN: Duration = Duration::from_millis(50);

/// The processes of a command, as seen by the guardian or by the front.
pub(super) struct Tree {
    group: Pid,
    #[cfg(target_os = "linux")]
    cgroup: Option<cgroup::Cgroup>,
    /// Processes that are no part of the command, with all their descendants.
    #[cfg(target_os = "linux")]
    others: Vec<Pid>,
    /// The user's own store, if the lock is in it: its server may be a child of the guardian, which has started it.
    #[cfg(target_os = "linux")]
    store: Option<LocalStore>,
}

impl Tree {
    /// The tree of a command that has just been started and not executed yet. It is given a cgroup where that is
    /// possible: the kernel kills all processes of one in one step, also those that fork all the time.
    pub(super) fn of_new(group: Pid, store: Option<LocalStore>) -> Self {
        #[cfg(not(target_os = "linux"))]
        let _ = store;
        Self {
            group,
            #[cfg(target_os = "linux")]
            cgroup: cgroup::Cgroup::create(group).ok(),
            #[cfg(target_os = "linux")]
            others: Vec::new(),
            #[cfg(target_os = "linux")]
            store,
        }
    }

    /// The tree of a command that another process has started.
    pub(super) fn known(
        group: Pid,
        cgroup: Option<PathBuf>,
        others: Vec<Pid>,
        store: Option<LocalStore>,
    ) -> Self {
        #[cfg(not(target_os = "linux"))]
        let _ = (cgroup, others, store);
        Self {
            group,
            #[cfg(target_os = "linux")]
            cgroup: cgroup.map(cgroup::Cgroup::at),
            #[cfg(target_os = "linux")]
            others,
            #[cfg(target_os = "linux")]
            store,
        }
    }

    pub(super) fn group(&self) -> Pid {
        self.group
    }
}

#[cfg(target_os = "linux")]
impl Tree {
    /// Returns the directory of the cgroup.
    pub(super) fn cgroup(&self) -> Option<PathBuf> {
        self.cgroup.as_ref().map(|cgroup| cgroup.path().to_owned())
    }

    /// Sends a signal to all processes, to those of the group in one step. One that has ended does not mind.
    pub(super) fn signal(&self, signal: Signal) {
        self.signal_group(signal);
        let processes = self.descendants().into_iter();
        for process in processes.filter(|process| process.group != self.group) {
            // It has ended, or belongs to another user.
            let _ = rustix::process::kill_process(process.pid, signal);
        }
    }

    /// Sends a signal to the process group alone.
    pub(super) fn signal_group(&self, signal: Signal) {
        // The number of a group that has ended may be another's by now.
        let processes = self.descendants();
        if processes.iter().any(|process| process.group == self.group) {
            let _ = kill_process_group(self.group, signal);
        }
    }

    /// Kills all processes. Those that a dying one has just forked may be left: to be called until the tree is empty.
    pub(super) fn kill(&self) {
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
        self.signal(Signal::KILL);
    }

    /// Returns true if no process is left, other than `others` and their descendants.
    pub(super) fn is_empty(&self, children: &Children) -> bool {
        // /proc is not read at one moment, and a process may be missed that changes its parent meanwhile: it does not
        // count where there is nothing to be told apart.
        let has_others = !self.others.is_empty() || self.store.is_some();
        match children {
            Children::None => true,
            Children::Some => has_others && self.living().is_empty(),
            Children::PerhapsMore => false,
        }
    }

    /// Returns true if all have ended, as the front sees it, whose child `guardian` is. May be false where they have.
    pub(super) fn has_ended(&self, guardian: Pid) -> bool {
        // A look may miss one that was forked while its parent ended: then the next look finds another one that has ended.
        let ended = || {
            let left = self.descendants().into_iter();
            let mut left = left.filter(|process| process.pid != guardian);
            let mut pids = HashSet::new();
            left.all(|process| process.is_zombie && pids.insert(process.pid))
                .then_some(pids)
        };
        ended().is_some_and(|first| ended() == Some(first))
    }

    /// Returns the processes of the command that have not ended.
    fn living(&self) -> Vec<descendants::Process> {
        let processes = self.descendants().into_iter();
        processes.filter(|process| !process.is_zombie).collect()
    }

    /// Returns the processes of the command. The server of the store is asked for each time: another one may have been
    /// started.
    fn descendants(&self) -> Vec<descendants::Process> {
        let (processes, mut others) = (descendants::all(), self.others.clone());
        if let Some(store) = &self.store {
            // In this order: a server that starts gives its mark up when it listens.
            let pids = processes.iter().map(|process| process.pid);
            others.extend(store.starting(pids));
            others.extend(store.server());
        }
        descendants::among(processes, &others)
    }
}

#[cfg(not(target_os = "linux"))]
impl Tree {
    pub(super) fn cgroup(&self) -> Option<PathBuf> {
        None
    }

    pub(super) fn signal(&self, signal: Signal) {
        self.signal_group(signal);
    }

    pub(super) fn signal_group(&self, signal: Signal) {
        let _ = kill_process_group(self.group, signal);
    }

    pub(super) fn kill(&self) {
        self.signal_group(Signal::KILL);
    }

    pub(super) fn has_ended(&self, _guardian: Pid) -> bool {
        self.is_empty(&Children::None)
    }

    pub(super) fn is_empty(&self, _children: &Children) -> bool {
        rustix::process::test_kill_process_group(self.group) == Err(rustix::io::Errno::SRCH)
    }
}

/// Makes this process the new parent of all its descendants whose parents end.
///
/// # Errors
/// They could not be seen, and so not be ended.
pub(super) fn adopt_orphans() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        descendants::can_be_seen()?;
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    }
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
    let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
    for _ in 0..MOST_IN_A_LOOK {
        match rustix::io::retry_on_intr(|| wait(options)) {
            Ok(Some((pid, status))) => changed(pid, status),
            Ok(None) => return Children::Some,
            Err(_) => return Children::None,
        }
    }
    Children::PerhapsMore
}
