//! [`Screen`]: the terminal while the command has it. It gets it back as it was, however the command ends.

use std::io::{self, BufWriter, IsTerminal, Stdout, Write};

use crossterm::cursor::Show;
use crossterm::event::{DisableBracketedPaste, EnableBracketedPaste};
use crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use crossterm::{execute, queue};
use ratatui::backend::CrosstermBackend;
use ratatui::layout::{Position, Rect};
use ratatui::{Frame, Terminal};
use rustix::process::{Pid, Signal, getpgrp, kill_current_process_group};
use rustix::termios::{tcgetpgrp, tcgetwinsize};

use crate::exit::Failure;

/// The terminal in raw mode, with a screen of its own. Restored when it is dropped, and on a panic.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
    is_ours: bool,
}

impl Screen {
    /// Checks that there is a terminal.
    pub(super) fn check() -> Result<(), Failure> {
        if crate::output::has_dumb_terminal()
            || !io::stdin().is_terminal()
            || !io::stdout().is_terminal()
        {
            return Err(Failure::Usage(
                "top needs a terminal: elsewhere use `lockkeeper locks --watch`".into(),
            ));
        }
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_row > 0 && size.ws_col > 0 => Ok(()),
            _ => Err(Failure::Other(
                "the size of the terminal is unknown: set it with `stty rows 24 columns 80`".into(),
            )),
        }
    }

    /// Takes the terminal.
    pub(super) fn enter() -> Result<Self, Failure> {
        restore_on_panic();
        let terminal = Terminal::new(CrosstermBackend::new(BufWriter::new(io::stdout())))?;
        let mut screen = Self {
            terminal,
            is_ours: false,
        };
        screen.take()?;
        Ok(screen)
    }

    /// Takes the terminal, also again, and draws the whole screen the next time.
    pub(super) fn take(&mut self) -> io::Result<()> {
        self.is_ours = true;
        // The shell may have set other modes while this job was stopped, of which crossterm does not know.
        let _ = disable_raw_mode();
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen, EnableBracketedPaste)?;
        self.clear()
    }

    /// Gives the terminal back.
    pub(super) fn release(&mut self) {
        if std::mem::take(&mut self.is_ours) {
            restore();
        }
    }

    /// Returns an error if the terminal is gone. Reading from it does not tell.
    pub(super) fn check_alive(&self) -> io::Result<()> {
        tcgetwinsize(io::stdin())?;
        Ok(())
    }

    /// Forgets what is on the screen.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        // Not `Terminal::clear`, which asks the terminal for its cursor: not every one answers.
        let size = self.terminal.size()?;
        self.terminal.resize(Rect::from((Position::ORIGIN, size)))
    }

    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame)) -> io::Result<()> {
        self.terminal.draw(draw)?;
        Ok(())
    }

    /// Returns true if this job may use the terminal. In the background, setting its modes would stop this process
    /// (SIGTTOU) again and again, before it could follow a signal that ends it.
    pub(super) fn is_in_foreground(&self) -> bool {
        is_in_foreground()
    }

    /// Gives the terminal back, and stops the job as Ctrl-Z does. It goes on here when it is continued, and at once where
    /// no shell could continue it.
    pub(super) fn suspend(&mut self) -> io::Result<()> {
        self.release();
        // The whole job, as the terminal does it without raw mode.
        kill_current_process_group(Signal::TSTP)?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.release();
    }
}

/// Restores the terminal, as far as that is possible: it may be gone.
fn restore() {
    let mut out = io::stdout();
    let _ = queue!(out, DisableBracketedPaste, LeaveAlternateScreen, Show);
    let _ = out.flush();
    restore_modes();
}

/// Restores the modes of the terminal, for which it need not take any output.
pub(super) fn restore_modes() {
    // The modes are another job's while this one is in the background.
    if is_in_foreground() {
        let _ = disable_raw_mode();
    }
}

fn is_in_foreground() -> bool {
    let owner: Option<Pid> = tcgetpgrp(io::stdin()).ok();
    owner.is_none_or(|owner| owner == getpgrp())
}

/// Makes a panic end the process, with a terminal on which its message can be read.
fn restore_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        restore();
        report(panic);
        // A task's panic would end the task alone, and leave a screen that is never drawn again.
        std::process::exit(101);
    }));
}
