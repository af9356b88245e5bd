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
pub(super) enum Program {
    ZooKeeper(ZooKeeperConfig),
    Etcd(EtcdConfig),
}

impl Program {
    fn start(&self) -> ChildProcess {
        match self {
            Self::ZooKeeper(config) => config.start(),
            Self::Etcd(config) => config.start(),
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        match self {
            Self::ZooKeeper(config) => config.address,
            Self::Etcd(config) => config.address,
        }
    }

    /// Returns `None` for a server that is not in a working ensemble.
    pub(super) fn role(&self) -> Option<Role> {
        let is_leader = match self {
            Self::ZooKeeper(config) => {
                let answer = four_letter_word(config.address, "srvr").ok()?;
                match answer
                    .lines()
                    .find_map(|line| line.strip_prefix("Mode: "))?
                {
                    "leader" => true,
                    "follower" => false,
                    _ => return None,
                }
            }
            Self::Etcd(config) => config.is_leader()?,
        };
        Some(if is_leader {
            Role::Leader
        } else {
            Role::Follower
        })
    }

    fn log(&self) -> String {
        match self {
            Self::ZooKeeper(config) => config.log(),
            Self::Etcd(config) => config.log(),
        }
    }
}

/// A server. Its fields are dropped in this order.
pub(super) struct Member {
    pub(super) process: ChildProcess,
    pub(super) disk: Disk,
    pub(super) program: Program,
    number: usize,
}

impl Member {
    /// Starts the server that `configure` describes, whose data is on a disk of its own.
    pub(super) fn start(
        number: usize,
        folder: &Path,
        mebibytes: u64,
        configure: impl FnOnce(&Path, PathBuf) -> io::Result<Program>,
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
