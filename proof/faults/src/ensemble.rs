//! [`Ensemble`]: three ZooKeeper servers or etcd members on loopback, with proxies between each other and to their
//! clients.

mod links;
mod member;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use testkit::{EtcdConfig, Proxy, Random, ZooKeeperConfig, free_address};

use self::links::{Links, Silence, entrance};
use self::member::{Member, Program, Role};
use crate::disk::may_mount;
use crate::run::System;
use crate::workers::waited;

pub(crate) const SERVERS: usize = 3;

/// The ZooKeeper servers' `tickTime`, in milliseconds.
const TICK_MS: u64 = 200;

/// Time limit for a server to start or stop on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running ensemble. Its fields are dropped in this order.
pub(crate) struct Ensemble {
    scheme: &'static str,
    members: Vec<Member>,
    links: Links,
    /// The proxies of each worker, one per server.
    proxies: Vec<Vec<Proxy>>,
    hurt: Option<Hurt>,
}

/// The fault in progress.
enum Hurt {
    Killed(Vec<usize>),
    Stopped(usize),
    CutOff,
    FullDisk(usize),
    Restarted,
}

impl Ensemble {
    /// Starts ZooKeeper servers from the programs in `class_path`, for this many workers.
    pub(crate) fn zookeeper(
        class_path: &str,
        folder: &Path,
        workers: usize,
        mebibytes: u64,
    ) -> io::Result<Self> {
        let (links, known) = Links::of_zookeepers()?;
        let configure = |number: usize, folder: &Path, data: PathBuf| {
            let peers = known[number].iter();
            let members: Vec<_> = peers
                .map(|peer| format!("{}:{}", peer.quorum, peer.election.port()))
                .collect();
            // Shorter timeouts than by default, because a run has many faults.
            let config = ZooKeeperConfig::new(folder)
                .data(data)
                .class_path(class_path)
                .member(number, &members)
                .set("tickTime", TICK_MS)
                .set("initLimit", 50)
                .set("syncLimit", 10)
                .property("zookeeper.fastleader.maxNotificationInterval", 1000);
            Ok(Program::ZooKeeper(config))
        };
        Self::start("zookeeper", links, folder, workers, mebibytes, configure)
    }

    /// Starts etcd members, for this many workers. Without the right to mount, none can be cut off.
    pub(crate) fn etcd(folder: &Path, workers: usize, mebibytes: u64) -> io::Result<Self> {
        let peers = [(); SERVERS].map(|()| free_address());
        let name = |number: usize| match may_mount() {
            true => format!("member-{number}"),
            false => peers[number].ip().to_string(),
        };
        let url = |number: usize| format!("http://{}:{}", name(number), peers[number].port());
        let cluster: Vec<_> = (0..SERVERS).map(url).collect();
        let links = Links::of_etcds(&peers)?;
        let configure = |number: usize, folder: &Path, data: PathBuf| {
            let line = |other| format!("{} {}\n", entrance(number, other), name(other));
            let hosts = folder.join("hosts");
            fs::write(&hosts, (0..SERVERS).map(line).collect::<String>())?;
            let config = EtcdConfig::new(folder, peers[number], &cluster, number).data(data);
            Ok(Program::Etcd(match may_mount() {
                true => config.hosts(hosts),
                false => config,
            }))
        };
        Self::start("etcd", links, folder, workers, mebibytes, configure)
    }

    fn start(
        scheme: &'static str,
        links: Links,
        folder: &Path,
        workers: usize,
        mebibytes: u64,
        configure: impl Fn(usize, &Path, PathBuf) -> io::Result<Program>,
    ) -> io::Result<Self> {
        let member = |number| {
            let configure = |folder: &Path, data| configure(number, folder, data);
            Member::start(number, folder, mebibytes, configure)
        };
        let members = (0..SERVERS).map(member).collect::<io::Result<Vec<_>>>()?;
        println!("full disk: {}", members[0].disk.describe());
        let proxies_of = |_| {
            let servers = members.iter();
            let proxy = |member: &Member| Proxy::of_bytes(free_address(), member.program.address());
            servers.map(proxy).collect::<io::Result<_>>()
        };
        let proxies = (0..workers).map(proxies_of).collect::<io::Result<_>>()?;
        Ok(Self {
            scheme,
            members,
            links,
            proxies,
            hurt: None,
        })
    }

    /// Returns the servers' addresses for a worker, as in a URL.
    pub(crate) fn hosts(&self, worker: usize) -> String {
        let hosts = self.proxies[worker].iter();
        let hosts: Vec<_> = hosts.map(|proxy| proxy.address().to_string()).collect();
        hosts.join(",")
    }

    /// Compacts an etcd at its present revision, through its JSON gateway.
    fn compact(&self) -> Result<String, String> {
        let Program::Etcd(member) = &self.members[0].program else {
            unreachable!("only etcd is compacted");
        };
        let call = |method: &str, body: &str| {
            let answer = member.post(method, None, body, Duration::from_secs(1));
            answer.map_err(|error| format!("error: {error}"))
        };
        let answer = call("kv/range", r#"{"key":"AA=="}"#)?;
        let (_, rest) = answer.split_once(r#""revision":""#).unwrap_or_default();
        let revision = rest.split('"').next().unwrap_or_default();
        call("kv/compaction", &format!(r#"{{"revision":"{revision}"}}"#))?;
        Ok(format!("revision {revision}"))
    }

    /// Returns the leader, or one of the followers.
    fn pick(&self, wanted: Role, random: &mut Random) -> Result<usize, String> {
        let of_role = |number: &usize| self.members[*number].program.role() == Some(wanted);
        let found: Vec<_> = (0..SERVERS).filter(of_role).collect();
        match found.len() as u64 {
            0 => Err(format!("progress: no {wanted:?} among the servers")),
            count => Ok(found[random.within(0..count) as usize]),
        }
    }

    /// Restarts the servers one by one, each after the others are healthy.
    fn restart_all(&mut self) -> Result<String, String> {
        for number in 0..SERVERS {
            let server = &mut self.members[number];
            server.process.signal(Signal::TERM);
            if !server.process.has_ended_within(PATIENCE) {
                return Err(format!("error: server {} does not end", number + 1));
            }
            server.start_again();
            if !waited(PATIENCE, || self.is_well()) {
                return Err(format!("error: server {} does not come back", number + 1));
            }
        }
        Ok("all, one after the other".to_owned())
    }

    fn cut_off(&mut self, number: usize, random: &mut Random) -> String {
        let silence = match random.within(0..4) {
            0 => Silence::Outgoing,
            1 => Silence::Incoming,
            _ => Silence::Both,
        };
        self.links.cut_off(number, silence);
        self.hurt = Some(Hurt::CutOff);
        format!("server {}, {silence:?}", number + 1)
    }

    fn hurt_one(
        &mut self,
        number: usize,
        how: &str,
        random: &mut Random,
    ) -> Result<String, String> {
        let server = &mut self.members[number];
        match how {
            "killed" => {
                server.process.end();
                self.hurt = Some(Hurt::Killed(vec![number]));
            }
            "stopped" => {
                server.process.signal(Signal::STOP);
                self.hurt = Some(Hurt::Stopped(number));
            }
            "cut off" => return Ok(self.cut_off(number, random)),
            _ => {
                let filled = server.disk.fill(&server.process);
                filled.map_err(|error| format!("error: the disk cannot be filled: {error}"))?;
                self.hurt = Some(Hurt::FullDisk(number));
            }
        }
        Ok(format!("server {}", number + 1))
    }
}

impl System for Ensemble {
    fn kinds(&self) -> Vec<&'static str> {
        let mut kinds = vec![
            "leader killed",
            "leader stopped",
            "leader cut off",
            "leader on a full disk",
            "follower killed",
            "follower stopped",
            "follower cut off",
            "follower on a full disk",
            "all killed",
            "rolling restart",
        ];
        if self.scheme == "etcd" {
            kinds.push("compaction");
            kinds.retain(|kind| may_mount() || !kind.ends_with("cut off"));
        }
        kinds
    }

    fn hurt(&mut self, kind: &'static str, random: &mut Random) -> Result<String, String> {
        if let Some((role, how)) = kind.split_once(' ') {
            let role = match role {
                "leader" => Some(Role::Leader),
                "follower" => Some(Role::Follower),
                _ => None,
            };
            if let Some(role) = role {
                let number = self.pick(role, random)?;
                return self.hurt_one(number, how, random);
            }
        }
        match kind {
            "rolling restart" => {
                self.hurt = Some(Hurt::Restarted);
                return self.restart_all();
            }
            "compaction" => return self.compact(),
            _ => {}
        }
        let all = (0..SERVERS).collect();
        self.members
            .iter_mut()
            .for_each(|server| server.process.end());
        self.hurt = Some(Hurt::Killed(all));
        Ok("all servers".to_owned())
    }

    fn heal(&mut self) -> Result<(), String> {
        match self.hurt.take() {
            Some(Hurt::Killed(numbers)) => {
                for number in numbers {
                    self.members[number].start_again();
                }
            }
            Some(Hurt::Stopped(number)) => self.members[number].process.signal(Signal::CONT),
            Some(Hurt::CutOff) => self.links.mend(),
            // A server that cannot write its log ends or stops serving, and needs an operator.
            Some(Hurt::FullDisk(number)) => {
                let server = &mut self.members[number];
                server.process.end();
                server.disk.free(&server.process);
                server.start_again();
            }
            Some(Hurt::Restarted) | None => {}
        }
        Ok(())
    }

    fn is_well(&mut self) -> bool {
        let roles: Vec<_> = self.members.iter().map(|it| it.program.role()).collect();
        let count = |wanted| roles.iter().filter(|role| **role == Some(wanted)).count();
        (count(Role::Leader), count(Role::Follower)) == (1, SERVERS - 1)
    }

    fn proxies(&self, worker: usize) -> &[Proxy] {
        &self.proxies[worker]
    }

    fn url(&self) -> String {
        let hosts: Vec<_> = self
            .members
            .iter()
            .map(|member| member.program.address().to_string())
            .collect();
        format!("{}://{}", self.scheme, hosts.join(","))
    }

    fn tick(&self) -> Option<u64> {
        (self.scheme == "zookeeper").then_some(TICK_MS)
    }

    fn logs(&self) -> String {
        let logs = self.members.iter().map(Member::log);
        logs.collect::<Vec<_>>().join("\n")
    }
}
