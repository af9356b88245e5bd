//! [`Foreign`]: workers with third-party clients that use our recipes' znodes: Apache Curator in Java
//! (`proof/faults/curator/Worker.java` and the recipes of `tests/curator`), and kazoo in Python
//! (`proof/faults/kazoo/worker.py`).

use std::path::Path;
use std::process::{Command, Stdio};

use crate::checks::Belief;
use crate::run::TIMEOUT_MS;
use crate::workers::Kind;

/// Debian's jars. The ones in `libcurator-recipes-java` list their dependencies.
const JARS: [&str; 2] = ["curator-recipes", "slf4j-simple"];

/// A program that contends for locks. Its arguments lack only the servers and the seed.
pub(crate) struct Foreign {
    command: Vec<String>,
    /// Number of locks that it contends for.
    tasks: usize,
}

impl Foreign {
    /// Number of programs if none is missing.
    pub(crate) const COUNT: usize = 2;

    /// Returns the available programs. Prints a line for each that is left out.
    pub(crate) fn all(folder: &Path) -> Vec<Self> {
        [curator(folder), kazoo()]
            .into_iter()
            .filter_map(|found| found.inspect_err(|why| println!("{why}")).ok())
            .collect()
    }

    pub(crate) fn worker(self, hosts: String, seed: u64) -> Kind {
        let command = move |number: usize, life: u32| {
            let mut command = testkit::with_death_signal(&self.command[0]);
            let seed = seed ^ (number as u64 * 1_000 + u64::from(life));
            command
                .args(&self.command[1..])
                .args([&hosts, &seed.to_string(), &TIMEOUT_MS.to_string()])
                .stderr(Stdio::null());
            command
        };
        Kind {
            belief: Belief::Hoped,
            tasks: self.tasks,
            command: Box::new(command),
        }
    }
}

fn curator(folder: &Path) -> Result<Foreign, String> {
    let jars = JARS.map(|jar| format!("/usr/share/java/{jar}.jar"));
    if let Some(jar) = jars.iter().find(|jar| !Path::new(jar).exists()) {
        return Err(format!("Curator is left out: {jar} is missing"));
    }
    let (classes, source) = (
        folder.join("curator"),
        Path::new(env!("CARGO_MANIFEST_DIR")),
    );
    let compiled = Command::new("javac")
        .args(["-nowarn", "-cp", &jars.join(":"), "-d"])
        .arg(&classes)
        .arg(source.join("curator/Worker.java"))
        .arg(source.join("../../tests/curator/Recipe.java"))
        .status();
    if !compiled.is_ok_and(|status| status.success()) {
        return Err("Curator is left out: its worker cannot be compiled".into());
    }
    let class_path = format!("{}:{}", jars.join(":"), classes.display());
    let command = [
        "java",
        "-Xmx64m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=off",
        "-cp",
        &class_path,
        "Worker",
    ];
    Ok(Foreign {
        command: command.map(str::to_owned).into(),
        tasks: 4,
    })
}

fn kazoo() -> Result<Foreign, String> {
    let python = std::env::var("LOCKKEEPER_PYTHON").unwrap_or("python3".into());
    let import = Command::new(&python).args(["-c", "import kazoo"]).output();
    if !import.is_ok_and(|import| import.status.success()) {
        return Err(format!(
            "kazoo is left out: {python} has no module of this name (LOCKKEEPER_PYTHON names another Python)"
        ));
    }
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/kazoo/worker.py").to_owned();
    Ok(Foreign {
        command: vec![python, program],
        tasks: 2,
    })
}
