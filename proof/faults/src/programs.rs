//! The programs that a run needs.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns a path of this program that stays valid if a new build replaces its file.
pub(crate) fn own_program() -> String {
    format!("/proc/{}/exe", std::process::id())
}

/// Returns the path of `lockkeeper` from the same build, which is built first if cargo runs us. The error says how to
/// build it.
pub(crate) fn lockkeeper() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let program = own.with_file_name("lockkeeper");
    if let Some(cargo) = std::env::var_os("CARGO") {
        let mut build = Command::new(cargo);
        build.args([
            "build",
            "--quiet",
            "--package",
            "lockkeeper-cli",
            "--bin",
            "lockkeeper",
        ]);
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        let _ = build.status();
    }
    match program.exists() {
        true => Ok(program),
        false => Err(format!(
            "{} is missing: cargo build --package lockkeeper-cli",
            program.display()
        )),
    }
}

/// Version of ZooKeeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Version {
    #[value(name = "3.8")]
    V3_8,
    #[value(name = "3.9")]
    V3_9,
}

/// Returns the class path of a ZooKeeper server. The error names the script that downloads it.
pub(crate) fn zookeeper(version: Version) -> Result<String, String> {
    match version {
        Version::V3_8 => Ok(testkit::JARS.to_owned()),
        Version::V3_9 => {
            let own = std::env::current_exe().map_err(|error| error.to_string())?;
            let target = own
                .parent()
                .and_then(Path::parent)
                .unwrap_or(Path::new("target"));
            let jars = target.join("zookeeper-3.9");
            match jars.exists() {
                true => Ok(format!("{}/*", jars.display())),
                false => Err(format!(
                    "{} is missing: proof/faults/zookeeper-3.9.sh {0}",
                    jars.display()
                )),
            }
        }
    }
}
