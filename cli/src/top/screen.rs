//! [`Screen`]: the terminal while the command uses it. The terminal is restored however the command ends.

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

pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
    is_ours: bool,
}

impl Screen {
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

    pub(super) fn take(&mut self) -> io::Result<()> {
        self.is_ours = true;
        // Turn raw mode off first. If the shell has changed the modes while this job was stopped, crossterm still
        // assumes raw mode and would not set it again.
        let _ = disable_raw_mode();
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen, EnableBracketedPaste)?;
        self.clear()
    }

    pub(super) fn release(&mut self) {
        if std::mem::take(&mut self.is_ours) {
            restore();
        }
    }

    /// Fails if the terminal is gone. Reading from the terminal does not report this.
    pub(super) fn check_alive(&self) -> io::Result<()> {
        tcgetwinsize(io::stdin())?;
        Ok(())
    }

    pub(super) fn clear(&mut self) -> io::Result<()> {
        // Do not use `Terminal::clear`, because it asks for the cursor position, and not every terminal answers.
        let size = self.terminal.size()?;
        self.terminal.resize(Rect::from((Position::ORIGIN, size)))
    }

    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame)) -> io::Result<()> {
        self.terminal.draw(draw)?;
        Ok(())
    }

    /// Returns `true` if this job is in the foreground. A background job that set the modes of the terminal would be
    /// stopped (SIGTTOU) again and again, before it could handle a signal that ends the job.
    pub(super) fn is_in_foreground(&self) -> bool {
        is_in_foreground()
    }

    /// Gives the terminal back and stops the job. Returns when the job is continued, or immediately if no shell can
    /// continue the job.
    pub(super) fn suspend(&mut self) -> io::Result<()> {
        self.release();
        kill_current_process_group(Signal::TSTP)?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.release();
    }
}

fn restore() {
    let mut out = io::stdout();
    let _ = queue!(out, DisableBracketedPaste, LeaveAlternateScreen, Show);
    let _ = out.flush();
    restore_modes();
}

pub(super) fn restore_modes() {
    // In the background, the terminal and its modes belong to another job.
    if is_in_foreground() {
        let _ = disable_raw_mode();
    }
}

fn is_in_foreground() -> bool {
    let owner: Option<Pid> = tcgetpgrp(io::stdin()).ok();
    owner.is_none_or(|owner| owner == getpgrp())
}

/// Makes every panic end the process. Restores the terminal first, so that the message of the panic is readable.
fn restore_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        restore();
        report(panic);
        // Without the exit, a panic in a task would only end the task and leave a frozen screen.
        std::process::exit(101);
    }));
}
