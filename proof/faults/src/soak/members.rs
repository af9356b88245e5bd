//! [`Members`]: the processes of the load, their figures, and the faults that hit them.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use testkit::{ChildProcess, Proxy, free_address, with_death_signal};

use super::proc::{files, usage};
use super::sample::Sample;
use super::server::Server;
use crate::programs::own_program;

pub(super) struct Members {
    members: Vec<Member>,
    /// Repeatedly killed and replaced.
    guest: Member,
    guests: u64,
    /// In front of the clients whose connections are cut.
    proxy: Proxy,
    cuts: u64,
    folder: PathBuf,
    next_guest: Instant,
    next_cut: Instant,
}

struct Member {
    name: &'static str,
    process: ChildProcess,
    stdin: ChildStdin,
    heard: Arc<Mutex<Heard>>,
}

#[derive(Default)]
struct Heard {
    is_ready: bool,
    is_done: bool,
    figures: BTreeMap<String, f64>,
    violations: Vec<String>,
}

/// Lifetime of guests, and interval of cuts. Longer than a reconnection, and than the guests' session timeout.
const LIFE: Duration = Duration::from_secs(6);
const CUT: Duration = Duration::from_secs(5);

/// Number of the first guest. Lower numbers are members.
const FIRST_GUEST: u64 = 100;

impl Members {
    /// Starts all processes. The first one writes large values at `rate` bytes per second.
    pub(super) fn start(server: &Server, folder: &Path, rate: u64) -> io::Result<Self> {
        let proxy = Proxy::of_bytes(free_address(), server.address())?;
        let by_proxy = format!("lockkeeper://{}", proxy.address());
        let own = format!("file:{}", folder.join("own").display());
        let (url, unix) = (server.url(), server.unix_url());
        let bulk = rate.to_string();
        let members = vec![
            Member::start("client-0", 0, folder, &[&url, "--bulk", &bulk]),
            Member::start("client-1", 1, folder, &[&by_proxy]),
            Member::start("client-2", 2, folder, &[&unix]),
            Member::start("embedded", 3, folder, &[&own, "memory:"]),
        ];
        let now = Instant::now();
        Ok(Self {
            members,
            guest: guest(server, folder, 0),
            guests: 0,
            proxy,
            cuts: 0,
            folder: folder.to_owned(),
            next_guest: now + LIFE,
            next_cut: now + CUT,
        })
    }

    pub(super) fn are_ready(&self) -> bool {
        let mut members = self.members.iter();
        members.all(|member| member.heard.lock().unwrap().is_ready)
    }

    pub(super) fn are_done(&self) -> bool {
        self.late().is_empty()
    }

    pub(super) fn late(&self) -> String {
        let members = self.members.iter();
        let late = members.filter(|member| !member.heard.lock().unwrap().is_done);
        late.map(|member| member.name)
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// Kills guests, cuts connections, and collects violations.
    pub(super) fn step(&mut self, server: &Server, violations: &mut Vec<String>) {
        let now = Instant::now();
        if now >= self.next_cut {
            self.next_cut = now + CUT;
            self.cuts += 1;
            self.proxy.break_off();
        }
        if now >= self.next_guest {
            self.next_guest = now + LIFE;
            self.guests += 1;
            self.guest.process.end();
            self.guest.hear(violations);
            self.guest = guest(server, &self.folder, self.guests);
        }
        self.hear(violations);
        for member in &mut self.members {
            if let Ok(Some(status)) = member.process.try_wait() {
                violations.push(format!("error: {} has ended: {status}", member.name));
            }
        }
    }

    pub(super) fn hear(&mut self, violations: &mut Vec<String>) {
        for member in self.members.iter().chain([&self.guest]) {
            member.hear(violations);
        }
    }

    /// Adds the figures of all processes except guests to a sample.
    pub(super) fn add_to(&self, sample: &mut Sample) {
        for member in &self.members {
            if let Some(usage) = usage(member.process.pid()) {
                sample.add(member.name, "rss", usage.rss);
                sample.add(member.name, "rss_peak", usage.peak);
                sample.add(member.name, "threads", usage.threads);
                sample.add(member.name, "fds", usage.fds);
            }
            for (figure, value) in &member.heard.lock().unwrap().figures {
                sample.add(member.name, figure, *value);
            }
        }
        sample.add("embedded", "disk", files(&self.folder.join("own")).bytes);
    }

    /// Asks each process to finish. Kills the guest, which may hold a lock.
    pub(super) fn finish(&mut self) {
        self.guest.process.end();
        for member in &mut self.members {
            // Ignore an error, because a process that has ended is reported as unfinished.
            let _ = member.stdin.write_all(b"finish\n");
        }
    }

    pub(super) fn end(&mut self) {
        for member in &mut self.members {
            member.process.end();
        }
    }

    /// Returns how often clients were hit.
    pub(super) fn hurt(&self) -> String {
        format!("{}, {}", self.guests, self.cuts)
    }
}

fn guest(server: &Server, folder: &Path, number: u64) -> Member {
    let number = FIRST_GUEST + number;
    Member::start("guest", number, folder, &[&server.url(), "--guest"])
}

impl Member {
    fn start(name: &'static str, number: u64, folder: &Path, arguments: &[&str]) -> Self {
        let mut command = with_death_signal(own_program());
        command
            .arg("load")
            .args(arguments)
            .args(["--number", &number.to_string(), "--gates"])
            .arg(folder.join("gates"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = ChildProcess::spawn(&mut command);
        let stdin = process.stdin.take().expect("it is piped");
        let stdout = process.stdout.take().expect("it is piped");
        let heard = Arc::<Mutex<Heard>>::default();
        let told = heard.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                told.lock().unwrap().take(name, &line);
            }
        });
        Self {
            name,
            process,
            stdin,
            heard,
        }
    }

    fn hear(&self, violations: &mut Vec<String>) {
        violations.append(&mut self.heard.lock().unwrap().violations);
    }
}

impl Heard {
    fn take(&mut self, name: &str, line: &str) {
        match line.split_once(' ').unwrap_or((line, "")) {
            ("ready", _) => self.is_ready = true,
            ("done", _) => self.is_done = true,
            ("figures", figures) => {
                let pairs = figures.split(' ').filter_map(|pair| pair.split_once('='));
                let numbers = pairs.filter_map(|(name, value)| Some((name, value.parse().ok()?)));
                self.figures
                    .extend(numbers.map(|(name, value)| (name.to_owned(), value)));
            }
            ("violation", text) => self.violations.push(format!("{text} ({name})")),
            // The last line of a guest may be incomplete.
            _ if name == "guest" => {}
            _ => self.violations.push(format!("error: {name} says {line:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_process_are_taken_in() {
        let mut heard = Heard::default();
        heard.take("client-0", "ready");
        heard.take(
            "client-0",
            "figures tasks=12 served.grants=3 served.p99_ms=1.5",
        );
        heard.take("client-0", "figures tasks=13");
        heard.take("client-0", "violation left behind: 2 tasks");
        heard.take("client-0", "hello");
        heard.take("client-0", "done");
        assert!(heard.is_ready && heard.is_done);
        assert_eq!(heard.figures["tasks"], 13.0);
        assert_eq!(heard.figures["served.p99_ms"], 1.5);
        assert_eq!(
            heard.violations,
            [
                "left behind: 2 tasks (client-0)",
                "error: client-0 says \"hello\""
            ]
        );
    }
}
