//! [`Terminal`]: lends the session's terminal to the command's process group.

use std::fs::{File, OpenOptions};
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use rustix::fs::{FileType, OFlags, fstat};
use rustix::io::Errno;
use rustix::process::{Pid, getpid, setpgid};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// The controlling terminal. Only its foreground group may read from the terminal, and only this group receives the
/// signals of Ctrl-C and Ctrl-Z.
pub(super) struct Terminal {
    file: File,
    own: Pid,
    /// True if a new command gets the terminal immediately. In a pipeline, other processes may read from the terminal,
    /// so a command gets it only on demand.
    is_lent_at_once: bool,
    lent: Option<Pid>,
}

impl Terminal {
    pub(super) fn open() -> Option<Self> {
        let file = OpenOptions::new().read(true).write(true).open("/dev/tty");
        let file = file.ok()?;
        let stdout = fstat(rustix::stdio::stdout());
        let is_piped = stdout.is_ok_and(|it| FileType::from_raw_mode(it.st_mode) == FileType::Fifo);
        Some(Self {
            own: own_group(&file)?,
            file,
            is_lent_at_once: std::io::stdin().is_terminal() && !is_piped,
            lent: None,
        })
    }

    pub(super) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.file) == Ok(self.own)
    }

    pub(super) fn lend_at_once(&mut self, group: Pid) {
        if self.is_lent_at_once {
            self.lend(group);
        }
    }

    pub(super) fn lend(&mut self, group: Pid) -> bool {
        let is_lent = self.is_ours() && tcsetpgrp(&self.file, group).is_ok();
        if is_lent {
            self.is_lent_at_once = true;
            self.lent = Some(group);
        }
        is_lent
    }

    /// Takes the terminal back, unless the shell has given it to another group in the meantime.
    pub(super) fn take_back(&mut self) {
        let Some(group) = self.lent.take() else {
            return;
        };
        if tcgetpgrp(&self.file) == Ok(group) {
            give(&self.file, self.own);
        }
    }
}

/// Returns the group of this process.
///
/// The first process of a pid namespace can be in a group outside of the namespace. Such a group has no number here, so
/// we create our own group, and give it the terminal if we are in the foreground.
fn own_group(terminal: &File) -> Option<Pid> {
    // rustix's `getpgrp` cannot represent a group without a number, so use nix.
    let known = Pid::from_raw(nix::unistd::getpgrp().as_raw());
    known.or_else(|| {
        let has_terminal = is_foreground();
        setpgid(None, None).ok()?;
        let own = getpid();
        if has_terminal {
            give(terminal, own);
        }
        Some(own)
    })
}

fn is_foreground() -> bool {
    // Open the terminal as non-blocking, because another process may be reading from it.
    let mut options = OpenOptions::new();
    options
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    let Ok(terminal) = options.open("/dev/tty") else {
        return false;
    };
    // Read no bytes, so that we take no input. While SIGTTIN is blocked, even such a read fails in the background.
    without(Signal::SIGTTIN, || {
        rustix::io::read(&terminal, &mut [0_u8; 0]) != Err(Errno::IO)
    })
}

/// Gives the terminal to a group. Blocks SIGTTOU, which would stop us if we are in the background.
fn give(terminal: &File, group: Pid) {
    without(Signal::SIGTTOU, || {
        let _ = tcsetpgrp(terminal.as_fd(), group);
    });
}

fn without<T>(signal: Signal, action: impl FnOnce() -> T) -> T {
    let set = SigSet::from(signal);
    let before = set.thread_swap_mask(SigmaskHow::SIG_BLOCK);
    let result = action();
    if let Ok(before) = before {
        let _ = before.thread_set_mask();
    }
    result
}
