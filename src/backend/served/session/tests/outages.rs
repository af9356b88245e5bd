//! A server that is killed again and again, and started again at once: it listens for moments.

use super::*;
use crate::backend::served::Endpoint;

/// Time from one kill to the next.
const LIFE: Duration = Duration::from_millis(300);
/// Time that the next server takes until it listens.
const START: Duration = Duration::from_millis(200);
/// Time that a server takes to answer a handshake.
const ANSWER: Duration = Duration::from_millis(20);
const SESSION: Duration = Duration::from_secs(4);
const RUN: Duration = Duration::from_secs(60);

/// Returns the time since the last kill.
fn age(now: BootInstant) -> Duration {
    let nanos = u128::from(now.as_nanos()) % LIFE.as_nanos();
    Duration::from_nanos(nanos as u64)
}

/// Returns the longest time for which a session at such a server had no connection; `None` if it has ended.
fn longest_outage(endpoint: &Endpoint, seed: u64) -> Option<Duration> {
    let mut world = World::of(SessionOptions {
        timeout: SESSION,
        longest_pause: endpoint.longest_pause(),
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
            if !matches!(world.outputs().last(), Some(Output::Connect)) {
                continue;
            }
            if age(world.now) < START {
                // Refused at once.
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
    let endpoint = Endpoint::Unix {
        path: "/run/server.sock".into(),
        ends_with_process: true,
    };
    for seed in 1..=200 {
        let outage = longest_outage(&endpoint, seed << 32 | seed);
        // Nor a lock: the lease, nine tenths of the timeout, is renewed in time.
        assert!(
            outage.is_some_and(|outage| outage < SESSION * 9 / 10),
            "seed {seed}: {outage:?}"
        );
    }
}
