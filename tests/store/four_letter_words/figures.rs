//! The server's own figures, and truncated lists.

use testkit::wire;

use super::*;

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

#[tokio::test]
async fn a_store_in_a_folder_tells_of_its_log_and_where_it_is() {
    let folder = testkit::TempFolder::new("admin");
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
    // Closed immediately, perhaps before we read.
    assert!(matches!(third.read(&mut [0]).await, Ok(0) | Err(_)));
    // An auth packet with an unknown scheme.
    let auth = Out::new().int(0).text("nope").bytes(&[]);
    let auth = wire::request(-4, wire::op::AUTH, &auth);
    one.write_all(&auth).await.unwrap();
    let mut last_words = Vec::new();
    one.read_to_end(&mut last_words).await.unwrap();
    // Length, xid, zxid and code of a refusal.
    assert_eq!(last_words[16..], (-115_i32).to_be_bytes());
    // Its place is free once the server notices the hang-up.
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

/// Asks for an existing session. Returns the answer's timeout and session.
async fn asked_for(address: SocketAddr, session: i64, password: &[u8]) -> (i32, i64) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = handshake(session, password);
    stream.write_all(&request).await.unwrap();
    // After length and version.
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
        // The server counts an answer after the client may have received it.
        if figures["zk_lockkeeper_handshakes_failed"] == "3" {
            break figures;
        }
    };
    let wrong = figures.get("zk_lockkeeper_wrong_passwords");
    assert_eq!(wrong.map(String::as_str), Some("2"));
}
