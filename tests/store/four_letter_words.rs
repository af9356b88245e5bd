//! The four-letter words over TCP, beside a real ZooKeeper's.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use lockkeeper_store::{
    Client, ConnectOptions, CreateMode, PersistentWatcher, Server, ServerOptions, Session, Store,
    StoreOptions, WatchMode, Watcher, ZnodePath, connect_with,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{ZooKeeper, within_reason};
use crate::wire::{self, Out};

/// Long enough that no client sends a ping while a test looks.
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

/// Sends these bytes and reads until the server has closed.
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

/// A connection with a session, by bare bytes.
async fn opened(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&handshake(0, &[])).await.unwrap();
    let length = stream.read_i32().await.unwrap();
    let mut answer = vec![0; length as usize];
    stream.read_exact(&mut answer).await.unwrap();
    stream
}

/// The first frame of an old client: version, last zxid, timeout in ms, session and password.
fn handshake(session: i64, password: &[u8]) -> Vec<u8> {
    let frame = Out::new().int(0).long(0).int(10_000);
    frame.long(session).bytes(password).framed()
}

fn path(text: &str) -> ZnodePath {
    text.parse().unwrap()
}

/// Two sessions with everything that a word tells of.
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

    /// A text with names in place of the sessions' numbers.
    fn named(&self, text: &str) -> String {
        let (one, other) = (self.one.current_session(), self.other.current_session());
        text.replace(&one.id().to_string(), "ONE")
            .replace(&other.id().to_string(), "OTHER")
    }
}

/// A text with `#` in place of every number, dates included, in the order of its lines.
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

/// The lines in an order of their own: ZooKeeper's has none.
fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.split('\n').collect();
    lines.sort_unstable();
    lines
}

/// Headings, with the lines that are set in below each.
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

/// Names and values, with `divider` between them.
fn pairs(text: &str, divider: char) -> BTreeMap<&str, &str> {
    let pairs = text.lines().filter_map(|line| line.split_once(divider));
    pairs.collect()
}

/// Both servers in the same scene.
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
        Self {
            here: Scene::at(server.local_addr().unwrap()).await,
            there: Scene::at(zookeeper.address()).await,
            server,
            zookeeper,
        }
    }

    /// Asks both, until neither counts the connection of an earlier word any more: a server may list it for a little
    /// longer than the client that has its answer.
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

/// Number of connections in a scene: those of its sessions, and that of the word itself.
const CONNECTIONS: usize = 3;

/// The number of connections that a word's answer tells, or lists.
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

/// Compares the figures that two servers share. The version is each server's own, and the traffic depends on the
/// words before.
fn assert_figures_are_alike(ours: &str, theirs: &str) {
    let lines = |text: &str| masked(text).split_off(usize::from(text.starts_with("Zookeeper")));
    assert_eq!(lines(ours), lines(theirs));
    let (ours, theirs) = (pairs(ours, ':'), pairs(theirs, ':'));
    for name in ["Connections", "Outstanding", "Mode", "Node count"] {
        assert_eq!(ours[name], theirs[name], "{name}");
    }
}

/// The connections that stat and cons list: the counts as they are, and the rest of the numbers masked.
/// ZooKeeper says of the word's own connection that it is not read, or is, depending on its listener.
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
    // The scene may have been set over the end of a bucket, and ZooKeeper keeps those that have become empty.
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
        // What this version of ZooKeeper says of connections that may time out, its other listener does not.
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
    // A date of the same form.
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
        // Some monitors give up at any other line.
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

/// crst resets what cons tells of each connection, and srst what srvr and mntr tell of the server. (Of packets that
/// were sent ZooKeeper counts the answers to words, too.)
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
    // A connection that is still open counts on from where it was.
    for scene in [&both.here, &both.there] {
        let session = scene.one.current_session();
        session.exists(&path("/scene")).await.unwrap();
    }
    let (ours, theirs) = both.ask("cons").await;
    assert_eq!(with_sessions(&ours), with_sessions(&theirs));
}

/// The connections that cons lists with a session: those of words may be listed a little longer than they last.
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
    // As kazoo's `server_version` reads it.
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

#[tokio::test]
async fn a_word_that_is_not_in_the_whitelist_is_refused_by_name() {
    let store = store();
    let server = serve(&store, "ruok, isro").await;
    let address = server.local_addr().unwrap();
    assert_eq!(ask(address, b"ruok").await, "imok");
    assert_eq!(ask(address, b"isro").await, "rw");
    assert!(
        ask(address, b"srvr")
            .await
            .starts_with("Zookeeper version: 3.9.")
    );
    for word in [
        "stat", "mntr", "cons", "dump", "wchs", "wchc", "wchp", "envi", "conf", "dirs", "crst",
        "srst",
    ] {
        let expected = format!("{word} is not executed because it is not in the whitelist.\n");
        assert_eq!(ask(address, word.as_bytes()).await, expected);
    }
    for no_word in ["zzzz", "RUOK", "quit", "gtmk"] {
        assert_eq!(ask(address, no_word.as_bytes()).await, "", "{no_word}");
    }
}

#[tokio::test]
async fn bytes_behind_a_word_are_ignored_and_do_not_reset_its_answer() {
    let store = store();
    let server = serve(&store, "*").await;
    let address = server.local_addr().unwrap();
    assert_eq!(ask(address, b"ruok\n").await, "imok");
    assert_eq!(ask(address, b"ruokstat").await, "imok");
    // Unread, it would reset the connection under the answer.
    let much = [b"ruok".as_slice(), &[b'x'; 40_000]].concat();
    for _ in 0..20 {
        assert_eq!(ask(address, &much).await, "imok");
    }
}

#[tokio::test]
async fn a_word_may_come_in_pieces() {
    let store = store();
    let server = serve(&store, "*").await;
    let mut stream = TcpStream::connect(server.local_addr().unwrap())
        .await
        .unwrap();
    stream.set_nodelay(true).unwrap();
    for letter in b"ruok" {
        // Seen one by one: the server reads what there is, and waits for more.
        stream.write_all(&[*letter]).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert_eq!(hear(&mut stream).await, "imok");
}

#[tokio::test]
async fn a_word_behind_the_handshake_is_none() {
    let store = store();
    let server = serve(&store, "*").await;
    let mut stream = opened(server.local_addr().unwrap()).await;
    stream.write_all(b"ruok").await.unwrap();
    assert_eq!(hear(&mut stream).await, "");
}

#[tokio::test]
async fn lists_end_where_they_are_long_enough_and_say_so() {
    let store = Store::memory();
    let server = serve(&store, "*").await;
    let address = server.local_addr().unwrap();
    let client = store.connect().await.unwrap();
    let session = client.current_session();
    let mut watchers = Vec::new();
    for number in 0..100_001 {
        let (_, watcher) = session
            .watch_exists(&path(&format!("/{number}")))
            .await
            .unwrap();
        watchers.push(watcher);
    }
    let counted = ask(address, b"wchs").await;
    assert_eq!(
        counted,
        "1 connections watching 100001 paths\nTotal watches:100001\n"
    );
    let end = "There is more: a list ends at 100000 entries, or 8388608 bytes of paths\n";
    for word in [b"wchc", b"wchp"] {
        let text = ask(address, word).await;
        assert!(text.ends_with(end));
        assert!(text.lines().count() > 100_000);
    }
    drop(watchers.pop());
    for word in [b"wchc", b"wchp"] {
        assert!(!ask(address, word).await.contains("There is more"));
    }
}

#[cfg(feature = "file")]
#[tokio::test]
async fn a_store_in_a_folder_tells_of_its_log_and_where_it_is() {
    let folder = crate::support::TempFolder::new("admin");
    let store = Store::file(folder.path()).unwrap();
    let server = serve(&store, "*").await;
    let url = format!("zookeeper://{}/", server.local_addr().unwrap());
    let client = connect_with(url.as_str(), ConnectOptions::new())
        .await
        .unwrap();
    let session = client.current_session();
    let text = ask(server.local_addr().unwrap(), b"mntr").await;
    let number = |text: &str, name: &str| pairs(text, '\t')[name].parse::<u64>().unwrap();
    let (syncs, batches) = ("zk_lockkeeper_fsync_count", "zk_lockkeeper_log_batches");
    let before = (number(&text, syncs), number(&text, batches));
    for number in 0..10 {
        let at = path(&format!("/{number}"));
        session
            .create(&at, "", CreateMode::Persistent)
            .await
            .unwrap();
    }
    let text = ask(server.local_addr().unwrap(), b"mntr").await;
    assert!(number(&text, syncs) >= before.0 + 10);
    assert!(number(&text, batches) >= before.1 + 10);
    assert!(number(&text, "zk_lockkeeper_log_bytes") > 0);
    let (longest, sum) = ("zk_lockkeeper_fsync_us_max", "zk_lockkeeper_fsync_us_sum");
    assert!((1..=number(&text, sum)).contains(&number(&text, longest)));
    let text = ask(server.local_addr().unwrap(), b"conf").await;
    let settings = pairs(&text, '=');
    assert_eq!(
        settings["dataDir"],
        folder.path().canonicalize().unwrap().to_str().unwrap()
    );
    assert!(settings["dataDirSize"].parse::<u64>().unwrap() > 0);
}

/// ZooKeeper's own script understands the server.
#[tokio::test]
async fn zookeepers_script_finds_the_server_at_work() {
    let store = store();
    let server = serve(&store, "srvr").await;
    let folder = crate::support::TempFolder::new("status");
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

#[tokio::test]
async fn mntr_counts_refusals_by_their_reason() {
    let store = store();
    let options = ServerOptions::new()
        .listen(([127, 0, 0, 1], 0).into())
        .max_connections_per_address(2)
        .four_letter_words("mntr")
        .unwrap();
    let server = Server::bind(&store, options).await.unwrap();
    let address = server.local_addr().unwrap();
    let (mut one, other) = (opened(address).await, opened(address).await);
    let mut third = TcpStream::connect(address).await.unwrap();
    // Closed at once; perhaps before it could be read.
    assert!(matches!(third.read(&mut [0]).await, Ok(0) | Err(_)));
    // An auth packet of an unknown scheme: its type, the scheme and the proof.
    let auth = Out::new().int(0).text("nope").bytes(&[]);
    let auth = wire::request(-4, wire::op::AUTH, &auth);
    one.write_all(&auth).await.unwrap();
    let mut last_words = Vec::new();
    one.read_to_end(&mut last_words).await.unwrap();
    // Length, number, zxid and code of a refusal.
    assert_eq!(last_words[16..], (-115_i32).to_be_bytes());
    // Its place is free once the server has seen that the client hangs up.
    drop(one);
    let text = loop {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let mut text = String::new();
        let asked = stream.write_all(b"mntr").await;
        if asked.is_ok() && stream.read_to_string(&mut text).await.is_ok() && !text.is_empty() {
            break text;
        }
    };
    let figures = pairs(&text, '\t');
    assert_eq!(figures["zk_auth_failed_count"], "1");
    assert_eq!(figures["zk_connection_request_count"], "2");
    assert_ne!(figures["zk_lockkeeper_refused_by_address"], "0");
    let rejected = figures["zk_connection_rejected"];
    assert_eq!(rejected, figures["zk_lockkeeper_refused_by_address"]);
    assert_eq!(figures["zk_lockkeeper_refused_by_total"], "0");
    drop(other);
}

/// Asks for a session by its number; the answer's timeout and session.
async fn asked_for(address: SocketAddr, session: i64, password: &[u8]) -> (i32, i64) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = handshake(session, password);
    stream.write_all(&request).await.unwrap();
    // Length and version come before.
    let mut answer = [0; 8 + 4 + 8];
    stream.read_exact(&mut answer).await.unwrap();
    let session = i64::from_be_bytes(answer[12..].try_into().unwrap());
    (
        i32::from_be_bytes(answer[8..12].try_into().unwrap()),
        session,
    )
}

#[tokio::test]
async fn mntr_counts_wrong_passwords_and_their_answer_does_not_tell() {
    let server = serve(&store(), "mntr").await;
    let address = server.local_addr().unwrap();
    let (_, session) = asked_for(address, 0, &[]).await;
    assert_eq!(asked_for(address, session, &[1; 16]).await, (0, 0));
    assert_eq!(asked_for(address, session, &[1; 3]).await, (0, 0));
    assert_eq!(
        asked_for(address, session ^ 2, &[1; 16]).await,
        (0, 0),
        "no such session"
    );
    let figures = loop {
        let text = ask(address, b"mntr").await;
        let figures: BTreeMap<_, _> = pairs(&text, '\t')
            .into_iter()
            .map(|(name, figure)| (name.to_owned(), figure.to_owned()))
            .collect();
        // The clients have their answers before the server counts them.
        if figures["zk_lockkeeper_handshakes_failed"] == "3" {
            break figures;
        }
    };
    let wrong = figures.get("zk_lockkeeper_wrong_passwords");
    assert_eq!(wrong.map(String::as_str), Some("2"));
}
