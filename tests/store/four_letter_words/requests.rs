//! Which words are answered, and how their bytes may arrive.

use super::*;

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
    // Unread bytes would reset the connection before the answer is read.
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
        // The server must wait for more bytes.
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
