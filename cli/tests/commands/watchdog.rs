//! systemd's watchdog. The server sends signs of life over `NOTIFY_SOCKET` as long as clients are served.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use rustix::process::Signal;

use super::metrics::http::request;
use super::server::*;
use super::support::*;

/// A socket that takes the role of systemd.
struct Systemd {
    socket: UnixDatagram,
    folder: TempFolder,
}

impl Systemd {
    fn new() -> Self {
        let folder = TempFolder::short();
        let socket = UnixDatagram::bind(folder.at("notify")).unwrap();
        Self { socket, folder }
    }

    /// Starts a server that is watched with this limit, in microseconds.
    fn watch(&self, limit: &str, pid: Option<&str>) -> Server {
        let mut command = serve();
        command.args(["--data=memory", "--metrics-listen=127.0.0.1:0"]);
        command.env("NOTIFY_SOCKET", self.folder.at("notify"));
        command
            .env("WATCHDOG_USEC", limit)
            .env_remove("WATCHDOG_PID");
        command.envs(pid.map(|pid| ("WATCHDOG_PID", pid)));
        Server::start(&mut command)
    }

    fn hear(&self) -> String {
        let mut buffer = [0; 64];
        let length = self.socket.recv(&mut buffer).unwrap();
        str::from_utf8(&buffer[..length]).unwrap().to_owned()
    }

    /// Reads messages until no message has arrived for this time.
    fn until_silent(&self, silence: Duration) {
        self.socket.set_read_timeout(Some(silence)).unwrap();
        let mut buffer = [0; 64];
        while self.socket.recv(&mut buffer).is_ok() {}
        self.socket.set_read_timeout(None).unwrap();
    }
}

#[test]
fn a_server_that_serves_gives_signs_of_life_after_it_is_ready() {
    let systemd = Systemd::new();
    let server = systemd.watch("200000", None);
    assert_eq!(systemd.hear(), "READY=1");
    for _ in 0..3 {
        assert_eq!(systemd.hear(), "WATCHDOG=1");
    }
    server.signal(Signal::TERM);
    while systemd.hear() != "STOPPING=1" {}
    ended_well(&server.ended());
}

#[test]
fn a_server_that_is_not_meant_or_not_watched_gives_none() {
    for (limit, pid) in [("1000", Some("1")), ("0", None), ("soon", None)] {
        let systemd = Systemd::new();
        let server = systemd.watch(limit, pid);
        assert_eq!(systemd.hear(), "READY=1");
        block_on(async { put(&server.connect().await, "/a", "served").await });
        server.signal(Signal::TERM);
        assert_eq!(systemd.hear(), "STOPPING=1");
        ended_well(&server.ended());
    }
}

#[test]
fn a_server_whose_process_is_stopped_gives_none_until_it_goes_on() {
    let systemd = Systemd::new();
    let server = systemd.watch("100000", None);
    while systemd.hear() != "WATCHDOG=1" {}
    server.signal(Signal::STOP);
    systemd.until_silent(Duration::from_secs(1));
    server.signal(Signal::CONT);
    assert_eq!(systemd.hear(), "WATCHDOG=1");
}

/// ptrace stops only the threads that serve clients, and the other threads of the server continue.
#[test]
fn a_server_whose_clients_are_not_served_gives_none() {
    let systemd = Systemd::new();
    let server = systemd.watch("100000", None);
    while systemd.hear() != "WATCHDOG=1" {}
    let pid = server.pid().as_raw_nonzero();
    let mut stopped = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let task = task.unwrap();
        let name = fs::read_to_string(task.path().join("comm")).unwrap();
        // The kernel truncates the name after 15 bytes.
        if name.trim_end() == "lockkeeper-serv" {
            let thread = task.file_name().to_str().unwrap().parse().unwrap();
            let thread = Pid::from_raw(thread);
            ptrace::attach(thread).unwrap();
            waitpid(thread, Some(WaitPidFlag::__WALL)).unwrap();
            stopped.push(thread);
        }
    }
    assert!(!stopped.is_empty());
    systemd.until_silent(Duration::from_secs(1));
    // The threads that serve metrics still answer, so a sign of life from them would prove nothing about the clients.
    let (_, metrics) = server.ready.rsplit_once(" metrics ").unwrap();
    assert_eq!(request(metrics, "GET", "/healthz").status, 200);
    for thread in stopped {
        ptrace::detach(thread, None).unwrap();
    }
    assert_eq!(systemd.hear(), "WATCHDOG=1");
    ended_well(&server.end(Signal::TERM));
}
