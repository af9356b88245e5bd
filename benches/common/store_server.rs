//! Stores in separate processes: `lockkeeper serve`, a real ZooKeeper, and a real etcd.

use std::any::Any;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::{ServerProcess, TempFolder, ZooKeeperConfig};

use super::echo::Transport;
use super::options::{Durability, Serving, name};
use super::process;

/// A store's URL, and its server if we started it.
pub(crate) struct StoreServer {
    url: String,
    process: Option<u32>,
    folder: Option<PathBuf>,
    /// The server and its folder, dropped in this order.
    _server: Option<Box<dyn Any>>,
}

impl StoreServer {
    /// Uses a URL as it is, or starts the server if it has no host (`lockkeeper://`, `lockkeeper+unix://`,
    /// `zookeeper://` and `etcd://`).
    ///
    /// # Errors
    /// A missing program, or the log of a ZooKeeper that does not start. Another server that does not start panics.
    pub(crate) fn of(url: &str, serving: &Serving) -> Result<Self, String> {
        match url {
            "lockkeeper://" => lockkeeper(serving, Transport::Tcp),
            "lockkeeper+unix://" => lockkeeper(serving, Transport::Unix),
            "zookeeper://" => zookeeper(serving),
            "etcd://" => etcd(),
            _ => Ok(Self {
                url: url.into(),
                process: None,
                folder: None,
                _server: None,
            }),
        }
    }

    /// Like `of`, but prints the error and exits if the server cannot be started.
    pub(crate) fn of_or_exit(url: &str, serving: &Serving) -> Self {
        Self::of(url, serving).unwrap_or_else(|fault| {
            eprintln!("{url}: {fault}");
            std::process::exit(1);
        })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the folder of its data, if we started it with one.
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The server's process, if we started it.
    pub(crate) fn process(&self) -> Option<u32> {
        self.process
    }
}

/// Starts our release build, on a port chosen by the kernel or a socket in its folder.
fn lockkeeper(serving: &Serving, transport: Transport) -> Result<StoreServer, String> {
    let command = match &serving.server {
        Some(command) => command.clone(),
        None => build_lockkeeper()?,
    };
    let on_disk = serving.data != "memory";
    let folder = match on_disk {
        true => TempFolder::within(Path::new(&serving.data)),
        false => TempFolder::short(),
    };
    let socket = std::path::absolute(folder.at("socket")).expect("a path is not empty");
    let listen = match transport {
        Transport::Tcp => "127.0.0.1:0".to_owned(),
        Transport::Unix => format!("unix:{}", socket.display()),
    };
    let mut serve = testkit::serve(command);
    serve.args(["--listen", &listen]);
    serve.args(["--threads", &serving.server_threads().to_string()]);
    if let Some(limit) = &serving.busy_poll {
        serve.args(["--busy-poll", limit]);
    }
    if on_disk {
        serve.args(["--durability", &name(serving.durability), "--data"]);
        serve.arg(folder.at("data"));
    } else {
        serve.args(["--data", "memory"]);
    }
    let server = ServerProcess::start(&mut serve);
    Ok(StoreServer {
        url: match transport {
            Transport::Tcp => format!("lockkeeper://{}", server.address()),
            Transport::Unix => format!("lockkeeper+unix://{}", socket.display()),
        },
        process: Some(server.pid().as_raw_pid() as u32),
        folder: on_disk.then(|| folder.path().to_owned()),
        _server: Some(Box::new((server, folder))),
    })
}

/// Builds the command. Cargo checks whether it is up to date.
fn build_lockkeeper() -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--release", "--package=lockkeeper-cli"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    if !built.is_ok_and(|status| status.success()) {
        return Err("`cargo build --release --package lockkeeper-cli` failed".into());
    }
    // Benchmarks are in target/release/deps.
    let here = std::env::current_exe().map_err(|error| error.to_string())?;
    let release = here.ancestors().nth(2).expect("a folder of a folder");
    Ok(release.join("lockkeeper"))
}

const JARS: [&str; 2] = [
    "/usr/share/java/zookeeper.jar",
    "/usr/share/java/slf4j-nop.jar",
];

/// Starts Debian's ZooKeeper with default settings, except for connection limits and a heap large enough to avoid extra
/// garbage collection.
fn zookeeper(serving: &Serving) -> Result<StoreServer, String> {
    let java = || Command::new("java").arg("-version").output().is_ok();
    process::need("default-jdk-headless", java)?;
    process::need("zookeeper", || Path::new(JARS[0]).exists())?;
    process::need("libslf4j-java", || Path::new(JARS[1]).exists())?;
    let folder = TempFolder::short();
    let mut config = ZooKeeperConfig::new(folder.path()).java(&["-Xmx2g"]);
    config = config.class_path(&JARS.join(":")).set("tickTime", 2000);
    if serving.durability == Durability::None {
        config = config.property("zookeeper.forceSync", "no");
    }
    let mut server = config.start();
    config.await_ready(&mut server)?;
    Ok(StoreServer {
        url: format!("zookeeper://{}", config.address),
        process: Some(server.id()),
        folder: None,
        _server: Some(Box::new((server, folder))),
    })
}

/// Starts Debian's etcd with default settings, so it syncs each write.
fn etcd() -> Result<StoreServer, String> {
    let is_there = || Command::new("etcd").arg("--version").output().is_ok();
    process::need("etcd-server", is_there)?;
    let server = testkit::Etcd::start();
    Ok(StoreServer {
        url: format!("etcd://{}", server.address()),
        process: None,
        folder: None,
        _server: Some(Box::new(server)),
    })
}
