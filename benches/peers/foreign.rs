//! Lock libraries of other languages as peers: Apache Curator (`Curator.java`), kazoo (`kazoo_locks.py`) and etcd's Go
//! client (`etcd_locks.go`). Each is a program that runs the workloads itself. It reads one workload per line and
//! answers each with one line of JSON.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use testkit::{ChildProcess, TempFolder};

use crate::common::fresh_name;
use crate::common::lock::REMOTE_PAUSE;
use crate::figures::{Row, Times, WriteTimes};
use crate::kill::TIMEOUT;
use crate::process;
use crate::rounds::Contender;
use crate::workloads::{Case, Workload};

/// Jars that Curator needs, from Debian's libcurator-recipes-java, zookeeper and default-jdk-headless.
const JARS: [&str; 11] = [
    "curator-recipes",
    "curator-framework",
    "curator-client",
    "zookeeper",
    "zookeeper-jute",
    "guava",
    "slf4j-api",
    "slf4j-nop",
    "netty-all",
    "failureaccess",
    "snappy-java",
];

/// Folder of Debian's Go packages. Debian 12 has etcd 3.4. Later releases of etcd have other import paths.
const GO_PATH: &str = "/usr/share/gocode";

/// A lock library on a ZooKeeper or an etcd.
pub(crate) struct Foreign {
    system: &'static str,
    url: String,
    program: Rc<RefCell<Program>>,
    /// Starts the program once more, as a holder to be killed.
    command: Rc<dyn Fn() -> Command>,
}

impl Foreign {
    /// Starts Curator on the ZooKeeper at this URL.
    ///
    /// # Errors
    /// The missing package or file.
    pub(crate) fn curator(url: &str) -> Result<Self, String> {
        let jar = Path::new("/usr/share/java/curator-recipes.jar");
        process::need("libcurator-recipes-java", || jar.exists())?;
        let jars = Path::new("/usr/share/java");
        let class_path: Vec<PathBuf> = JARS.map(|jar| jars.join(format!("{jar}.jar"))).into();
        // Curator's own jars and ZooKeeper's. Some releases need fewer of the others.
        if let Some(jar) = class_path[..4].iter().find(|jar| !jar.exists()) {
            return Err(format!("{} is missing", jar.display()));
        }
        let class_path = std::env::join_paths(class_path).map_err(|error| error.to_string())?;
        let hosts = hosts(url).to_owned();
        // Java compiles a single source file when it starts it.
        let command = move || {
            let mut command = Command::new("java");
            command
                .arg("-cp")
                .arg(&class_path)
                .arg(source("Curator.java"));
            command.arg(&hosts);
            command
        };
        Self::start("curator", url, command)
    }

    /// Starts kazoo on the ZooKeeper at this URL, with the Python from `LOCKKEEPER_PYTHON`.
    ///
    /// # Errors
    /// A Python without kazoo.
    pub(crate) fn kazoo(url: &str) -> Result<Self, String> {
        let python = std::env::var_os("LOCKKEEPER_PYTHON").unwrap_or("python3".into());
        let mut import = Command::new(&python);
        let found = import.args(["-c", "import kazoo"]).stderr(Stdio::null());
        if !found.status().is_ok_and(|status| status.success()) {
            return Err(
                "no Python with kazoo; benches/race.py installs one, which LOCKKEEPER_PYTHON names"
                    .into(),
            );
        }
        let hosts = hosts(url).to_owned();
        let command = move || {
            let mut command = Command::new(&python);
            command.arg(source("kazoo_locks.py")).arg(&hosts);
            command
        };
        Self::start("kazoo", url, command)
    }

    /// Builds the recipe of etcd's Go client, and starts it on the etcd at this URL.
    ///
    /// # Errors
    /// The missing package, or the compiler's messages.
    pub(crate) fn etcd_go(url: &str) -> Result<Self, String> {
        let go = || Command::new("go").arg("version").output().is_ok();
        process::need("golang-go", go)?;
        let recipe = Path::new(GO_PATH).join("src/go.etcd.io/etcd/clientv3/concurrency/mutex.go");
        process::need("golang-etcd-server-dev", || recipe.exists())?;
        let (folder, hosts) = (TempFolder::short(), hosts(url).to_owned());
        let mut build = Command::new("go");
        build.args(["build", "-o"]).arg(folder.at("etcd_locks"));
        build.arg(source("etcd_locks.go"));
        // Debian's packages have no modules.
        build.env("GO111MODULE", "off").env("GOPATH", GO_PATH);
        let built = build.output().map_err(|error| error.to_string())?;
        if !built.status.success() {
            let said = String::from_utf8_lossy(&built.stderr);
            return Err(format!("etcd_locks.go does not compile\n{said}"));
        }
        // The closure owns the folder, because it starts the program again as a holder.
        let command = move || {
            let mut command = Command::new(folder.at("etcd_locks"));
            command.arg(&hosts);
            command
        };
        Self::start("etcd-go", url, command)
    }

    fn start(
        system: &'static str,
        url: &str,
        command: impl Fn() -> Command + 'static,
    ) -> Result<Self, String> {
        let program = Program::start(command()).and_then(|mut program| {
            // Warm-up, so that a virtual machine compiles the hot code before the measurement.
            program.ask("w1 2").map(|_| program)
        });
        Ok(Self {
            system,
            url: url.into(),
            program: Rc::new(RefCell::new(program.map_err(|error| error.to_string())?)),
            command: Rc::new(command),
        })
    }

    /// Returns the contender of a case. Each of its clients takes a thread and a connection.
    pub(crate) fn contender(&self, case: Case) -> Option<Contender> {
        let words = match case.workload {
            Workload::W1 => "w1".to_owned(),
            Workload::W2 => format!("w2 {}", case.clients),
            Workload::W3 => format!("w3 {}", case.n),
            Workload::W4 => format!("w4 {} {}", case.n, case.clients),
            Workload::Kill => return Some(self.killed()),
            Workload::Cold | Workload::Bytes => return None,
        };
        let program = self.program.clone();
        Some(Contender::new(self.system, &self.url, move |time| {
            let (program, words) = (program.clone(), words.clone());
            async move {
                let ask = format!("{words} {}", time.as_secs_f64());
                program.borrow_mut().ask(&ask).expect("the program answers")
            }
        }))
    }

    /// Returns the contender of `kill`. A second program holds and this one waits.
    fn killed(&self) -> Contender {
        let (program, command) = (self.program.clone(), self.command.clone());
        Contender::new(self.system, &self.url, move |time| {
            let (program, command) = (program.clone(), command.clone());
            async move {
                let (mut times, start) = (Times::default(), Instant::now());
                // At least one, if the timeout is longer than a round.
                while times.count() == 0 || start.elapsed() < time {
                    let kill = kill_to_grant(&mut program.borrow_mut(), command());
                    times.push(kill.expect("granted"));
                }
                let mut row = Row::new();
                row.insert("kills".into(), times.count() as f64);
                row.insert("exclusion_violations".into(), 0.0);
                times.write(&mut row, "kill_to_grant");
                row
            }
        })
    }
}

fn hosts(url: &str) -> &str {
    url.split_once("://").map_or(url, |(_, hosts)| hosts)
}

fn source(name: &str) -> PathBuf {
    let benches = Path::new(env!("CARGO_MANIFEST_DIR"));
    benches.join("peers").join(name)
}

/// The lock is not granted before the kill, because the waiting program answers in order, with the time that it has
/// waited.
fn kill_to_grant(waiter: &mut Program, holder: Command) -> std::io::Result<Duration> {
    let path = format!("/bench/{}", fresh_name());
    let mut holder = Program::start(holder)?;
    holder.ask(&format!("hold {path} {}", TIMEOUT.as_millis()))?;
    let asked = Instant::now();
    waiter.send(&format!("wait {path}"))?;
    std::thread::sleep(100 * REMOTE_PAUSE);
    let killed = Instant::now();
    holder.child.signal(Signal::KILL);
    let waited = waiter.answer()?["wait_s"];
    let granted = Instant::now();
    if Duration::from_secs_f64(waited) < killed - asked - 20 * REMOTE_PAUSE {
        return Err(std::io::Error::other("granted before the kill"));
    }
    Ok(granted - killed)
}

/// A running program. Dropping it kills it.
struct Program {
    child: ChildProcess,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Program {
    fn start(mut command: Command) -> std::io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = ChildProcess::spawn(&mut command);
        let asks = child.stdin.take().expect("piped");
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        Ok(Self {
            child,
            asks,
            answers,
        })
    }

    fn ask(&mut self, ask: &str) -> std::io::Result<Row> {
        self.send(ask)?;
        self.answer()
    }

    fn send(&mut self, ask: &str) -> std::io::Result<()> {
        writeln!(self.asks, "{ask}")
    }

    fn answer(&mut self) -> std::io::Result<Row> {
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        serde_json::from_str(&answer)
            .map_err(|error| std::io::Error::other(format!("{error} in {answer:?}")))
    }
}
