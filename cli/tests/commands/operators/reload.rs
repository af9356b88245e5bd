//! Reloads after SIGHUP, by `lockkeeper admin`, and after a change of files.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::process::Stdio;

use lockkeeper_store::CreateMode;
use rustix::process::{Pid, Signal, kill_process};

use super::*;

fn config(users: &[String]) -> String {
    format!("data = \"memory\"\nrequire-auth = true\nuser = {users:?}\n")
}

async fn is_admitted(server: &Server, secret: &str) -> bool {
    let client = connect_as(server, secret).await;
    let Ok(client) = client else { return false };
    let session = client.session().await.unwrap();
    session.exists(&"/".parse().unwrap()).await.is_ok()
}

#[test]
fn users_come_and_go_and_the_locks_of_others_stay() {
    let (jane, joe, ann) = (digest("jane", "a"), digest("joe", "b"), digest("ann", "c"));
    let place = Place::new(&config(&[jane, joe.clone()]));
    let server = place.start(&["--audit-log", place.at("audit").to_str().unwrap()]);
    block_on(async {
        let jane = connect_as(&server, "jane:a").await.unwrap();
        let joe_connected = connect_as(&server, "joe:b").await.unwrap();
        let kept = joe_connected.session().await.unwrap();
        let lock = "/lock".parse().unwrap();
        kept.create(&lock, "", CreateMode::Ephemeral).await.unwrap();
        place.write("config", &config(&[joe, ann]));
        server.signal(Signal::HUP);
        let line = server.logs("SIGHUP: reloaded");
        assert!(
            line.ends_with("users added: ann; users removed: jane"),
            "{line}"
        );
        let refused = until_refused(&jane).await;
        assert!(
            matches!(refused, Error::AuthFailed | Error::SessionExpired { .. }),
            "{refused}"
        );
        assert!(!is_admitted(&server, "jane:a").await);
        assert!(is_admitted(&server, "ann:c").await);
        assert!(kept.exists(&lock).await.unwrap().is_some());
        assert_eq!(kept.id(), joe_connected.session().await.unwrap().id());
    });
    ended_well(&server.end(Signal::TERM));
    let records = records(&place.at("audit"));
    let removed = of_event(&records, "remove_identity");
    assert_eq!(removed.len(), 1, "{records:?}");
    assert_eq!(removed[0]["identities"][1], "digest:jane");
    let reload = of_event(&records, "reload")[0];
    assert_eq!(
        reload["detail"],
        "SIGHUP: users added: ann; users removed: jane"
    );
}

#[test]
fn a_wrong_file_is_refused_as_a_whole_with_its_line_and_cause() {
    let (jane, joe) = (digest("jane", "a"), digest("joe", "b"));
    let place = Place::new(&config(std::slice::from_ref(&jane)));
    let server = place.start(&[]);
    let path = place.at("config").display().to_string();
    let stays = |wrong: String, cause: &str| {
        place.write("config", &wrong);
        server.signal(Signal::HUP);
        let line = server.logs("not reloaded, the former configuration stays in use");
        assert!(line.contains(cause), "{line}");
        block_on(async {
            assert!(is_admitted(&server, "jane:a").await);
            assert!(!is_admitted(&server, "joe:b").await);
        });
    };
    let with_joe = config(&[joe]);
    stays(
        format!("{with_joe}usr = []\n"),
        &format!("{path}:4: there is no option \"usr\""),
    );
    stays(
        format!("{with_joe}tick = \"soon\"\n"),
        &format!("{path}:4: tick: a duration is"),
    );
    stays(
        with_joe[..with_joe.len() - 5].to_owned(),
        &format!("{path}:3:"),
    );
    // This file was truncated at the end of a line. It is valid, but would admit every client.
    stays(
        "data = \"memory\"\nrequire-auth = true\n".into(),
        "no user is left",
    );
    fs::remove_file(place.at("config")).unwrap();
    server.signal(Signal::HUP);
    server.logs("cannot be read");
    let failed = place.admin(&["reload"]);
    assert!(failure(&failed).contains("cannot be read"), "{failed:?}");
    place.write("config", &with_joe);
    let told = success(&place.admin(&["reload"]));
    assert_eq!(told, "reloaded: users added: joe; users removed: jane\n");
    ended_well(&server.end(Signal::TERM));
}

/// Files are edited in place, replaced by a rename, and replaced as in Kubernetes, where a link leads to another
/// directory after the change.
#[test]
fn a_changed_file_is_noticed_however_it_was_replaced() {
    let users: Vec<_> = ["a", "b", "c", "d"].map(|user| digest(user, "x")).into();
    let place = Place::new("");
    for (name, user) in [("1", &users[0]), ("2", &users[1])] {
        fs::create_dir(place.at(name)).unwrap();
        place.write(
            &format!("{name}/config"),
            &config(std::slice::from_ref(user)),
        );
    }
    fs::remove_file(place.at("config")).unwrap();
    symlink(place.at("data-link/config"), place.at("config")).unwrap();
    symlink(place.at("1"), place.at("data-link")).unwrap();
    let server = place.start(&["--watch-files"]);
    symlink(place.at("2"), place.at("new-link")).unwrap();
    fs::rename(place.at("new-link"), place.at("data-link")).unwrap();
    server.logs("a file has changed: reloaded: users added: b; users removed: a");
    place.write("2/config", &config(&users[2..3]));
    server.logs("a file has changed: reloaded: users added: c; users removed: b");
    place.write("2/new", &config(&users[3..]));
    fs::rename(place.at("2/new"), place.at("2/config")).unwrap();
    server.logs("a file has changed: reloaded: users added: d; users removed: c");
    block_on(async { assert!(is_admitted(&server, "d:x").await) });
    ended_well(&server.end(Signal::TERM));
}

/// The second server has read its configuration, but it waits because the first server still has the store open.
#[test]
fn a_file_that_changes_before_the_server_is_ready_is_noticed() {
    let place = Place::new(&config(&[digest("a", "x")]));
    let data = place.at("data");
    let former = Server::start(&mut serve_in(&data));
    let mut command = place.command();
    command.args(["--watch-files", "--open-timeout=10m"]);
    command.args(["--metrics-listen=127.0.0.1:0", "--data"]);
    command.arg(&data).stdout(Stdio::null());
    let mut next = command.stderr(Stdio::piped()).spawn().unwrap();
    let log = BufReader::new(next.stderr.take().unwrap()).lines();
    let mut log = log.map(|line| line.unwrap());
    let mut until = |text: &str| log.find(|line| line.contains(text)).unwrap();
    until("metrics and health");
    place.write("config", &config(&[digest("b", "x")]));
    ended_well(&former.end(Signal::TERM));
    until("a file has changed: reloaded: users added: b; users removed: a");
    kill_process(Pid::from_child(&next), Signal::TERM).unwrap();
    assert_eq!(next.wait().unwrap().code(), Some(0));
}

#[test]
fn words_are_replaced_and_other_options_are_named() {
    let place = Place::new("data = \"memory\"\nfour-letter-words = [\"ruok\"]\n");
    let server = place.start(&[]);
    place.write(
        "config",
        "data = \"memory\"\nfour-letter-words = [\"isro\"]\nfour-letter-words-from = [\"127.0.0.1\", \"unix\"]\ntick = \"3s\"\n",
    );
    let told = success(&place.admin(&["reload"]));
    assert_eq!(
        told,
        "reloaded: four-letter-words has changed; four-letter-words-from has changed; a restart is needed for tick\n"
    );
    let asked = |word: &str| {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(server.address()).unwrap();
        stream.write_all(word.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    assert_eq!(asked("isro"), "rw");
    assert!(asked("ruok").contains("not in the whitelist"));
    assert_eq!(success(&place.admin(&["word", "ruok"])), "imok\n");
    // Until the restart, each reload reports that the option needs one.
    let told = success(&place.admin(&["reload"]));
    assert_eq!(told, "reloaded: a restart is needed for tick\n");
    ended_well(&server.end(Signal::TERM));
}

#[test]
fn a_flood_of_signals_disturbs_no_client() {
    let place = Place::new(&config(&[digest("jane", "a")]));
    let server = place.start(&["--audit-log", place.at("audit").to_str().unwrap()]);
    block_on(async {
        let jane = connect_as(&server, "jane:a").await.unwrap();
        let session = jane.session().await.unwrap();
        for number in 0..300 {
            server.signal(Signal::HUP);
            let path = format!("/{number}").parse().unwrap();
            session
                .create(&path, "", CreateMode::Persistent)
                .await
                .unwrap();
            session.delete(&path, None).await.unwrap();
        }
        assert_eq!(session.id(), jane.session().await.unwrap().id());
    });
    ended_well(&server.end(Signal::TERM));
    assert_eq!(of_event(&records(&place.at("audit")), "delete").len(), 300);
}

/// The server waits for its store, which another server has open.
#[cfg(target_os = "linux")]
#[test]
fn a_signal_during_the_start_is_not_lost() {
    let place = Place::new(&config(&[digest("jane", "a")]).replace("data = \"memory\"\n", ""));
    let data = place.at("data");
    let former = Server::start(&mut serve_in(&data));
    let mut command = place.command();
    command.arg("--data").arg(&data).args(["--open-timeout=1h"]);
    let starting = std::thread::spawn(move || Server::start(&mut command));
    let pid = loop {
        if let Some(pid) = waiting_server(&place.at("config")) {
            break pid;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    place.write(
        "config",
        &config(&[digest("ann", "c")]).replace("data = \"memory\"\n", ""),
    );
    rustix::process::kill_process(pid, Signal::HUP).unwrap();
    former.end(Signal::TERM);
    let server = starting.join().unwrap();
    server.logs("SIGHUP: reloaded: users added: ann; users removed: jane");
    block_on(async { assert!(is_admitted(&server, "ann:c").await) });
    ended_well(&server.end(Signal::TERM));
}

/// Returns the process of the server with this configuration file, once it handles SIGHUP.
#[cfg(target_os = "linux")]
fn waiting_server(config: &Path) -> Option<rustix::process::Pid> {
    fs::read_dir("/proc").unwrap().find_map(|entry| {
        let process = entry.ok()?.path();
        let pid = process.file_name()?.to_str()?.parse().ok()?;
        let command = fs::read(process.join("cmdline")).ok()?;
        let config = config.to_str()?.as_bytes();
        command.windows(config.len()).find(|part| *part == config)?;
        let status = fs::read_to_string(process.join("status")).ok()?;
        let caught = status
            .lines()
            .find_map(|line| line.strip_prefix("SigCgt:"))?;
        let caught = u64::from_str_radix(caught.trim(), 16).ok()?;
        (caught & 1 != 0).then(|| rustix::process::Pid::from_raw(pid))?
    })
}
