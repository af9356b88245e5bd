//! [`EchoFloor`]: the round trip of a loopback echo, which is the floor of every figure of a served store.
//!
//! The echo server is a separate process with as many tokio threads as the servers, so a round trip takes the same
//! system calls and wakes as a request, but no work. It is measured in each round of each system.
//!
//! Waking a sleeping core takes several times as long as the rest of a round trip, and the kernel chooses new cores for
//! each process. So a line also says how often a core went to sleep per operation ([`Cores`]). This is about 0 if
//! client and server share a core or other work keeps both awake, and about 2 if each waits on its own core.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use testkit::TempFolder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};

use super::figures::{Row, Times};
use super::helper::{self, Helper};
use super::socket::{Address, Stream};

const SERVE: &str = "echo";
const SPIN: &str = "spin";

/// Size of a message, about that of a small request.
const MESSAGE_BYTES: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Unix,
}

impl Transport {
    pub(crate) fn of(url: &str) -> Self {
        match Address::of(url) {
            Some(Address::Unix(_)) => Self::Unix,
            _ => Self::Tcp,
        }
    }
}

/// If this process is a helper of the floor, runs its task and does not return.
pub(crate) fn help() {
    match helper::task() {
        Some((task, threads)) if task == SERVE => serve(threads.parse().expect("a number")),
        Some((task, _)) if task == SPIN => spin(),
        _ => {}
    }
}

/// A running echo server and, on request, a process that keeps the cores awake.
pub(crate) struct EchoFloor {
    tcp: Address,
    unix: Address,
    _spinner: Option<Helper>,
    _server: Helper,
    _folder: TempFolder,
}

impl EchoFloor {
    /// Starts the helpers. `keep_awake` keeps the cores awake from now on.
    pub(crate) fn start(threads: usize, keep_awake: bool) -> std::io::Result<Self> {
        let folder = TempFolder::short();
        let socket = folder.at("socket");
        let mut server = Helper::start(&[], SERVE, &threads.to_string())?;
        let address: SocketAddr = server
            .ask(&socket.to_string_lossy())?
            .parse()
            .map_err(std::io::Error::other)?;
        let mut spinner = None;
        if keep_awake {
            // SCHED_IDLE runs only on a core without other work, and gives way immediately.
            let mut helper = Helper::start(&["chrt", "--idle", "0"], SPIN, "")?;
            helper.line()?;
            spinner = Some(helper);
        }
        Ok(Self {
            tcp: Address::Tcp(address),
            unix: Address::Unix(socket),
            _spinner: spinner,
            _server: server,
            _folder: folder,
        })
    }

    /// Measures for about `time`. The row has `echo_p50_us`, `echo_sleeps` (of a core, per round trip) and, with
    /// several connections, `echo_per_s`, the round trips of all of them with one message in flight each.
    pub(crate) async fn round(
        &mut self,
        transport: Transport,
        connections: usize,
        time: Duration,
    ) -> Row {
        let address = match transport {
            Transport::Tcp => &self.tcp,
            Transport::Unix => &self.unix,
        };
        let mut row = Row::new();
        let cores = Cores::now();
        let (times, _) = echo(address, 1, time).await;
        if let Some(sleeps) = cores.sleeps() {
            row.insert("echo_sleeps".into(), sleeps / times.count() as f64);
        }
        row.insert("echo_p50_us".into(), times.p50_us());
        if connections > 1 {
            let (_, per_s) = echo(address, connections, time).await;
            row.insert("echo_per_s".into(), per_s);
        }
        row
    }
}

/// Returns the duration of each round trip, and the number of all per second.
async fn echo(address: &Address, connections: usize, time: Duration) -> (Times, f64) {
    let mut streams = Vec::new();
    for _ in 0..connections {
        streams.push(address.connect().await.expect("the echo server listens"));
    }
    let start = Instant::now();
    let tasks: Vec<_> = streams
        .into_iter()
        .map(|stream| tokio::spawn(round_trips(stream, start + time)))
        .collect();
    let mut all = Times::default();
    for task in tasks {
        all.append(task.await.expect("an echo ends well"));
    }
    let per_s = all.count() as f64 / start.elapsed().as_secs_f64();
    (all, per_s)
}

async fn round_trips(mut stream: Box<dyn Stream>, end: Instant) -> Times {
    let (mut times, mut message) = (Times::default(), [7; MESSAGE_BYTES]);
    let mut asked = Instant::now();
    while asked < end {
        let sent = stream.write_all(&message).await;
        sent.expect("the echo server reads");
        let answered = stream.read_exact(&mut message).await;
        answered.expect("the echo server answers");
        let now = Instant::now();
        times.push(now - asked);
        asked = now;
    }
    times
}

/// Serves until the parent process ends.
fn serve(threads: usize) -> ! {
    let mut socket = String::new();
    let asked = std::io::stdin().read_line(&mut socket);
    asked.expect("the path of a socket");
    helper::end_with_parent();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let tcp = tcp.expect("loopback has a free port");
        let unix = UnixListener::bind(Path::new(socket.trim_end())).expect("a new folder");
        helper::say(&tcp.local_addr().expect("it is bound").to_string());
        tokio::spawn(async move {
            while let Ok((stream, _)) = unix.accept().await {
                tokio::spawn(answer(stream));
            }
        });
        while let Ok((stream, _)) = tcp.accept().await {
            stream.set_nodelay(true).expect("a socket has that option");
            tokio::spawn(answer(stream));
        }
    });
    std::process::exit(1)
}

async fn answer(mut stream: impl Stream) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut bytes).await {
        if stream.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}

/// Keeps every core busy until the parent process ends.
fn spin() -> ! {
    helper::end_with_parent();
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    for _ in 1..cores {
        std::thread::spawn(spin_here);
    }
    helper::say("ready");
    spin_here()
}

/// Spins without a hint to the processor, which would give a virtual core back to its host.
fn spin_here() -> ! {
    loop {
        std::hint::black_box(());
    }
}

/// Returns true for a figure of the floor, not of a system.
pub(crate) fn is_of_floor(field: &str) -> bool {
    field.starts_with("echo_") || field.starts_with("cores_")
}

/// Returns the ratios of a system's figures to the echo: times to a single round trip, rates to the rate over as many
/// connections.
pub(crate) fn ratios(row: &Row) -> Vec<(&'static str, f64)> {
    let times = TIMES.map(|field| (field, "echo_p50_us"));
    let rates = RATES.map(|field| (field, "echo_per_s"));
    let of = |(field, floor)| Some((field, row.get(field)? / row.get(floor)?));
    times.into_iter().chain(rates).filter_map(of).collect()
}

const TIMES: [&str; 4] = [
    "request_p50_us",
    "acquire_p50_us",
    "release_p50_us",
    "handover_p50_us",
];
const RATES: [&str; 2] = ["requests_per_s", "handovers_per_s"];

/// Idleness of the cores up to a moment, as counted by the kernel.
pub(crate) struct Cores {
    at: Instant,
    /// Idle time and total time, in the kernel's ticks.
    ticks: Option<(f64, f64)>,
    sleeps: Option<f64>,
}

impl Cores {
    pub(crate) fn now() -> Self {
        Self {
            at: Instant::now(),
            ticks: idle_and_all(),
            sleeps: sleeps(),
        }
    }

    /// Returns how often a core went to sleep since then, if the system counts it.
    fn sleeps(&self) -> Option<f64> {
        Some(sleeps()? - self.sleeps?)
    }

    /// Writes `cores_idle`, the idle share of the cores' time since then, and `cores_slept`, how often a core went to
    /// sleep per operation, if the system counts them.
    pub(crate) fn write_since(&self, row: &mut Row) {
        if let (Some((idle, all)), Some((idle_now, all_now))) = (self.ticks, idle_and_all())
            && all_now > all
        {
            let share = (idle_now - idle) / (all_now - all);
            row.insert("cores_idle".into(), share);
        }
        let per_s = ["cycles_per_s", "handovers_per_s", "requests_per_s"];
        if let Some(sleeps) = self.sleeps()
            && let Some(per_s) = per_s.iter().find_map(|field| row.get(*field))
        {
            let operations = per_s * self.at.elapsed().as_secs_f64();
            row.insert("cores_slept".into(), sleeps / operations);
        }
    }
}

fn idle_and_all() -> Option<(f64, f64)> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let fields = stat.lines().next()?.split_whitespace().skip(1);
    // User, nice, system, idle, waiting for a disk, and so on. User time includes guests.
    let ticks: Vec<f64> = fields.take(8).flat_map(str::parse).collect();
    Some((ticks.get(3)? + ticks.get(4)?, ticks.iter().sum()))
}

/// Returns how often cores have entered an idle state other than polling.
fn sleeps() -> Option<f64> {
    let mut all = None;
    for core in std::fs::read_dir("/sys/devices/system/cpu").ok()?.flatten() {
        let states = std::fs::read_dir(core.path().join("cpuidle"));
        for state in states.into_iter().flatten().flatten() {
            let read = |file: &str| std::fs::read_to_string(state.path().join(file)).ok();
            if read("name").is_some_and(|name| name.trim() != "POLL") {
                let usage: f64 = read("usage")?.trim().parse().ok()?;
                all = Some(all.unwrap_or(0.0) + usage);
            }
        }
    }
    all
}
