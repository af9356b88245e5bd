//! A holder is killed (SIGKILL). Over a Unix socket the next one is granted the lock immediately, not after the
//! timeout.

use std::env;
use std::process::Stdio;
use std::time::Duration;

use lockkeeper::{ConnectOptions, Mutex, Server, ServerOptions, Store, StoreOptions, connect_with};
use testkit::{ChildProcess, TempFolder, again, within_reason};

/// Makes a process the holder.
const URL: &str = "LOCKKEEPER_KILLED_URL";

const HELD: &str = "child: held";

/// Longer than any test.
const TIMEOUT: Duration = Duration::from_secs(600);

async fn mutex(url: &str) -> Mutex {
    let options = ConnectOptions::new().session_timeout(TIMEOUT);
    let client = connect_with(url, options).await.unwrap();
    Mutex::new(&client, "/lock").unwrap()
}

#[test]
fn a_holder() {
    let Ok(url) = env::var(URL) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let _guard = mutex(&url).await.lock().await.unwrap();
        println!("\n{HELD}");
        std::future::pending::<()>().await;
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_holder_is_granted_long_before_the_timeout() {
    within_reason(async {
        let folder = TempFolder::new("killed");
        let options = StoreOptions::new().session_timeouts(Duration::from_secs(1), TIMEOUT);
        let server = ServerOptions::new()
            .unix_listen(folder.path().join("s"))
            .unix_only();
        let _server = Server::bind(&Store::memory_with(options), server)
            .await
            .unwrap();
        let url = format!("lockkeeper+unix://{}", folder.path().join("s").display());
        let mut command = again(module_path!(), "a_holder");
        command
            .env(URL, &url)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut holder = ChildProcess::spawn(&mut command);
        holder.lines().wait_for(HELD);
        let next = mutex(&url).await;
        assert!(next.try_lock().await.unwrap().is_none());
        holder.kill();
        let guard = next.lock().await.unwrap();
        assert!(guard.is_held());
    })
    .await;
}
