//! The processes of the clients.

use std::io::PipeWriter;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fs};

use testkit::{ChildProcess, again_at};

use super::line::Name;
use super::ours::{Orders, live};
use super::server::Place;

/// The test that a process begins with which is to be a client.
const ENTRY: &str = "kill::nothing_acknowledged_is_lost";

/// By these the test binary knows that it is a client, and which.
const NAME: &str = "LOCKKEEPER_SURVIVOR";
const URL: &str = "LOCKKEEPER_SURVIVOR_URL";
const TIMEOUT: &str = "LOCKKEEPER_SURVIVOR_TIMEOUT_MS";
const WRITERS: &str = "LOCKKEEPER_SURVIVOR_WRITERS";

/// Library of a client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Library {
    Ours,
    Kazoo,
    Curator,
}

/// One client.
pub(crate) struct Process {
    pub(crate) name: Name,
    child: ChildProcess,
}

impl Process {
    /// `said` is the pipe of the history.
    pub(crate) fn start(
        name: &str,
        library: Library,
        place: &Place,
        timeout: Duration,
        writers: usize,
        said: &PipeWriter,
    ) -> Self {
        let timeout = timeout.as_millis().to_string();
        let said = said.try_clone().unwrap();
        let mut command = match library {
            Library::Ours => ours(),
            Library::Kazoo => kazoo(),
            Library::Curator => curator(),
        };
        match library {
            Library::Ours => command
                .env(NAME, name)
                .env(URL, place.url())
                .env(TIMEOUT, timeout)
                .env(WRITERS, writers.to_string())
                .stdout(Stdio::null())
                .stderr(said),
            Library::Kazoo | Library::Curator => command
                .args([name, &place.hosts(), &timeout, &writers.to_string()])
                .stdout(said),
        };
        let child = ChildProcess::spawn(command.stdin(Stdio::piped()));
        Self {
            name: name.to_owned(),
            child,
        }
    }

    /// Kills it with SIGKILL: its session lives on until it expires.
    pub(crate) fn kill(mut self) -> Name {
        self.child.kill();
        self.name
    }

    /// Lets it end in order, with an answer to each of its writes.
    pub(crate) fn end(mut self) {
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{}: {status}", self.name);
    }
}

/// This test binary, which then is what [`be_client`] makes of it.
fn ours() -> Command {
    again_at(ENTRY)
}

/// Returns true if this process is a client of ours; then it has been one when this returns.
pub(crate) fn be_client() -> bool {
    let Ok(name) = env::var(NAME) else {
        return false;
    };
    let told = |name: &str| env::var(name).expect("who starts a client tells it all");
    let orders = Orders {
        name,
        url: told(URL),
        timeout: Duration::from_millis(told(TIMEOUT).parse().unwrap()),
        writers: told(WRITERS).parse().unwrap(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(live(orders));
    true
}

fn kazoo() -> Command {
    let default = || concat!(env!("CARGO_MANIFEST_DIR"), "/../target/venv/bin/python").into();
    let python = PathBuf::from(env::var_os("LOCKKEEPER_PYTHON").unwrap_or_else(default));
    assert!(
        fs::exists(&python).unwrap(),
        "{} is missing: run `tests/run kills`, which makes it",
        python.display()
    );
    let mut command = Command::new(python);
    command.arg(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/kazoo/survivor.py"
    ));
    command
}

fn curator() -> Command {
    let default = || concat!(env!("CARGO_MANIFEST_DIR"), "/../target/curator").into();
    let classes = PathBuf::from(env::var_os("LOCKKEEPER_CURATOR").unwrap_or_else(default));
    assert!(
        fs::exists(classes.join("Survivor.class")).unwrap(),
        "{} has no classes: run `tests/run kills`, which compiles them",
        classes.display()
    );
    let java = PathBuf::from("/usr/share/java");
    let jars = ["curator-recipes.jar", "slf4j-simple.jar"].map(|jar| java.join(jar));
    let mut command = Command::new("java");
    command
        .args(["-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
        .arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=off")
        .arg("-cp")
        .arg(env::join_paths(jars.into_iter().chain([classes])).unwrap())
        .arg("Survivor");
    command
}
