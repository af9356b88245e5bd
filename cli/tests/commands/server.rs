//! A served store. The server is the real command in a separate process.

use std::path::Path;
use std::process::Command;

use lockkeeper_store::{Client, CreateMode, ZnodePath};
use serde_json::Value;

pub(crate) use testkit::{Ended, ServerProcess as Server};

use super::support::*;

/// Returns the command `lockkeeper serve` on a free port.
pub(crate) fn serve() -> Command {
    let mut command = bare();
    command.args(["--listen", "127.0.0.1:0"]);
    command
}

/// Returns the command `lockkeeper serve` without options.
pub(crate) fn bare() -> Command {
    testkit::serve(env!("CARGO_BIN_EXE_lockkeeper"))
}

/// Returns the command `lockkeeper serve` on a free port, with this data directory.
pub(crate) fn serve_in(dir: &Path) -> Command {
    let mut command = serve();
    command.arg("--data").arg(dir);
    command
}

pub(crate) fn ended_well(ended: &Ended) {
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    assert_eq!(ended.more, "", "{ended:?}");
    assert!(
        ended.log.contains("drained, the store is closed in order"),
        "{ended:?}"
    );
}

pub(crate) async fn put(client: &Client, path: &str, data: &'static str) {
    let path: ZnodePath = path.parse().unwrap();
    let session = client.session().await.unwrap();
    session
        .create(&path, data, CreateMode::Persistent)
        .await
        .unwrap();
}

pub(crate) async fn get(client: &Client, path: &str) -> String {
    let path: ZnodePath = path.parse().unwrap();
    let session = client.session().await.unwrap();
    let (data, _) = session.get_data(&path).await.unwrap();
    String::from_utf8(data.to_vec()).unwrap()
}

pub(crate) fn inspected(dir: &Path) -> Value {
    let output = lockkeeper(&[&"inspect", &dir, &"--json"]);
    serde_json::from_str(&success(&output)).unwrap()
}
