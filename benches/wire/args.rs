//! The command line.

use std::str::FromStr;
use std::time::Duration;

use lexopt::prelude::*;

use crate::mix::Mix;
use crate::store_server::Serving;

const USAGE: &str = "\
usage: cargo bench --bench wire -- [options]
  --url URL[,URL]      lockkeeper://[host:port] or zookeeper://[host:port]; without a host, the bench
                       starts the server; the first is compared with the others, in turns
                       (lockkeeper://,zookeeper://)
  --data D             of the `lockkeeper serve` that it starts: memory (the default), or a folder
  --durability D       of both: fsync (the default), delayed-restart or none (ZooKeeper: no syncs)
  --mix M[,M]          ping, get, set, create (and delete), locks (create, list, delete; 10,000 keys),
                       sessions, flood (all by default)
  --connections N      only so many connections, and
  --in-flight N        so many requests under way at once on each (1)
  --flood N            of flood: so many connections that send reads as fast as the server takes them, beside 16 with
                       one at a time, which are measured (4)
  --bytes B            of data in a znode (100)
  --seconds S          how long to measure each system in each case (2)
  --rounds R           in how many alternating rounds (5)
  --threads T          threads of the load (1: the other core is the server's)
  --sessions N[,N]     of sessions (100,1000,10000)
  --rest S             of sessions, how long they do nothing but ping (30)";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Mix(Mix),
    /// Many sessions, with a watch each.
    Sessions,
    /// A few beside some that flood the server.
    Flood,
}

impl FromStr for What {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let mut all = Mix::ALL.into_iter();
        match all.find(|mix| mix.name() == name) {
            Some(mix) => Ok(Self::Mix(mix)),
            None if name == "sessions" => Ok(Self::Sessions),
            None if name == "flood" => Ok(Self::Flood),
            None => Err(format!("--mix {name} is not known")),
        }
    }
}

pub(crate) struct Args {
    pub(crate) urls: Vec<String>,
    pub(crate) serving: Serving,
    pub(crate) mixes: Vec<What>,
    pub(crate) connections: Option<usize>,
    in_flight: Option<usize>,
    pub(crate) flood: usize,
    pub(crate) bytes: usize,
    pub(crate) seconds: Duration,
    pub(crate) rounds: u32,
    pub(crate) threads: usize,
    pub(crate) sessions: Vec<usize>,
    pub(crate) rest: Duration,
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
        let mut mixes: Vec<What> = Mix::ALL.map(What::Mix).into();
        mixes.extend([What::Sessions, What::Flood]);
        let mut args = Self {
            urls: vec!["lockkeeper://".into(), "zookeeper://".into()],
            serving: Serving::default(),
            mixes,
            connections: None,
            in_flight: None,
            flood: 4,
            bytes: 100,
            seconds: Duration::from_secs(2),
            rounds: 5,
            threads: 1,
            sessions: vec![100, 1_000, 10_000],
            rest: Duration::from_secs(30),
        };
        while let Some(word) = words.next()? {
            match word {
                Long("url") => args.urls = list(&words.value()?.string()?)?,
                Long("data") => args.serving.data = words.value()?.string()?,
                Long("durability") => args.serving.durability = words.value()?.string()?,
                Long("mix") => args.mixes = list(&words.value()?.string()?)?,
                Long("connections") => args.connections = Some(words.value()?.parse()?),
                Long("in-flight") => args.in_flight = Some(words.value()?.parse()?),
                Long("flood") => args.flood = words.value()?.parse()?,
                Long("bytes") => args.bytes = words.value()?.parse()?,
                Long("seconds") => args.seconds = words.value()?.parse_with(seconds)?,
                Long("rounds") => args.rounds = words.value()?.parse()?,
                Long("threads") => args.threads = words.value()?.parse()?,
                Long("sessions") => args.sessions = list(&words.value()?.string()?)?,
                Long("rest") => args.rest = words.value()?.parse_with(seconds)?,
                Long("help") => return Ok(None),
                // What `cargo bench` says to every benchmark.
                Long("bench") => {}
                _ => return Err(word.unexpected()),
            }
        }
        let counts = [args.connections.unwrap_or(1), args.in_flight.unwrap_or(1)];
        let others = [args.rounds as usize, args.threads, args.flood];
        if counts.contains(&0) || others.contains(&0) {
            return Err("every number is at least 1".into());
        }
        Ok(Some(args))
    }

    /// How many connections, and how many requests under way on each.
    pub(crate) fn cases(&self, mix: Mix) -> Vec<(usize, usize)> {
        match (self.connections, self.in_flight) {
            (None, None) => mix.cases().to_vec(),
            (connections, in_flight) => vec![(connections.unwrap_or(1), in_flight.unwrap_or(1))],
        }
    }
}

fn list<T: FromStr>(text: &str) -> Result<Vec<T>, lexopt::Error> {
    let of = |word: &str| word.parse().map_err(|_| format!("{word:?} is not known"));
    Ok(text.split(',').map(of).collect::<Result<_, _>>()?)
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse().map_err(|_| format!("{text:?} is no number"))?;
    Duration::try_from_secs_f64(number).map_err(|error| error.to_string())
}
