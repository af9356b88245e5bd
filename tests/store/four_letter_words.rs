//! The four-letter words over TCP, compared with a real ZooKeeper.

mod figures;
mod requests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use lockkeeper_store::{
    Client, ConnectOptions, CreateMode, PersistentWatcher, Server, ServerOptions, Session, Store,
    StoreOptions, WatchMode, Watcher, ZnodePath, connect_with,
};
use testkit::wire::Out;
use testkit::{ZooKeeper, within_reason};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Long enough that no client pings during a test.
const TIMEOUT: Duration = Duration::from_secs(60);

async fn serve(store: &Store, words: &str) -> Server {
    let options = ServerOptions::new().listen(([127, 0, 0, 1], 0).into());
    let options = options
        .four_letter_words(words)
        .expect("these words are known");
    let served = Server::bind(store, options).await;
    served.expect("loopback has a free port")
}

fn store() -> Store {
    let timeouts = (Duration::from_millis(400), TIMEOUT);
    Store::memory_with(StoreOptions::new().session_timeouts(timeouts.0, timeouts.1))
}

async fn ask(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    hear(&mut stream).await
}

async fn hear(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

async fn opened(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&handshake(0, &[])).await.unwrap();
    let length = stream.read_i32().await.unwrap();
    let mut answer = vec![0; length as usize];
    stream.read_exact(&mut answer).await.unwrap();
    stream
}

/// Handshake of an old client: version, last zxid, timeout in ms, session and password.
fn handshake(session: i64, password: &[u8]) -> Vec<u8> {
    let frame = Out::new().int(0).long(0).int(10_000);
    frame.long(session).bytes(password).framed()
}

fn path(text: &str) -> ZnodePath {
    text.parse().unwrap()
}

/// Two sessions with everything that the words report.
struct Scene {
    one: Client,
    other: Client,
    _watchers: (Vec<Watcher>, Vec<PersistentWatcher>),
}

impl Scene {
    async fn at(address: SocketAddr) -> Self {
        let url = format!("zookeeper://{address}/");
        let options = || ConnectOptions::new().session_timeout(TIMEOUT);
        let one = connect_with(url.as_str(), options()).await.unwrap();
        let other = connect_with(url.as_str(), options()).await.unwrap();
        let (first, second) = (one.current_session(), other.current_session());
        let make = async |session: &Session, at: &str, mode| {
            session.create(&path(at), "12345", mode).await.unwrap();
        };
        make(&first, "/scene", CreateMode::Persistent).await;
        make(&first, "/scene/one", CreateMode::Ephemeral).await;
        make(&first, "/scene/two", CreateMode::Ephemeral).await;
        make(&second, "/scene/three", CreateMode::Ephemeral).await;
        let watchers = vec![
            first.watch_data(&path("/scene")).await.unwrap().2,
            first.watch_exists(&path("/later")).await.unwrap().1,
            second.watch_exists(&path("/later")).await.unwrap().1,
            second.watch_children(&path("/scene")).await.unwrap().2,
        ];
        let everything = second.add_watch(&path("/scene"), WatchMode::PersistentRecursive);
        let everything = everything.await.unwrap();
        first.exists(&path("/scene")).await.unwrap();
        second.get_data(&path("/scene/one")).await.unwrap();
        Self {
            one,
            other,
            _watchers: (watchers, vec![everything]),
        }
    }

    /// Replaces the sessions' ids with names.
    fn named(&self, text: &str) -> String {
        let (one, other) = (self.one.current_session(), self.other.current_session());
        text.replace(&one.id().to_string(), "ONE")
            .replace(&other.id().to_string(), "OTHER")
    }
}

/// Replaces every number, including dates, with `#`, and sorts the lines.
fn masked(text: &str) -> Vec<String> {
    let mask = |line: &str| {
        let line = match line.split_once(" expire at ") {
            Some((count, _)) => format!("{count} expire at DATE"),
            None => line.to_owned(),
        };
        let words = line.split_inclusive(|letter: char| !letter.is_ascii_alphanumeric());
        let masked = words.map(|word| {
            let end = word.find(|letter: char| !letter.is_ascii_alphanumeric());
            let (word, rest) = word.split_at(end.unwrap_or(word.len()));
            let is_number = word.starts_with(|letter: char| letter.is_ascii_digit());
            format!("{}{rest}", if is_number { "#" } else { word })
        });
        masked.collect::<String>()
    };
    text.split('\n').map(mask).collect()
}

/// Sorts the lines, because ZooKeeper's have no fixed order.
fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.split('\n').collect();
    lines.sort_unstable();
    lines
}

/// Groups the indented lines by their heading.
fn grouped(text: &str) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut groups = BTreeMap::<_, BTreeSet<_>>::new();
    let mut heading = "";
    for line in text.split('\n') {
        if line.starts_with('\t') {
            groups.entry(heading).or_default().insert(line);
        } else {
            heading = line;
            groups.entry(heading).or_default();
        }
    }
    groups
}

fn pairs(text: &str, divider: char) -> BTreeMap<&str, &str> {
    let pairs = text.lines().filter_map(|line| line.split_once(divider));
    pairs.collect()
}

struct Both {
    server: Server,
    zookeeper: ZooKeeper,
    here: Scene,
    there: Scene,
}

impl Both {
    async fn new() -> Self {
        let store = store();
        let server = serve(&store, "*").await;
        let zookeeper = ZooKeeper::start();
        let both = Self {
            here: Scene::at(server.local_addr().unwrap()).await,
            there: Scene::at(zookeeper.address()).await,
            server,
            zookeeper,
        };
        both.count_all_answers().await;
        both
    }

    /// Waits until both servers have counted all their answers. ZooKeeper may count one shortly after the client has
    /// received it.
    async fn count_all_answers(&self) {
        let all_are_counted = |text: &str| {
            let sessions = text.lines().filter(|line| line.contains("sid="));
            sessions
                .map(counts)
                .all(|[queued, received, sent]| queued == 0 && received == sent)
        };
        within_reason(async {
            loop {
                let (ours, theirs) = self.ask("cons").await;
                if all_are_counted(&ours) && all_are_counted(&theirs) {
                    return;
                }
            }
        })
        .await;
    }

    /// Asks both servers until neither counts the connection of an earlier word. A server may list it a little longer
    /// than the client has it open.
    async fn ask(&self, word: &str) -> (String, String) {
        within_reason(async {
            loop {
                let ours = ask(self.server.local_addr().unwrap(), word.as_bytes()).await;
                let theirs = ask(self.zookeeper.address(), word.as_bytes()).await;
                let is_settled = |text| counted(text).is_none_or(|count| count == CONNECTIONS);
                if is_settled(&ours) && is_settled(&theirs) {
                    return (self.here.named(&ours), self.there.named(&theirs));
                }
            }
        })
        .await
    }
}

/// Connections in a scene, including the word's own.
const CONNECTIONS: usize = 3;

/// Returns the queued, received and sent packets of a connection listed by cons.
fn counts(line: &str) -> [u64; 3] {
    let (_, fields) = line.split_once('(').unwrap();
    let fields: BTreeMap<_, _> = fields
        .split(',')
        .filter_map(|field| field.split_once('='))
        .collect();
    ["queued", "recved", "sent"].map(|name| fields[name].parse().unwrap())
}

fn counted(text: &str) -> Option<usize> {
    let named = pairs(text, ':')
        .get("Connections")
        .map(|count| count.trim());
    match named.or(pairs(text, '\t').get("zk_num_alive_connections").copied()) {
        Some(count) => count.parse().ok(),
        None => Some(text.matches(" /127.0.0.1:").count()).filter(|count| *count > 0),
    }
}

#[tokio::test]
async fn every_word_is_answered_as_by_zookeeper() {
    let both = Both::new().await;
    for word in ["ruok", "isro", "wchs"] {
        let (ours, theirs) = both.ask(word).await;
        assert_eq!(ours, theirs, "{word}");
    }
    for word in ["wchc", "wchp"] {
        let (ours, theirs) = both.ask(word).await;
        assert_eq!(grouped(&ours), grouped(&theirs), "{word}");
        assert_eq!(sorted(&ours), sorted(&theirs), "{word}");
    }
    let (ours, theirs) = both.ask("srvr").await;
    assert_figures_are_alike(&ours, &theirs);
    let (ours, theirs) = both.ask("stat").await;
    let (ours, theirs) = (ours.split_once("\n\n"), theirs.split_once("\n\n"));
    let ((clients, ours), (their_clients, theirs)) = (ours.unwrap(), theirs.unwrap());
    assert_eq!(connections(clients), connections(their_clients));
    assert_figures_are_alike(ours, theirs);
    let (ours, theirs) = both.ask("cons").await;
    assert_eq!(connections(&ours), connections(&theirs));
    for text in [ours, theirs] {
        assert!(text.ends_with(")\n\n"), "{text:?}");
    }
}

/// Compares the figures that both servers have. It skips the version, and the traffic, which depends on earlier words.
fn assert_figures_are_alike(ours: &str, theirs: &str) {
    let lines = |text: &str| masked(text).split_off(usize::from(text.starts_with("Zookeeper")));
    assert_eq!(lines(ours), lines(theirs));
    let (ours, theirs) = (pairs(ours, ':'), pairs(theirs, ':'));
    for name in ["Connections", "Outstanding", "Mode", "Node count"] {
        assert_eq!(ours[name], theirs[name], "{name}");
    }
}

/// Returns the connections listed by stat and cons, with all numbers but the counts masked. ZooKeeper's interest flags
/// for the word's own connection vary with its listener.
fn connections(text: &str) -> BTreeSet<String> {
    let exact = [
        "queued=", "recved=", "sent=", "sid=", "lop=", "to=", "lcxid=",
    ];
    let lines = text.lines().filter(|line| line.starts_with(" /127.0.0.1:"));
    let lines = lines.map(|line| {
        let (_, fields) = line.split_once('(').unwrap();
        let fields = fields.trim_end_matches(')').split(',');
        let fields = fields.map(
            |field| match exact.iter().any(|name| field.starts_with(name)) {
                true => field.to_owned(),
                false => masked(field).concat(),
            },
        );
        fields.collect::<Vec<_>>().join(",")
    });
    lines.collect()
}

#[tokio::test]
async fn dump_lists_the_sessions_by_when_they_expire_and_their_ephemerals() {
    let both = Both::new().await;
    let (ours, theirs) = both.ask("dump").await;
    // The scene may have crossed the end of a bucket, and ZooKeeper also lists empty buckets.
    let parts = |text: &str| {
        let (sessions, ephemerals) = text.split_once("ephemeral nodes dump:\n").unwrap();
        let sessions: Vec<_> = sessions.lines().collect();
        let ids: BTreeSet<_> = sessions
            .iter()
            .filter(|line| line.starts_with('\t'))
            .collect();
        let ids: Vec<_> = ids.into_iter().map(|line| (*line).to_owned()).collect();
        let sets = sessions[1].split(['(', ')']).nth(3).unwrap().to_owned();
        let heading = format!("{} {} {sets}", sessions[0], masked(sessions[1]).concat());
        // Whether ZooKeeper lists connections that may time out depends on its listener.
        let (ephemerals, _) = ephemerals.split_once("Connections dump:\n").unwrap();
        (heading, ids, ephemerals.to_owned())
    };
    let ((heading, ids, owned), theirs) = (parts(&ours), parts(&theirs));
    assert_eq!((&heading, &ids), (&theirs.0, &theirs.1));
    assert_eq!(grouped(&owned), grouped(&theirs.2));
    assert!(ours.ends_with("Connections dump:\n"), "{ours}");
    let bucket = ours
        .lines()
        .find(|line| line.contains(" expire at "))
        .unwrap();
    let their_bucket = theirs_bucket(&both).await;
    assert_eq!(masked(bucket), masked(&their_bucket));
    // A date in the same form.
    let letters = |line: &str| line.split(' ').map(str::len).collect::<Vec<_>>();
    assert_eq!(
        letters(bucket),
        letters(&their_bucket),
        "{bucket} {their_bucket}"
    );
}

async fn theirs_bucket(both: &Both) -> String {
    let (_, theirs) = both.ask("dump").await;
    let mut lines = theirs.lines();
    lines
        .find(|line| line.contains(" expire at "))
        .unwrap()
        .to_owned()
}

#[tokio::test]
async fn mntr_has_zookeepers_figures_and_its_own_in_a_form_that_monitors_read() {
    let both = Both::new().await;
    let (ours, theirs) = both.ask("mntr").await;
    let (pairs_here, pairs_there) = (pairs(&ours, '\t'), pairs(&theirs, '\t'));
    for (name, value) in &pairs_here {
        // Some monitors fail on any other line.
        assert!(name.starts_with("zk_"), "{name}");
        if !["zk_version", "zk_server_state"].contains(name) {
            assert!(value.parse::<f64>().is_ok(), "{name} {value}");
        }
        let is_own = name.starts_with("zk_lockkeeper_");
        assert!(is_own || pairs_there.contains_key(name), "{name}");
    }
    for name in [
        "zk_server_state",
        "zk_ephemerals_count",
        "zk_num_alive_connections",
        "zk_outstanding_requests",
        "zk_znode_count",
        "zk_global_sessions",
        "zk_watch_count",
        "zk_approximate_data_size",
        "zk_local_sessions",
        "zk_connection_request_count",
        "zk_connection_rejected",
        "zk_auth_failed_count",
        "zk_max_file_descriptor_count",
    ] {
        assert_eq!(pairs_here[name], pairs_there[name], "{name}");
    }
    assert!(ours.starts_with("zk_version\t3.9."), "{ours}");
    assert_eq!(
        ours.lines().count(),
        pairs_here.len(),
        "no name stands twice"
    );
    let number = |name: &str| pairs_here[name].parse::<u64>().unwrap();
    assert_eq!(
        number("zk_lockkeeper_connections_half_open"),
        1,
        "the word's"
    );
    assert!(number("zk_open_file_descriptor_count") >= 3);
    assert!(number("zk_lockkeeper_znode_bytes") > number("zk_approximate_data_size"));
    assert!(
        number("zk_packets_received") > number("zk_packets_sent"),
        "a word is answered by no packet"
    );
    assert!(number("zk_bytes_received_count") > 0 && number("zk_response_bytes") > 0);
}

#[tokio::test]
async fn dirs_tells_how_large_the_folders_are_as_zookeeper_does() {
    let both = Both::new().await;
    let (ours, theirs) = both.ask("dirs").await;
    assert_eq!(masked(&ours), masked(&theirs));
    let sizes = pairs(&ours, ':');
    assert_eq!(sizes["datadir_size"], sizes["logdir_size"]);
}

/// crst resets the counts per connection (cons), and srst those of the server (srvr, mntr). Unlike us, ZooKeeper counts
/// answers to words as sent packets.
#[tokio::test]
async fn crst_and_srst_reset_the_statistics_that_zookeeper_resets() {
    let both = Both::new().await;
    let (ours, theirs) = both.ask("crst").await;
    assert_eq!(ours, theirs);
    let (ours, theirs) = both.ask("cons").await;
    assert_eq!(with_sessions(&ours), with_sessions(&theirs));
    assert!(ours.contains("(queued=0,recved=0,sent=0,sid="), "{ours}");
    // The server's sums stay.
    let (ours, theirs) = both.ask("srvr").await;
    for text in [ours, theirs] {
        let received: u64 = pairs(&text, ':')["Received"].trim().parse().unwrap();
        assert!(received > 9, "{text}");
    }

    let (ours, theirs) = both.ask("srst").await;
    assert_eq!(ours, theirs);
    let (ours, theirs) = both.ask("srvr").await;
    for name in ["Received", "Outstanding", "Connections", "Node count"] {
        assert_eq!(pairs(&ours, ':')[name], pairs(&theirs, ':')[name], "{name}");
    }
    let (ours, theirs) = both.ask("mntr").await;
    for name in [
        "zk_packets_received",
        "zk_outstanding_requests",
        "zk_max_latency",
        "zk_connection_request_count",
        "zk_connection_rejected",
        "zk_num_alive_connections",
        "zk_ephemerals_count",
        "zk_watch_count",
    ] {
        assert_eq!(
            pairs(&ours, '\t')[name],
            pairs(&theirs, '\t')[name],
            "{name}"
        );
    }
    // An open connection continues its counts.
    for scene in [&both.here, &both.there] {
        let session = scene.one.current_session();
        session.exists(&path("/scene")).await.unwrap();
    }
    both.count_all_answers().await;
    let (ours, theirs) = both.ask("cons").await;
    assert_eq!(with_sessions(&ours), with_sessions(&theirs));
}

/// Returns the connections with a session, because a word's connection may be listed longer than it lasts.
fn with_sessions(text: &str) -> BTreeSet<String> {
    let connections = connections(text).into_iter();
    connections.filter(|line| line.contains("sid=")).collect()
}

#[tokio::test]
async fn envi_and_conf_have_zookeepers_names() {
    let both = Both::new().await;
    let (ours, theirs) = both.ask("envi").await;
    let names = pairs(&theirs, '=');
    for (name, value) in pairs(&ours, '=') {
        let is_own = name.starts_with("lockkeeper.");
        assert!(is_own || names.contains_key(name), "{name}");
        if ["os.name", "os.arch", "os.version", "user.home", "user.dir"].contains(&name) {
            assert_eq!(value, names[name], "{name}");
        }
    }
    // Parsed like in kazoo's `server_version`.
    let version = pairs(&ours, '=')["zookeeper.version"];
    let number = version.split('-').next().unwrap();
    assert!(
        number.split('.').all(|part| part.parse::<u32>().is_ok()),
        "{version}"
    );
    let (ours, theirs) = both.ask("conf").await;
    let names = |text: &str| -> Vec<String> {
        let names = text.lines().map(|line| line.split('=').next().unwrap());
        names.map(str::to_owned).collect()
    };
    assert_eq!(names(&ours), names(&theirs));
    let settings = pairs(&ours, '=');
    assert_eq!(
        settings["clientPort"],
        both.server.local_addr().unwrap().port().to_string()
    );
    assert_eq!(
        (settings["tickTime"], settings["maxClientCnxns"]),
        ("2000", "12288")
    );
    assert_eq!(
        (settings["minSessionTimeout"], settings["maxSessionTimeout"]),
        ("400", "60000")
    );
    assert_eq!(
        (settings["secureClientPort"], settings["serverId"]),
        ("-1", "0")
    );
}

/// Runs ZooKeeper's own script against our server.
#[tokio::test]
async fn zookeepers_script_finds_the_server_at_work() {
    let store = store();
    let server = serve(&store, "srvr").await;
    let folder = testkit::TempFolder::new("status");
    let config = format!(
        "clientPortAddress=127.0.0.1\nclientPort={}\ndataDir={}\n",
        server.local_addr().unwrap().port(),
        folder.path().display()
    );
    std::fs::write(folder.path().join("zoo.cfg"), config).unwrap();
    let status = tokio::task::spawn_blocking({
        let folder = folder.path().to_owned();
        move || {
            std::process::Command::new("/usr/share/zookeeper/bin/zkServer.sh")
                .arg("status")
                .arg(folder.join("zoo.cfg"))
                .env("ZOO_LOG_DIR", &folder)
                .output()
        }
    });
    let status = status.await.unwrap().expect("Debian's zookeeper has it");
    let said = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(said.contains("Mode: standalone"), "{said} {status:?}");
    assert!(status.status.success());
}
