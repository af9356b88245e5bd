//! Apache Curator as a worker, in Java: `faults/curator/Worker.java` and the recipes of `tests/curator`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::checks::Belief;
use crate::crew::Kind;
use crate::run::TIMEOUT_MS;

/// Number of locks that it contends for.
const TASKS: usize = 4;

/// Debian's jars: those of `libcurator-recipes-java` name what they need.
const JARS: [&str; 2] = ["curator-recipes", "slf4j-simple"];

/// Compiled classes of the worker.
pub(crate) struct Curator {
    class_path: String,
}

impl Curator {
    /// Compiles the worker into a folder; `None`, with a word, where Curator or a compiler is missing.
    pub(crate) fn compile(folder: &Path) -> Option<Self> {
        let jars = JARS.map(|jar| format!("/usr/share/java/{jar}.jar"));
        if let Some(jar) = jars.iter().find(|jar| !Path::new(jar).exists()) {
            println!("Curator is left out: {jar} is missing");
            return None;
        }
        let (classes, source) = (
            folder.join("curator"),
            PathBuf::from(env!("CARGO_MANIFEST_DIR")),
        );
        let compiled = Command::new("javac")
            .args(["-nowarn", "-cp", &jars.join(":"), "-d"])
            .arg(&classes)
            .arg(source.join("curator/Worker.java"))
            .arg(source.join("../tests/curator/Recipe.java"))
            .status();
        if !compiled.is_ok_and(|status| status.success()) {
            println!("Curator is left out: its worker cannot be compiled");
            return None;
        }
        let class_path = format!("{}:{}", jars.join(":"), classes.display());
        Some(Self { class_path })
    }

    /// Returns a process of clients at these servers.
    pub(crate) fn worker(&self, hosts: String, seed: u64) -> Kind {
        let class_path = self.class_path.clone();
        let command = move |number: usize, life: u32| {
            let mut command = testkit::with_death_signal("java");
            let seed = seed ^ (number as u64 * 1_000 + u64::from(life));
            command
                .args(["-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
                .arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=off")
                .args(["-cp", &class_path, "Worker", &hosts])
                .args([&seed.to_string(), &TIMEOUT_MS.to_string()])
                .stderr(Stdio::null());
            command
        };
        Kind {
            belief: Belief::Hoped,
            tasks: TASKS,
            command: Box::new(command),
        }
    }
}
