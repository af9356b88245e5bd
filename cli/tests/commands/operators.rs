//! Operating a running server: audit log, reloads, drains, sessions, and access to the metrics.

mod access;
mod audit;
mod drain;
mod reload;
mod sessions;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use lockkeeper_store::{Client, ConnectOptions, Error, connect_with};
use serde_json::Value;

use super::access::digest;
use super::server::*;
use super::support::*;

/// A folder with a configuration file and a socket for `lockkeeper admin`.
struct Place {
    folder: TempFolder,
}

impl Place {
    fn new(config: &str) -> Self {
        let place = Self {
            folder: TempFolder::short(),
        };
        place.write("config", config);
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.at(name)
    }

    /// Writes a file that only its owner can read.
    fn write(&self, name: &str, text: &str) {
        fs::write(self.at(name), text).unwrap();
        fs::set_permissions(self.at(name), fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn command(&self) -> Command {
        let mut command = serve();
        command.arg("--config").arg(self.at("config"));
        command.arg("--admin-socket").arg(self.at("admin"));
        command
    }

    fn start(&self, more: &[&str]) -> Server {
        Server::start(self.command().args(more))
    }

    fn admin(&self, arguments: &[&str]) -> Output {
        self.admin_command(arguments).output().unwrap()
    }

    fn admin_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
        command.arg("admin").args(arguments);
        command.env("LOCKKEEPER_ADMIN_SOCKET", self.at("admin"));
        command
    }

    fn sessions(&self) -> Vec<Value> {
        let text = success(&self.admin(&["sessions", "--json"]));
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect()
    }
}

async fn connect_as(server: &Server, secret: &str) -> Result<Client, Error> {
    let options = ConnectOptions::new().connect_timeout(Duration::from_secs(60));
    connect_with(
        &format!("lockkeeper://{}", server.address()),
        options.auth("digest", secret.as_bytes()),
    )
    .await
}

/// Waits until a client can no longer use the store, because it cannot authenticate or its session has expired.
/// Returns the error.
async fn until_refused(client: &Client) -> Error {
    loop {
        let session = match client.session().await {
            Ok(session) => session,
            Err(error) => return error,
        };
        match session.exists(&"/".parse().unwrap()).await {
            Err(error @ (Error::AuthFailed | Error::SessionExpired { .. })) => return error,
            _ => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

fn records(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    let read = |line: &str| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
    text.lines().map(read).collect()
}

fn of_event<'a>(records: &'a [Value], event: &str) -> Vec<&'a Value> {
    records.iter().filter(|it| it["event"] == event).collect()
}
