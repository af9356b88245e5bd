//! [`Served`]: `lockkeeper serve` under faults.

use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use lockkeeper::connect_with;
use lockkeeper_store::CreateMode;
use rustix::process::Signal;
use testkit::{
    ChildProcess, Proxy, Random, four_letter_word, free_address, last_lines, open_log, serve,
};
use tokio::runtime::Handle;

use crate::disk::Disk;
use crate::run::{System, TIMEOUT_MS};
use crate::worker::connect_options;

/// Size of the server's disk in MiB. A small store needs up to 450 (docs/durability.md). On a smaller disk, the log
/// itself would fill the disk without a fault.
const DISK: u64 = 512;

/// Undoes writes whose sync fails.
const LOST_WRITES: &str = include_str!("../shim/lost_writes.c");

/// A running server. Its fields are dropped in this order.
pub(crate) struct Served {
    server: ChildProcess,
    proxies: Vec<Vec<Proxy>>,
    setup: Setup,
    hurt: Option<&'static str>,
    runtime: Handle,
}

/// Everything needed to restart the server.
struct Setup {
    program: PathBuf,
    folder: PathBuf,
    address: SocketAddr,
    disk: Disk,
    /// The library that makes syncs fail, if there is a compiler.
    shim: Option<PathBuf>,
}

impl Served {
    /// Starts a server for this many workers.
    pub(crate) fn start(
        program: PathBuf,
        folder: &Path,
        workers: usize,
        runtime: &Handle,
    ) -> io::Result<Self> {
        let setup = Setup {
            program,
            folder: folder.to_owned(),
            address: free_address(),
            disk: Disk::new(&folder.join("disk"), DISK)?,
            shim: compile(folder),
        };
        println!("full disk: {}", setup.disk.describe());
        let proxy = |_| {
            let proxy = Proxy::of_bytes(free_address(), setup.address)?;
            Ok(vec![proxy])
        };
        let proxies = (0..workers).map(proxy).collect::<io::Result<_>>()?;
        Ok(Self {
            server: setup.start(),
            proxies,
            setup,
            hurt: None,
            runtime: runtime.clone(),
        })
    }

    pub(crate) fn hosts(&self, worker: usize) -> String {
        self.proxies[worker][0].address().to_string()
    }

    /// Fills the disk, then writes until one is refused because the log has used up its room.
    fn fill_the_disk(&self) -> Result<String, String> {
        let filled = self.setup.disk.fill(&self.server);
        filled.map_err(|error| format!("error: the disk cannot be filled: {error}"))?;
        let writes = self.runtime.block_on(self.flood());
        Ok(format!("after {writes} large writes"))
    }

    /// Writes large data until a write is refused or takes too long. Returns the number of writes.
    async fn flood(&self) -> u32 {
        let mut writes = 0;
        let flood = async {
            let connect = connect_options(TIMEOUT_MS, None);
            let client = connect_with(&self.url(), connect).await?;
            let session = client.session().await?;
            let path = "/flood".parse().expect("a path");
            let _ = session.create(&path, "", CreateMode::Persistent).await;
            let data = vec![b'x'; 900_000];
            loop {
                session.set_data(&path, data.clone(), None).await?;
                writes += 1;
            }
        };
        let limit = Duration::from_secs(10);
        let _: Result<Result<(), lockkeeper::Error>, _> = tokio::time::timeout(limit, flood).await;
        writes
    }

    /// Makes the next sync fail, after which the server must end.
    fn fail_the_sync(&mut self) -> Result<String, String> {
        let order = File::create(self.setup.sync_order());
        order.map_err(|error| format!("error: {error}"))?;
        match self.server.has_ended_within(Duration::from_secs(30)) {
            true => Ok("the server has ended".to_owned()),
            false => Err("durability: the server goes on after a sync has failed".to_owned()),
        }
    }

    fn start_again(&mut self) {
        // End the first server, because the folder is locked while it lives.
        self.server.end();
        self.server = self.setup.start();
    }
}

impl System for Served {
    fn kinds(&self) -> Vec<&'static str> {
        let mut kinds = vec![
            "server killed",
            "server stopped",
            "server restarted in order",
        ];
        // A limit of the file size also refuses writes for which there is room.
        if self.setup.disk.is_real() {
            kinds.extend(["disk full", "server killed on a full disk"]);
        }
        if self.setup.shim.is_some() {
            kinds.push("sync failed");
        }
        kinds
    }

    fn hurt(&mut self, kind: &'static str, _: &mut Random) -> Result<String, String> {
        if let Ok(Some(status)) = self.server.try_wait() {
            return Err(format!("error: the server has ended by itself: {status}"));
        }
        self.hurt = Some(kind);
        match kind {
            "server killed" => self.server.end(),
            "server stopped" => self.server.signal(Signal::STOP),
            "server restarted in order" => {
                self.server.signal(Signal::TERM);
                if !self.server.has_ended_within(Duration::from_secs(30)) {
                    return Err("progress: the server does not end on SIGTERM".to_owned());
                }
            }
            "disk full" => return self.fill_the_disk(),
            "server killed on a full disk" => {
                let filled = self.fill_the_disk()?;
                self.server.end();
                return Ok(filled);
            }
            _ => return self.fail_the_sync(),
        }
        Ok("the server".to_owned())
    }

    fn heal(&mut self) -> Result<(), String> {
        match self.hurt.take() {
            Some("server stopped") => self.server.signal(Signal::CONT),
            Some("disk full") => {
                // A healthy server continues once there is room.
                self.setup.disk.free(&self.server);
                if let Ok(Some(status)) = self.server.try_wait() {
                    return Err(format!("error: a full disk has ended the server: {status}"));
                }
            }
            Some("server killed on a full disk") => {
                self.setup.disk.free(&self.server);
                self.start_again();
            }
            Some("sync failed") => {
                let _ = fs::remove_file(self.setup.sync_order());
                self.start_again();
            }
            _ => self.start_again(),
        }
        Ok(())
    }

    fn is_well(&mut self) -> bool {
        four_letter_word(self.setup.address, "srvr").is_ok_and(|answer| answer.contains("Mode:"))
    }

    fn proxies(&self, worker: usize) -> &[Proxy] {
        &self.proxies[worker]
    }

    fn url(&self) -> String {
        format!("lockkeeper://{}", self.setup.address)
    }

    fn tick(&self) -> Option<u64> {
        None
    }

    fn logs(&self) -> String {
        last_lines(&fs::read_to_string(self.setup.log()).unwrap_or_default())
    }
}

impl Setup {
    fn start(&self) -> ChildProcess {
        let mut command = serve(&self.program);
        command
            .args(["--listen", &self.address.to_string(), "--data"])
            .arg(self.disk.path().join("store"))
            .args(["--tick", "200ms", "--max-session-timeout", "60s"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(open_log(&self.log()));
        if let Some(shim) = &self.shim {
            command
                .env("LD_PRELOAD", shim)
                .env("LOCKKEEPER_FAULTS_SYNC", self.sync_order());
        }
        ChildProcess::spawn(&mut command)
    }

    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// Returns the file whose existence makes syncs fail.
    fn sync_order(&self) -> PathBuf {
        self.folder.join("syncs-fail")
    }
}

/// Compiles the library that makes syncs fail. Prints a note and returns `None` without a compiler.
fn compile(folder: &Path) -> Option<PathBuf> {
    let (source, shim) = (folder.join("lost_writes.c"), folder.join("lost_writes.so"));
    fs::write(&source, LOST_WRITES).ok()?;
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-shared", "-fPIC", "-o"]);
    let compiled = compiler.arg(&shim).arg(&source).arg("-ldl").status();
    if compiled.is_ok_and(|status| status.success()) {
        return Some(shim);
    }
    println!("failed syncs are left out: there is no C compiler");
    None
}
