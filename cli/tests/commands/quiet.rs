//! The costs of idle commands: wake-ups, processor time and network traffic.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use testkit::{Proxy, free_address};

use super::dashboard::client::{Dashboard, Events};
use super::running::Running;
use super::stores::*;

const WINDOW: Duration = Duration::from_secs(3);

/// Limit of wake-ups per process. The library zookeeper-client already causes twenty of them.
const WAKE_UPS_A_SECOND: u64 = 100;

/// Limit of processor time per process, as a percentage of one processor.
const PERCENT: u64 = 15;

/// Limits of the traffic of all commands together, within one window.
struct Limits {
    connections: usize,
    new_sessions: usize,
    requests: usize,
}

/// Number of commands, each with one session.
const COMMANDS: usize = 8;

/// Limits while the commands are idle. Each sends a heartbeat every five seconds, and warden and dashboard poll
/// occasionally.
const QUIET: Limits = Limits {
    connections: 0,
    new_sessions: 0,
    requests: 3 * COMMANDS,
};

/// Limits after the connections broke. Over `zookeeper:`, each client also opens another session to learn its timeout.
const RECONNECTED: Limits = Limits {
    connections: 4 * COMMANDS,
    new_sessions: 2 * COMMANDS,
    requests: 10 * COMMANDS,
};

/// Limits while there is no server. The delays between attempts to connect grow to a second.
const WITHOUT_SERVER: Limits = Limits {
    connections: 20 * COMMANDS,
    new_sessions: 0,
    requests: 0,
};

/// The state of a process, as read from `/proc`.
#[derive(Clone, Copy)]
struct Seen {
    pid: i32,
    parent: i32,
    /// Number of wake-ups of all threads of the process.
    wake_ups: u64,
    /// Processor time in hundredths of a second.
    ticks: u64,
}

impl Seen {
    /// Reads the state of a process. Returns `None` if the process has ended.
    fn read(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<_> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
        let wake_ups = tasks.filter_map(|task| {
            let status = fs::read_to_string(task.path().join("status")).ok()?;
            let count = status
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            count?.trim().parse::<u64>().ok()
        });
        Some(Self {
            pid,
            parent: fields[1].parse().ok()?,
            wake_ups: wake_ups.sum(),
            ticks: fields[11].parse::<u64>().ok()? + fields[12].parse::<u64>().ok()?,
        })
    }
}

fn tree(root: Pid) -> Vec<Seen> {
    let names = fs::read_dir("/proc").unwrap().flatten();
    let pids = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let all: Vec<_> = pids.filter_map(Seen::read).collect();
    let mut found: Vec<Seen> = Vec::new();
    let mut next = vec![root.as_raw_pid()];
    while let Some(pid) = next.pop() {
        found.extend(all.iter().find(|seen| seen.pid == pid));
        next.extend(
            all.iter()
                .filter(|seen| seen.parent == pid)
                .map(|seen| seen.pid),
        );
    }
    found
}

/// The commands, each with its first process, and the proxy between all of them and the server.
struct Commands<'a> {
    roots: &'a [(&'static str, Pid)],
    proxy: &'a Proxy,
}

impl Commands<'_> {
    /// Fails if a command does more within a window than an idle command should do.
    fn cost_little(&self, limits: &Limits, what: &str) {
        let before: Vec<_> = self.roots.iter().map(|(_, root)| tree(*root)).collect();
        let start = Instant::now();
        std::thread::sleep(WINDOW);
        for ((name, _), before) in self.roots.iter().zip(before) {
            for before in before {
                let after = Seen::read(before.pid);
                let after = after.unwrap_or_else(|| panic!("{name} has ended, {what}"));
                let millis = start.elapsed().as_millis() as u64;
                // The number can shrink, because wake-ups of threads that have ended are no longer counted.
                let wake_ups = after.wake_ups.saturating_sub(before.wake_ups) * 1000 / millis;
                let percent = (after.ticks - before.ticks) * 1000 / millis;
                let seen = format!("{what}, {name}: {wake_ups} wake-ups a second, {percent} %");
                println!("{seen}");
                assert!(
                    wake_ups <= WAKE_UPS_A_SECOND && percent <= PERCENT,
                    "{seen}"
                );
            }
        }
        let counts = self.proxy.take_counts();
        println!("{what}: {counts:?}");
        let is_within = counts.connections <= limits.connections
            && counts.new_sessions <= limits.new_sessions
            && counts.requests <= limits.requests;
        assert!(is_within, "{what}: {counts:?}");
    }
}

on_stores! {
    [served, zookeeper, etcd]
    fn commands_that_wait_cost_little(store: StoreAt) {
        let mut store = store;
        let (scheme, rest) = store.url.split_once("://").unwrap();
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (server, is_etcd) = (host.parse().unwrap(), scheme == "etcd");
        let proxy = match is_etcd {
            true => Proxy::of_bytes(free_address(), server).unwrap(),
            false => Proxy::to(server),
        };
        store.url = format!("{scheme}://{}/{path}", proxy.hosts());
        let script = "echo; exec sleep 1000";
        let mut holder = Running::spawn(&mut store.command(&["run", "a", "--", "sh", "-c", script]));
        holder.line();
        let waiter = Running::spawn(&mut store.command(&["run", "a", "--", "true"]));
        store.queue_has(2);
        let elect = ["elect", "e", "--", "sh", "-c", script];
        let mut leader = Running::spawn(&mut store.command(&elect));
        leader.line();
        let candidate = Running::spawn(&mut store.command(&elect));
        let mut observer = Running::spawn(&mut store.command(&["elect", "--observe", "e"]));
        observer.line();
        let warden = Running::spawn(&mut store.command(&["warden"]));
        let mut watching = Running::spawn(&mut store.command(&["locks", "--watch"]));
        watching.line();
        let dashboard = Dashboard::start(&store, &[]);
        let mut events = Events::of(dashboard.at(), "/api/locks?limit=10");
        events.until("locks", |it| it["held"] != 0);
        let mut roots = vec![
            ("run, holding", holder.front()),
            ("run, waiting", waiter.front()),
            ("elect, leading", leader.front()),
            ("elect, a candidate", candidate.front()),
            ("elect --observe", observer.front()),
            ("warden", warden.front()),
            ("locks --watch", watching.front()),
            ("dashboard", dashboard.pid()),
        ];
        roots.extend(store.server().map(|pid| ("serve", pid)));
        let commands = Commands {
            roots: &roots,
            proxy: &proxy,
        };
        // Wait for one more session, which `queue_has` has opened. A proxy counts no sessions and requests of etcd.
        if !is_etcd {
            proxy.wait_for_new_sessions(COMMANDS + 1);
        }
        proxy.take_counts();
        commands.cost_little(&QUIET, "at first");
        proxy.break_off();
        commands.cost_little(&RECONNECTED, "after a reconnection");
        commands.cost_little(&QUIET, "long after a reconnection");
        proxy.cut();
        commands.cost_little(&WITHOUT_SERVER, "without a server");
        proxy.mend();
        commands.cost_little(&RECONNECTED, "with a server again");
        commands.cost_little(&QUIET, "long after that");
    }
}
