//! Misbehaving clients of the dashboard.

use std::io::{Read, Write};
use std::net::TcpStream;

use rustix::process::Signal;

use super::super::server::{Server, ended_well, serve};
use super::starts::dashboard_of;
use super::*;

#[test]
fn requests_that_make_no_sense_are_refused() {
    let store = StoreAt::served();
    let dashboard = Dashboard::start(&store, &[]);
    let at = dashboard.at();
    for path in [
        "/../../etc/passwd",
        "/assets/../../etc/passwd",
        "/assets/..%2f..%2fetc/passwd",
        "/assets/",
        "/assets/app.js/",
        "/api",
        "/api/",
        "/metrics",
        "/%00",
        "//",
    ] {
        let page = get(at, path, &[]);
        assert_eq!(page.status, 404, "{path}");
        assert!(parsed(&page)["error"].is_string());
    }
    let beyond = u64::MAX;
    for path in [
        "/api/locks?sort=size",
        "/api/locks?reverse=1",
        "/api/locks?offset=-1",
        "/api/locks?limit=x",
        "/api/locks?limit=99999999999999999999",
        "/api/locks?filter=%ff",
        "/api/locks?nothing",
        "/api/lock",
        "/api/lock?path=",
        "/api/lock?path=/",
        "/api/lock?path=a",
        "/api/lock?path=/a/../b",
        "/api/lock?path=/a%00b",
        "/api/lock?path=/a&offset=",
    ] {
        let page = get(at, path, &[]);
        assert_eq!(page.status, 400, "{path}");
        assert!(parsed(&page)["error"].is_string());
    }
    for path in [
        format!("/api/locks?offset={beyond}&limit=0"),
        format!("/api/lock?path=/a&offset={beyond}&limit={beyond}"),
    ] {
        let mut events = Events::of(at, &path);
        let name = if path.contains("lock?") {
            "lock"
        } else {
            "locks"
        };
        assert_eq!(events.until(name, |_| true)["offset"], 0);
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "NONSENSE"] {
        for path in ["/", "/api/locks"] {
            let first = format!("{method} {path} HTTP/1.1");
            let page = super::super::metrics::http::answer(send(at, &first, &[], ""));
            assert_eq!(page.status, 405, "{method}");
            assert!(page.head.contains("allow: GET, HEAD\r\n"), "{page:?}");
        }
    }
}

#[test]
fn huge_and_half_requests_keep_nobody_out() {
    let store = StoreAt::served();
    let dashboard = Dashboard::start(&store, &["--allow-revoke"]);
    let at = dashboard.at();
    let mut looks = Events::of(at, "/api/locks");
    looks.until("locks", |_| true);
    let head = format!("GET / HTTP/1.1\r\nHost: {at}\r\n");
    let bearer = dashboard.token();
    let post = format!(
        "POST /api/revoke HTTP/1.1\r\nHost: {at}\r\nAuthorization: Bearer {bearer}\r\nContent-Type: application/json\r\n"
    );
    let long = format!("{head}X: {}\r\n\r\n", "x".repeat(1 << 20));
    let many = format!("{head}{}\r\n", "X: 1\r\n".repeat(500));
    let chunks = format!("{post}Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n");
    let large = format!("{post}Content-Length: 1000000000\r\n\r\n{{");
    for (sent, expected) in [
        (&long, &[431, 400][..]),
        (&many, &[431, 400]),
        (&chunks, &[400, 408, 413]),
        (&large, &[413]),
        (&"GET /\0 HTTP/1.1\r\n\r\n".to_owned(), &[400]),
        (&"\u{16}\u{3}\u{1}\0".to_owned(), &[400]),
    ] {
        let mut stream = TcpStream::connect(at).unwrap();
        // Ignore an error, because the server may close the connection before it has read everything.
        let _ = stream.write_all(sent.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let text = String::from_utf8_lossy(&answer);
        let status: Option<u16> = text.split(' ').nth(1).map(|it| it.parse().unwrap());
        assert!(status.is_none_or(|it| expected.contains(&it)), "{status:?}");
    }
    // Open more connections than any limit allows, each with an incomplete head or body.
    let silent: Vec<_> = (0..200)
        .map(|index| {
            let mut stream = TcpStream::connect(at).unwrap();
            let text = match index % 2 {
                0 => head.clone(),
                _ => format!("{post}Content-Length: 100\r\n\r\n"),
            };
            let _ = stream.write_all(text.as_bytes());
            stream
        })
        .collect();
    assert_eq!(get(at, "/api/about", &[]).status, 200);
    // These connections do not close the stream of a viewer.
    looks.until("handovers", |_| true);
    drop(silent);
}

#[test]
fn viewers_have_a_limit_and_one_that_goes_makes_room() {
    let store = StoreAt::served();
    let dashboard = Dashboard::start(&store, &[]);
    let at = dashboard.at();
    let mut viewers: Vec<_> = (0..64)
        .map(|index| match index % 2 {
            0 => Events::of(at, "/api/locks"),
            _ => Events::of(at, "/api/lock?path=/a"),
        })
        .collect();
    for viewer in &mut viewers {
        viewer.next().unwrap();
    }
    for path in ["/api/locks", "/api/lock?path=/a"] {
        let refused = Events::open(at, path, &[]).err().unwrap();
        assert_eq!(refused.status, 503);
        let said = parsed(&refused)["error"].to_string();
        assert!(said.contains("64 pages are open already"), "{said}");
    }
    // The dashboard still serves other pages, and the existing viewers still receive events.
    assert_eq!(get(at, "/api/about", &[]).status, 200);
    viewers[0].until("handovers", |_| true);
    drop(viewers.pop());
    let mut next = loop {
        match Events::open(at, "/api/locks", &[]) {
            Ok(events) => break events,
            Err(page) => assert_eq!(page.status, 503),
        }
    };
    next.until("locks", |_| true);
}

#[test]
fn a_viewer_that_does_not_read_sees_the_latest_and_not_all() {
    const CHANGES: usize = 24;
    let store = StoreAt::served();
    let dashboard = Dashboard::start(&store, &[]);
    block_on(async {
        let client = store.connect().await;
        // Make each window about 200 KB large, so that a few windows fill the kernel's buffer.
        let label = "x".repeat(1_000);
        let mut guards = Vec::new();
        for index in 0..150 {
            let options = LockOptions::new().label(label.clone());
            let mutex = Mutex::new(&client, named(&format!("a{index}"))).unwrap();
            guards.push(mutex.lock_with(options).await.unwrap());
        }
        let path = "/api/locks?limit=200";
        let mut fast = Events::of(dashboard.at(), path);
        fast.until("locks", |it| it["locks"] == 150);
        let mut slow = Events::of(dashboard.at(), path);
        for index in 0..CHANGES {
            let mutex = Mutex::new(&client, named(&format!("b{index}"))).unwrap();
            guards.push(mutex.lock().await.unwrap());
            fast.until("locks", |it| it["locks"] == 151 + index);
        }
        let mut seen = 0;
        slow.until("locks", |it| {
            seen += 1;
            it["locks"] == 150 + CHANGES
        });
        assert!(seen < CHANGES / 2, "{seen} windows for {CHANGES} changes");
    });
}

#[test]
fn viewers_that_do_not_read_do_not_keep_a_server_from_ending() {
    let mut command = serve();
    command.args(["--data", "memory", "--dashboard", "127.0.0.1:0"]);
    let server = Server::start(&mut command);
    let at = dashboard_of(&server);
    let deaf: Vec<_> = (0..8)
        .map(|_| send(&at, "GET /api/locks HTTP/1.1", &[], ""))
        .collect();
    let silent: Vec<_> = (0..8).map(|_| TcpStream::connect(&at).unwrap()).collect();
    assert_eq!(get(&at, "/api/about", &[]).status, 200);
    ended_well(&server.end(Signal::TERM));
    drop((deaf, silent));
}
