//! Stores in processes of their own: `lockkeeper serve`, and a real ZooKeeper.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::echo::Transport;
use super::options::{Durability, Serving, name};
use super::process::{self, Process};

/// A store's URL, and its server if this program has started it.
pub(crate) struct StoreServer {
    url: String,
    process: Option<Process>,
    /// Directory of its data, on a disk.
    folder: Option<PathBuf>,
}

impl StoreServer {
    /// Takes a URL as it is, or starts the server where it names no host: `lockkeeper://`,
    /// `lockkeeper+unix://` and `zookeeper://`.
    ///
    /// # Errors
    /// A missing program, or the server's own error.
    pub(crate) fn of(url: &str, serving: &Serving) -> Result<Self, String> {
        match url {
            "lockkeeper://" => lockkeeper(serving, Transport::Tcp),
            "lockkeeper+unix://" => lockkeeper(serving, Transport::Unix),
            "zookeeper://" => zookeeper(serving),
            _ => Ok(Self {
                url: url.into(),
                process: None,
                folder: None,
            }),
        }
    }

    /// Returns the same; prints the error and ends the program, where the server cannot be started.
    pub(crate) fn of_or_exit(url: &str, serving: &Serving) -> Self {
        Self::of(url, serving).unwrap_or_else(|fault| {
            eprintln!("{url}: {fault}");
            std::process::exit(1);
        })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the folder of its data, if this program has started it with one.
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The server's process, if this program has started it.
    pub(crate) fn process(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }
}

/// Ours: built as a release, on a port of the kernel's choice or a socket in its folder.
fn lockkeeper(serving: &Serving, transport: Transport) -> Result<StoreServer, String> {
    let command = match &serving.server {
        Some(command) => command.clone(),
        None => build_lockkeeper()?,
    };
    let folder = match &*serving.data {
        "memory" => process::fresh_folder(match transport {
            Transport::Tcp => "lockkeeper",
            Transport::Unix => "lockkeeper-unix",
        }),
        parent => {
            let folder = format!("bench-lockkeeper-{}", super::fresh_name());
            let folder = Path::new(parent).join(folder);
            std::fs::create_dir_all(&folder).map_err(|error| format!("{parent}: {error}"))?;
            folder
        }
    };
    let data = match &*serving.data {
        "memory" => PathBuf::from("memory"),
        _ => folder.join("data"),
    };
    let mut serve = Command::new(command);
    let socket = std::path::absolute(folder.join("socket")).expect("a path is not empty");
    let listen = match transport {
        Transport::Tcp => "127.0.0.1:0".to_owned(),
        Transport::Unix => format!("unix:{}", socket.display()),
    };
    serve.args(["serve", "--listen", &listen, "--data"]);
    serve.arg(data);
    serve.args(["--threads", &serving.server_threads().to_string()]);
    if let Some(limit) = &serving.busy_poll {
        serve.args(["--busy-poll", limit]);
    }
    if serving.data != "memory" {
        serve.args(["--durability", &name(serving.durability)]);
    }
    serve.stdout(Stdio::piped());
    let log = std::fs::File::create(folder.join("log"));
    serve.stderr(log.map_err(|error| error.to_string())?);
    let mut process = Process::spawn(&mut serve, folder.clone())?;
    let line = process.first_line()?;
    let address = line.strip_prefix("lockkeeper ready ");
    let address = address.ok_or_else(|| {
        let said = std::fs::read_to_string(folder.join("log")).unwrap_or_default();
        format!("`lockkeeper serve` said {line:?}\n{said}")
    })?;
    let url = match transport {
        Transport::Tcp => format!("lockkeeper://{address}"),
        Transport::Unix => format!("lockkeeper+unix://{}", socket.display()),
    };
    Ok(StoreServer {
        url,
        process: Some(process),
        folder: (serving.data != "memory").then_some(folder),
    })
}

/// The command, as it is now: cargo sees for itself whether anything is to be built.
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

/// ZooKeeper as Debian packages it, with its default settings but for limits on connections; the
/// heap is large enough that collecting garbage is no more work than it must be.
fn zookeeper(serving: &Serving) -> Result<StoreServer, String> {
    let java = || Command::new("java").arg("-version").output().is_ok();
    process::need("default-jdk-headless", java)?;
    process::need("zookeeper", || Path::new(JARS[0]).exists())?;
    process::need("libslf4j-java", || Path::new(JARS[1]).exists())?;
    let folder = process::fresh_folder("zookeeper");
    let port = process::free_port();
    let config = format!(
        "dataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\ntickTime=2000\n\
         maxClientCnxns=0\nmaxSessionTimeout=60000\n",
        folder.join("data").display()
    );
    let file = folder.join("zoo.cfg");
    std::fs::write(&file, config).map_err(|error| error.to_string())?;
    let mut command = Command::new("java");
    command.args(["-Xmx2g", "-Dzookeeper.admin.enableServer=false"]);
    if serving.durability == Durability::None {
        command.arg("-Dzookeeper.forceSync=no");
    }
    let class_path = std::env::join_paths(JARS).expect("no colon in them");
    command.arg("-cp").arg(class_path);
    command.arg("org.apache.zookeeper.server.ZooKeeperServerMain");
    command.arg(file);
    process::log_to(&folder, &mut command);
    let mut process = Process::spawn(&mut command, folder)?;
    process.wait_until(|| is_serving(port).unwrap_or(false))?;
    Ok(StoreServer {
        url: format!("zookeeper://127.0.0.1:{port}"),
        process: Some(process),
        folder: None,
    })
}

/// It listens before it serves.
fn is_serving(port: u16) -> std::io::Result<bool> {
    let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    connection.set_read_timeout(Some(Duration::from_secs(1)))?;
    connection.write_all(b"srvr")?;
    connection.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    Ok(answer.starts_with("Zookeeper version"))
}
