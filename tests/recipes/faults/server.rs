//! A server in a process of its own: this test binary, started again for one test, which serves a store in a folder
//! until it is killed.

use std::env;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use lockkeeper_store::{Server, ServerOptions, Store, StoreOptions};
use serde::{Deserialize, Serialize};

use crate::support::{ChildProcess, again};

const TERMS: &str = "LOCKKEEPER_FAULTS_SERVER";
const READY: &str = "the server is ready";

/// Options of a server's start.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Terms {
    pub(super) folder: PathBuf,
    pub(super) address: SocketAddr,
    pub(super) longest_timeout: Duration,
    pub(super) max_frame_bytes: Option<usize>,
    pub(super) max_in_flight: Option<usize>,
}

impl Terms {
    /// Starts the server; it is not ready yet.
    pub(super) fn start(&self) -> ChildProcess {
        let terms = serde_json::to_string(self).unwrap();
        let mut command = again(module_path!(), "a_server");
        // Its stdin ends with this process.
        command
            .env(TERMS, terms)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        ChildProcess::spawn(&mut command)
    }

    /// Starts the server, and returns when it listens.
    pub(super) fn started(&self) -> ChildProcess {
        let mut server = self.start();
        server.lines().wait_for(READY);
        server
    }
}

#[tokio::test]
async fn a_server() {
    let Ok(terms) = env::var(TERMS) else { return };
    let terms: Terms = serde_json::from_str(&terms).unwrap();
    let tick = Duration::from_millis(100);
    let options = StoreOptions::new()
        .tick(tick)
        .session_timeouts(2 * tick, terms.longest_timeout);
    let store = Store::file_with(&terms.folder, options).unwrap();
    let mut options = ServerOptions::new().listen(terms.address);
    if let Some(bytes) = terms.max_frame_bytes {
        options = options.max_frame_bytes(bytes);
    }
    if let Some(count) = terms.max_in_flight {
        options = options.max_in_flight(count);
    }
    let _server = Server::bind(&store, options).await.unwrap();
    // The harness may have left a line unfinished.
    let mut output = std::io::stdout();
    output.write_all(format!("\n{READY}\n").as_bytes()).unwrap();
    output.flush().unwrap();
    let end = || std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
    let _ = tokio::task::spawn_blocking(end).await;
}
