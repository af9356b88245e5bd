//! [`Server`]: `lockkeeper serve` in a soak, with backups, a rotated audit log and scraped metrics.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use testkit::{ChildProcess, four_letter_word, free_address, last_lines, open_log, serve};

use super::growth_check::DiskBound;
use super::proc::{Files, field, files, usage};
use super::sample::Sample;

pub(super) struct Server {
    process: ChildProcess,
    address: SocketAddr,
    metrics: SocketAddr,
    folder: PathBuf,
    snapshots: Snapshots,
    rotations: u64,
}

/// Snapshots of the store, as observed in its folder.
#[derive(Default)]
struct Snapshots {
    largest: f64,
    /// A snapshot was being written at the last look.
    is_writing: bool,
    /// Bytes of log at the end of the last snapshot.
    since: f64,
    between: f64,
    count: u64,
}

pub(super) const KEPT: u64 = 3;

const AUDIT: u64 = 1024 * 1024;

/// Figures of `mntr`, and their names in samples.
const WORDS: [(&str, &str); 9] = [
    ("zk_znode_count", "znodes"),
    ("zk_ephemerals_count", "ephemerals"),
    ("zk_global_sessions", "sessions"),
    ("zk_num_alive_connections", "connections"),
    ("zk_watch_count", "watches"),
    ("zk_lockkeeper_log_bytes", "log_bytes"),
    ("zk_lockkeeper_log_batches", "log_batches"),
    ("zk_packets_received", "requests"),
    ("zk_lockkeeper_outgoing_bytes", "unread"),
];

impl Server {
    /// Starts it. Intervals are so short that a run of some minutes sees all background work often.
    pub(super) fn start(program: PathBuf, folder: &Path, length: Duration) -> io::Result<Self> {
        let (address, metrics) = (free_address(), free_address());
        let backups = folder.join("backups");
        fs::create_dir_all(&backups)?;
        let every = (length / 30).clamp(Duration::from_secs(2), Duration::from_secs(60));
        let mut command = serve(program);
        command
            .args(["--listen", &address.to_string(), "--listen"])
            .arg(format!("unix:{}", folder.join("socket").display()))
            .arg("--data")
            .arg(folder.join("store"))
            .args(["--metrics-listen", &metrics.to_string()])
            .arg("--audit-log")
            .arg(folder.join("audit.json"))
            .arg("--backup-dir")
            .arg(&backups)
            .args(["--backup-every", &format!("{}s", every.as_secs())])
            .args(["--keep", &KEPT.to_string()])
            .args(["--tick", "200ms", "--max-session-timeout", "60s"])
            .args(["--reaper-interval", "2s"])
            .args(["--four-letter-words", "srvr,mntr", "--log-level", "warn"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(open_log(&folder.join("log")));
        Ok(Self {
            process: ChildProcess::spawn(&mut command),
            address,
            metrics,
            folder: folder.to_owned(),
            snapshots: Snapshots::default(),
            rotations: 0,
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn url(&self) -> String {
        format!("lockkeeper://{}", self.address)
    }

    pub(super) fn unix_url(&self) -> String {
        format!("lockkeeper+unix://{}", self.folder.join("socket").display())
    }

    pub(super) fn is_well(&self) -> bool {
        four_letter_word(self.address, "srvr").is_ok_and(|answer| answer.contains("Mode:"))
    }

    pub(super) fn log(&self) -> String {
        last_lines(&fs::read_to_string(self.folder.join("log")).unwrap_or_default())
    }

    fn store(&self) -> Files {
        files(&self.folder.join("store"))
    }

    /// Looks at the snapshots, and rotates the audit log. Called several times per second, because a snapshot is
    /// quick.
    pub(super) fn observe(&mut self) {
        let files = self.store();
        let written = four_letter_word(self.address, "mntr")
            .ok()
            .and_then(|words| field(&words, "zk_lockkeeper_log_bytes"));
        self.snapshots.see(&files, written);
        let audit = self.folder.join("audit.json");
        if fs::metadata(&audit).is_ok_and(|metadata| metadata.len() > AUDIT) {
            // As logrotate does.
            let _ = fs::rename(&audit, self.folder.join("audit.old"));
            self.process.signal(Signal::HUP);
            self.rotations += 1;
        }
    }

    /// Adds the server's figures to a sample. The error says why the server does not report them.
    pub(super) fn add_to(&mut self, sample: &mut Sample) -> Result<(), String> {
        let words = self.words()?;
        for (word, figure) in WORDS {
            if let Some(value) = field(&words, word) {
                sample.add("server", figure, value);
            }
        }
        let kept = ["znode", "watch", "session"].map(|kind| {
            let name = format!("zk_lockkeeper_{kind}_bytes");
            field(&words, &name).unwrap_or_default()
        });
        sample.add("server", "store_bytes", kept.iter().sum());
        if let Some(usage) = usage(self.process.pid()) {
            sample.add("server", "rss", usage.rss);
            sample.add("server", "rss_peak", usage.peak);
            sample.add("server", "threads", usage.threads);
            sample.add("server", "fds", usage.fds);
        }
        sample.add("server", "disk", self.store().bytes);
        let backups = files(&self.folder.join("backups"));
        sample.add("server", "backups", backups.count);
        sample.add("server", "backup_bytes", backups.bytes);
        let metrics = scrape(self.metrics).map_err(|error| format!("no metrics: {error}"))?;
        let series = metrics
            .lines()
            .filter(|line| line.starts_with("lockkeeper_"));
        sample.add("server", "metrics", series.count() as f64);
        Ok(())
    }

    /// Asks for the server's figures, with retries in case the machine is busy.
    fn words(&self) -> Result<String, String> {
        let mut asked = four_letter_word(self.address, "mntr");
        for _ in 0..10 {
            if asked.is_ok() {
                break;
            }
            asked = four_letter_word(self.address, "mntr");
        }
        asked.map_err(|error| format!("the server does not answer: {error}"))
    }

    /// Describes what clients have left behind in the server after they are gone. Should be empty.
    pub(super) fn remnants(&mut self) -> String {
        match self.words() {
            Ok(words) => remnants(&words),
            Err(why) => why,
        }
    }

    /// Stops it in order. Fails if the server had ended before, or does not end.
    pub(super) fn stop(&mut self) -> Result<(), String> {
        if let Ok(Some(status)) = self.process.try_wait() {
            return Err(format!("error: the server has ended by itself: {status}"));
        }
        self.process.signal(Signal::TERM);
        match self.process.has_ended_within(Duration::from_secs(30)) {
            true => Ok(()),
            false => Err("progress: the server does not end on SIGTERM".to_owned()),
        }
    }

    pub(super) fn disk_bound(&self) -> DiskBound {
        DiskBound {
            snapshot: self.snapshots.largest,
            between: self.snapshots.between,
        }
    }

    /// Describes the background work that was observed.
    pub(super) fn made(&self) -> String {
        let backups = files(&self.folder.join("backups")).count;
        let Self {
            snapshots,
            rotations,
            ..
        } = self;
        format!("{}, {backups} kept, {}", snapshots.count, rotations)
    }
}

impl Snapshots {
    /// Records the store's files, and the bytes of log at that time.
    fn see(&mut self, files: &Files, written: Option<f64>) {
        self.largest = self.largest.max(files.snapshot);
        let Some(written) = written else { return };
        self.between = self.between.max(written - self.since);
        if self.is_writing && !files.has_unfinished {
            self.since = written;
            self.count += 1;
        }
        self.is_writing = files.has_unfinished;
    }
}

/// Limit of the znodes at the end, which belong to reused paths and large values.
const MAX_LASTING_ZNODES: f64 = 40.0;

/// Describes the leftovers in an answer to `mntr`.
fn remnants(words: &str) -> String {
    let of = |word: &str| field(words, word).unwrap_or(f64::NAN);
    let znodes = of("zk_znode_count");
    let mut left = Vec::new();
    for (name, count) in [
        ("ephemeral znodes", of("zk_ephemerals_count")),
        // Without the client that follows the locks for the metrics.
        ("sessions", of("zk_global_sessions") - 1.0),
        ("watches", of("zk_watch_count") - 1.0),
        ("bytes of watches", of("zk_lockkeeper_watch_bytes")),
        ("bytes of sessions", of("zk_lockkeeper_session_bytes")),
        // The connection of this request.
        ("connections", of("zk_num_alive_connections") - 1.0),
        ("unread bytes", of("zk_lockkeeper_outgoing_bytes")),
        ("incomplete bytes", of("zk_lockkeeper_unfinished_bytes")),
    ] {
        if count != 0.0 {
            left.push(format!("{count} {name}"));
        }
    }
    if znodes.is_nan() || znodes > MAX_LASTING_ZNODES {
        left.push(format!("{znodes} znodes, where {MAX_LASTING_ZNODES} last"));
    }
    left.join(", ")
}

/// Reads the metrics as Prometheus does.
fn scrape(address: SocketAddr) -> io::Result<String> {
    let limit = Duration::from_secs(5);
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_read_timeout(Some(limit))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: soak\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_remnant_is_seen() {
        const WORDS: [&str; 8] = [
            "zk_ephemerals_count",
            "zk_global_sessions",
            "zk_watch_count",
            "zk_lockkeeper_watch_bytes",
            "zk_lockkeeper_session_bytes",
            "zk_num_alive_connections",
            "zk_lockkeeper_outgoing_bytes",
            "zk_lockkeeper_unfinished_bytes",
        ];
        let answer = |left: &str, znodes: u32| {
            let mut text = format!("zk_znode_count\t{znodes}\n");
            for word in WORDS {
                const OWN: [&str; 3] = [
                    "zk_global_sessions",
                    "zk_watch_count",
                    "zk_num_alive_connections",
                ];
                let own = u32::from(OWN.contains(&word));
                text += &format!("{word}\t{}\n", own + u32::from(word == left));
            }
            text
        };
        assert_eq!(remnants(&answer("", 20)), "");
        assert_eq!(remnants(&answer("", 400)), "400 znodes, where 40 last");
        for word in WORDS {
            assert!(remnants(&answer(word, 20)).starts_with("1 "), "{word}");
        }
        assert!(!remnants("").is_empty());
    }

    #[test]
    fn the_log_between_two_snapshots_is_counted() {
        let mut snapshots = Snapshots::default();
        let mut see = |has_unfinished, snapshot, written| {
            let files = Files {
                has_unfinished,
                snapshot,
                ..Files::default()
            };
            snapshots.see(&files, Some(written));
        };
        see(false, 0.0, 100.0);
        see(true, 0.0, 150.0);
        see(true, 0.0, 200.0);
        see(false, 30.0, 250.0);
        see(false, 20.0, 900.0);
        see(true, 20.0, 910.0);
        see(false, 20.0, 920.0);
        assert_eq!(snapshots.largest, 30.0);
        assert_eq!(snapshots.between, 670.0);
        assert_eq!(snapshots.count, 2);
    }
}
