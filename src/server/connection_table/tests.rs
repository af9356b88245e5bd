use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::*;
use crate::model::types::Zxid;
use crate::server::connection_entry::{HANDSHAKE, LastResponse, LatencyStats, TrafficDelta};

const ROOMY: TableLimits = TableLimits {
    connections: 100,
    per_address: 100,
    half_open: 50,
};

fn table(limits: TableLimits) -> Arc<ConnectionTable> {
    ConnectionTable::new(limits, Clock::new_virtual())
}

fn address(host: u8, port: u16) -> SocketAddr {
    ([127, 0, 0, host], port).into()
}

fn is_ready<T>(future: impl Future<Output = T>) -> bool {
    pin!(future)
        .poll(&mut Context::from_waker(Waker::noop()))
        .is_ready()
}

#[test]
fn connections_above_a_limit_are_refused_and_closed_ones_make_room() {
    let table = table(TableLimits {
        connections: 2,
        ..ROOMY
    });
    let one = table.enter(address(1, 1)).unwrap();
    let _other = table.enter(address(2, 1)).unwrap();
    let refused = table.enter(address(3, 1)).unwrap_err();
    assert_eq!(refused, Refusal::Connections { limit: 2 });
    drop(one);
    assert_eq!(table.connections(), 1);
    let _third = table.enter(address(3, 1)).unwrap();
    assert_eq!(table.counted(Count::Entered), 3);
    assert_eq!(table.counted(Count::RefusedConnections), 1);
}

#[test]
fn connections_of_one_address_are_counted_however_it_is_written() {
    let table = table(TableLimits {
        per_address: 2,
        ..ROOMY
    });
    let plain = table.enter(address(1, 1)).unwrap();
    let mapped: SocketAddr = "[::ffff:127.0.0.1]:2".parse().unwrap();
    let _mapped = table.enter(mapped).unwrap();
    let refused = table.enter(address(1, 3)).unwrap_err();
    let expected = Refusal::PerAddress {
        address: PeerAddress::from(address(1, 0)).network(),
        limit: 2,
    };
    assert_eq!(refused, expected);
    let _elsewhere = table.enter(address(2, 1)).unwrap();
    drop(plain);
    let _again = table.enter(address(1, 3)).unwrap();
    assert_eq!(table.counted(Count::RefusedPerAddress), 1);
}

#[test]
fn addresses_of_one_ipv6_network_count_as_one() {
    let table = table(TableLimits {
        per_address: 2,
        ..ROOMY
    });
    let _within = [1, 2].map(|host| table.enter(of_one_network(host)).unwrap());
    assert!(table.enter(of_one_network(3)).is_err());
    let elsewhere: SocketAddr = "[2001:db8:0:1::3]:1".parse().unwrap();
    table.enter(elsewhere).unwrap();
}

#[test]
fn the_oldest_without_a_session_goes_when_another_comes() {
    let table = table(TableLimits {
        half_open: 2,
        ..ROOMY
    });
    let served = table.enter(address(1, 1)).unwrap();
    served.session_opened(SessionId(7), Duration::from_secs(4));
    served.admit();
    let oldest = table.enter(address(1, 2)).unwrap();
    let older = table.enter(address(1, 3)).unwrap();
    assert_eq!(table.half_open(), 2);
    assert!(!is_ready(oldest.close_requested()));
    let _newest = table.enter(address(1, 4)).unwrap();
    assert_eq!(oldest.close_request(), Some(CloseRequest::Evicted));
    assert!(is_ready(oldest.close_requested()));
    assert_eq!(
        (older.close_request(), served.close_request()),
        (None, None)
    );
    assert_eq!((table.connections(), table.half_open()), (4, 2));
    drop(oldest);
    assert_eq!((table.connections(), table.half_open()), (3, 2));
    older.session_opened(SessionId(8), Duration::from_secs(4));
    older.admit();
    let _next = table.enter(address(1, 5)).unwrap();
    assert_eq!(older.close_request(), None);
    assert_eq!(table.counted(Count::Evicted), 1);
    assert_eq!(table.counted(Count::Handshake), 2);
}

#[test]
fn connections_that_say_nothing_take_no_more_than_half_of_the_places() {
    let table = table(TableLimits {
        connections: 4,
        half_open: 1_000,
        ..ROOMY
    });
    let silent: Vec<_> = (1..=3).map(|port| table.enter(address(1, port))).collect();
    let first = silent[0].as_ref().unwrap();
    assert_eq!(first.close_request(), Some(CloseRequest::Evicted));
    assert_eq!(table.half_open(), 2);
}

#[test]
fn a_task_that_waits_for_a_close_request_is_woken() {
    let table = table(TableLimits {
        half_open: 1,
        ..ROOMY
    });
    let oldest = table.enter(address(1, 1)).unwrap();
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let mut asked = pin!(oldest.close_requested());
    let mut context = Context::from_waker(&waker);
    assert!(asked.as_mut().poll(&mut context).is_pending());
    let _newer = table.enter(address(1, 2)).unwrap();
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    let answer = asked.as_mut().poll(&mut context);
    assert_eq!(answer, Poll::Ready(CloseRequest::Evicted));
}

#[derive(Default)]
struct Woken(AtomicU64);

impl std::task::Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_closed_table_asks_all_to_close_and_admits_none() {
    let table = table(ROOMY);
    let (one, other) = (table.enter(address(1, 1)), table.enter(address(1, 2)));
    let (one, other) = (one.unwrap(), other.unwrap());
    one.session_opened(SessionId(7), Duration::from_secs(4));
    one.admit();
    table.close(CloseRequest::Shutdown);
    assert_eq!(one.close_request(), Some(CloseRequest::Shutdown));
    assert_eq!(other.close_request(), Some(CloseRequest::Shutdown));
    assert_eq!(table.enter(address(1, 3)).unwrap_err(), Refusal::Shutdown);
    table.close(CloseRequest::Now);
    table.close(CloseRequest::Shutdown);
    let urgent = "the most urgent reason stays";
    assert_eq!(one.close_request(), Some(CloseRequest::Now), "{urgent}");
    let mut emptied = pin!(table.emptied());
    let mut context = Context::from_waker(Waker::noop());
    assert!(emptied.as_mut().poll(&mut context).is_pending());
    drop(one);
    assert!(emptied.as_mut().poll(&mut context).is_pending());
    drop(other);
    assert!(emptied.as_mut().poll(&mut context).is_ready());
}

#[test]
fn a_seat_adds_up_what_its_task_notes() {
    let table = table(ROOMY);
    let guard = table.enter(address(1, 1)).unwrap();
    assert_eq!(guard.traffic(), Traffic::default());
    assert!(guard.last().is_none() && guard.session().is_none());
    guard.record_traffic(&TrafficDelta {
        received: 3,
        received_bytes: 120,
        ..TrafficDelta::default()
    });
    assert_eq!(guard.traffic().outstanding, 3);
    let mut latency = LatencyStats::default();
    latency.add(1, Duration::from_millis(2));
    latency.add(1, Duration::from_millis(4));
    guard.record_traffic(&TrafficDelta {
        answered: 2,
        events: 5,
        sent_bytes: 300,
        last: Some(LastResponse {
            op: HANDSHAKE,
            xid: 0,
            zxid: Zxid(9),
            at: BootInstant::from_nanos(5_000_000),
            took: Duration::from_millis(4),
        }),
        latency,
        ..TrafficDelta::default()
    });
    let traffic = guard.traffic();
    assert_eq!((traffic.received, traffic.sent), (3, 7));
    assert_eq!((traffic.received_bytes, traffic.sent_bytes), (120, 300));
    assert_eq!(traffic.outstanding, 1);
    let LatencyStats {
        count,
        total_ns,
        min_ns,
        max_ns,
    } = traffic.latency;
    assert_eq!((count, total_ns), (2, 6_000_000));
    assert_eq!((min_ns, max_ns), (2_000_000, 4_000_000));
    let last = guard.last().unwrap();
    assert_eq!((last.letters(), last.xid, last.zxid), ("SESS", 0, Zxid(9)));
    assert_eq!((last.at.as_millis(), last.took.as_millis()), (5, 4));
}

#[test]
fn the_sum_keeps_what_went_over_connections_that_are_gone() {
    let table = table(ROOMY);
    let (gone, there) = (table.enter(address(1, 1)), table.enter(address(1, 2)));
    let (gone, there) = (gone.unwrap(), there.unwrap());
    let noted = |received, answered, ms| {
        let mut latency = LatencyStats::default();
        latency.add(answered, Duration::from_millis(ms));
        TrafficDelta {
            received,
            answered,
            latency,
            ..TrafficDelta::default()
        }
    };
    gone.record_traffic(&noted(5, 3, 1));
    there.record_traffic(&noted(4, 3, 10));
    assert_eq!(table.traffic().outstanding, 3);
    drop(gone);
    let sum = table.traffic();
    assert_eq!((sum.received, sum.sent), (9, 6));
    assert_eq!(sum.outstanding, 1);
    assert_eq!((sum.latency.count, sum.latency.total_ns), (6, 33_000_000));
    let bounds = (sum.latency.min_ns, sum.latency.max_ns);
    assert_eq!(bounds, (1_000_000, 10_000_000));
}

#[test]
fn the_statistics_of_a_connection_and_of_the_server_are_reset_apart() {
    let table = table(ROOMY);
    let guard = table.enter(address(1, 1)).unwrap();
    let mut latency = LatencyStats::default();
    latency.add(2, Duration::from_millis(4));
    let delta = TrafficDelta {
        received: 3,
        received_bytes: 120,
        answered: 2,
        latency,
        ..TrafficDelta::default()
    };
    guard.record_traffic(&delta);
    drop(
        table
            .enter(address(1, 2))
            .inspect(|gone| gone.record_traffic(&delta)),
    );
    let sum = table.traffic();
    table.reset_connections();
    let outstanding = Traffic {
        outstanding: 1,
        ..Traffic::default()
    };
    assert_eq!(
        (guard.traffic(), guard.last().is_none()),
        (outstanding, true)
    );
    assert_eq!(table.traffic(), sum, "the server's statistics stay");
    guard.record_traffic(&delta);
    table.reset_server();
    assert_eq!(
        (table.traffic().received, table.traffic().outstanding),
        (0, 2)
    );
    assert_eq!(table.counted(Count::Entered), 0);
    assert_eq!(
        guard.traffic().received,
        3,
        "a connection's statistics stay"
    );
}

#[derive(Default)]
struct Flood(Vec<ConnectionGuard>);

impl Flood {
    fn come(&mut self, table: &Arc<ConnectionTable>, address: SocketAddr) {
        self.0.push(table.enter(address).unwrap());
        self.0.retain(|guard| guard.close_request().is_none());
    }
}

fn of_one_network(host: u64) -> SocketAddr {
    let ip = (0x2001_0db8_u128 << 96) | u128::from(host);
    (std::net::Ipv6Addr::from_bits(ip), 1).into()
}

/// Two machines open 5,000 connections a second each. Every 10 ms one of 100 honest clients connects, and is admitted
/// 150 ms later.
#[test]
fn two_machines_push_out_no_honest_handshake() {
    const ROUND_TRIP_MS: u64 = 150;
    let limits = TableLimits {
        connections: 16_384,
        per_address: 12_288,
        half_open: 1_024,
    };
    let attacks: [fn(u64) -> SocketAddr; 2] = [|_| address(66, 1), of_one_network];
    for attack in attacks {
        let table = table(limits);
        let mut flood = Flood::default();
        let mut honest = std::collections::VecDeque::new();
        for ms in 0..1_000 + ROUND_TRIP_MS {
            for count in 0..5 {
                flood.come(&table, attack(5 * ms + count));
                flood.come(&table, address(67, 1));
            }
            if ms % 10 == 0 && ms < 1_000 {
                let client = address((ms / 10) as u8 + 100, 1);
                honest.push_back((ms, table.enter(client).unwrap()));
            }
            while honest
                .front()
                .is_some_and(|(came, _)| ms - came == ROUND_TRIP_MS)
            {
                let (came, guard) = honest.pop_front().unwrap();
                assert_eq!(guard.close_request(), None, "came at {came} ms");
                guard.admit();
            }
        }
        assert_eq!(table.half_open(), 1_024);
        assert!(honest.is_empty());
    }
}

#[test]
fn of_addresses_with_as_many_the_oldest_has_to_go() {
    let table = table(TableLimits {
        half_open: 4,
        ..ROOMY
    });
    let come = |host, port| table.enter(address(host, port)).unwrap();
    let (one, other) = (come(1, 1), come(2, 1));
    let (_one_more, _other_more) = (come(1, 2), come(2, 2));
    let _third = come(3, 1);
    assert_eq!(
        (one.close_request(), other.close_request()),
        (Some(CloseRequest::Evicted), None)
    );
    let fourth = come(4, 1);
    assert_eq!(other.close_request(), Some(CloseRequest::Evicted));
    // Each address has one connection, so the oldest of all connections is evicted.
    let _fifth = come(5, 1);
    assert_eq!((table.half_open(), fourth.close_request()), (4, None));
}
