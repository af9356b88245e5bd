//! Kills clients, servers and starting servers at random, while clients take turns holding a lock.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use testkit::Random;

use super::*;

/// Number of grants after which a run ends.
const GRANTS: usize = 80;

const CLIENTS: usize = 6;

/// A resource that checks tokens. It also checks that only one holder uses it at a time.
#[derive(Default)]
struct Resource {
    is_used: AtomicBool,
    last: Mutex<u64>,
    grants: AtomicUsize,
}

impl Resource {
    fn enter(&self, token: u64) {
        assert!(!self.is_used.swap(true, Ordering::SeqCst), "two holders");
        let mut last = self.last.lock().unwrap();
        assert!(token > *last, "{token} after {last}");
        *last = token;
        self.grants.fetch_add(1, Ordering::SeqCst);
    }

    fn leave(&self) {
        assert!(self.is_used.swap(false, Ordering::SeqCst));
    }

    fn is_done(&self) -> bool {
        self.grants.load(Ordering::SeqCst) >= GRANTS
    }
}

/// Stops all clients when one of them has panicked.
struct EndOnPanic<'a>(&'a Resource);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.grants.store(GRANTS, Ordering::SeqCst);
        }
    }
}

fn client(home: &Home, resource: &Resource, mut dice: Random) {
    let _end = EndOnPanic(resource);
    let shell = match dice.below(2) {
        0 => Shell::Login,
        _ => Shell::Cron,
    };
    let options = ["--connect-timeout=2m", "--session-timeout=8s", "turns"];
    while !resource.is_done() {
        let mut holder = Holder::spawn(home.command(shell, &holding(&options)));
        if dice.below(4) == 0 {
            // Kill the command at a random time before its grant, possibly while it starts a server.
            std::thread::sleep(Duration::from_millis(dice.below(60)));
            if dice.below(12) == 0 {
                // In this case, its session ends only after its timeout.
                kill_guardian(&holder);
            }
            drop(holder);
            continue;
        }
        // If a client is not killed, it loses neither its place in the queue nor its lock, even if servers are killed.
        let token = holder.granted();
        resource.enter(token);
        if dice.below(2) == 0 {
            // Hold the lock for a while, so that servers are also killed while a client holds it.
            std::thread::sleep(Duration::from_millis(dice.below(20)));
        }
        resource.leave();
        match dice.below(3) {
            0 => drop(holder),
            _ => holder.release(),
        }
    }
}

fn kill_guardian(holder: &Holder) {
    let front = holder.child.id();
    let children = fs::read_to_string(format!("/proc/{front}/task/{front}/children"));
    for child in children.unwrap_or_default().split_whitespace() {
        let _ = kill_process(Pid::from_raw(child.parse().unwrap()).unwrap(), Signal::KILL);
    }
}

/// Kills servers, and processes that are about to become servers.
fn killer(home: &Home, resource: &Resource, mut dice: Random) -> usize {
    let mut kills = 0;
    while !resource.is_done() {
        // Wait for a grant between two kills. Each restart gives all sessions their full timeout again, including the
        // sessions of killed guardians. Without the wait, the lock might therefore never become free. The wait also
        // makes sure that each client has had a server between two kills. A client without a server for its whole
        // timeout would rightly lose its session.
        let grants = resource.grants.load(Ordering::SeqCst);
        while resource.grants.load(Ordering::SeqCst) == grants && !resource.is_done() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(dice.below(300)));
        let processes = home.processes();
        if let Some(process) = processes.get(dice.below(4) as usize % processes.len().max(1)) {
            // An error means that the process has already ended on its own.
            kills += usize::from(kill_process(*process, Signal::KILL).is_ok());
        }
    }
    kills
}

#[test]
fn random_kills_make_no_second_holder_and_no_token_goes_back() {
    let seed = u64::from(std::process::id()) << 20 | 1;
    eprintln!("seed {seed}");
    let home = Home::new();
    let resource = Resource::default();
    let kills = std::thread::scope(|scope| {
        let (home, resource) = (&home, &resource);
        for number in 0..CLIENTS as u64 {
            let dice = Random(seed + 2 * number);
            scope.spawn(move || client(home, resource, dice));
        }
        let killer = scope.spawn(move || killer(home, resource, Random(seed + 1_001)));
        killer.join().unwrap()
    });
    assert!(kills > 0);
    assert!(home.servers() > 1, "{kills} kills");
    // After the kills, everything still works. There is one server, and tokens still grow.
    let holder = home.hold(Shell::Cron, "turns");
    assert!(holder.token() > *resource.last.lock().unwrap());
    holder.release();
    assert_eq!(home.processes().len(), 1);
}
