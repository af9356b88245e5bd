//! Tests of outages. One server is repeatedly killed and restarted, so that it listens only briefly each time. Another
//! server refuses the client's user on each connection.

use super::*;
use crate::client::served::socket::Endpoint;

const LIFE: Duration = Duration::from_millis(300);
const START: Duration = Duration::from_millis(200);
const ANSWER: Duration = Duration::from_millis(20);
const SESSION: Duration = Duration::from_secs(4);
const RUN: Duration = Duration::from_secs(60);

fn age(now: BootInstant) -> Duration {
    let nanos = u128::from(now.as_nanos()) % LIFE.as_nanos();
    Duration::from_nanos(nanos as u64)
}

fn longest_outage(endpoint: &Endpoint, seed: u64) -> Option<Duration> {
    let mut world = World::of(SessionOptions {
        timeout: SESSION,
        longest_pause: endpoint.longest_pause,
        seed,
        ..options()
    });
    world.connect();
    world.welcome(ID, SESSION);
    let (end, mut longest) = (world.now.after(RUN), Duration::ZERO);
    while world.now < end {
        world.wait(LIFE - age(world.now));
        world.session.disconnected(world.now);
        let lost = world.now;
        loop {
            world.wait_for_timeout();
            if world.session.is_over() {
                return None;
            }
            if !matches!(world.outputs().last(), Some(Output::Connect(_))) {
                continue;
            }
            if age(world.now) < START {
                world.session.disconnected(world.now);
                continue;
            }
            world.session.connected(world.now);
            let _handshake = world.sent_frames();
            if age(world.now) + ANSWER >= LIFE {
                world.wait(LIFE - age(world.now));
                world.session.disconnected(world.now);
                continue;
            }
            world.wait(ANSWER);
            world.welcome(ID, SESSION);
            break;
        }
        longest = longest.max(world.now.since(lost));
    }
    Some(longest)
}

#[cfg(unix)]
#[test]
fn a_server_of_this_machine_that_is_killed_again_and_again_costs_no_session() {
    let endpoint = Endpoint::unix("/run/server.sock".into(), true);
    for seed in 1..=200 {
        let outage = longest_outage(&endpoint, seed << 32 | seed);
        // The outage does not cost a lock either, because the lease lasts nine tenths of the timeout.
        assert!(
            outage.is_some_and(|outage| outage < SESSION * 9 / 10),
            "seed {seed}: {outage:?}"
        );
    }
}

#[test]
fn a_session_whose_user_is_refused_for_good_is_given_up_after_its_timeout() {
    let mut world = World::of(SessionOptions {
        auth: vec![("digest".to_owned(), Secret::new("a:b"))],
        ..options()
    });
    world.connect();
    world.welcome(ID, TIMEOUT);
    world.answer(xid::AUTH, &Response::Empty);
    world.outputs();
    world.session.disconnected(world.now);
    let lost = world.now;
    world.outputs();
    let mut attempts = 0;
    let last = loop {
        world.wait_for_timeout();
        match world.outputs().pop() {
            Some(Output::Connect(_)) => {}
            Some(last) => break last,
            None => continue,
        }
        world.session.connected(world.now);
        world.sent_frames();
        world.welcome(ID, TIMEOUT);
        world.submit(attempts, exists("/a", false));
        world.refuse(xid::AUTH, Code::AuthFailed);
        assert_eq!(
            kinds(&world.outputs()),
            [
                "disconnect".to_owned(),
                format!("{attempts} {}", Error::AuthFailed)
            ]
        );
        attempts += 1;
    };
    assert!(matches!(last, Output::Ended(End::Expired)));
    assert_eq!(world.now.since(lost), TIMEOUT * GIVE_UP_TENTHS / 10);
    assert!(attempts <= 40, "{attempts} attempts without a pause");
}

/// If the session kept the connection, a waiter would wait forever for a watch that the server did not arm again.
#[test]
fn watches_that_are_not_armed_again_end_the_connection() {
    let mut world = World::open();
    world.submit(1, get("/a", true));
    let sent = world.sent();
    world.answer(sent[0].xid, &data());
    world.reconnect(TIMEOUT);
    world.submit(2, get("/b", false));
    world.outputs();
    world.refuse(xid::SET_WATCHES, Code::Unimplemented);
    assert_eq!(
        kinds(&world.outputs()),
        ["disconnect", "suspended", &format!("2 {LOST}")]
    );
    world.connect();
    world.welcome(ID, TIMEOUT);
    let armed = world.sent().iter().any(|sent| sent.xid == xid::SET_WATCHES);
    assert!(armed, "it is tried again");
}
