//! Slow clients.

use std::io::{ErrorKind, Write};
use std::time::Duration;

use testkit::wire::*;

use super::arena::{Field, MIB, fight};

#[test]
fn a_handshake_byte_by_byte_is_cut_off() {
    let attack = |field: &Field| {
        let handshake = Session::none(Duration::from_secs(10)).handshake();
        let mut crowd: Vec<_> = (0..500)
            .map(|_| Conn::bare(field.address).unwrap())
            .collect();
        field.under_way();
        let mut sent = 0;
        while !crowd.is_empty() {
            assert!(sent + 1 < handshake.len(), "{} may go on", crowd.len());
            crowd.retain_mut(|conn| {
                let is_sent = conn.stream.write_all(&handshake[sent..=sent]).is_ok();
                is_sent && !conn.is_closed()
            });
            sent += 1;
            // The attack consists of one byte per second.
            std::thread::sleep(Duration::from_secs(1));
        }
        field.wait();
        format!("500 connections, the last closed after {sent} bytes of a handshake")
    };
    fight(&["--handshake-timeout", "2s"], 32 * MIB, attack);
}

#[test]
fn a_request_byte_by_byte_is_no_sign_of_life() {
    let attack = |field: &Field| {
        let brief = Session::none(Duration::from_millis(1));
        let open = |_| Conn::open(field.address, &brief).unwrap().0;
        let mut crowd: Vec<_> = (0..500).map(open).collect();
        let whole = request(1, op::CREATE, &create("/slow", &[b'x'; 100], 0));
        field.under_way();
        let mut sent = 0;
        while !crowd.is_empty() {
            assert!(sent + 1 < whole.len(), "{} are still there", crowd.len());
            crowd.retain_mut(|conn| {
                let is_sent = conn.stream.write_all(&whole[sent..=sent]).is_ok();
                is_sent && !conn.is_closed()
            });
            sent += 1;
            std::thread::sleep(Duration::from_secs(1));
        }
        field.wait();
        format!("500 sessions, the last over after {sent} bytes of a request")
    };
    let options = ["--tick", "500ms", "--min-session-timeout", "2s"];
    fight(&options, 32 * MIB, attack);
}

const LARGE: usize = 1_000_000;

/// Sends requests without reading the replies, until the server closes the connection. Returns the number of requests.
fn ask_without_reading(mut conn: Conn, op: i32, record: &Out) -> usize {
    let frame = request(1, op, record);
    for sent in 0.. {
        match conn.stream.write_all(&frame) {
            Ok(()) => {}
            Err(error) if is_closed(&error) => return sent,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("it is neither read nor cut off after {sent} requests")
            }
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!()
}

#[test]
fn a_client_that_does_not_read_large_replies_is_not_read_until_its_session_ends() {
    let attack = |field: &Field| {
        let mut owner = field.client();
        owner.must(op::CREATE, &create("/large", &vec![b'x'; LARGE], 0));
        owner.must(op::CLOSE, &Out::new());
        let address = field.address;
        let greedy = move |_| {
            std::thread::spawn(move || {
                let brief = Session::none(Duration::from_millis(1));
                let (conn, _) = Conn::open(address, &brief).unwrap();
                ask_without_reading(conn, op::GET_DATA, &read("/large", false))
            })
        };
        let mut crowd: Vec<_> = (0..16).map(greedy).collect();
        field.under_way();
        let (mut count, mut most) = (16, 0);
        while !field.is_over() || !crowd.is_empty() {
            let (done, going): (Vec<_>, _) = crowd.into_iter().partition(|it| it.is_finished());
            crowd = going;
            for one in done {
                most = most.max(one.join().unwrap());
                if !field.is_over() {
                    crowd.push(greedy(count));
                    count += 1;
                }
            }
        }
        format!("{count} clients, 16 at once, that ask for a megabyte up to {most} times")
    };
    // The limit covers, for each connection, one or two replies (queued and encoded), and the received requests.
    let options = ["--tick", "500ms", "--min-session-timeout", "1s"];
    fight(&options, 16 * 6 * MIB, attack);
}

#[test]
fn a_client_that_does_not_read_its_events_is_cut_off() {
    let attack = |field: &Field| {
        let silent = |_| {
            let mut conn = field.client();
            conn.must(op::ADD_WATCH, &Out::new().text("/").int(1));
            conn
        };
        let mut crowd: Vec<_> = (0..4).map(silent).collect();
        field.under_way();
        let mut writer = field.client();
        let path = format!("/{}", "x".repeat(200));
        writer.must(op::CREATE, &create(&path, b"", EPHEMERAL));
        let mut writes = 0;
        // The server cuts a client off only when the buffers of the sockets, which also contain events, are full.
        while !crowd.is_empty() || !field.is_over() {
            let first = writer
                .send_many(100, op::SET_DATA, &set_data(&path, b""))
                .unwrap();
            for xid in first..first + 100 {
                let answer = writer.answer().unwrap();
                assert_eq!((answer.xid, answer.err), (xid, 0));
            }
            writes += 100;
            // After the server has cut off a client, the client can no longer send.
            crowd.retain_mut(|conn| conn.send(op::PING, &Out::new()).is_ok());
            assert!(writes < 1_000_000, "{} are not cut off", crowd.len());
        }
        format!("4 watchers of everything, cut off within {writes} events of 250 bytes")
    };
    let options = ["--max-outgoing", "1M"];
    if let Some(outcome) = fight(&options, 4 * 2 * MIB + 32 * MIB, attack) {
        assert!(
            outcome.logged(&["does not read"]) >= 1,
            "{:#?}",
            outcome.log
        );
    }
}
