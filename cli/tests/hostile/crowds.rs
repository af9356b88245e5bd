//! Many connections and many sessions.

use std::collections::VecDeque;
use std::io::Write;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use testkit::wire::*;

use super::arena::{Field, MIB, TIMEOUT, fight, raise_open_files};

const HALF_OPEN: usize = 10_000;

#[test]
fn of_ten_thousand_half_open_connections_the_oldest_go() {
    let attack = |field: &Field| {
        // Server and attacker have the same limit of open files. Some of these files are not connections.
        let most = (raise_open_files() as usize).saturating_sub(500);
        assert!(most >= 4_000, "only {most} files may be open");
        let count = most.min(HALF_OPEN);
        let open = |_| Conn::bare(field.address).unwrap();
        let mut crowd: Vec<_> = (0..count).map(open).collect();
        wait_until_open_are(&crowd, 1_000);
        let mut guest = field.client();
        guest.must(op::EXISTS, &read("/", false));
        field.under_way();
        while !field.is_over() {
            // Replace closed connections by new ones.
            crowd.drain(..20.min(crowd.len()));
            crowd.extend((0..20).map(open));
        }
        guest.must(op::EXISTS, &read("/", false));
        wait_until_open_are(&crowd, 1_000);
        format!("{count} connections without a word, of which 1000 may stay")
    };
    let options = ["--max-half-open", "1000", "--handshake-timeout", "10m"];
    fight(&options, 64 * MIB, attack);
}

/// Waits until the server has closed all but `count` connections. Does not check which connections are left. If a
/// connection did not fit into the listener's backlog, the server accepts it after younger connections.
fn wait_until_open_are(crowd: &[Conn], count: usize) {
    let mut open: Vec<_> = crowd.iter().map(|conn| &conn.stream).collect();
    let deadline = Instant::now() + Duration::from_secs(60);
    while open.len() > count {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut polled: Vec<_> = open
            .iter()
            .map(|stream| PollFd::new(*stream, PollFlags::IN))
            .collect();
        let closed = poll(&mut polled, Some(&Timespec::try_from(left).unwrap())).unwrap();
        assert!(closed > 0, "{} connections are left open", open.len());
        // The server sends nothing to a silent client, so a connection becomes readable only when it is closed.
        let is_open: Vec<_> = polled.iter().map(|it| it.revents().is_empty()).collect();
        let mut is_open = is_open.into_iter();
        open.retain(|_| is_open.next().unwrap_or(true));
    }
}

#[test]
fn half_a_handshake_keeps_no_place_either() {
    let attack = |field: &Field| {
        let half = &Session::none(Duration::from_secs(10)).handshake()[..20];
        let open = || {
            let mut conn = Conn::bare(field.address).unwrap();
            conn.stream.write_all(half).unwrap();
            conn
        };
        let mut crowd: VecDeque<_> = (0..200).map(|_| open()).collect();
        field.under_way();
        let mut count = 200;
        while !field.is_over() {
            let oldest = crowd.pop_front().unwrap();
            assert_eq!(oldest.rest(), b"");
            crowd.push_back(open());
            count += 1;
        }
        format!("{count} halves of handshakes")
    };
    let options = ["--max-half-open", "100", "--handshake-timeout", "10m"];
    fight(&options, 32 * MIB, attack);
}

#[test]
fn a_large_frame_is_no_handshake() {
    let attack = |field: &Field| {
        let mut large = Out::new().int(0x000f_ffff);
        large.0.resize(1_000_000, 0);
        let open = |_| {
            let mut conn = Conn::bare(field.address).unwrap();
            // Ignore an error, because the server may close the connection in the meantime.
            let _ = conn.stream.write_all(&large.0);
            conn
        };
        let crowd: Vec<_> = (0..500).map(open).collect();
        field.under_way();
        field.wait();
        for conn in crowd {
            assert_eq!(conn.rest(), b"");
        }
        "500 half-open connections that send a megabyte".into()
    };
    let options = ["--max-half-open", "1000", "--handshake-timeout", "10s"];
    fight(&options, 64 * MIB, attack);
}

#[test]
fn too_many_connections_from_one_address_keep_no_other_client_out() {
    let attack = |field: &Field| {
        let greedy = Ipv4Addr::new(127, 0, 0, 2);
        let open = || {
            let conn = Conn::from_address(greedy, field.address)?;
            enter(conn)
        };
        let crowd: Vec<_> = (0..50).map(|_| open().unwrap()).collect();
        field.under_way();
        let mut refused = 0;
        while !field.is_over() {
            let more = Conn::from_address(greedy, field.address).unwrap();
            assert_eq!(more.rest(), b"", "the 51st is closed without a word");
            refused += 1;
        }
        field.client().must(op::PING, &Out::new());
        drop(crowd);
        format!("{refused} connections beyond 50 of one address")
    };
    let options = ["--max-connections-per-address", "50"];
    if let Some(outcome) = fight(&options, 32 * MIB, attack) {
        assert_told_once(&outcome.log, "127.0.0.2", &outcome.result);
    }
}

#[test]
fn too_many_connections_are_closed_and_those_that_are_there_go_on() {
    let attack = |field: &Field| {
        let open = || enter(Conn::bare(field.address)?);
        // The well-behaved client uses one of the connections that the server allows.
        let mut crowd: Vec<_> = (0..99).map(|_| open().unwrap()).collect();
        field.under_way();
        let mut refused = 0;
        while !field.is_over() {
            let more = Conn::bare(field.address).unwrap();
            assert_eq!(more.rest(), b"", "the 101st is closed without a word");
            refused += 1;
        }
        for conn in &mut crowd {
            conn.must(op::PING, &Out::new());
        }
        let mut last = crowd.pop().unwrap();
        last.must(op::CLOSE, &Out::new());
        assert_eq!(last.rest(), b"");
        // The next client can connect when the server has noticed the end of the last one.
        let mut next = loop {
            if let Ok(conn) = open() {
                break conn;
            }
        };
        next.must(op::PING, &Out::new());
        format!("{refused} connections beyond 100")
    };
    let options = [
        "--max-connections",
        "100",
        "--max-connections-per-address",
        "100",
    ];
    if let Some(outcome) = fight(&options, 32 * MIB, attack) {
        assert_told_once(&outcome.log, "100", &outcome.result);
    }
}

fn enter(mut conn: Conn) -> std::io::Result<Conn> {
    conn.enter(&Session::none(TIMEOUT))?;
    Ok(conn)
}

/// Checks that the server logs a reached limit, but not each time that the limit is reached.
fn assert_told_once(log: &[String], word: &str, result: &str) {
    let lines = log.iter();
    let told: Vec<_> = lines
        .filter(|line| line.contains("connections") && line.contains(word))
        .collect();
    assert!((1..=50).contains(&told.len()), "{result}: {told:#?}");
}

#[test]
fn sessions_that_are_left_behind_are_limited_and_go() {
    let attack = |field: &Field| {
        let brief = Session::none(Duration::from_millis(1));
        let mut left = 0;
        let full = loop {
            match Conn::open(field.address, &brief) {
                Ok(_) => left += 1,
                Err(error) => break error,
            }
            if left == 300 {
                field.under_way();
            }
        };
        assert!(left >= 300, "only {left}: {full}");
        field.wait();
        // The sessions expire, and then the server accepts new ones.
        while Conn::open(field.address, &brief).is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
        format!("{left} sessions left behind, then: {full}")
    };
    let options = ["--max-sessions", "1000", "--min-session-timeout", "5s"];
    if let Some(outcome) = fight(&options, 32 * MIB, attack) {
        assert!(
            outcome.logged(&["sessions", "1000"]) >= 1,
            "{:#?}",
            outcome.log
        );
    }
}
