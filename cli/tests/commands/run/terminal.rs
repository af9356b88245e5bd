//! The terminal: foreground group, Ctrl-C, Ctrl-Z, and the line of a wait.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::process::{Child, Command, Stdio};

use rustix::fs::OFlags;
use rustix::io::dup;
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use unicode_width::UnicodeWidthStr;

use crate::running::*;
use crate::stores::*;
use crate::support::*;

/// A shell with job control, in its own session and with its own terminal. Dropping this kills the shell.
struct Shell {
    child: Child,
    terminal: File,
    seen: String,
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Shell {
    /// Starts a shell that runs a script, in which `$0` is the command `lockkeeper`.
    fn start(store: &StoreAt, script: &str) -> Self {
        Self::start_on(store, script, 80)
    }

    /// Like `start`, but on a terminal with this many columns.
    fn start_on(store: &StoreAt, script: &str, columns: u16) -> Self {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let size = Winsize {
            ws_row: 24,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&terminal, size).unwrap();
        let name = ptsname(&terminal, Vec::new()).unwrap();
        let side = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, 0.into()).unwrap();
        // The tests may run in the background of a script or under `nohup`, where signals stay ignored, so restore
        // their default handling. `setsid --ctty` makes stdin the controlling terminal.
        let mut command = Command::new("env");
        command.args(["--default-signal", "setsid", "--ctty", "--wait"]);
        command.args(["bash", "--norc", "-c"]);
        command.arg(script).arg(env!("CARGO_BIN_EXE_lockkeeper"));
        command.envs(
            store
                .shell("")
                .get_envs()
                .map(|(name, value)| (name, value.unwrap())),
        );
        command.stdin(Stdio::from(dup(&side).unwrap()));
        command.stdout(Stdio::from(dup(&side).unwrap()));
        let child = command.stderr(Stdio::from(side)).spawn().unwrap();
        Self {
            child,
            terminal: terminal.into(),
            seen: String::new(),
        }
    }

    /// Reads until the terminal shows this text after the text of the last call. Returns the text in between.
    fn shows(&mut self, text: &str) -> String {
        let mut piece = [0; 1024];
        loop {
            if let Some(at) = self.seen.find(text) {
                let mut before: String = self.seen.drain(..at + text.len()).collect();
                before.truncate(at);
                return before;
            }
            let read = self.terminal.read(&mut piece);
            let read = read.unwrap_or_else(|error| panic!("{error}: {:?}", self.seen));
            assert!(read > 0, "{:?}", self.seen);
            self.seen.push_str(&String::from_utf8_lossy(&piece[..read]));
        }
    }

    fn types(&mut self, text: &str) {
        self.terminal.write_all(text.as_bytes()).unwrap();
    }

    fn end(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

#[test]
fn the_command_reads_from_the_terminal_and_ctrl_c_is_its() {
    let store = StoreAt::served();
    let script = r#"set -m
        "$0" run a -- sh -c 'trap "echo interrupted; exit 9" INT
            read line; echo "got $line"; while :; do sleep 1000 & wait $!; done'
        echo "status $?"
        read line; echo "the shell got $line""#;
    let mut shell = Shell::start(&store, script);
    shell.types("first\n");
    shell.shows("got first");
    shell.types("\x03");
    shell.shows("interrupted");
    shell.shows("status 9");
    // The shell has the terminal back.
    shell.types("second\n");
    shell.shows("the shell got second");
    assert_eq!(shell.end(), Some(0));
}

#[test]
fn ctrl_z_stops_the_job_and_it_can_be_continued() {
    let store = StoreAt::served();
    let script = r#"set -m
        "$0" run a -- sh -c 'echo begun; read line; echo "got $line"'
        echo "stopped $?"
        "$0" run --try a -- true; echo "try $?"
        fg; echo "status $?""#;
    let mut shell = Shell::start(&store, script);
    shell.shows("begun");
    shell.types("\x1a");
    shell.shows("stopped 1");
    // A command that is stopped still holds the lock.
    shell.shows("try 75");
    shell.types("again\n");
    shell.shows("got again");
    shell.shows("status 0");
    assert_eq!(shell.end(), Some(0));
}

#[test]
fn a_pipeline_keeps_the_terminal_until_the_command_wants_it() {
    let store = StoreAt::served();
    let script = r#"set -m
        "$0" run a -- sh -c 'echo begun >&2; read line; echo "got $line"' | cat; echo "status $?""#;
    let mut shell = Shell::start(&store, script);
    shell.shows("begun");
    shell.types("text\n");
    shell.shows("got text");
    shell.shows("status 0");
}

/// In a container or a chroot with its own pids, the process group of the outer shell has no number.
const APART: &str = "unshare --user --map-root-user --pid --fork --kill-child --mount-proc";

#[test]
fn the_terminal_of_another_pid_namespace_is_lent_too() {
    let store = StoreAt::served();
    let script = r#"set -m
        $APART "$0" run a -- sh -c 'read line; echo "the command got $line"; exit 9'
        echo "status $?"
        read line; echo "the shell got $line""#;
    let mut shell = Shell::start(&store, &format!("APART='{APART}'; {script}"));
    shell.types("first\n");
    shell.shows("the command got first");
    shell.shows("status 9");
    shell.types("second\n");
    shell.shows("the shell got second");
    assert_eq!(shell.end(), Some(0));
}

#[test]
fn a_job_of_another_pid_namespace_in_the_background_leaves_the_terminal_to_the_shell() {
    let store = StoreAt::served();
    let script = r#"set -m
        $APART "$0" run a -- sh -c '> "$0"; exec sleep 1000' "$BEGUN" &
        until [ -e "$BEGUN" ]; do :; done
        read line; echo "the shell got $line"; kill -9 $!"#;
    let begun = store.folder.at("begun");
    let known = format!("APART='{APART}'; BEGUN='{}'", begun.display());
    let mut shell = Shell::start(&store, &format!("{known}; {script}"));
    shell.types("first\n");
    shell.shows("the shell got first");
    assert_eq!(shell.end(), Some(0));
}

#[test]
fn a_wait_shows_position_and_holder_and_ends_with_ctrl_c() {
    let store = StoreAt::served();
    let _holder = store.start_script(&["--label", "nightly", "a"], "echo held; exec sleep 1000");
    let script = r#"set -m
        "$0" run a -- true; echo "status $?""#;
    let mut shell = Shell::start(&store, script);
    shell.shows("lockkeeper: waiting, 1 ahead, held by nightly (");
    shell.types("\x03");
    shell.shows("status 130");
    store.queue_has(1);
}

#[test]
fn a_quiet_wait_shows_errors_only() {
    let store = StoreAt::served();
    let _holder = store.start_script(&["a"], "echo held; exec sleep 1000");
    let script = r#""$0" run --quiet --timeout 100ms a -- true; echo "status $?""#;
    let mut shell = Shell::start(&store, script);
    assert_eq!(
        shell.shows("status 75"),
        "lockkeeper: /locks/a was not granted within 100ms: 1 ahead\r\n"
    );
}

/// Without a URL, each user on each machine of a fleet has a separate store, and the job runs once in each store.
#[test]
fn a_job_without_a_url_is_said_to_belong_to_one_user_on_one_machine() {
    let folder = TempFolder::short();
    let home = folder.at("home");
    fs::DirBuilder::new().mode(0o700).create(&home).unwrap();
    // Set the idle time, so that the server ends even if the test does not finish.
    let script = format!(
        r#"unset LOCKKEEPER_URL XDG_STATE_HOME XDG_RUNTIME_DIR
        export LOCKKEEPER_LOCAL_IDLE=10s HOME='{}'
        "$0" run --once-per 1h a -- echo ran; echo "status $?"
        "$0" run --quiet --once-per 1h a -- echo never; echo "again $?"
        "$0" local --stop; echo "stopped $?""#,
        home.display()
    );
    let mut shell = Shell::start(&StoreAt::at(String::new()), &script);
    let said = shell.shows("ran\r\n");
    assert!(said.contains("of this user on this machine"), "{said}");
    shell.shows("status 0\r\n");
    assert_eq!(shell.shows("again 0\r\n"), "");
    shell.shows("stopped 0");
}

/// We could not overwrite a line that wraps. The label of a holder is the text of another user.
#[test]
fn a_wait_is_shown_on_one_line_without_the_controls_of_others() {
    let store = StoreAt::served();
    let label = format!("\u{202e}\u{2028}日本{}", "x".repeat(40));
    let _holder = store.start_script(&["--label", &label, "a"], "echo held; exec sleep 1000");
    let mut shell = Shell::start_on(&store, r#""$0" run a -- true"#, 70);
    shell.shows("lockkeeper: waiting, 1 ahead, held by ");
    let shown = shell.shows("…");
    assert!(shown.starts_with(r"\u{202e}\u{2028}日本x"), "{shown:?}");
    assert!(38 + shown.width() < 69, "{shown:?}");
}

#[test]
fn a_terminal_without_controls_gets_a_line_for_each_step_of_a_wait() {
    let store = StoreAt::served();
    let _holder = store.start_script(&["--label", "nightly", "a"], "echo held; exec sleep 1000");
    let script = r#"set -m; echo begin
        TERM=dumb "$0" run a -- true; echo "status $?""#;
    let mut shell = Shell::start(&store, script);
    shell.shows("begin\r\n");
    let before = shell.shows("lockkeeper: waiting, 1 ahead, held by nightly (");
    assert_eq!(before, "");
    shell.shows(")\r\n");
    shell.types("\x03");
    assert_eq!(shell.shows("status 130"), "^C");
}

/// Ctrl-S stops all output to the terminal, and blocks every process that writes to it.
#[test]
fn a_terminal_that_takes_no_output_holds_up_neither_a_grant_nor_a_signal() {
    let store = StoreAt::served();
    let mut holder = Running::spawn(
        store
            .under_lock(&["a", "--", "sh", "-c", "echo held; read line"])
            .stdin(Stdio::piped()),
    );
    assert_eq!(holder.line(), "held");
    let leaver = Running::spawn(&mut store.under_lock(&["a", "--", "true"]));
    store.queue_has(2);
    let script = |end: &str| {
        format!(
            r#"set -m; sh -c 'echo "pid $$."; exec "$0" run a -- {end}' "$0"; echo "status $?""#
        )
    };
    let begun = store.folder.at("begun").display().to_string();
    let mut granted = Shell::start(&store, &script(&format!("touch {begun}")));
    granted.shows("lockkeeper: waiting, 2 ahead");
    store.queue_has(3);
    let mut told = Shell::start(&store, &script("true"));
    told.shows("pid ");
    let pid = told.shows(".");
    told.shows("lockkeeper: waiting, 3 ahead");
    granted.types("\x13");
    told.types("\x13");
    // Both processes write a new position, which the stopped terminals do not display.
    leaver.signal(Signal::TERM);
    assert_eq!(leaver.end().0, Some(143));
    store.queue_has(3);
    Process::new(&pid).signal(Signal::TERM);
    store.queue_has(2);
    holder.write("\n");
    assert_eq!(holder.end().0, Some(0));
    store.queue_has(0);
    assert!(store.folder.at("begun").exists());
    for (mut shell, status) in [(granted, "status 0"), (told, "status 143")] {
        shell.types("\x11");
        shell.shows(status);
    }
}
