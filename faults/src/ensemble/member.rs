//! [`Member`]: a ZooKeeper server of an ensemble.

use std::fmt::Write;
use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::links::Links;
use super::{SERVERS, TICK_MS};
use crate::disk::Disk;
use crate::ports;
use crate::process::{self, Process};
use crate::word;

/// Part of a server that serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Leader,
    Follower,
}

/// A server. Its fields are dropped in this order.
pub(super) struct Member {
    pub(super) process: Process,
    pub(super) disk: Disk,
    pub(super) client: SocketAddr,
    number: usize,
    folder: PathBuf,
    class_path: String,
}

impl Member {
    pub(super) fn start(
        number: usize,
        class_path: &str,
        folder: &Path,
        mebibytes: u64,
        links: &Links,
    ) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let (disk, client) = (Disk::new(&folder.join("disk"), mebibytes)?, ports::free());
        fs::write(disk.path().join("myid"), (number + 1).to_string())?;
        let settings = settings(number, disk.path(), client, links);
        fs::write(folder.join("zoo.cfg"), settings)?;
        Ok(Self {
            process: run(class_path, folder)?,
            disk,
            client,
            number,
            folder: folder.to_owned(),
            class_path: class_path.to_owned(),
        })
    }

    /// Starts it after its end.
    pub(super) fn start_again(&mut self) -> Result<(), String> {
        let started = run(&self.class_path, &self.folder);
        self.process = started.map_err(|error| {
            let number = self.number + 1;
            format!("error: server {number} does not start: {error}")
        })?;
        Ok(())
    }

    /// Returns its role, if it serves.
    pub(super) fn role(&self) -> Option<Role> {
        let answer = word::ask(self.client, "srvr").ok()?;
        match answer.lines().find_map(|line| line.strip_prefix("Mode: ")) {
            Some("leader") => Some(Role::Leader),
            Some("follower") => Some(Role::Follower),
            _ => None,
        }
    }

    pub(super) fn log(&self) -> String {
        let end = word::end_of(&self.folder.join("log"));
        format!("server {}:\n{end}", self.number + 1)
    }
}

/// Returns its configuration. It waits less long than by default: a run has many faults.
fn settings(number: usize, data: &Path, client: SocketAddr, links: &Links) -> String {
    let mut text = format!(
        "dataDir={}\nclientPort={}\nclientPortAddress={}\ntickTime={TICK_MS}\n\
         initLimit=50\nsyncLimit=10\nmaxSessionTimeout=60000\nmaxClientCnxns=0\n\
         4lw.commands.whitelist=*\n",
        data.display(),
        client.port(),
        client.ip()
    );
    for other in 0..SERVERS {
        let peer = links.peer(number, other);
        let (quorum, election) = (peer.quorum, peer.election.port());
        let _ = writeln!(text, "server.{}={quorum}:{election}", other + 1);
    }
    text
}

/// Runs the server. It does not sync: no power is lost here, and a killed process loses nothing that the system has.
fn run(class_path: &str, folder: &Path) -> io::Result<Process> {
    let log = File::options()
        .create(true)
        .append(true)
        .open(folder.join("log"))?;
    let mut command = process::command("java");
    command
        .args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
        .args(["-XX:-UsePerfData", "-Dzookeeper.admin.enableServer=false"])
        .args([
            "-Dzookeeper.extendedTypesEnabled=true",
            "-Dzookeeper.forceSync=no",
        ])
        .args(["-Dzookeeper.preAllocSize=64"])
        .arg("-Dzookeeper.fastleader.maxNotificationInterval=1000")
        .args(["-cp", class_path])
        .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
        .arg(folder.join("zoo.cfg"))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    Process::spawn(&mut command)
}
