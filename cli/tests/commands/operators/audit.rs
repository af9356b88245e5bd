//! `--audit-log`.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::{ChildStdout, Stdio};

use lockkeeper_store::{Acl, CreateMode};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use testkit::ChildProcess;

use super::super::metrics::http::{Samples, request};
use super::*;

fn logged(path: &Path) -> Vec<String> {
    [
        "--data=memory".into(),
        format!("--audit-log={}", path.display()),
    ]
    .into()
}

fn start(place: &Place, more: &[&str]) -> Server {
    let log = logged(&place.at("audit"));
    let mut command = place.command();
    Server::start(command.args(log).args(more))
}

/// Creates and deletes a persistent znode. Both changes write audit records.
async fn churn(client: &Client, path: &str) {
    let path = path.parse().unwrap();
    let session = client.session().await.unwrap();
    session
        .create(&path, "", CreateMode::Persistent)
        .await
        .unwrap();
    session.delete(&path, None).await.unwrap();
}

#[test]
fn it_tells_who_did_what_from_where_and_no_secret() {
    let place = Place::new("");
    let server = start(&place, &["--user", &digest("jane", "hunter2")]);
    let session = block_on(async {
        let jane = connect_as(&server, "jane:hunter2").await.unwrap();
        churn(&jane, "/orders \u{201c}x\u{201d}").await;
        let session = jane.session().await.unwrap();
        let list = Acl::creator_all();
        let path = "/app".parse().unwrap();
        session
            .create(&path, "", CreateMode::Persistent)
            .await
            .unwrap();
        session.set_acl(&path, list, None).await.unwrap();
        let other = server.connect().await.session().await.unwrap();
        assert!(other.set_acl(&path, Acl::open(), None).await.is_err());
        assert!(connect_as(&server, "jane:hunter3").await.is_err());
        session.id().to_string()
    });
    let pid = server.pid();
    let ended = server.end(Signal::TERM);
    ended_well(&ended);
    let records = records(&place.at("audit"));
    let events: Vec<_> = records
        .iter()
        .map(|it| it["event"].as_str().unwrap())
        .collect();
    assert_eq!(
        events,
        [
            "server_start",
            "authenticate",
            "delete",
            "set_acl",
            "set_acl",
            "authenticate",
            "server_stop"
        ],
        "{pid:?}"
    );
    let delete = &records[2];
    assert_eq!(delete["outcome"], "success");
    assert_eq!(delete["session"], session);
    assert_eq!(
        delete["identities"],
        serde_json::json!(["ip:127.0.0.1", "digest:jane"])
    );
    assert_eq!(delete["path"], "/orders \u{201c}x\u{201d}");
    assert!(delete["peer"].as_str().unwrap().starts_with("127.0.0.1:"));
    assert!(delete["zxid"].as_str().unwrap().starts_with("0x"));
    let time = delete["time"].as_str().unwrap();
    assert!(
        time.len() == 24 && time.starts_with("20") && time.ends_with('Z'),
        "{time}"
    );
    assert_eq!(records[3]["acl"], serde_json::json!(["auth::cdrwa"]));
    assert_eq!(records[4]["outcome"], "failure");
    assert_eq!(
        (&records[5]["outcome"], &records[5]["user"]),
        (&"failure".into(), &"jane".into())
    );
    let text = fs::read_to_string(place.at("audit")).unwrap();
    assert!(
        !text.contains("hunter") && !text.contains(&digest("jane", "hunter2")),
        "{text}"
    );
    let mode = fs::metadata(place.at("audit"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn sighup_opens_the_file_anew_and_no_record_is_lost() {
    let place = Place::new("");
    let server = start(&place, &[]);
    block_on(async {
        let client = server.connect().await;
        churn(&client, "/before").await;
        fs::rename(place.at("audit"), place.at("audit.1")).unwrap();
        churn(&client, "/between").await;
        server.signal(Signal::HUP);
        server.logs("audit log reopened");
        churn(&client, "/after").await;
    });
    ended_well(&server.end(Signal::TERM));
    let (old, new) = (records(&place.at("audit.1")), records(&place.at("audit")));
    let paths = |of: &[Value]| -> Vec<_> {
        let deletes = of_event(of, "delete").into_iter();
        deletes
            .map(|it| it["path"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(paths(&old), ["/before", "/between"]);
    assert_eq!(paths(&new), ["/after"]);
}

fn limit_files(pid: Pid, bytes: Option<u64>) {
    let limit = Rlimit {
        current: bytes,
        maximum: getrlimit(Resource::Fsize).maximum,
    };
    prlimit(Some(pid), Resource::Fsize, limit).unwrap();
}

/// The limit on the file size cuts a line in the middle, as on a full disk.
#[test]
fn on_a_full_disk_the_server_goes_on_and_tells_what_is_missing() {
    let place = Place::new("");
    let server = start(&place, &["--metrics-listen=127.0.0.1:0"]);
    let (_, metrics) = server.ready.rsplit_once(" metrics ").unwrap();
    let lost = "lockkeeper_audit_records_lost_total{reason=\"write\"}";
    block_on(async {
        let client = server.connect().await;
        churn(&client, "/before").await;
        while fs::read_to_string(place.at("audit"))
            .unwrap()
            .lines()
            .count()
            < 2
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let size = fs::metadata(place.at("audit")).unwrap().len();
        limit_files(server.pid(), Some(size + 20));
        for number in 0..3 {
            churn(&client, &format!("/lost-{number}")).await;
        }
        server.logs("audit record not written");
        while Samples::read(metrics).at(lost) < 3.0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        limit_files(server.pid(), None);
        churn(&client, "/after").await;
        server.logs("audit log is written again");
    });
    ended_well(&server.end(Signal::TERM));
    let text = fs::read_to_string(place.at("audit")).unwrap();
    let whole = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let whole: Vec<_> = whole.collect();
    // One line was cut, and the line after it starts on a new line.
    assert_eq!(whole.len() + 1, text.lines().count(), "{text}");
    assert_eq!(of_event(&whole, "dropped")[0]["count"], 3, "{text}");
    let paths: Vec<_> = of_event(&whole, "delete")
        .iter()
        .map(|it| it["path"].clone())
        .collect();
    assert_eq!(paths, ["/before", "/after"]);
}

/// A server that writes its audit log to stdout.
struct Piped {
    child: ChildProcess,
    stdout: BufReader<ChildStdout>,
    address: String,
}

impl Piped {
    fn start() -> Self {
        let mut command = serve();
        command.args([
            "--data=memory",
            "--audit-log=-",
            "--metrics-listen=127.0.0.1:0",
        ]);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = ChildProcess::spawn(&mut command);
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut address = String::new();
        stdout.read_line(&mut address).unwrap();
        Self {
            child,
            stdout,
            address,
        }
    }

    fn word(&self, number: usize) -> &str {
        self.address.split_whitespace().nth(number).unwrap()
    }
}

/// The pipe is full at 64 KiB, and the queue of the audit log at 2 MiB.
#[test]
fn a_reader_that_does_not_read_stalls_no_client() {
    let mut piped = Piped::start();
    let url = format!("lockkeeper://{}", piped.word(2));
    block_on(async {
        let client = lockkeeper_store::connect(&url).await.unwrap();
        let session = client.session().await.unwrap();
        let long = "x".repeat(100_000);
        for number in 0..40 {
            churn(&client, &format!("/{number}-{long}")).await;
        }
        let metrics = Samples::read(piped.word(4));
        let lost = metrics.at("lockkeeper_audit_records_lost_total{reason=\"queue\"}");
        assert!(lost > 0.0, "{metrics:?}");
        drop(session);
    });
    piped.child.signal(Signal::TERM);
    let lines: Vec<Value> = std::io::BufRead::lines(&mut piped.stdout)
        .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
        .collect();
    assert!(piped.child.wait().unwrap().success());
    assert_eq!(lines[0]["event"], "server_start");
    let dropped: u64 = of_event(&lines, "dropped")
        .iter()
        .map(|it| it["count"].as_u64().unwrap_or(1))
        .sum();
    assert_eq!(of_event(&lines, "delete").len() as u64 + dropped, 40);
}

/// Sends the handshake of a session, and then wrong credentials of a user.
fn fail_to_authenticate(server: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    let framed = |body: Vec<u8>| [&(body.len() as u32).to_be_bytes()[..], &body].concat();
    let text = |text: &str| [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat();
    let mut handshake = vec![0; 12];
    handshake.extend(10_000_i32.to_be_bytes());
    handshake.extend([0; 12]);
    let mut auth = (-4_i32).to_be_bytes().to_vec();
    auth.extend([0, 0, 0, 100, 0, 0, 0, 0]);
    auth.extend(text("digest"));
    auth.extend(text("no\nbody\":guess"));
    stream
        .write_all(&[framed(handshake), framed(auth)].concat())
        .unwrap();
    stream
}

#[test]
fn many_failed_logins_are_some_records_and_a_count() {
    let place = Place::new("");
    let server = start(
        &place,
        &[
            "--user",
            &digest("jane", "secret"),
            "--metrics-listen=127.0.0.1:0",
        ],
    );
    let (_, metrics) = server.ready.rsplit_once(" metrics ").unwrap();
    let streams: Vec<_> = (0..50).map(|_| fail_to_authenticate(&server)).collect();
    while Samples::read(metrics).at("lockkeeper_failed_logins_total{kind=\"identity\"}") < 50.0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(streams);
    ended_well(&server.end(Signal::TERM));
    let records = records(&place.at("audit"));
    let failed = of_event(&records, "authenticate");
    let count: u64 = failed
        .iter()
        .map(|it| it["count"].as_u64().unwrap_or(1))
        .sum();
    assert_eq!(count, 50, "{failed:?}");
    assert!(failed.len() <= 50 / 2, "{}", failed.len());
    assert_eq!(failed[0]["user"], "no\nbody\"");
}

#[test]
fn a_file_that_cannot_be_opened_is_named_before_the_store_is_opened() {
    let place = Place::new("");
    let output = place
        .command()
        .args(["--data"])
        .arg(place.at("data"))
        .args(["--audit-log", "/nowhere/audit"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.ends_with("lockkeeper: --audit-log: /nowhere/audit cannot be opened: No such file or directory (os error 2)\n"), "{said}");
    assert!(!place.at("data").exists());
}

#[test]
fn a_refused_word_is_recorded() {
    let place = Place::new("");
    let server = start(&place, &["--metrics-listen=127.0.0.1:0"]);
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.write_all(b"wchp").unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut stream, &mut text).unwrap();
    let (_, metrics) = server.ready.rsplit_once(" metrics ").unwrap();
    assert_eq!(request(metrics, "GET", "/readyz").status, 200);
    ended_well(&server.end(Signal::TERM));
    let records = records(&place.at("audit"));
    let refused = of_event(&records, "four_letter_word");
    assert_eq!(
        (&refused[0]["word"], &refused[0]["outcome"]),
        (&"wchp".into(), &"failure".into())
    );
}
