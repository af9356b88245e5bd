//! Environments without a trustworthy store, and servers that do not start.

use std::fs::{DirBuilder, Permissions, set_permissions};
use std::os::unix::fs::{PermissionsExt, chown};

use super::*;

impl Home {
    /// Runs a command that needs the store, with these variables in its environment, and returns its error.
    fn refusal(&self, variables: &[(&str, &str)]) -> String {
        let mut command = self.command(Shell::Cron, &["who", "a"]);
        for (name, value) in variables {
            command.env(name, value);
        }
        let output = command.output().unwrap();
        // EX_UNAVAILABLE
        assert_eq!(output.status.code(), Some(69), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn mode(&self, folder: &str, mode: u32) {
        set_permissions(self.folder.at(folder), Permissions::from_mode(mode)).unwrap();
    }

    fn make(&self, folder: &str) {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(self.folder.at(folder)).unwrap();
    }
}

/// The id of a user other than the user of this test.
const OTHER: u32 = 4_242;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_home_of_another_user_is_refused_and_left_as_it_is() {
    let home = Home::new();
    // If we are root, use the home of another user. Otherwise use the home of root.
    let of_other = match is_root() {
        true => {
            chown(home.folder.at("home"), Some(OTHER), None).unwrap();
            home.folder.at("home").to_str().unwrap().to_owned()
        }
        false => "/".to_owned(),
    };
    let said = home.refusal(&[("HOME", &of_other)]);
    assert!(said.contains("belongs to user"), "{said}");
    assert!(said.contains("sudo -E"), "{said}");
    assert!(!home.folder.at("home/.local").exists());
}

#[test]
fn a_data_folder_of_another_user_is_refused() {
    if !is_root() {
        // Only root can give a folder away. For other users, the test above covers a folder of root.
        return;
    }
    let home = Home::new();
    success(&home.run(Shell::Cron, &["local"]));
    for folder in [
        home.data().unwrap(),
        home.folder.at("home/.local/state/lockkeeper"),
    ] {
        chown(&folder, Some(OTHER), None).unwrap();
        let said = home.refusal(&[]);
        assert!(said.contains(&format!("belongs to user {OTHER}")), "{said}");
        chown(&folder, Some(0), None).unwrap();
    }
}

#[test]
fn folders_that_others_can_write_are_refused() {
    let home = Home::new();
    success(&home.run(Shell::Cron, &["local"]));
    let open = "home/.local/state/lockkeeper";
    for mode in [0o770, 0o755, 0o701] {
        home.mode(open, mode);
        let said = home.refusal(&[]);
        assert!(said.contains(&format!("(mode {mode:o})")), "{said}");
        assert!(said.contains("chmod 700"), "{said}");
    }
    home.mode(open, 0o700);
    home.mode("home", 0o777);
    let said = home.refusal(&[]);
    assert!(said.contains("can be written by every user"), "{said}");
    // The sticky bit, as in /tmp, prevents users from replacing the files of other users.
    home.mode("home", 0o1777);
    success(&home.run(Shell::Cron, &["who", "a"]));
}

#[test]
fn a_runtime_folder_of_anybody_else_takes_no_socket() {
    for mode in [0o777, 0o750] {
        let home = Home::new();
        home.mode("run", mode);
        let holder = home.hold(Shell::Login, "a");
        let data = home.data().unwrap();
        assert_eq!(
            fs::read_link(data.join("socket")).unwrap(),
            data.join("server.sock")
        );
        assert_eq!(home.queued(Shell::Cron, "a"), [holder.token()]);
        holder.release();
    }
}

#[test]
fn a_socket_whose_path_is_too_long_is_refused() {
    let home = Home::new();
    let long = "long/".repeat(20);
    home.make(&format!("home/{long}"));
    let path = home.folder.at(&format!("home/{long}"));
    let said = home.refusal(&[("XDG_STATE_HOME", path.to_str().unwrap())]);
    assert!(
        said.contains("more than a socket's path can have"),
        "{said}"
    );
    // If the path in the runtime folder is too long, the server uses another path.
    let runtime = home.folder.at(&format!("run/{long}"));
    home.make(&format!("run/{long}"));
    let mut command = home.command(Shell::Cron, &["who", "a"]);
    success(&command.env("XDG_RUNTIME_DIR", runtime).output().unwrap());
}

#[test]
fn a_folder_that_cannot_be_created_is_named_with_the_reason() {
    let home = Home::new();
    // The name is longer than a file name can be. Unlike a read-only folder, this fails even for root.
    let long = home.folder.at("home").join("x".repeat(300));
    let said = home.refusal(&[("XDG_STATE_HOME", long.to_str().unwrap())]);
    assert!(said.contains("cannot be created"), "{said}");
    assert!(said.contains("--url"), "{said}");
    File::create(home.folder.at("home/.local")).unwrap();
    let said = home.refusal(&[]);
    assert!(said.contains("is not a folder"), "{said}");
    let said = home.refusal(&[("HOME", "relative")]);
    assert!(said.contains("not an absolute path"), "{said}");
    let odd = home.folder.at("home/what?");
    let said = home.refusal(&[("XDG_STATE_HOME", odd.to_str().unwrap())]);
    assert!(said.contains("cannot be part of a URL"), "{said}");
}

#[test]
fn a_missing_home_is_not_created() {
    let home = Home::new();
    let missing = home.folder.at("missing/home");
    let said = home.refusal(&[("HOME", missing.to_str().unwrap())]);
    assert!(said.contains("does not exist"), "{said}");
    assert!(said.contains("--url"), "{said}");
    assert!(!home.folder.at("missing").exists());
    // The state folder is created, as required by the XDG Base Directory Specification.
    let state = home.folder.at("home/new/state");
    let mut command = home.command(Shell::Cron, &["who", "a"]);
    command.env("HOME", &missing).env("XDG_STATE_HOME", state);
    success(&command.output().unwrap());
}

#[test]
fn a_server_that_does_not_start_is_reported_with_its_reason() {
    let home = Home::new();
    success(&home.run(Shell::Cron, &["local"]));
    let store = home.data().unwrap().join("store");
    fs::create_dir(&store).unwrap();
    fs::write(store.join("STORE"), "damaged").unwrap();
    for _ in 0..2 {
        let said = home.refusal(&[]);
        assert!(said.contains("cannot be started"), "{said}");
        assert!(said.contains(store.to_str().unwrap()), "{said}");
        assert!(said.contains("server.log"), "{said}");
    }
    assert_eq!(home.processes(), []);
    // The error is from the start that failed last, and not from an earlier start.
    fs::remove_dir_all(&store).unwrap();
    success(&home.run(Shell::Cron, &["who", "a"]));
}

#[test]
fn a_store_that_another_server_serves_is_reported() {
    let home = Home::new();
    success(&home.run(Shell::Cron, &["local"]));
    let store = home.data().unwrap().join("store");
    let other = format!("--listen=unix:{}", home.folder.at("s").display());
    let mut serve = home.command(Shell::Cron, &["serve", &other, "--data"]);
    let _server = super::super::server::Server::start(serve.arg(&store));
    let command = &["who", "a", "--connect-timeout=300ms"];
    let output = home.run(Shell::Cron, command);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
}

/// Counts the server's socket and the connections to it, whether they are accepted or not.
fn connections(home: &Home) -> usize {
    let socket = fs::read_link(home.data().unwrap().join("socket")).unwrap();
    let sockets = fs::read_to_string("/proc/net/unix").unwrap();
    let of_server = |line: &&str| line.ends_with(socket.to_str().unwrap());
    sockets.lines().filter(of_server).count()
}

#[test]
fn a_server_that_hangs_holds_no_command_up_and_gets_few_connections() {
    let home = Home::new();
    success(&home.run(Shell::Cron, &["locks"]));
    let server = home.server().unwrap();
    kill_process(server, Signal::STOP).unwrap();
    let before = connections(&home);
    let hurried = ["run", "--connect-timeout", "3s", "a", "--", "true"];
    let output = home.run(Shell::Cron, &hurried);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("does not answer within 3s"), "{said}");
    assert!(said.contains("lockkeeper local --stop"), "{said}");
    let left = connections(&home) - before;
    assert!(left <= 8, "{left} connections");

    // Fill the queue of connections. Further connections would have to wait for room.
    let link = home.data().unwrap().join("socket");
    let address = rustix::net::SocketAddrUnix::new(&link).unwrap();
    loop {
        let flags = rustix::net::SocketFlags::NONBLOCK;
        let (family, kind) = (
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
        );
        let socket = rustix::net::socket_with(family, kind, flags, None).unwrap();
        match rustix::net::connect(&socket, &address) {
            // The connection remains in the queue, although our end is closed.
            Ok(()) => {}
            Err(error) => break assert_eq!(error, rustix::io::Errno::AGAIN),
        }
    }
    let output = home.run(Shell::Cron, &hurried);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    let mut waiter = home.command(
        Shell::Cron,
        &["run", "--connect-timeout=10m", "a", "--", "true"],
    );
    let mut waiter = waiter.spawn().unwrap();
    kill_process(Pid::from_child(&waiter), Signal::TERM).unwrap();
    waiter.wait().unwrap();
    let mut waiter = home.queue(Shell::Cron, "a");
    kill_process(server, Signal::CONT).unwrap();
    waiter.granted();
    waiter.release();
}

#[test]
fn a_stopped_server_is_ended() {
    let home = Home::new();
    success(&home.run(Shell::Cron, &["locks"]));
    kill_process(home.server().unwrap(), Signal::STOP).unwrap();
    let said = success(&home.run(Shell::Cron, &["local", "--stop"]));
    assert!(said.starts_with("stopped the server, pid "), "{said}");
    assert!(home.processes().is_empty());
}

/// Two pid namespaces with the same home are like a host and a container that share the home.
#[test]
fn a_store_is_shared_over_pid_namespaces() {
    let home = Home::new();
    let holder = home.hold(Shell::Login, "a");
    let apart = [
        "--user",
        "--map-root-user",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ];
    let mut command = home.command_of(Path::new("unshare"), Shell::Cron, &apart);
    command.env("PATH", std::env::var_os("PATH").unwrap());
    command.arg(env!("CARGO_BIN_EXE_lockkeeper"));
    let output = command
        .args(["run", "--try", "a", "--", "true"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(75), "{output:?}");
    holder.release();
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// The test kills servers during their start, as often as possible. On a slow machine, the client is without a server
/// for as long as a session usually lasts.
#[test]
fn a_client_without_a_server_starts_one_at_a_time() {
    let home = Home::new();
    let arguments = holding(&["--session-timeout=10m", "a"]);
    let mut holder = Holder::spawn(home.command(Shell::Login, &arguments));
    holder.granted();
    let guardian = fs::read_to_string(format!("/proc/{0}/task/{0}/children", holder.child.id()));
    let guardian = guardian.unwrap().trim().to_owned();
    for _ in 0..20 {
        let server = home.until(Home::server);
        kill_process(server, Signal::KILL).unwrap();
        home.until(|home| home.server().filter(|next| *next != server));
        let threads = fs::read_dir(format!("/proc/{guardian}/task")).unwrap();
        let names = threads.map(|it| fs::read_to_string(it.unwrap().path().join("comm")));
        let starting = names.filter(|name| {
            name.as_ref()
                .is_ok_and(|it| it.starts_with("lockkeeper-star"))
        });
        let starting = starting.count();
        assert!(starting <= 1, "{starting} threads start a server");
    }
    holder.release();
}

/// The lock for starting the server is held, as by a process that was stopped while starting the server.
#[test]
fn a_start_that_hangs_is_named() {
    let home = Home::new();
    home.hold(Shell::Cron, "a").release();
    let start = File::open(home.data().unwrap().join("start")).unwrap();
    start.lock().unwrap();
    kill_process(home.server().unwrap(), Signal::KILL).unwrap();
    home.until(|home| home.server().is_none().then_some(()));
    let output = home.run(Shell::Cron, &["who", "a", "--connect-timeout=500ms"]);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("/start` shows"), "{said}");
}
