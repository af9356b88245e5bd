//! The per-user store, which is used without a URL. All environments of a user share one server, whichever process
//! starts it and whichever process is killed.

mod refusals;
mod stress;

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

use nix::unistd::getsid;
use rustix::process::{Pid, Signal, kill_process};

use super::running::daemons_end_before_the_release;
use super::support::*;

/// A user of the store, with a home for a single test. Dropping this ends the user's server.
pub(crate) struct Home {
    folder: TempFolder,
    idle: &'static str,
}

#[derive(Clone, Copy)]
pub(crate) enum Shell {
    /// A shell with `$XDG_RUNTIME_DIR`.
    Login,
    /// A shell without `$XDG_RUNTIME_DIR`.
    Cron,
}

impl Home {
    pub(crate) fn new() -> Self {
        // Use a time that is longer than any test has no client. Dropping this kills the server. If the test itself is
        // killed, the server ends after this time.
        Self::idle_after("1m")
    }

    fn idle_after(idle: &'static str) -> Self {
        let folder = TempFolder::short();
        for name in ["home", "run"] {
            let mut builder = fs::DirBuilder::new();
            builder.mode(0o700).create(folder.at(name)).unwrap();
        }
        Self { folder, idle }
    }

    pub(crate) fn command(&self, shell: Shell, arguments: &[&str]) -> Command {
        self.command_of(
            Path::new(env!("CARGO_BIN_EXE_lockkeeper")),
            shell,
            arguments,
        )
    }

    pub(crate) fn folder(&self) -> &TempFolder {
        &self.folder
    }

    fn command_of(&self, program: &Path, shell: Shell, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).env_clear();
        command.env("HOME", self.folder.at("home"));
        command.env("LOCKKEEPER_LOCAL_IDLE", self.idle);
        if matches!(shell, Shell::Login) {
            command.env("XDG_RUNTIME_DIR", self.folder.at("run"));
        }
        command
    }

    fn run(&self, shell: Shell, arguments: &[&str]) -> Output {
        self.command(shell, arguments).output().unwrap()
    }

    /// Starts a command that holds the lock until it is released. Returns before the grant.
    fn queue(&self, shell: Shell, lock: &str) -> Holder {
        Holder::spawn(self.command(shell, &holding(&["--connect-timeout=2m", lock])))
    }

    /// Starts a command that holds the lock until it is released. Returns after the grant.
    fn hold(&self, shell: Shell, lock: &str) -> Holder {
        let mut holder = self.queue(shell, lock);
        holder.granted();
        holder
    }

    /// Returns the data folder of this machine.
    fn data(&self) -> Option<PathBuf> {
        let machines = self.folder.at("home/.local/state/lockkeeper");
        let mut machines = fs::read_dir(machines).ok()?;
        let machine = machines.next()?.unwrap().path();
        assert!(machines.next().is_none(), "one store for the machine");
        Some(machine)
    }

    pub(crate) fn server(&self) -> Option<Pid> {
        let stream = UnixStream::connect(self.data()?.join("socket")).ok()?;
        Some(rustix::net::sockopt::socket_peercred(stream).unwrap().pid)
    }

    fn log(&self) -> String {
        let log = self.data().map(|data| data.join("server.log"));
        log.and_then(|log| fs::read_to_string(log).ok())
            .unwrap_or_default()
    }

    fn servers(&self) -> usize {
        self.log().matches(" ready address=").count()
    }

    /// Waits until another process has created a state.
    fn until<T>(&self, mut found: impl FnMut(&Self) -> Option<T>) -> T {
        loop {
            if let Some(found) = found(self) {
                return found;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the tokens in the queue of the lock, as seen in this environment.
    fn queued(&self, shell: Shell, lock: &str) -> Vec<u64> {
        let text = success(&self.run(shell, &["who", lock, "--json"]));
        let entries = text
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        entries
            .map(|entry| entry["token"].as_str().unwrap().parse().unwrap())
            .collect()
    }

    /// Returns the processes that serve this home or start a server for it.
    fn processes(&self) -> Vec<Pid> {
        let home = self.folder.at("home");
        let of_home = home.to_str().unwrap();
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let pids = processes.filter_map(|it| it.file_name().to_str()?.parse::<i32>().ok());
        let serves = |pid: &i32| {
            let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let arguments = String::from_utf8_lossy(&arguments).replace('\0', " ");
            arguments.contains(" serve ") && arguments.contains(of_home)
        };
        pids.filter(serves).filter_map(Pid::from_raw).collect()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let last: Vec<_> = log.lines().rev().take(40).collect();
            eprintln!(
                "the end of the server's log, last line first:\n{}",
                last.join("\n")
            );
        }
        // The commands of the test have ended. Kill the processes that they have started, until no process is left that
        // could start another server.
        loop {
            let processes = self.processes();
            if processes.is_empty() {
                return;
            }
            for process in processes {
                let _ = kill_process(process, Signal::KILL);
            }
        }
    }
}

/// Returns arguments of `lockkeeper run` for a command that prints its token, and ends when its stdin ends.
fn holding<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    let script = "echo $LOCKKEEPER_TOKEN; exec cat >/dev/null";
    [&["run"], arguments, &["--", "sh", "-c", script]].concat()
}

/// A command under a lock. Dropping this kills the front, and waits until the guardian has ended the command and then
/// itself.
struct Holder {
    child: Child,
    stdout: BufReader<ChildStdout>,
    token: Option<u64>,
}

impl Holder {
    fn spawn(mut command: Command) -> Self {
        command.stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            stdout,
            token: None,
        }
    }

    fn granted(&mut self) -> u64 {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        self.token = line.trim_end().parse().ok();
        self.token
            .unwrap_or_else(|| panic!("it ended: {:?}", self.child.wait()))
    }

    fn token(&self) -> u64 {
        self.token.expect("it was granted")
    }

    /// Releases the lock, and waits until the process has ended.
    fn release(mut self) {
        drop(self.child.stdin.take());
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Wait for the guardian, which has the pipe open until it ends.
        let _ = io::copy(&mut self.stdout, &mut io::sink());
    }
}

#[test]
fn a_hundred_commands_at_once_start_one_server_and_take_turns() {
    let home = Home::new();
    let command = |number: usize| match number % 2 {
        0 => home.queue(Shell::Login, "a"),
        _ => home.queue(Shell::Cron, "a"),
    };
    let mut holders: Vec<_> = (0..100).map(command).collect();
    // End the stdin of all commands now. Each command then ends as soon as it is granted the lock, so no command waits
    // for a release.
    for holder in &mut holders {
        drop(holder.child.stdin.take());
    }
    let mut tokens: Vec<_> = holders.iter_mut().map(Holder::granted).collect();
    holders.into_iter().for_each(Holder::release);
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 100);
    assert_eq!(home.servers(), 1, "{}", home.log());
    assert_eq!(home.processes(), [home.server().unwrap()]);
}

#[test]
fn a_login_shell_and_cron_exclude_each_other() {
    for (first, second) in [(Shell::Login, Shell::Cron), (Shell::Cron, Shell::Login)] {
        let home = Home::new();
        let holder = home.hold(first, "backup");
        let mut waiter = home.queue(second, "backup");
        for shell in [first, second] {
            let queued = home.until(|home| {
                let queued = home.queued(shell, "backup");
                (queued.len() == 2).then_some(queued)
            });
            assert_eq!(queued[0], holder.token());
        }
        let former = holder.token();
        holder.release();
        assert!(waiter.granted() > former);
        waiter.release();
        assert_eq!(home.servers(), 1, "{}", home.log());
    }
}

#[test]
fn the_socket_is_in_the_runtime_folder_where_there_is_one() {
    let home = Home::new();
    home.hold(Shell::Login, "a").release();
    let link = fs::read_link(home.data().unwrap().join("socket")).unwrap();
    assert_eq!(link.parent().unwrap(), home.folder.at("run/lockkeeper"));
    for folder in [link.parent().unwrap(), &home.data().unwrap()] {
        assert_eq!(folder.metadata().unwrap().mode() & 0o777, 0o700);
    }
}

/// systemd removes the runtime folder when the user has logged out.
#[test]
fn the_end_of_the_runtime_folder_costs_no_lock() {
    let home = Home::new();
    let holder = home.hold(Shell::Login, "a");
    let first = home.server().unwrap();
    fs::remove_dir_all(home.folder.at("run")).unwrap();
    // Only the holder can start the next server, because no other client runs.
    home.until(|home| home.server().filter(|server| *server != first));
    assert_eq!(home.queued(Shell::Cron, "a"), [holder.token()]);
    let data = home.data().unwrap();
    let link = fs::read_link(data.join("socket")).unwrap();
    assert_eq!(link, data.join("server.sock"));
    holder.release();
}

#[test]
fn a_holder_starts_the_server_that_was_killed_and_keeps_its_lock() {
    let home = Home::new();
    let holder = home.hold(Shell::Login, "a");
    let mut waiter = home.queue(Shell::Cron, "a");
    home.until(|home| (home.queued(Shell::Cron, "a").len() == 2).then_some(()));
    for _ in 0..3 {
        let server = home.server().unwrap();
        kill_process(server, Signal::KILL).unwrap();
        home.until(|home| home.server().filter(|next| *next != server));
        let queued = home.queued(Shell::Cron, "a");
        assert_eq!((queued.len(), queued[0]), (2, holder.token()));
    }
    let former = holder.token();
    holder.release();
    assert!(waiter.granted() > former);
    waiter.release();
}

#[test]
fn a_daemon_does_not_outlive_the_lock() {
    let home = Home::new();
    daemons_end_before_the_release(&home.folder, |arguments| {
        home.command(Shell::Login, &[&["run"], arguments].concat())
    });
}

/// `/proc` hides this process from other processes of the same user.
#[test]
fn a_process_that_cannot_be_seen_is_ended_before_the_release() {
    let home = Home::new();
    let hidden = r#"
import ctypes, fcntl, os, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
ctypes.CDLL(None).prctl(4, 0)  # PR_SET_DUMPABLE
if not os.fork():
    time.sleep(20)"#;
    // All processes of the namespace end when the first one ends.
    let script = r#"mount -t proc -o hidepid=4 proc /proc && file=$1 && shift &&
        exec setpriv --bounding-set=-all sh -c '"$@" && exec flock --nonblock '"$file"' true' sh "$@""#;
    let path = home.folder.at("hidden");
    let path = path.to_str().unwrap();
    let run = [
        "run", "--grace", "50ms", "a", "--", "python3", "-c", hidden, path,
    ];
    let run = home.command(Shell::Login, &run);
    let apart = "unshare --user --map-root-user --mount --pid --fork --kill-child sh -c";
    let mut apart: Vec<_> = apart.split(' ').collect();
    apart.extend([script, "sh", path]);
    let mut command = Command::new("env");
    command
        .args(apart)
        .arg(run.get_program())
        .args(run.get_args());
    command.env_remove("LOCKKEEPER_URL");
    command.envs(
        run.get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// The server that `run` has started is a child of `run`, but does not belong to the command.
#[test]
fn a_command_under_a_lock_leaves_the_server_alone_that_it_has_started() {
    let home = Home::new();
    let script = "echo $LOCKKEEPER_TOKEN; cat";
    let arguments = ["run", "a", "--", "sh", "-c", script];
    let mut command = Holder::spawn(home.command(Shell::Login, &arguments));
    let token = command.granted();
    let first = home.server().unwrap();
    kill_process(first, Signal::KILL).unwrap();
    let next = home.until(|home| home.server().filter(|next| *next != first));
    assert_eq!(home.queued(Shell::Cron, "a"), [token]);
    command.release();
    assert!(home.queued(Shell::Cron, "a").is_empty());
    assert_eq!(home.server(), Some(next));
    assert_eq!(home.servers(), 2, "{}", home.log());
}

/// If `run` killed the server during its start, the guardian would start it again, because the release needs a server.
#[test]
fn a_command_that_ends_while_the_next_server_starts_leaves_it_alone() {
    let home = Home::new();
    let script = "(trap 'echo asked; exit' TERM; echo $LOCKKEEPER_TOKEN; while :; do sleep 1000 & wait $!; done) &
                  exec cat >/dev/null";
    let arguments = ["run", "a", "--", "sh", "-c", script];
    let mut command = Holder::spawn(home.command(Shell::Login, &arguments));
    command.granted();
    let first = home.server().unwrap();
    // The next server cannot open the store, so it does not listen until this test unlocks the store.
    let lock = File::open(home.data().unwrap().join("store/LOCK")).unwrap();
    let waiter = format!(":{} 0 EOF", lock.metadata().unwrap().ino());
    let waiting = std::thread::spawn(move || lock.lock().map(|()| lock));
    home.until(|_| {
        let locks = fs::read_to_string("/proc/locks").unwrap();
        let is_it = |line: &str| line.contains("-> FLOCK") && line.ends_with(&waiter);
        locks.lines().any(is_it).then_some(())
    });
    kill_process(first, Signal::KILL).unwrap();
    let lock = waiting.join().unwrap().unwrap();
    let serves = |pid: &Pid| {
        let arguments = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero()));
        let arguments = arguments.unwrap_or_default();
        *pid != first && arguments.split(|byte| *byte == 0).nth(1) == Some(b"serve")
    };
    let next = home.until(|home| home.processes().into_iter().find(serves));
    // The guardian ends the processes that the command has left behind. It must not end the server, although the server
    // is also its child.
    drop(command.child.stdin.take());
    let mut asked = String::new();
    command.stdout.read_line(&mut asked).unwrap();
    assert_eq!(asked, "asked\n");
    drop(lock);
    command.release();
    assert_eq!(home.server(), Some(next), "{}", home.log());
}

#[test]
fn the_lock_of_a_killed_process_is_free_at_once() {
    let home = Home::new();
    let arguments = holding(&["--session-timeout=10m", "a"]);
    let mut holder = Holder::spawn(home.command(Shell::Login, &arguments));
    let former = holder.granted();
    let mut waiter = home.queue(Shell::Cron, "a");
    home.until(|home| (home.queued(Shell::Cron, "a").len() == 2).then_some(()));
    drop(holder);
    assert!(waiter.granted() > former);
    waiter.release();
}

#[test]
fn an_idle_server_ends_and_the_next_one_has_higher_tokens() {
    let home = Home::idle_after("100ms");
    let mut former = 0;
    for round in 1..=3 {
        let holder = home.hold(Shell::Login, "a");
        assert!(holder.token() > former);
        former = holder.token();
        holder.release();
        home.until(|home| (home.log().matches("closed in order").count() == round).then_some(()));
        home.until(|home| home.processes().is_empty().then_some(()));
    }
    assert_eq!(home.servers(), 3);
}

/// Clients arrive at many different moments around the end of the server. None of them may fail.
#[test]
fn a_client_that_comes_as_the_server_ends_starts_the_next() {
    let home = Home::idle_after("25ms");
    let mut former = 0;
    for round in 0..25 {
        let shell = [Shell::Login, Shell::Cron][round % 2];
        let holder = home.hold(shell, "a");
        assert!(holder.token() > former);
        former = holder.token();
        holder.release();
        // Sleep, because the test is about this exact moment, and there is no event to wait for.
        std::thread::sleep(Duration::from_millis(10 + round as u64));
    }
    assert!(home.servers() > 1);
}

#[test]
fn the_server_is_apart_from_the_command_that_starts_it() {
    let home = Home::new();
    let mut command = home.command(Shell::Login, &["who", "a"]);
    command.env("LOCKKEEPER_AUTH", "ann:secret");
    success(&command.output().unwrap());
    let server = home.server().unwrap();
    // Our own session id is zero if the session leader is outside of our pid namespace.
    let own = getsid(None).unwrap();
    let server = nix::unistd::Pid::from_raw(server.as_raw_nonzero().get());
    assert_ne!(getsid(Some(server)).unwrap(), own);
    // The server is not a session leader, because a session leader could acquire a terminal.
    assert_ne!(getsid(Some(server)).unwrap(), server);
    let of_server = |file: &str| format!("/proc/{server}/{file}");
    let environment = fs::read_to_string(of_server("environ")).unwrap();
    assert!(!environment.contains("secret"), "{environment}");
    assert_eq!(fs::read_link(of_server("cwd")).unwrap(), Path::new("/"));
}

/// If a script reads a command's output or holds a lock, it must not wait until the server ends.
#[test]
fn the_server_holds_no_file_of_its_starters_open() {
    let home = Home::new();
    let script = "exec 9>&1; \"$0\" who a >/dev/null";
    let mut shell = home.command_of(Path::new("/bin/sh"), Shell::Login, &["-c", script]);
    shell.arg(env!("CARGO_BIN_EXE_lockkeeper"));
    // The command's output ends only when no process has the pipe open any more.
    success(&shell.output().unwrap());
    assert!(home.server().is_some());
}

/// Copies this command in another process. If we wrote the copy ourselves, a child that another test forks at the same
/// time would have the copy open for writing until its exec. Executing the copy would then fail ("Text file busy").
fn copy_program(to: &Path) {
    let copying = Command::new("cp")
        .arg(env!("CARGO_BIN_EXE_lockkeeper"))
        .arg(to)
        .output();
    success(&copying.unwrap());
}

#[test]
fn an_executable_that_was_replaced_starts_the_server_again() {
    let home = Home::new();
    let program = home.folder.at("lockkeeper");
    copy_program(&program);
    let mut holder = Holder::spawn(home.command_of(&program, Shell::Login, &holding(&["a"])));
    holder.granted();
    fs::remove_file(&program).unwrap();
    fs::write(&program, "not a program").unwrap();
    let server = home.server().unwrap();
    kill_process(server, Signal::KILL).unwrap();
    home.until(|home| home.server().filter(|next| *next != server));
    assert_eq!(home.queued(Shell::Cron, "a"), [holder.token()]);
    holder.release();
}

/// After the grant, the waiter's guardian starts this program again for the command.
#[test]
fn a_waiter_whose_executable_was_replaced_runs_its_command() {
    let home = Home::new();
    let program = home.folder.at("lockkeeper");
    for is_removed in [true, false] {
        let holder = home.hold(Shell::Login, "a");
        copy_program(&program);
        let waiter = home.command_of(&program, Shell::Cron, &holding(&["a"]));
        let mut waiter = Holder::spawn(waiter);
        home.until(|home| (home.queued(Shell::Cron, "a").len() == 2).then_some(()));
        // An upgrade either replaces the file atomically or removes it first.
        fs::write(home.folder.at("new"), "not a program").unwrap();
        match is_removed {
            true => fs::remove_file(&program).unwrap(),
            false => fs::rename(home.folder.at("new"), &program).unwrap(),
        }
        let former = holder.token();
        holder.release();
        assert!(waiter.granted() > former);
        waiter.release();
    }
}

#[test]
fn a_link_that_was_removed_is_made_again_for_the_server_that_runs() {
    let home = Home::new();
    let holder = home.hold(Shell::Login, "a");
    let data = home.data().unwrap();
    fs::remove_file(data.join("socket")).unwrap();
    assert_eq!(home.queued(Shell::Login, "a"), [holder.token()]);
    holder.release();
    assert_eq!(home.servers(), 1, "{}", home.log());
}

#[test]
fn local_shows_the_server_and_stops_it() {
    let home = Home::new();
    let shown = || -> serde_json::Value {
        let text = success(&home.run(Shell::Cron, &["local", "--json"]));
        serde_json::from_str(&text).unwrap()
    };
    assert_eq!(shown()["is_running"], false);
    assert_eq!(home.servers(), 0, "it starts nothing");
    success(&home.run(Shell::Login, &["who", "a"]));
    let server = home.server().unwrap().as_raw_nonzero().get();
    assert_eq!(shown()["pid"], server);
    let url = format!(
        "lockkeeper+unix://{}",
        home.data().unwrap().join("socket").display()
    );
    assert_eq!(shown()["url"], url);
    success(&home.run(Shell::Cron, &["who", "a", "--url", &url]));
    let text = success(&home.run(Shell::Login, &["local"]));
    assert!(text.contains(&format!("server  pid {server}\n")), "{text}");
    let stopped = success(&home.run(Shell::Cron, &["local", "--stop"]));
    assert_eq!(stopped, format!("stopped the server, pid {server}\n"));
    assert_eq!(home.server(), None);
    assert!(home.log().contains("closed in order"));
    assert_eq!(
        success(&home.run(Shell::Cron, &["local", "--stop"])),
        "not running\n"
    );
    success(&home.run(Shell::Login, &["who", "a"]));
}
