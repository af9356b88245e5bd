//! The command line.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use lexopt::prelude::*;

use crate::store_server::Serving;

const USAGE: &str = "\
usage: cargo bench --bench store -- [options]
  --url URL            memory: (the default), file:FOLDER, zookeeper://[host:port[/chroot]] or
                       lockkeeper://[host:port[/chroot]]; each case makes a store of its own in
                       FOLDER, and removes it; without a host, the bench starts the server
  --data D             of the `lockkeeper serve` that it starts: memory (the default), or a folder
  --workload W[,W]     syncs, create, set, reads, fanout, snapshot, recovery (all by default)
  --system S           what runs beside file: in the same rounds: sketch (the default), the simplest
                       group commit, with the disk's own syncs; or none
  --durability D       of file: and of the servers that it starts: fsync (the default),
                       delayed-restart or none
  --segment-bytes B    of file:, the size of the log's first and largest segment (the store's own)
  --clients N[,N]      only the cases with so many sessions, one request at a time each
  --watchers N[,N]     of fanout (1,100,10000)
  --bytes B            of data in a znode (100)
  --znodes N           of snapshot and recovery (1000000)
  --sessions N         of recovery (100000)
  --seconds S          how long to measure each case (2)
  --rounds R           in how many rounds, whose medians are printed (5)
  --threads T          threads of the runtime (2)";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    /// What the disk itself needs.
    Syncs,
    /// Persistent znodes are made.
    Create,
    /// Their data is replaced.
    Set,
    /// Data is read beside sets, and without.
    Reads,
    /// One set, and many watchers of it.
    Fanout,
    /// Sets while a snapshot is made.
    Snapshot,
    /// The store is opened again.
    Recovery,
}

impl Workload {
    const ALL: [Self; 7] = [
        Self::Syncs,
        Self::Create,
        Self::Set,
        Self::Reads,
        Self::Fanout,
        Self::Snapshot,
        Self::Recovery,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Syncs => "syncs",
            Self::Create => "create",
            Self::Set => "set",
            Self::Reads => "reads",
            Self::Fanout => "fanout",
            Self::Snapshot => "snapshot",
            Self::Recovery => "recovery",
        }
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let mut all = Self::ALL.into_iter();
        all.find(|workload| workload.name() == name)
            .ok_or_else(|| format!("--workload {name} is not known"))
    }
}

/// See `lockkeeper_store::Durability`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    Fsync,
    DelayedRestart,
    None,
}

impl Durability {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Fsync => "fsync",
            Self::DelayedRestart => "delayed-restart",
            Self::None => "none",
        }
    }
}

impl FromStr for Durability {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let mut all = [Self::Fsync, Self::DelayedRestart, Self::None].into_iter();
        all.find(|durability| durability.name() == name)
            .ok_or_else(|| format!("--durability {name} is not known"))
    }
}

pub(crate) struct Args {
    pub(crate) url: String,
    pub(crate) workloads: Vec<Workload>,
    /// Whether the sketch runs beside.
    pub(crate) sketch: bool,
    pub(crate) durability: Durability,
    /// Where a server that this program starts keeps its data.
    pub(crate) data: String,
    pub(crate) segment_bytes: Option<u64>,
    clients: Option<Vec<usize>>,
    pub(crate) watchers: Vec<usize>,
    pub(crate) bytes: usize,
    pub(crate) znodes: usize,
    pub(crate) sessions: usize,
    pub(crate) seconds: Duration,
    pub(crate) rounds: u32,
    pub(crate) threads: usize,
    /// What this program does for another run of itself: see `recovery`.
    pub(crate) child: Option<crate::recovery::Child>,
}

impl Args {
    pub(crate) fn parse() -> Self {
        match Self::of(lexopt::Parser::from_env()) {
            Ok(Some(args)) => args,
            Ok(None) => {
                println!("{USAGE}");
                std::process::exit(0);
            }
            Err(fault) => {
                eprintln!("{fault}\n{USAGE}");
                std::process::exit(2);
            }
        }
    }

    /// `None` when help is asked for.
    fn of(mut words: lexopt::Parser) -> Result<Option<Self>, lexopt::Error> {
        let mut args = Self {
            url: "memory:".into(),
            workloads: Workload::ALL.to_vec(),
            sketch: true,
            durability: Durability::Fsync,
            data: "memory".into(),
            segment_bytes: None,
            clients: None,
            watchers: vec![1, 100, 10_000],
            bytes: 100,
            znodes: 1_000_000,
            sessions: 100_000,
            seconds: Duration::from_secs(2),
            rounds: 5,
            threads: 2,
            child: None,
        };
        while let Some(word) = words.next()? {
            match word {
                Long("url") => args.url = words.value()?.parse_with(target)?,
                Long("workload") => args.workloads = list(&words.value()?.string()?)?,
                Long("system") => args.sketch = words.value()?.parse_with(is_sketch)?,
                Long("durability") => args.durability = words.value()?.parse()?,
                Long("data") => args.data = words.value()?.string()?,
                Long("segment-bytes") => args.segment_bytes = Some(words.value()?.parse()?),
                Long("clients") => args.clients = Some(list(&words.value()?.string()?)?),
                Long("watchers") => args.watchers = list(&words.value()?.string()?)?,
                Long("bytes") => args.bytes = words.value()?.parse()?,
                Long("znodes") => args.znodes = words.value()?.parse()?,
                Long("sessions") => args.sessions = words.value()?.parse()?,
                Long("seconds") => args.seconds = words.value()?.parse_with(seconds)?,
                Long("rounds") => args.rounds = words.value()?.parse()?,
                Long("threads") => args.threads = words.value()?.parse()?,
                Long("child") => args.child = Some(words.value()?.parse()?),
                Long("help") => return Ok(None),
                // What `cargo bench` says to every benchmark.
                Long("bench") => {}
                _ => return Err(word.unexpected()),
            }
        }
        let counts = [&args.watchers[..], args.clients.as_deref().unwrap_or(&[1])].concat();
        let others = [
            args.rounds as usize,
            args.threads,
            args.znodes,
            args.sessions,
        ];
        if counts.contains(&0) || others.contains(&0) {
            return Err("every number is at least 1".into());
        }
        Ok(Some(args))
    }

    /// How many clients, where nobody asked for other numbers.
    pub(crate) fn clients(&self, usual: &[usize]) -> Vec<usize> {
        self.clients.clone().unwrap_or_else(|| usual.to_vec())
    }

    /// What is said to a server that this program starts.
    pub(crate) fn serving(&self) -> Serving {
        Serving {
            data: self.data.clone(),
            durability: self.durability.name().into(),
        }
    }

    /// The time of one round.
    pub(crate) fn round(&self) -> Duration {
        self.seconds / self.rounds
    }

    /// The folder of `file:FOLDER`.
    pub(crate) fn folder(&self) -> Option<PathBuf> {
        self.url.strip_prefix("file:").map(PathBuf::from)
    }
}

fn list<T: FromStr>(text: &str) -> Result<Vec<T>, lexopt::Error> {
    let of = |word: &str| word.parse().map_err(|_| format!("{word:?} is not known"));
    Ok(text.split(',').map(of).collect::<Result<_, _>>()?)
}

/// A URL that can be meant, as it stands.
fn target(url: &str) -> Result<String, lockkeeper::TargetError> {
    if matches!(url, "lockkeeper://" | "zookeeper://") {
        return Ok(url.to_owned());
    }
    url.parse::<lockkeeper::Target>().map(|_| url.to_owned())
}

fn is_sketch(text: &str) -> Result<bool, String> {
    match text {
        "sketch" => Ok(true),
        "none" => Ok(false),
        _ => Err(format!("--system {text} is not known")),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse().map_err(|_| format!("{text:?} is no number"))?;
    Duration::try_from_secs_f64(number).map_err(|error| error.to_string())
}
