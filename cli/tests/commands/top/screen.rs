//! A terminal in which the command runs, as a person sees it.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::io::dup;
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use testkit::ChildProcess;

/// Time limit for a test that hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// A command with its own terminal. Dropping this kills the command.
pub(crate) struct Top {
    child: ChildProcess,
    terminal: File,
    /// Our own open file of the terminal. Without it, the terminal would be gone when the command ends.
    side: Option<File>,
    parser: vt100::Parser,
}

impl Top {
    /// Starts `lockkeeper top` in a terminal with 24 lines and 80 columns.
    pub(super) fn start(url: &str, arguments: &[&str]) -> Self {
        Self::start_with(url, arguments, &[])
    }

    pub(crate) fn start_with(url: &str, arguments: &[&str], set: &[(&str, &str)]) -> Self {
        let mut command = Command::new("setsid");
        command.args(["--ctty", env!("CARGO_BIN_EXE_lockkeeper"), "top"]);
        command.args(arguments).envs(set.iter().copied());
        Self::spawn(command, url)
    }

    /// Starts a shell with job control. In its script, `$0` is the command `lockkeeper`.
    pub(super) fn start_shell(url: &str, script: &str) -> Self {
        let mut command = Command::new("setsid");
        command.args(["--ctty", "bash", "--norc", "-c", script]);
        command.arg(env!("CARGO_BIN_EXE_lockkeeper"));
        Self::spawn(command, url)
    }

    fn spawn(mut command: Command, url: &str) -> Self {
        let terminal =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        tcsetwinsize(&terminal, size(24, 80)).unwrap();
        let name = ptsname(&terminal, Vec::new()).unwrap();
        let side = rustix::fs::open(
            name,
            OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC,
            0.into(),
        )
        .unwrap();
        command.env("LOCKKEEPER_URL", url).env("TERM", "xterm");
        command.stdin(Stdio::from(dup(&side).unwrap()));
        command.stdout(Stdio::from(dup(&side).unwrap()));
        command.stderr(Stdio::from(dup(&side).unwrap()));
        Self {
            child: ChildProcess::spawn(&mut command),
            terminal: terminal.into(),
            side: Some(side.into()),
            parser: vt100::Parser::new(cells(24), cells(80), 0),
        }
    }

    pub(super) fn types(&mut self, keys: &str) {
        self.terminal.write_all(keys.as_bytes()).unwrap();
    }

    pub(super) fn resize(&mut self, rows: u16, columns: u16) {
        self.parser
            .screen_mut()
            .set_size(cells(rows), cells(columns));
        tcsetwinsize(&self.terminal, size(rows, columns)).unwrap();
    }

    pub(super) fn signal(&self, signal: Signal) {
        self.child.signal(signal);
    }

    #[track_caller]
    pub(crate) fn shows(&mut self, text: &str) {
        let text = text.to_owned();
        self.until(|screen| screen.text().contains(&text));
    }

    /// Reads output until the screen satisfies a condition.
    #[track_caller]
    pub(super) fn until(&mut self, is_so: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !is_so(self) {
            let text = self.text();
            assert!(began.elapsed() < LIMIT && self.read(), "{text}");
        }
    }

    /// Waits for output and reads it. Returns `false` if no process can write to the terminal any more.
    fn read(&mut self) -> bool {
        let mut ready = [PollFd::new(&self.terminal, PollFlags::IN)];
        let wait = rustix::event::Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        };
        if poll(&mut ready, Some(&wait)).unwrap() == 0 {
            return true;
        }
        let mut piece = [0; 4096];
        match self.terminal.read(&mut piece) {
            Ok(read) if read > 0 => {
                self.parser.process(&piece[..read]);
                true
            }
            _ => false,
        }
    }

    /// Waits for the end of the command. Its status must be 0, and it must have restored the terminal.
    #[track_caller]
    pub(super) fn ends_well(&mut self) {
        self.side = None;
        while self.read() {}
        assert_eq!(
            self.child.wait().unwrap().code(),
            Some(0),
            "{}",
            self.text()
        );
        assert!(!self.is_taken(), "{}", self.text());
    }

    /// Fills the buffer of the terminal, so that the next write to it blocks.
    pub(super) fn fill(&self) {
        let name = ptsname(&self.terminal, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let side = rustix::fs::open(name, flags, 0.into()).unwrap();
        for piece in [&[b' '; 4096][..], b" "] {
            while rustix::io::write(&side, piece).is_ok() {}
        }
    }

    /// Waits for the end of the command without reading its output. The status must be 0, and the terminal's modes must
    /// be restored.
    #[track_caller]
    pub(super) fn ends_unread(&mut self) {
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(began.elapsed() < LIMIT, "it goes on");
            std::thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(status.code(), Some(0));
        let modes = tcgetattr(&self.terminal).unwrap().local_modes;
        assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO));
    }

    /// Closes the terminal, and waits until the command has ended.
    pub(super) fn hang_up(mut self) {
        self.side = None;
        let nothing = File::open("/dev/null").unwrap();
        drop(std::mem::replace(&mut self.terminal, nothing));
        self.child.wait().unwrap();
    }

    /// Returns `true` if the command uses the terminal, with the alternate screen, a hidden cursor, and raw mode.
    #[track_caller]
    pub(super) fn is_taken(&self) -> bool {
        let screen = self.parser.screen();
        let modes = tcgetattr(&self.terminal).unwrap().local_modes;
        let signs = [
            screen.alternate_screen(),
            screen.hide_cursor(),
            screen.bracketed_paste(),
            !modes.contains(LocalModes::ICANON | LocalModes::ECHO),
        ];
        assert!(signs.iter().all(|it| *it == signs[0]), "{signs:?}");
        signs[0]
    }

    pub(super) fn text(&self) -> String {
        self.parser.screen().contents()
    }

    pub(super) fn row(&self, number: u16) -> String {
        let (_, columns) = self.parser.screen().size();
        let mut rows = self.parser.screen().rows(0, columns.get());
        rows.nth(number.into()).unwrap_or_default()
    }

    pub(super) fn has_color(&self, row: u16) -> bool {
        self.cells(row)
            .any(|cell| cell.fgcolor() != vt100::Color::Default)
    }

    pub(super) fn is_inverse(&self, row: u16) -> bool {
        self.cells(row).all(vt100::Cell::inverse)
    }

    fn cells(&self, row: u16) -> impl Iterator<Item = &vt100::Cell> {
        (0..80).filter_map(move |column| self.parser.screen().cell(row, column))
    }
}

fn cells(count: u16) -> NonZeroU16 {
    NonZeroU16::new(count).unwrap()
}

fn size(rows: u16, columns: u16) -> Winsize {
    Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}
