//! Store URLs that exclude no other process, and mistyped URLs.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Output;

use testkit::free_address;

use crate::stores::StoreAt;
use crate::support::TempFolder;

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Each command would have its own store in memory, and all of them would be granted the same lock.
#[test]
fn a_store_in_memory_is_refused() {
    let commands = [
        &["run", "a", "--", "echo", "never"][..],
        &["run", "--once-per", "1h", "a", "--", "echo", "never"],
        &["elect", "a", "--", "echo", "never"],
        &["elect", "--observe", "a"],
        &["locks"],
        &["locks", "--watch"],
        &["who", "a"],
        &["revoke", "a"],
        &["dashboard"],
        &["warden"],
    ];
    for url in ["memory:", "memory:orders", "memory"] {
        let store = StoreAt::at(url.into());
        for arguments in commands {
            let output = store.run(arguments);
            let said = stderr(&output);
            assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
            assert!(output.stdout.is_empty(), "{output:?}");
            let reason = "cannot exclude other processes";
            assert!(said.contains(reason), "{arguments:?}: {said}");
        }
        let mut command = store.command(&["locks", "--url", url]);
        let output = command.env_remove("LOCKKEEPER_URL").output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
}

#[test]
fn a_url_that_is_almost_right_is_corrected() {
    for (url, meant) in [
        ("lockkeper://h:1/app", "lockkeeper://h:1/app"),
        ("LOCKKEEPER://h", "lockkeeper://h"),
        ("lockkeeper:/h:1", "lockkeeper://h:1"),
        ("lockkeeper:h", "lockkeeper://h"),
        ("lockkeeper://a,b", "zookeeper://a,b"),
        ("zk://a,b/app", "zookeeper://a,b/app"),
        ("localhost:2181", "lockkeeper://localhost:2181"),
        ("localhost:2181", "zookeeper://localhost:2181"),
        ("a:2181,b:2181/app", "zookeeper://a:2181,b:2181/app"),
        (
            "lockkeeper+unix:/run/l.sock",
            "lockkeeper+unix:///run/l.sock",
        ),
        (
            "lockkeeper+unix://run/l.sock",
            "lockkeeper+unix:///run/l.sock",
        ),
        ("unix:/run/l.sock", "lockkeeper+unix:///run/l.sock"),
        ("/run/l.sock", "lockkeeper+unix:///run/l.sock"),
        ("/var/lib/app", "file:/var/lib/app"),
        ("./data", "file:./data"),
        ("file://data", "file:data"),
        ("flie:data", "file:data"),
    ] {
        let output = StoreAt::at(url.into()).run(&["locks"]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{url}: {said}");
        let (_, suggestion) = said.split_once("did you mean ").unwrap_or_default();
        assert!(
            suggestion.contains(&format!("\"{meant}\"")),
            "{url}: {said}"
        );
    }
    for url in [
        "redis://h",
        "http://h:2181",
        "lockkeper://user:secret@h",
        "h",
    ] {
        let output = StoreAt::at(url.into()).run(&["locks"]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{url}: {said}");
        assert!(!said.contains("did you mean"), "{url}: {said}");
        assert!(!said.contains("secret"), "{said}");
    }
}

#[test]
fn messages_name_the_options_of_the_command() {
    let failed = |url: &str, auth: &str| {
        let store = StoreAt::at(url.into());
        let mut command = store.command(&["locks", "--connect-timeout", "100ms"]);
        let output = command.env("LOCKKEEPER_AUTH", auth).output().unwrap();
        (output.status.code(), stderr(&output))
    };
    let (status, said) = failed("lockkeeper://ann:secret@h", "");
    assert_eq!(status, Some(2), "{said}");
    assert!(
        said.contains("--auth") && said.contains("LOCKKEEPER_AUTH"),
        "{said}"
    );
    assert!(
        !said.contains("ConnectOptions") && !said.contains("secret"),
        "{said}"
    );
    // Credentials without a user or without a password are refused, because they would prove nothing.
    for auth in ["secret", ":secret", "secret:"] {
        let (status, said) = failed("lockkeeper://127.0.0.1:1", auth);
        assert_eq!(status, Some(2), "{said}");
        assert!(said.contains("USER:PASSWORD"), "{said}");
        assert!(!said.contains("secret"), "{said}");
    }
    let (status, said) = failed("memry", "");
    assert_eq!(status, Some(2), "{said}");
    assert!(said.contains("\"memry\" has no scheme"), "{said}");
}

/// Returns the error of a command that cannot open a session at this URL.
fn unreachable(url: &str) -> String {
    let output = StoreAt::at(url.into()).run(&["locks", "--connect-timeout", "300ms"]);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    stderr(&output)
}

#[test]
fn a_server_is_advised_where_none_listens_on_this_machine() {
    let port = free_address().port();
    let folder = TempFolder::short();
    let socket = folder.at("s").display().to_string();
    for (address, url) in [
        (
            format!("127.0.0.1:{port}"),
            format!("lockkeeper://127.0.0.1:{port}/app"),
        ),
        (
            format!("unix:{socket}"),
            format!("lockkeeper+unix://{socket}"),
        ),
    ] {
        let said = unreachable(&url);
        let advice = format!("`lockkeeper serve --listen {address}` starts one");
        assert!(said.contains(&advice), "{said}");
    }
    // This name has an empty label, so the system asks no name server.
    let said = unreachable("lockkeeper://no..name");
    assert!(!said.contains("lockkeeper serve"), "{said}");
    // This path leads to a file that is not a socket.
    std::fs::write(folder.at("f"), "").unwrap();
    let socket = folder.at("f").display().to_string();
    let said = unreachable(&format!("lockkeeper+unix://{socket}/below"));
    assert!(!said.contains("lockkeeper serve"), "{said}");
}

#[test]
fn a_server_of_another_protocol_is_said_so() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // This thread ends with the process of the test.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 64]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
        }
    });
    for scheme in ["lockkeeper", "zookeeper"] {
        let said = unreachable(&format!("{scheme}://{address}"));
        assert!(said.contains("it speaks HTTP"), "{said}");
        assert!(
            !said.contains("lockkeeper serve") && !said.contains("no answer"),
            "{said}"
        );
    }
}

/// This server keeps reading until it has received a complete request in its protocol.
#[test]
fn a_server_of_another_protocol_that_waits_for_more_is_said_so() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // This thread ends with the process of the test.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(|| answer_a_whole_request(stream.unwrap()));
        }
    });
    for scheme in ["lockkeeper", "zookeeper"] {
        let said = unreachable(&format!("{scheme}://{address}"));
        assert!(said.contains("it speaks HTTP"), "{said}");
    }
}

fn answer_a_whole_request(mut stream: TcpStream) {
    let (mut read, mut byte) = (Vec::new(), [0]);
    while !read.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|count| count > 0) {
        read.push(byte[0]);
    }
    let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n");
}
