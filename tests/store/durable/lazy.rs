//! A process goes idle after a write that did not wait for the disk, and is killed. The write must survive
//! nevertheless. The process is this test binary, started for one test.

use std::env;
use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};

use lockkeeper_store::disk::inspect;
use lockkeeper_store::{CreateMode, Store};
use testkit::{ChildProcess, TempFolder, again};

use crate::common::*;

/// Makes a process the child: the store's directory.
const FOLDER: &str = "LOCKKEEPER_LAZY_FOLDER";
const PERSISTENT: &str = "child: the persistent znode is created";
const CONTAINER: &str = "child: the container is created";

/// Far longer than any write takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_container_is_on_the_disk_soon_though_nothing_else_is_written() {
    if let Some(folder) = env::var_os(FOLDER) {
        let session = session_at(&Store::file(folder).unwrap()).await;
        make(&session, "/persistent").await;
        println!("\n{PERSISTENT}");
        // The parent sends a line once it has counted the znodes on disk.
        std::io::stdin().read_exact(&mut [0]).unwrap();
        create(&session, "/container", CreateMode::Container).await;
        println!("{CONTAINER}");
        // Blocks until we are killed or the parent ends.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::abort();
    }
    let folder = TempFolder::new("lazy");
    let test = "a_container_is_on_the_disk_soon_though_nothing_else_is_written";
    let mut child = ChildProcess::spawn(
        again(module_path!(), test)
            .env(FOLDER, folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped()),
    );
    let mut lines = child.lines();
    lines.wait_for(PERSISTENT);
    let before = inspect(folder.path()).unwrap().znodes;
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"\n").unwrap();
    lines.wait_for(CONTAINER);
    let start = Instant::now();
    let mut is_written = false;
    while !is_written && start.elapsed() < PATIENCE {
        is_written = inspect(folder.path()).unwrap().znodes > before;
    }
    child.kill();
    let session = session_at(&Store::file(folder.path()).unwrap()).await;
    assert!(is_there(&session, "/persistent").await);
    assert!(is_there(&session, "/container").await);
    assert!(is_written);
}
