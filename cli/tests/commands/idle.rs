//! `lockkeeper serve` started on demand. It ends when it is unused, and can start while its predecessor is ending.

use std::process::Command;

use lockkeeper_store::Client;
use rustix::process::Signal;

use super::server::*;
use super::support::*;

fn serve_at(folder: &TempFolder, options: &[&str]) -> Command {
    let mut command = bare();
    command.arg("--data").arg(folder.at("data"));
    command.arg(format!("--listen=unix:{}", folder.at("s").display()));
    command.args(options);
    command
}

async fn connected(folder: &TempFolder) -> Client {
    let url = format!("lockkeeper+unix://{}", folder.at("s").display());
    lockkeeper_store::connect(&url).await.unwrap()
}

#[test]
fn an_idle_server_ends_in_order_and_the_next_has_everything() {
    let folder = TempFolder::short();
    for round in 0..2 {
        let server = Server::start(&mut serve_at(&folder, &["--idle-exit", "100ms"]));
        block_on(async {
            let client = connected(&folder).await;
            put(&client, &format!("/n{round}"), "kept").await;
            assert_eq!(get(&client, "/n0").await, "kept");
            client.close().await.unwrap();
        });
        let ended = server.ended();
        ended_well(&ended);
        assert!(ended.log.contains("idle"), "{ended:?}");
        assert!(!folder.at("s").exists());
        assert_eq!(inspected(&folder.at("data"))["closed_in_order"], true);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_server_on_demand_ends_when_its_socket_is_removed() {
    let folder = TempFolder::short();
    let server = Server::start(&mut serve_at(&folder, &["--idle-exit", "1h"]));
    std::fs::remove_file(folder.at("s")).unwrap();
    let ended = server.ended();
    ended_well(&ended);
    assert!(ended.log.contains("its socket's file is gone"), "{ended:?}");
}

#[test]
fn a_server_waits_for_the_store_of_one_that_ends() {
    let folder = TempFolder::short();
    let first = Server::start(&mut serve_at(&folder, &[]));
    let refused = serve_at(&folder, &["--open-timeout", "1ms"]).output();
    let refused = String::from_utf8(refused.unwrap().stderr).unwrap();
    assert!(refused.contains("is in use"), "{refused}");
    let second = std::thread::scope(|scope| {
        let mut command = serve_at(&folder, &["--open-timeout", "1h"]);
        let second = scope.spawn(move || Server::start(&mut command));
        ended_well(&first.end(Signal::TERM));
        second.join().unwrap()
    });
    ended_well(&second.end(Signal::TERM));
}
