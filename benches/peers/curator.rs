//! Apache Curator as a peer: `benches/peers/Curator.java`, in a separate process.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;

use crate::figures::Row;
use crate::process;
use crate::rounds::Contender;
use crate::workloads::{Case, Workload};

/// Jars that it needs, as Debian names them (libcurator-recipes-java, zookeeper, default-jdk-headless).
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

pub(crate) struct Curator {
    url: String,
    process: Rc<RefCell<Process>>,
}

struct Process {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Curator {
    /// Compiles and starts it.
    ///
    /// # Errors
    /// The missing package or file.
    pub(crate) fn start(url: &str) -> Result<Self, String> {
        let jar = Path::new("/usr/share/java/curator-recipes.jar");
        process::need("libcurator-recipes-java", || jar.exists())?;
        let process = Process::start(url).map_err(|error| error.to_string())?;
        Ok(Self {
            url: url.into(),
            process: Rc::new(RefCell::new(process)),
        })
    }

    /// It knows w1, and w2 with few clients: each takes a thread and a connection.
    pub(crate) fn contender(&self, case: Case) -> Option<Contender> {
        let words = match case.workload {
            Workload::W1 => "w1".to_owned(),
            Workload::W2 => format!("w2 {}", case.clients),
            _ => return None,
        };
        let process = self.process.clone();
        Some(Contender::new("curator", &self.url, move |time| {
            let (process, words) = (process.clone(), words.clone());
            async move {
                let ask = format!("{words} {}", time.as_secs_f64());
                process.borrow_mut().ask(&ask).expect("Curator answers")
            }
        }))
    }
}

impl Process {
    fn start(url: &str) -> std::io::Result<Self> {
        let hosts = url.trim_start_matches("zookeeper://");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/peers/Curator.java");
        let jars = Path::new("/usr/share/java");
        let missing = |jar: &&PathBuf| !jar.exists();
        let class_path: Vec<PathBuf> = JARS.map(|jar| jars.join(format!("{jar}.jar"))).into();
        // Curator's own jars and ZooKeeper's; a release may need fewer of the others.
        if let Some(jar) = class_path[..4].iter().find(missing) {
            return Err(std::io::Error::other(format!(
                "{} is missing",
                jar.display()
            )));
        }
        let class_path = std::env::join_paths(class_path).map_err(std::io::Error::other)?;
        // Java compiles a single source file as it starts it.
        let mut child = Command::new("java")
            .arg("-cp")
            .arg(class_path)
            .arg(source)
            .arg(hosts)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let asks = child.stdin.take().expect("piped");
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        let mut process = Self {
            child,
            asks,
            answers,
        };
        // Warm-up: the virtual machine compiles the hot code now, not while it is measured.
        process.ask("w1 3")?;
        Ok(process)
    }

    fn ask(&mut self, ask: &str) -> std::io::Result<Row> {
        writeln!(self.asks, "{ask}")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        serde_json::from_str(&answer)
            .map_err(|error| std::io::Error::other(format!("{error} in {answer:?}")))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It ends when its input does; killing is for one that hangs.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
