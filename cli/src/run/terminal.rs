//! [`Terminal`]: the terminal of this session, lent to the command's process group.

use std::fs::{File, OpenOptions};
use std::io::IsTerminal;
use std::os::fd::AsFd;

use nix::sys::signal::{SigSet, Signal};
use rustix::fs::{FileType, fstat};
use rustix::process::{Pid, getpgrp};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// The controlling terminal. Its foreground group alone may read from it, and gets Ctrl-C and Ctrl-Z.
pub(super) struct Terminal {
    file: File,
    /// False in a pipeline, whose other processes may read from the terminal: the command gets it when it asks for it.
    is_lent_at_once: bool,
    lent: Option<Pid>,
}

impl Terminal {
    /// Opens the terminal; `None` if there is none.
    pub(super) fn open() -> Option<Self> {
        let file = OpenOptions::new().read(true).write(true).open("/dev/tty");
        let stdout = fstat(rustix::stdio::stdout());
        let is_piped = stdout.is_ok_and(|it| FileType::from_raw_mode(it.st_mode) == FileType::Fifo);
        Some(Self {
            file: file.ok()?,
            is_lent_at_once: std::io::stdin().is_terminal() && !is_piped,
            lent: None,
        })
    }

    /// Returns true if this process's group is in the foreground.
    pub(super) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.file) == Ok(getpgrp())
    }

    /// Lends the terminal to the group of a new command, if it is ours.
    pub(super) fn lend_at_once(&mut self, group: Pid) {
        if self.is_lent_at_once {
            self.lend(group);
        }
    }

    /// Lends the terminal to a group that wants it, or has had it before; returns false if it is not ours.
    pub(super) fn lend(&mut self, group: Pid) -> bool {
        let is_lent = self.is_ours() && tcsetpgrp(&self.file, group).is_ok();
        if is_lent {
            self.is_lent_at_once = true;
            self.lent = Some(group);
        }
        is_lent
    }

    /// Takes the terminal back. If the shell has given it to another group meanwhile, it stays there.
    pub(super) fn take_back(&mut self) {
        let Some(group) = self.lent.take() else {
            return;
        };
        if tcgetpgrp(&self.file) == Ok(group) {
            // This process is in the background now, and would be stopped.
            let background = SigSet::from(Signal::SIGTTOU);
            let is_blocked = background.thread_block().is_ok();
            let _ = tcsetpgrp(self.file.as_fd(), getpgrp());
            if is_blocked {
                let _ = background.thread_unblock();
            }
        }
    }
}
