//! Start and end of a dashboard, on the per-user store and as a part of `serve`, and cases in which it cannot start.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::process::Command;

use rustix::process::Signal;

use super::super::server::{Server, ended_well, put, serve};
use super::*;

pub(super) fn dashboard_of(server: &Server) -> String {
    let (_, address) = server.ready.rsplit_once(" dashboard ").unwrap();
    address.to_owned()
}

#[test]
fn the_page_and_its_assets_are_served_with_their_headers() {
    let store = StoreAt::served();
    let dashboard = Dashboard::start(&store, &[]);
    assert!(!dashboard.url.contains('#'), "{}", dashboard.url);
    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/assets/app.css", "text/css; charset=utf-8"),
        ("/assets/app.js", "text/javascript; charset=utf-8"),
        ("/api/about", "application/json"),
    ] {
        let page = get(dashboard.at(), path, &[]);
        assert_eq!(page.status, 200);
        assert!(!page.body.is_empty());
        let line = format!("content-type: {kind}\r\n");
        assert!(page.head.contains(&line), "{}", page.head);
        let head = format!("HEAD {path} HTTP/1.1");
        let head = super::super::metrics::http::answer(send(dashboard.at(), &head, &[], ""));
        assert_eq!((head.status, &*head.body), (200, ""), "{path}");
    }
    let html = get(dashboard.at(), "/", &[]).body;
    for inline in ["<style", " style=", "onclick=", "<script>"] {
        assert!(!html.contains(inline), "the policy forbids {inline}");
    }
    // Refusals and streams also have these headers.
    let stream = Events::of(dashboard.at(), "/api/locks").head;
    let missing = get(dashboard.at(), "/nothing", &[]).head;
    let foreign = get(dashboard.at(), "/", &[("Host", "example.com")]).head;
    for head in [stream, missing, foreign, get(dashboard.at(), "/", &[]).head] {
        for line in [
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
             connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n",
            "x-content-type-options: nosniff\r\n",
            "x-frame-options: DENY\r\n",
            "referrer-policy: no-referrer\r\n",
            "cache-control: no-store\r\n",
            "cross-origin-resource-policy: same-origin\r\n",
            "cross-origin-opener-policy: same-origin\r\n",
        ] {
            assert!(head.contains(line), "{line}: {head}");
        }
        assert!(!head.contains("access-control"), "{head}");
    }
}

#[test]
fn a_signal_ends_it_while_viewers_look() {
    let store = StoreAt::served();
    for signal in [Signal::INT, Signal::TERM] {
        let dashboard = Dashboard::start(&store, &[]);
        let mut list = Events::of(dashboard.at(), "/api/locks");
        list.until("locks", |_| true);
        assert_eq!(dashboard.end(signal), Some(0));
        while list.next().is_some() {}
    }
}

#[test]
fn without_a_url_it_shows_the_users_own_store() {
    let folder = TempFolder::short();
    for name in ["home", "run"] {
        let mut builder = fs::DirBuilder::new();
        builder.mode(0o700).create(folder.at(name)).unwrap();
    }
    let command = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
        command.args(arguments).env_remove("LOCKKEEPER_URL");
        command.env("HOME", folder.at("home"));
        command.env("XDG_RUNTIME_DIR", folder.at("run"));
        command.env("LOCKKEEPER_LOCAL_IDLE", "1m");
        command
    };
    let dashboard = Dashboard::start_as(&mut command(&["dashboard", "--listen", "127.0.0.1:0"]));
    let mut list = Events::of(dashboard.at(), "/api/locks");
    list.until("locks", |it| it["locks"] == 0);
    let mut holder = command(&["run", "nightly", "--", "sleep", "1000"]);
    let mut holder = holder.spawn().unwrap();
    let seen = list.until("locks", |it| it["held"] == 1);
    assert_eq!(seen["rows"][0]["lock"], "nightly");
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!(dashboard.end(Signal::TERM), Some(0));
    success(&command(&["local", "--stop"]).output().unwrap());
}

#[test]
fn where_it_cannot_begin_it_says_why() {
    let store = StoreAt::served();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let said = failure(&store.run(&["dashboard", "--listen", &address]));
    let expected = "is in use by another program: choose another address with --listen";
    assert_eq!(said, format!("lockkeeper: {address} {expected}\n"));
    let nowhere = StoreAt::at("lockkeeper://127.0.0.1:1".into());
    let output = nowhere.run(&[
        "dashboard",
        "--listen=127.0.0.1:0",
        "--connect-timeout=100ms",
    ]);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    for wrong in [["--dashboard-host", "a:1"], ["--listen", "zk1"]] {
        let output = store.run(&["dashboard", wrong[0], wrong[1]]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
}

#[test]
fn a_token_comes_from_a_file_of_its_owner_alone() {
    let store = StoreAt::served();
    let file = store.folder.at("token");
    let refused = |text: &str, mode: u32| {
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let output = store.run(&["dashboard", "--listen=127.0.0.1:0", "--token-file=token"]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!said.contains("sixteen-letters"), "{said}");
        said
    };
    let said = refused("sixteen-letters-or-more\n", 0o640);
    assert!(said.contains("can be read by others (mode 640)"), "{said}");
    for wrong in ["short", "sixteen-letters with blanks", ""] {
        let said = refused(wrong, 0o600);
        assert!(said.contains("has no token"), "{said}");
    }
    fs::write(&file, "sixteen-letters-or-more\n").unwrap();
    let dashboard = Dashboard::start(&store, &["--allow-revoke", "--token-file=token"]);
    assert!(!dashboard.url.contains("sixteen"), "{}", dashboard.url);
    let bearer = |token: &str| {
        let header = format!("Bearer {token}");
        let headers = [("Authorization", &*header)];
        post(dashboard.at(), &headers, &Value::Null).status
    };
    assert_eq!(
        (
            bearer("sixteen-letters-or-more"),
            bearer("sixteen-letters-or-mor")
        ),
        (400, 401)
    );
}

#[test]
fn a_server_shows_its_own_locks_and_drains_while_viewers_look() {
    let folder = TempFolder::short();
    let mut command = serve();
    command
        .args(["--dashboard", "127.0.0.1:0", "--data"])
        .arg(folder.at("data"));
    let server = Server::start(&mut command);
    let at = dashboard_of(&server);
    let about = parsed(&get(&at, "/api/about", &[]));
    assert_eq!(about["store"], format!("lockkeeper://{}", server.address()));
    let mut list = Events::of(&at, "/api/locks");
    list.until("locks", |it| it["locks"] == 0);
    block_on(async {
        let client = server.connect().await;
        let mutex = Mutex::new(&client, named("a")).unwrap();
        let _guard = mutex.lock().await.unwrap();
        let seen = list.until("locks", |it| it["held"] == 1);
        assert_eq!(seen["rows"][0]["lock"], "a");
    });
    ended_well(&server.end(Signal::TERM));
    while list.next().is_some() {}
}

#[test]
fn a_server_in_its_pause_after_a_crash_can_be_stopped_and_shows_its_locks_afterwards() {
    let start = |folder: &TempFolder, tick| {
        let mut command = serve();
        command.args(["--durability=delayed-restart", tick, "--dashboard"]);
        command
            .args(["127.0.0.1:0", "--data"])
            .arg(folder.at("data"));
        Server::start(&mut command)
    };
    // The pause after a crash lasts 20 ticks. During the pause, the store opens no session, not even for the dashboard.
    let crashed = |tick| {
        let folder = TempFolder::short();
        let server = start(&folder, tick);
        block_on(async { put(&server.connect().await, "/a", "kept").await });
        server.end(Signal::KILL);
        folder
    };
    let folder = crashed("--tick=2s");
    ended_well(&start(&folder, "--tick=2s").end(Signal::TERM));
    let folder = crashed("--tick=200ms");
    let server = start(&folder, "--tick=200ms");
    let mut list = Events::of(&dashboard_of(&server), "/api/locks");
    list.until("locks", |it| it["locks"] == 0);
    ended_well(&server.end(Signal::TERM));
}

#[test]
fn options_of_the_server_that_make_no_sense_are_refused() {
    let folder = TempFolder::short();
    fs::write(folder.at("open"), "sixteen-letters-or-more").unwrap();
    fs::set_permissions(folder.at("open"), fs::Permissions::from_mode(0o644)).unwrap();
    for (options, expected) in [
        (
            &["--dashboard-allow-revoke"][..],
            "--dashboard-allow-revoke needs --dashboard",
        ),
        (
            &["--dashboard=127.0.0.1:0", "--dashboard-allow-revoke"],
            "set --dashboard-token-file",
        ),
        (&["--dashboard=0.0.0.0:0"], "set --dashboard-token-file"),
        (
            &["--dashboard=127.0.0.1:0", "--dashboard-token-file=open"],
            "can be read by others",
        ),
        (
            &["--dashboard=127.0.0.1:0", "--idle-exit=1m"],
            "exclude each other",
        ),
        (
            &["--dashboard=127.0.0.1:7", "--metrics-listen=127.0.0.1:7"],
            "an address of its own",
        ),
    ] {
        let mut command = serve();
        command.args(["--data=memory", "--check-config"]);
        let output = command.args(options).current_dir(folder.path()).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(2), "{options:?} {output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(expected), "{said}");
    }
    fs::write(
        folder.at("file"),
        "dashboard = \"127.0.0.1:7\"\ndashboard-host = [\"locks.example\"]\n",
    )
    .unwrap();
    let output = serve()
        .args(["--check-config", "--config", "file"])
        .current_dir(folder.path())
        .output();
    let said = success(&output.unwrap());
    assert!(said.contains("# dashboard on 127.0.0.1:7\n"), "{said}");
    assert!(
        said.contains("dashboard-host = [\"locks.example\"]"),
        "{said}"
    );
}
