//! The time from the SIGKILL of a holder to the next holder's grant, over a Unix socket: one JSON object a line.
//!
//! `cargo bench --bench killed -- [--rounds N]`; holder, server and next holder are processes of their own.

#[path = "common/mod.rs"]
mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use common::figures::{Row, Times};
use common::report::Line;
use lockkeeper::{Client, ConnectOptions, Mutex, connect_with, queue};
use lockkeeper_store::{Server, ServerOptions, Store};

const LOCK: &str = "/killed";

/// Timeout of all sessions: no grant is due to it.
const TIMEOUT: Duration = Duration::from_secs(40);

#[derive(Parser)]
struct Args {
    /// Number of holders to kill
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Serve a store in memory at this path
    #[arg(long, hide = true)]
    serve: Option<String>,
    /// Hold the lock of the server at this path
    #[arg(long, hide = true)]
    hold: Option<String>,
    /// `cargo bench` passes this to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let args = Args::parse();
    common::runtime(2).block_on(async {
        match (&args.serve, &args.hold) {
            (Some(socket), _) => serve(socket).await,
            (_, Some(socket)) => hold(socket).await,
            _ => measure(args.rounds).await,
        }
    });
}

async fn serve(socket: &str) {
    let options = ServerOptions::new().unix_listen(socket).unix_only();
    let server = Server::bind(&Store::memory(), options).await;
    let _server = server.expect("the folder is fresh");
    println!("ready");
    std::future::pending::<()>().await;
}

async fn client(socket: &str) -> Client {
    let options = ConnectOptions::new().session_timeout(TIMEOUT);
    let url = format!("lockkeeper+unix://{socket}");
    let client = connect_with(url.as_str(), options).await;
    client.expect("the server answers")
}

async fn hold(socket: &str) {
    let client = client(socket).await;
    let mutex = Mutex::new(&client, LOCK).expect("a valid path");
    let _guard = mutex.lock().await.expect("the server lives");
    println!("ready");
    std::future::pending::<()>().await;
}

/// A process of this benchmark, killed when it is dropped.
struct Process(Child);

impl Process {
    /// Starts it, and waits until it is ready.
    fn start(role: &str, socket: &str) -> Self {
        let program = std::env::current_exe().expect("the system knows the program");
        let mut command = Command::new(program);
        command.args([role, socket]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it can start itself");
        let mut line = String::new();
        let output = child.stdout.as_mut().expect("it is a pipe");
        let read = BufReader::new(output).read_line(&mut line);
        assert_eq!((read.ok(), line.as_str()), (Some(6), "ready\n"), "{role}");
        Self(child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn measure(rounds: u32) {
    let folder = std::env::temp_dir().join(format!("lockkeeper-{}", common::fresh_name()));
    std::fs::create_dir(&folder).expect("a folder for the socket");
    let times = kills(rounds, &folder).await;
    let _ = std::fs::remove_dir_all(&folder);
    let mut row = Row::new();
    times.write(&mut row, "grant_after_kill");
    let line = Line::new("lockkeeper", "lockkeeper+unix://", "killed");
    let line = line.with("recipe", "mutex").with("clients", 2);
    line.with("rounds", rounds).print(&row);
}

async fn kills(rounds: u32, folder: &Path) -> Times {
    let socket = folder.join("socket").display().to_string();
    let _server = Process::start("--serve", &socket);
    let client = client(&socket).await;
    let mutex = Mutex::new(&client, LOCK).expect("a valid path");
    let mut times = Times::default();
    for _ in 0..rounds {
        let mut holder = Process::start("--hold", &socket);
        let next = {
            let mutex = mutex.clone();
            tokio::spawn(async move {
                let guard = mutex.lock().await.expect("the server lives");
                (Instant::now(), guard)
            })
        };
        while queue(&client, LOCK).await.expect("the server lives").len() < 2 {
            tokio::task::yield_now().await;
        }
        // The waiter has its answer behind this read's, and waits for an event.
        tokio::time::sleep(Duration::from_millis(5)).await;
        let killed = Instant::now();
        holder.0.kill().expect("a child can be killed");
        let (granted, guard) = next.await.expect("the task ends well");
        times.push(granted - killed);
        guard.release().await.expect("the server lives");
    }
    times
}
