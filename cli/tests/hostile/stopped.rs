//! A server that is stopped for longer than sessions last, and then continues.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use testkit::wire::*;

use super::served::Served;

const TIMEOUT: Duration = Duration::from_secs(2);

/// Rule 14: a client that has sent its pings in time keeps its session, even if the server reads the pings too late.
/// Clients that are gone or silent lose their sessions.
#[test]
fn a_stopped_server_expires_only_sessions_that_sent_nothing() {
    let server = Served::start(&["--tick", "500ms"]);
    if !server.is_ours() {
        return;
    }
    let open = || {
        Conn::open(server.address, &Session::none(TIMEOUT))
            .unwrap()
            .0
    };
    let (mut pinging, mut gone, mut silent) = (open(), open(), open());
    pinging.must(op::CREATE, &create("/pinging", b"", EPHEMERAL));
    gone.must(op::CREATE, &create("/gone", b"", EPHEMERAL));
    silent.must(op::CREATE, &create("/silent", b"", EPHEMERAL));
    for path in ["/gone", "/silent"] {
        pinging.must(op::EXISTS, &read(path, true));
    }
    drop(gone);
    server.signal(Signal::STOP);
    let (start, mut sent) = (Instant::now(), 0_i32);
    while start.elapsed() < 3 * TIMEOUT {
        pinging.send(op::PING, &Out::new()).unwrap();
        sent += 1;
        // Sleep for the usual interval between the pings of a client.
        std::thread::sleep(TIMEOUT / 3);
    }
    server.signal(Signal::CONT);
    let mut events = 0;
    while sent > 0 || events < 2 {
        let answer = pinging.answer().expect("its session goes on");
        match answer.xid {
            EVENT => events += 1,
            _ => {
                assert_eq!(answer.err, 0, "{answer:?}");
                pinging.send(op::PING, &Out::new()).unwrap();
                sent = (sent - 1).max(0);
            }
        }
    }
    let last = pinging.send(op::EXISTS, &read("/pinging", false)).unwrap();
    loop {
        let answer = pinging.answer().unwrap();
        if answer.xid == last {
            assert_eq!(answer.err, 0, "its lock is there");
            break;
        }
    }
    silent.rest();
    server.stop();
}
