//! Sessions listed, ended and disconnected by `lockkeeper admin`.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use lockkeeper::{LostReason, Mutex};
use rustix::process::Signal;

use super::super::locks::named;
use super::*;

const MEMORY: &str = "data = \"memory\"\n";

#[test]
fn the_lock_of_a_kicked_session_passes_on_and_its_holder_is_told() {
    let place = Place::new(MEMORY);
    let server = place.start(&["--audit-log", place.at("audit").to_str().unwrap()]);
    let id = block_on(async {
        let holder = connect_as(&server, "jane:secret").await.unwrap();
        let waiter = server.connect().await;
        let guard = Mutex::new(&holder, named("a"))
            .unwrap()
            .lock()
            .await
            .unwrap();
        let id = holder.session().await.unwrap().id().to_string();
        let queued = tokio::spawn({
            let mutex = Mutex::new(&waiter, named("a")).unwrap();
            async move { mutex.lock().await }
        });
        let listed = place
            .sessions()
            .into_iter()
            .find(|it| it["session"] == *id)
            .unwrap();
        assert_eq!(
            listed["identities"],
            serde_json::json!(["ip:127.0.0.1", "digest:jane"])
        );
        assert_eq!(
            (&listed["ephemerals"], &listed["local"]),
            (&1.into(), &false.into())
        );
        assert!(
            listed["peer"].as_str().unwrap().starts_with("127.0.0.1:"),
            "{listed}"
        );
        let table = success(&place.admin(&["sessions"]));
        assert!(
            table.starts_with("SESSION  ") && table.contains(&id),
            "{table}"
        );

        let told = success(&place.admin(&["kick", &id]));
        assert_eq!(told, format!("session {id} has ended\n"));
        let next = queued.await.unwrap().unwrap();
        assert_eq!(guard.lost().await, LostReason::SessionExpired);
        assert!(next.is_held());
        let again = place.admin(&["kick", &id]);
        assert_eq!(
            failure(&again),
            format!("lockkeeper: there is no session {id}\n")
        );
        id
    });
    ended_well(&server.end(Signal::TERM));
    let records = records(&place.at("audit"));
    let kicked = of_event(&records, "kick");
    let outcomes: Vec<_> = kicked
        .iter()
        .map(|it| it["outcome"].as_str().unwrap())
        .collect();
    assert_eq!(outcomes, ["success", "failure"]);
    assert_eq!(kicked[0]["session"], id);
    assert_eq!(kicked[0]["identities"][1], "digest:jane");
    assert!(
        kicked[0]["peer"].as_str().unwrap().starts_with("unix:uid="),
        "{kicked:?}"
    );
}

/// When a kick is confirmed, it is on disk.
#[test]
fn a_kicked_session_does_not_come_back_after_a_kill() {
    let place = Place::new("");
    let data = place.at("data");
    let data = data.to_str().unwrap();
    let server = place.start(&["--data", data]);
    block_on(async {
        let client = server.connect().await;
        let guard = Mutex::new(&client, named("a"))
            .unwrap()
            .lock()
            .await
            .unwrap();
        let id = client.session().await.unwrap().id().to_string();
        success(&place.admin(&["kick", &id]));
        drop(server);
        drop(guard);
    });
    let server = place.start(&["--data", data]);
    let left: Vec<_> = place
        .sessions()
        .into_iter()
        .filter(|it| it["ephemerals"] != 0)
        .collect();
    assert!(left.is_empty(), "{left:?}");
    ended_well(&server.end(Signal::TERM));
}

#[test]
fn a_disconnected_client_keeps_its_session() {
    let place = Place::new(MEMORY);
    let server = place.start(&[]);
    block_on(async {
        let client = server.connect().await;
        let guard = Mutex::new(&client, named("a"))
            .unwrap()
            .lock()
            .await
            .unwrap();
        let id = client.session().await.unwrap().id().to_string();
        let told = success(&place.admin(&["disconnect", &id]));
        assert_eq!(told, format!("the connection of {id} is closed\n"));
        // Requests that the client sends before it notices the end of the connection are lost with the connection.
        let session = client.session().await.unwrap();
        while let Err(error) = session.exists(&"/".parse().unwrap()).await {
            assert!(matches!(error, Error::ConnectionLoss), "{error}");
        }
        assert_eq!(client.session().await.unwrap().id().to_string(), id);
        assert!(guard.is_held());
    });
    let none = place.admin(&["disconnect", "0x7"]);
    assert_eq!(
        failure(&none),
        "lockkeeper: no connection has the session 0x7\n"
    );
    ended_well(&server.end(Signal::TERM));
}

#[test]
fn the_socket_is_its_users_own_and_garbage_is_answered() {
    use std::io::{Read, Write};
    let place = Place::new(MEMORY);
    let server = place.start(&[]);
    let mode = fs::metadata(place.at("admin"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    for garbage in [
        "GET / HTTP/1.1\r\n\r\n",
        "{}\n",
        "[]\n",
        "{\"command\":\"burn\"}\n",
        &"x".repeat(10_000),
    ] {
        let mut stream = UnixStream::connect(place.at("admin")).unwrap();
        let _ = stream.write_all(garbage.as_bytes());
        let mut text = String::new();
        // The server resets the connection if it has not read all of the request.
        if stream.read_to_string(&mut text).is_ok() {
            assert!(
                text.starts_with("{\"error\":\"not a request of this version"),
                "{text}"
            );
        }
    }
    for wrong in ["", "0x", "7g", "-1", "0x1 2"] {
        let output = place.admin(&["kick", "--", wrong]);
        assert!(
            failure(&output).contains("is not a session: expected an id"),
            "{output:?}"
        );
    }
    let usage = Command::new(env!("CARGO_BIN_EXE_lockkeeper"))
        .args(["admin", "sessions"])
        .env_remove("LOCKKEEPER_ADMIN_SOCKET")
        .output()
        .unwrap();
    assert_eq!(usage.status.code(), Some(2), "{usage:?}");
    ended_well(&server.end(Signal::TERM));
    assert!(!place.at("admin").exists());
    let gone = place.admin(&["sessions"]);
    assert_eq!(gone.status.code(), Some(69), "{gone:?}");
    let said = String::from_utf8_lossy(&gone.stderr);
    assert!(
        said.contains("no server has its --admin-socket at"),
        "{said}"
    );
}
