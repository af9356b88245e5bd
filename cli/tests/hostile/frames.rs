//! Malformed frames, handshakes and requests.

use testkit::wire::*;

use super::arena::{Field, MIB, fight};

/// Minimum number of repetitions, which is enough to make a leak visible.
const ROUNDS: usize = 300;

/// Repeats an attack until the measurement is complete. Returns the number of repetitions.
fn again(field: &Field, mut attack: impl FnMut(usize)) -> usize {
    let mut count = 0;
    while count < ROUNDS || !field.is_over() {
        if count == 0 {
            field.under_way();
        }
        attack(count);
        count += 1;
    }
    count
}

/// A session that many connections take over from each other.
struct Handed(Session);

impl Handed {
    fn new(field: &Field) -> Self {
        Self(Conn::new(field.address).1)
    }

    fn take(&self, field: &Field) -> Conn {
        let (conn, session) = Conn::open(field.address, &self.0).unwrap();
        assert_eq!(session, self.0);
        conn
    }
}

#[test]
fn a_length_that_no_frame_has_closes_the_connection() {
    let attack = |field: &Field| {
        let lengths = [-1, i32::MIN, i32::MAX, 0x0010_0000, 0x7f00_0000];
        let session = Handed::new(field);
        let count = again(field, |round| {
            let length = Out::new().int(lengths[round % lengths.len()]).0;
            let strange = Conn::bare(field.address).unwrap();
            let known = session.take(field);
            for mut conn in [strange, known] {
                std::io::Write::write_all(&mut conn.stream, &length).unwrap();
                assert_eq!(conn.rest(), b"", "nothing is answered");
            }
        });
        format!("{} connections with such lengths", 2 * count)
    };
    fight(&[], 32 * MIB, attack);
}

#[test]
fn a_frame_that_is_cut_short_is_nothing() {
    let attack = |field: &Field| {
        let session = Handed::new(field);
        let whole = request(1, op::CREATE, &create("/cut", &[b'x'; 100], 0));
        let count = again(field, |round| {
            let cut = &whole[..round % whole.len()];
            let mut conn = session.take(field);
            std::io::Write::write_all(&mut conn.stream, cut).unwrap();
            conn.stream.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(conn.rest(), b"");
        });
        let mut conn = session.take(field);
        let there = conn.call(op::EXISTS, &read("/cut", false)).unwrap();
        assert_eq!(there.err, code::NO_NODE, "nothing was done");
        format!("{count} connections that end in a frame")
    };
    fight(&[], 32 * MIB, attack);
}

#[test]
fn a_frame_too_short_for_a_request_closes_the_connection() {
    let attack = |field: &Field| {
        let session = Handed::new(field);
        let count = again(field, |round| {
            let mut conn = session.take(field);
            let short = Out(vec![0xff; round % 8]).framed();
            std::io::Write::write_all(&mut conn.stream, &short).unwrap();
            assert_eq!(conn.rest(), b"");
        });
        format!("{count} such frames")
    };
    fight(&[], 32 * MIB, attack);
}

#[test]
fn an_unknown_operation_is_answered_so_and_closes_the_connection() {
    let attack = |field: &Field| {
        let unknown = [0, -1, -10, 10, 20, 23, 99, 108, 7_777, i32::MIN, i32::MAX];
        let session = Handed::new(field);
        let count = again(field, |round| {
            let mut conn = session.take(field);
            let op = unknown[round % unknown.len()];
            let answer = conn.call(op, &read("/", false)).unwrap();
            let expected = (-1, code::UNIMPLEMENTED);
            assert_eq!((answer.zxid, answer.err), expected, "operation {op}");
            assert_eq!(conn.rest(), b"");
        });
        format!("{count} such operations")
    };
    fight(&[], 32 * MIB, attack);
}

#[test]
fn a_malformed_record_is_refused_and_the_connection_goes_on() {
    let attack = |field: &Field| {
        let mut conn = field.client();
        let malformed = [
            (op::CREATE, Out::new().int(i32::MAX)),
            (op::GET_DATA, Out::new().bytes(&[0xff, 0xfe])),
            (op::GET_DATA, Out::new()),
            (op::DELETE, Out::new().int(-2)),
            (op::SET_WATCHES, Out::new().long(0).int(i32::MAX)),
            (op::MULTI, Out::new().int(op::CREATE).bool(false)),
        ];
        let count = again(field, |round| {
            let (op, record) = &malformed[round % malformed.len()];
            let answer = conn.call(*op, record).unwrap();
            assert_eq!(answer.err, -5, "operation {op}");
        });
        conn.must(op::PING, &Out::new());
        format!("{count} such records")
    };
    fight(&[], 32 * MIB, attack);
}

#[test]
fn what_comes_before_the_handshake_closes_the_connection() {
    let attack = |field: &Field| {
        let mut hello = vec![0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc];
        hello.extend_from_slice(&[7; 508]);
        let openings = [
            request(1, op::GET_DATA, &read("/", false)),
            request(1, op::CREATE, &create("/before", b"", 0)),
            request(1, op::CLOSE, &Out::new()),
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
            b"\0\0\0\0".to_vec(),
            hello,
        ];
        let count = again(field, |round| {
            let mut conn = Conn::bare(field.address).unwrap();
            let opening = &openings[round % openings.len()];
            std::io::Write::write_all(&mut conn.stream, opening).unwrap();
            assert_eq!(conn.rest(), b"", "{opening:?}");
        });
        let mut conn = field.client();
        let there = conn.call(op::EXISTS, &read("/before", false)).unwrap();
        assert_eq!(there.err, code::NO_NODE, "nothing was done");
        format!("{count} connections that begin so")
    };
    fight(&[], 32 * MIB, attack);
}
