//! A soak: a server and its clients under mixed load for any length of time, with checks that nothing grows.
//!
//! A real `lockkeeper serve` syncs to a data folder. Several client processes use it over TCP, through a proxy that
//! cuts their connections, and over a Unix socket. Guest processes are killed repeatedly. Another process uses its own
//! `file:` and `memory:` stores. The system reports memory, descriptors and threads of each process, the server
//! reports its znodes, sessions, watches and log size, and each client reports its grants and tasks. [`growth_check`] checks
//! these figures.

mod growth_check;
pub(crate) mod load;
mod members;
mod proc;
mod sample;
mod server;

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use lockkeeper::{Client, connect_with};
use lockkeeper_store::ZnodePath;
use testkit::TempFolder;

use self::growth_check::DiskBound;
use self::members::Members;
use self::sample::Sample;
use self::server::Server;
use crate::programs;
use crate::run::{TIMEOUT_MS, no_entry_is_left};
use crate::worker::connect_options;
use crate::workers::waited;

#[derive(Args, Clone)]
pub(crate) struct Options {
    /// Time under load.
    #[arg(long, default_value_t = 60.0)]
    minutes: f64,
    /// Volume of the log that large values bring about, in gigabytes of 10^9 bytes; at first 50 for each hour.
    #[arg(long)]
    log_gigabytes: Option<f64>,
    /// Time between two samples, in seconds.
    #[arg(long)]
    every: Option<f64>,
    /// File for the samples, a line of JSON each.
    #[arg(long)]
    out: Option<PathBuf>,
}

impl Options {
    fn length(&self) -> Duration {
        Duration::from_secs_f64(self.minutes * 60.0)
    }

    fn volume(&self) -> f64 {
        1e9 * self.log_gigabytes.unwrap_or(50.0 * self.minutes / 60.0)
    }

    fn interval(&self) -> Duration {
        let seconds = self.every.unwrap_or(self.minutes * 60.0 / 120.0);
        Duration::from_secs_f64(seconds.clamp(0.5, 30.0))
    }
}

const PATIENCE: Duration = Duration::from_secs(120);

/// Counters that must keep growing in each process.
const COUNTERS: [&str; 4] = ["grants", "ops", "visits", "events"];

/// Runs a soak. Returns `true` if nothing grows and no promise was broken. The error is a missing requirement.
pub(crate) fn run(options: &Options) -> Result<bool, String> {
    let text = |error: std::io::Error| error.to_string();
    let folder = TempFolder::short();
    let runtime = crate::runtime();
    let server = Server::start(programs::lockkeeper()?, folder.path(), options.length())
        .map_err(|error| format!("the server does not start: {error}"))?;
    if !waited(PATIENCE, || server.is_well()) {
        return Err(format!("the server does not start: {}", server.log()));
    }
    let rate = options.volume() / options.length().as_secs_f64();
    let members = Members::start(&server, folder.path(), rate as u64);
    let mut soak = Soak {
        out: match &options.out {
            Some(file) => Some(File::create(file).map_err(text)?),
            None => None,
        },
        members: members.map_err(text)?,
        server,
        samples: Vec::new(),
        violations: Vec::new(),
        began: Instant::now(),
    };
    if !waited(PATIENCE, || soak.members.are_ready()) {
        return Err("the clients do not connect".to_owned());
    }
    soak.began = Instant::now();
    soak.endure(options)?;
    soak.end(&runtime);
    soak.judge();
    Ok(soak.tell(options))
}

struct Soak {
    server: Server,
    members: Members,
    samples: Vec<Sample>,
    violations: Vec<String>,
    out: Option<File>,
    began: Instant,
}

impl Soak {
    /// Keeps the load up, and takes samples periodically.
    fn endure(&mut self, options: &Options) -> Result<(), String> {
        const STEP: Duration = Duration::from_millis(250);
        let mut next = options.interval();
        while self.began.elapsed() < options.length() && self.violations.len() < 10 {
            std::thread::sleep(STEP);
            self.server.observe();
            self.members.step(&self.server, &mut self.violations);
            if self.began.elapsed() >= next {
                next += options.interval();
                self.sample()?;
            }
        }
        Ok(())
    }

    fn sample(&mut self) -> Result<(), String> {
        let mut sample = Sample {
            at: self.began.elapsed().as_secs_f64(),
            ..Sample::default()
        };
        if let Err(why) = self.server.add_to(&mut sample) {
            self.violations.push(format!("progress: {why}"));
        }
        self.members.add_to(&mut sample);
        if let Some(out) = &mut self.out {
            writeln!(out, "{}", sample.json()).map_err(|error| error.to_string())?;
        }
        if self.samples.len().is_multiple_of(12) {
            println!("{}", line(&sample));
        }
        self.samples.push(sample);
        Ok(())
    }

    /// Ends the load in order, and checks what remains.
    fn end(&mut self, runtime: &tokio::runtime::Runtime) {
        println!(
            "{:>7.1} s  the load ends",
            self.began.elapsed().as_secs_f64()
        );
        self.members.finish();
        let members = &mut self.members;
        if !waited(PATIENCE, || members.are_done()) {
            let late = members.late();
            self.violations
                .push(format!("progress: {late} cannot finish"));
        }
        self.members.hear(&mut self.violations);
        self.members.end();
        if let Err(why) = runtime.block_on(nothing_is_left(&self.server)) {
            self.violations.push(why);
        }
        let server = &mut self.server;
        if !waited(PATIENCE, || server.remnants().is_empty()) {
            let remnants = server.remnants();
            self.violations.push(format!("left behind: {remnants}"));
        }
        if let Err(why) = self.server.stop() {
            self.violations.push(why);
        }
    }

    fn judge(&mut self) {
        let samples = &self.samples;
        self.violations.extend(growth_check::leaks(samples));
        self.violations
            .extend(growth_check::standstills(samples, &COUNTERS));
        self.violations.extend(growth_check::broken(samples));
        let bound = self.server.disk_bound();
        self.violations
            .extend(growth_check::beyond_the_disk(samples, "server.disk", bound));
        // One more while the next one is made, and one that is kept because it is more than twice as large as all
        // newer ones.
        let kept = (server::KEPT + 2) as f64;
        self.violations
            .extend(growth_check::beyond(samples, "server.backups", kept));
        // It has no large values, and writes little during a snapshot.
        let bound = DiskBound {
            snapshot: 0.0,
            between: 64.0 * 1024.0 * 1024.0,
        };
        self.violations.extend(growth_check::beyond_the_disk(
            samples,
            "embedded.disk",
            bound,
        ));
    }

    /// Prints the figures. Returns `true` without violations.
    fn tell(&self, options: &Options) -> bool {
        print!("{}", growth_check::table(&self.samples));
        print!("{}", self.totals(options));
        for violation in &self.violations {
            println!("VIOLATION: {violation}");
        }
        if !self.violations.is_empty() {
            println!("the server says:\n{}", self.server.log());
        }
        self.violations.is_empty()
    }

    fn totals(&self, options: &Options) -> String {
        let mut text = String::from("\n| | |\n|---|---|\n");
        let Some(last) = self.samples.last() else {
            return text;
        };
        let mut row = |what: &str, value: String| {
            let _ = writeln!(text, "| {what} | {value} |");
        };
        let gigabytes = |bytes: f64| format!("{:.2} GB", bytes / 1e9);
        let log = last.get("server.log_bytes").unwrap_or_default();
        row(
            "seconds, samples",
            format!("{:.0}, {}", last.at, self.samples.len()),
        );
        row(
            "log written, of large values asked for",
            format!("{}, {}", gigabytes(log), gigabytes(options.volume())),
        );
        let disk = self
            .samples
            .iter()
            .filter_map(|sample| sample.get("server.disk"));
        let most = disk.fold(0.0, f64::max);
        row(
            "data folder at most, bound",
            format!(
                "{:.0} MiB, {:.0} MiB",
                most / 1024.0 / 1024.0,
                self.server.disk_bound().bytes() / 1024.0 / 1024.0
            ),
        );
        row("snapshots, backups, audit logs", self.server.made());
        row("guests killed, connections cut", self.members.hurt());
        for (what, figure) in [
            ("grants", "grants"),
            ("waits that gave up or were dropped", "cancelled"),
            ("requests besides", "ops"),
            ("sessions that came and went", "visits"),
            ("events of contenders", "events"),
            ("calls that a cut connection has ended", "interrupted"),
            ("leases lost", "losses"),
            ("holders beside another", "conflicts"),
            ("tokens refused", "refused"),
        ] {
            row(what, format!("{:.0}", last.sum(figure)));
        }
        row("violations", self.violations.len().to_string());
        text
    }
}

fn line(sample: &Sample) -> String {
    let mib = |name| sample.get(name).unwrap_or_default() / 1024.0 / 1024.0;
    let count = |name| sample.get(name).unwrap_or_default();
    format!(
        "{:>7.1} s  server {:.0} MiB, {:.0} descriptors, {:.0} sessions, {:.0} znodes, {:.0} watches, disk {:.0} MiB, log \
         {:.2} GB; {:.0} grants",
        sample.at,
        mib("server.rss"),
        count("server.fds"),
        count("server.sessions"),
        count("server.znodes"),
        count("server.watches"),
        mib("server.disk"),
        count("server.log_bytes") / 1e9,
        sample.sum("grants")
    )
}

/// Checks that the server's queues are empty, and that the folders of ever-new names have no children.
async fn nothing_is_left(server: &Server) -> Result<(), String> {
    let error = |error: lockkeeper::Error| format!("error: {error}");
    let connected = connect_with(&server.url(), connect_options(TIMEOUT_MS, None)).await;
    let client = connected.map_err(error)?;
    no_entry_is_left(&client).await?;
    for folder in ["/fresh", "/data", "/events"] {
        is_swept(&client, folder).await?;
    }
    client.close().await.map_err(error)
}

/// Waits until the reaper has removed the containers below a path.
async fn is_swept(client: &Client, folder: &str) -> Result<(), String> {
    let path: ZnodePath = folder.parse().expect("a path");
    let began = Instant::now();
    let mut left = 0;
    while began.elapsed() < PATIENCE {
        let session = client.session().await;
        let session = session.map_err(|error| format!("error: {error}"))?;
        left = match session.get_all_children_number(&path).await {
            Ok(left) => left,
            Err(lockkeeper::Error::NoNode { .. }) => 0,
            Err(error) => return Err(format!("error: {folder}: {error}")),
        };
        if left == 0 {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let names = client.session().await;
    let names = match names {
        Ok(session) => session.get_children(&path).await,
        Err(error) => Err(error),
    };
    let mut names = names.map_or(Vec::new(), |(names, _)| names);
    names.truncate(5);
    Err(format!(
        "left behind: {left} znodes below {folder}, as {names:?}"
    ))
}
