//! [`Member`]: a ZooKeeper server of an ensemble.

use std::fs;
use std::io;
use std::path::Path;

use testkit::{ChildProcess, ZooKeeperConfig, four_letter_word, last_lines};

use super::links::Links;
use super::{SERVERS, TICK_MS};
use crate::disk::Disk;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Leader,
    Follower,
}

/// A server. Its fields are dropped in this order.
pub(super) struct Member {
    pub(super) process: ChildProcess,
    pub(super) disk: Disk,
    pub(super) config: ZooKeeperConfig,
    number: usize,
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
        let disk = Disk::new(&folder.join("disk"), mebibytes)?;
        let peers = (0..SERVERS).map(|other| links.peer(number, other));
        let members: Vec<_> = peers
            .map(|peer| format!("{}:{}", peer.quorum, peer.election.port()))
            .collect();
        // Shorter timeouts than by default, because a run has many faults.
        let config = ZooKeeperConfig::new(folder)
            .data(disk.path().to_owned())
            .class_path(class_path)
            .member(number, &members)
            .set("tickTime", TICK_MS)
            .set("initLimit", 50)
            .set("syncLimit", 10)
            .property("zookeeper.fastleader.maxNotificationInterval", 1000);
        Ok(Self {
            process: config.start(),
            disk,
            config,
            number,
        })
    }

    pub(super) fn start_again(&mut self) {
        self.process = self.config.start();
    }

    pub(super) fn role(&self) -> Option<Role> {
        let answer = four_letter_word(self.config.address, "srvr").ok()?;
        match answer.lines().find_map(|line| line.strip_prefix("Mode: ")) {
            Some("leader") => Some(Role::Leader),
            Some("follower") => Some(Role::Follower),
            _ => None,
        }
    }

    pub(super) fn log(&self) -> String {
        let end = last_lines(&self.config.log());
        format!("server {}:\n{end}", self.number + 1)
    }
}
