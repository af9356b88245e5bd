//! Our recipes and Apache Curator's contend for one path on a real ZooKeeper.

mod election;
mod mutex;
mod revocation;
mod rwlock;
mod semaphore;

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::*;
use crate::peer::{GRANTS, INSIDE, Process, hosts};

/// Names the jars that it needs.
const CURATOR: &str = "/usr/share/java/curator-recipes.jar";

/// The jar that ZooKeeper's client logs to.
const LOGGER: &str = "/usr/share/java/slf4j-simple.jar";

fn curator(world: &World) -> Process {
    curator_for(world, LONG)
}

fn curator_for(world: &World, timeout: Duration) -> Process {
    for jar in [CURATOR, LOGGER] {
        assert!(
            Path::new(jar).exists(),
            "{jar} is missing: run `tests/run curator`, which installs what the tests need"
        );
    }
    let jars = [CURATOR.into(), LOGGER.into(), classes()];
    let mut command = Command::new("java");
    command
        .args(["-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
        .arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
        .arg("-cp")
        .arg(env::join_paths(jars).unwrap())
        .args(["Contenders", hosts(world), INSIDE, GRANTS])
        .arg(timeout.as_millis().to_string());
    Process::start(command)
}

fn classes() -> PathBuf {
    let default = || concat!(env!("CARGO_MANIFEST_DIR"), "/../target/curator").into();
    let classes = PathBuf::from(env::var_os("LOCKKEEPER_CURATOR").unwrap_or_else(default));
    assert!(
        classes.join("Contenders.class").exists(),
        "{} has no classes: run `tests/run curator`, which compiles them",
        classes.display()
    );
    classes
}
