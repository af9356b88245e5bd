//! Time to open a store, and memory of its content. Each figure comes from a fresh process, a [`Child`] of this
//! program.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use lockkeeper_store::{Server, ServerOptions, Store, disk};
use serde_json::Value;
use testkit::wire::{EPHEMERAL_SEQUENTIAL, create, op};

use crate::args::Args;
use crate::common::process::memory_bytes;
use crate::common::socket::Address;
use crate::connection::Connection;
use crate::figures::Row;
use crate::ground::{self, Ground};
use crate::options::name;

/// Part of a measurement that runs in another process, which reports it in one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Child {
    /// Creates znodes, and exits without closing the store.
    Znodes,
    /// Serves sessions of other processes, each with an ephemeral znode, and exits likewise, so that they live on.
    Sessions,
    /// Opens the store.
    Open,
}

pub(crate) async fn measure(args: &Args) {
    if args.folder().is_none() && !args.url.starts_with("memory:") {
        let why = "only a store in this program is opened by it";
        return args.line("recovery").print_skipped(why);
    }
    let znodes = Case {
        child: Child::Znodes,
        count: args.znodes,
        segment_bytes: args.segment_bytes,
    };
    let sessions = Case {
        child: Child::Sessions,
        count: args.sessions,
        ..znodes
    };
    znodes.measure(args);
    if args.folder().is_some() {
        // All in the first segment, so that none is ever sealed and no snapshot is made.
        let segment_bytes = (args.znodes * (args.bytes + MOST_BESIDE_DATA_BYTES)) as u64;
        let log_alone = Case {
            segment_bytes: Some(segment_bytes.next_multiple_of(1 << 20).max(16 << 20)),
            ..znodes
        };
        log_alone.measure(args);
    }
    if args.folder().is_some() {
        sessions.measure(args);
    }
}

/// Upper bound of a create's bytes in the log in addition to its data.
const MOST_BESIDE_DATA_BYTES: usize = 120;

/// Content of a store that is opened again.
#[derive(Clone, Copy)]
struct Case {
    child: Child,
    count: usize,
    segment_bytes: Option<u64>,
}

impl Case {
    fn measure(self, args: &Args) {
        let folder = args.folder().map(|parent| ground::fresh_folder(&parent));
        let line = |when: &str| {
            let line = args.line("recovery").with(&name(self.child), self.count);
            line.with("bytes", args.bytes).with("when", when)
        };
        let filled = self.run(args, self.child, folder.as_deref());
        line("filled").print(&filled);
        if let Some(folder) = folder {
            line("opened again").print(&self.open(args, &folder));
            if self.child == Child::Znodes && self.segment_bytes == args.segment_bytes {
                let (file, copy) = (
                    folder.with_extension("backup"),
                    folder.with_extension("copy"),
                );
                disk::backup(&folder, &file).expect("a backup");
                disk::restore(&file, &copy).expect("restored");
                line("opened from a snapshot alone").print(&self.open(args, &copy));
                ground::remove_folder(&copy);
                std::fs::remove_file(&file).expect("what was made can be removed");
            }
            ground::remove_folder(&folder);
        }
    }

    /// Measures opening the store, and the size of its files.
    fn open(self, args: &Args, folder: &Path) -> Row {
        let files = sizes(folder);
        let mut row = self.run(args, Child::Open, Some(folder));
        row.extend(files);
        row
    }

    /// Runs this program again and returns the figures that it prints.
    fn run(self, args: &Args, child: Child, folder: Option<&Path>) -> Row {
        let url = match folder {
            Some(folder) => format!("file:{}", folder.display()),
            None => args.url.clone(),
        };
        let this = std::env::current_exe().expect("the path of this program");
        let mut command = Command::new(this);
        command.args(["--child", &*name(child), "--url", &url]);
        command.args(["--durability", &name(args.durability())]);
        if let Some(bytes) = self.segment_bytes {
            command.args(["--segment-bytes", &bytes.to_string()]);
        }
        for (option, value) in [
            ("--bytes", args.bytes),
            ("--znodes", args.znodes),
            ("--sessions", args.sessions),
            ("--threads", args.threads),
        ] {
            command.arg(option).arg(value.to_string());
        }
        let output = command.stderr(Stdio::inherit()).output();
        let output = output.expect("this program starts again");
        let status = output.status;
        assert!(status.success(), "the child ended with {status}");
        let line: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        let fields = line.as_object().expect("one JSON object").iter();
        fields
            .map(|(name, value)| (name.clone(), value.as_f64().expect("a number")))
            .collect()
    }
}

pub(crate) async fn run_child(args: &Args, child: Child) {
    let before = memory("VmRSS:");
    let start = Instant::now();
    let mut ground = Ground::new(args, args.folder()).await;
    let mut row = Row::new();
    row.insert("open_s".into(), start.elapsed().as_secs_f64());
    let filling = Instant::now();
    match child {
        Child::Znodes => ground::fill(&mut ground, args.znodes, args.bytes).await,
        Child::Sessions => serve_sessions(args).await,
        Child::Open => {}
    }
    if child != Child::Open {
        row.insert("fill_s".into(), filling.elapsed().as_secs_f64());
    }
    row.insert("resident_bytes".into(), memory("VmRSS:") - before);
    row.insert("peak_bytes".into(), memory("VmHWM:") - before);
    println!("{}", serde_json::to_string(&row).expect("numbers"));
    // Like a crash.
    std::process::exit(0);
}

async fn serve_sessions(args: &Args) {
    let folder = args
        .folder()
        .expect("a store of sessions that live on is in a folder");
    let store = Store::file(folder).expect("it is open");
    let here = (Ipv4Addr::LOCALHOST, 0).into();
    let server = Server::bind(&store, ServerOptions::new().listen(here)).await;
    let address = server
        .as_ref()
        .expect("a free port")
        .local_addr()
        .expect("it listens");
    let each = args.sessions.div_ceil(AT_ONCE);
    let tasks: Vec<_> = (0..AT_ONCE)
        .map(|_| {
            tokio::spawn(async move {
                for _ in 0..each {
                    open_session(address).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("all are opened");
    }
}

/// Number of clients whose requests share the disk's syncs.
const AT_ONCE: usize = 250;

/// Opens a session with an ephemeral znode. Both outlive the connection.
async fn open_session(address: SocketAddr) {
    let mut connection = Connection::open(&Address::Tcp(address)).await;
    let record = create("/of-", b"", EPHEMERAL_SEQUENTIAL);
    connection.put(1, op::CREATE, &record);
    connection.flush().await;
    assert_eq!(connection.next().await.error, 0, "made");
}

fn memory(field: &str) -> f64 {
    memory_bytes("self", field).expect("Linux has it")
}

fn sizes(folder: &Path) -> Row {
    let mut row = Row::new();
    for file in std::fs::read_dir(folder).expect("a list").flatten() {
        let name = file.file_name().to_string_lossy().into_owned();
        let kind = name.split('-').next().unwrap_or_default();
        let bytes = file.metadata().expect("its size").len() as f64;
        *row.entry(format!("{kind}_file_bytes")).or_default() += bytes;
        *row.entry(format!("{kind}_files")).or_default() += 1.0;
    }
    row
}
