//! [`Member`]: a server of an ensemble.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use testkit::{ChildProcess, EtcdConfig, ZooKeeperConfig, four_letter_word, last_lines};

use crate::disk::Disk;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Leader,
    Follower,
}

/// A configured server program.
pub(super) trait Program {
    fn start(&self) -> ChildProcess;

    fn address(&self) -> SocketAddr;

    fn role(&self) -> Option<Role>;

    fn log(&self) -> String;
}

impl Program for ZooKeeperConfig {
    fn start(&self) -> ChildProcess {
        self.start()
    }

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn role(&self) -> Option<Role> {
        let answer = four_letter_word(self.address, "srvr").ok()?;
        match answer.lines().find_map(|line| line.strip_prefix("Mode: ")) {
            Some("leader") => Some(Role::Leader),
            Some("follower") => Some(Role::Follower),
            _ => None,
        }
    }

    fn log(&self) -> String {
        self.log()
    }
}

impl Program for EtcdConfig {
    fn start(&self) -> ChildProcess {
        self.start()
    }

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn role(&self) -> Option<Role> {
        self.is_leader().map(|is_leader| match is_leader {
            true => Role::Leader,
            false => Role::Follower,
        })
    }

    fn log(&self) -> String {
        self.log()
    }
}

/// A server. Its fields are dropped in this order.
pub(super) struct Member {
    pub(super) process: ChildProcess,
    pub(super) disk: Disk,
    pub(super) program: Box<dyn Program>,
    number: usize,
}

impl Member {
    /// Starts the server that `configure` describes, whose data is on a disk of its own.
    pub(super) fn start(
        number: usize,
        folder: &Path,
        mebibytes: u64,
        configure: impl FnOnce(&Path, PathBuf) -> io::Result<Box<dyn Program>>,
    ) -> io::Result<Self> {
        let folder = folder.join(format!("server-{}", number + 1));
        fs::create_dir_all(&folder)?;
        let disk = Disk::new(&folder.join("disk"), mebibytes)?;
        let program = configure(&folder, disk.path().join("data"))?;
        Ok(Self {
            process: program.start(),
            disk,
            program,
            number,
        })
    }

    pub(super) fn start_again(&mut self) {
        self.process = self.program.start();
    }

    pub(super) fn log(&self) -> String {
        let end = last_lines(&self.program.log());
        format!("server {}:\n{end}", self.number + 1)
    }
}
