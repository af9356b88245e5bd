//! The protocol without a socket and without a store.

use super::super::ServerOptions;
use super::super::auth::Policy;
use super::super::turn::TurnLength;
use super::*;

fn protocol() -> ProtocolState {
    protocol_with(false)
}

fn protocol_with(is_extended: bool) -> ProtocolState {
    let limits = ServerOptions::new().limits;
    let policy = Policy::default();
    let agreed = Agreed {
        is_extended,
        frames: Frames::new(limits.frame_bytes),
    };
    let admission = Admission::new(Arc::new(policy));
    ProtocolState::new(limits, admission, agreed, Arc::default())
}

fn get_data(xid: i32) -> Vec<u8> {
    let mut frame = Vec::new();
    put_frame(&mut frame, |to| {
        to.extend_from_slice(&xid.to_be_bytes());
        to.extend_from_slice(&[0, 0, 0, 4, 0, 0, 0, 2, b'/', b'a', 0]);
    });
    frame
}

fn auth(user: &str) -> Vec<u8> {
    let mut frame = Vec::new();
    put_frame(&mut frame, |to| {
        to.extend_from_slice(&(-4_i32).to_be_bytes());
        to.extend_from_slice(&[0, 0, 0, 100, 0, 0, 0, 0]);
        for text in ["digest", &format!("{user}:secret")] {
            to.extend_from_slice(&(text.len() as i32).to_be_bytes());
            to.extend_from_slice(text.as_bytes());
        }
    });
    frame
}

#[test]
fn what_was_sent_is_not_kept_although_there_is_always_more() {
    let mut protocol = protocol();
    let mut sent = Vec::new();
    let answers = 1_000;
    let mut one = 0;
    for xid in 0..answers {
        protocol.receive(&get_data(xid));
        protocol
            .parse_requests(BootInstant::default(), &mut TurnLength::default().start(0))
            .unwrap();
        assert_eq!(protocol.asks().drain(..).count(), 1);
        let data = Reply::Data {
            data: vec![7; 1_000].into(),
            stat: crate::model::types::Stat::default(),
            watcher: None,
        };
        let answer = Message::Answer {
            zxid: Zxid(1),
            answer: Ok(data),
        };
        protocol.encode(answer, BootInstant::default());
        one = one.max(protocol.outgoing().len());
        // Send all but the last byte, so that the buffer never empties.
        let count = protocol.outgoing().len() - 1;
        sent.extend_from_slice(&protocol.outgoing()[..count]);
        protocol.advance(count);
    }
    assert!(
        protocol.out.capacity() < 10 * one,
        "{}",
        protocol.out.capacity()
    );
    sent.extend_from_slice(protocol.outgoing());
    let mut frames = Frames::new(1 << 20);
    frames.push(&sent);
    for xid in 0..answers {
        let frame = frames.next().unwrap().expect("an answer to each");
        assert_eq!(frame[..4], xid.to_be_bytes());
    }
    assert_eq!(frames.waiting_bytes(), 0);
}

#[test]
fn nothing_is_read_while_a_whole_request_waits_to_be_taken_up() {
    let mut protocol = protocol();
    let flood: Vec<u8> = (0..1_000).flat_map(get_data).collect();
    protocol.receive(&flood);
    let mut taken = 0;
    while taken < 1_000 {
        assert!(!protocol.has_room(), "{taken} of 1,000 are taken up");
        protocol
            .parse_requests(BootInstant::default(), &mut TurnLength::default().start(0))
            .unwrap();
        let asked = protocol.asks().drain(..).count();
        assert!(asked > 0);
        taken += asked;
    }
    assert!(protocol.has_room(), "all are taken up");
    protocol.receive(&get_data(1)[..5]);
    assert!(protocol.has_room());
}

#[test]
fn a_proof_beyond_the_limits_is_refused_and_ends_no_connection() {
    let mut protocol = protocol();
    protocol.receive(&auth(&"n".repeat(10_000)));
    protocol.receive(&get_data(1));
    protocol
        .parse_requests(BootInstant::default(), &mut TurnLength::default().start(0))
        .unwrap();
    let asked: Vec<_> = protocol.asks().drain(..).collect();
    assert!(
        matches!(
            asked[..],
            [SessionRequest::Ping, SessionRequest::Request(_)]
        ),
        "{asked:?}"
    );
    let answer = Message::Answer {
        zxid: Zxid(1),
        answer: Ok(Reply::Done),
    };
    protocol.encode(answer, BootInstant::default());
    let code = Code::BadArguments.number().to_be_bytes();
    assert_eq!(protocol.outgoing()[16..20], code);
    assert!(!protocol.is_over);
}

#[test]
fn a_proof_that_the_store_has_no_room_for_ends_the_connection() {
    let mut protocol = protocol();
    protocol.receive(&auth("jane"));
    protocol
        .parse_requests(BootInstant::default(), &mut TurnLength::default().start(0))
        .unwrap();
    let asked: Vec<_> = protocol.asks().drain(..).collect();
    assert!(
        matches!(asked[..], [SessionRequest::Identify(_)]),
        "{asked:?}"
    );
    let full = Error::LimitReached {
        what: "bytes",
        limit: 0,
    };
    let answer = Message::Answer {
        zxid: Zxid(1),
        answer: Err(full),
    };
    protocol.encode(answer, BootInstant::default());
    let code = Code::SystemError.number().to_be_bytes();
    assert_eq!(protocol.outgoing()[16..20], code);
    protocol.receive(&get_data(1));
    protocol
        .parse_requests(BootInstant::default(), &mut TurnLength::default().start(0))
        .unwrap();
    assert!(protocol.asks().is_empty());
    let unsent = protocol.outgoing().len();
    protocol.advance(unsent);
    assert!(protocol.is_done());
}

#[test]
fn own_operations_are_unknown_to_a_connection_that_has_not_agreed_on_them() {
    let forget = wire::Request::ForgetWatch(wire::ForgetWatch { watch: 1 });
    let mut frame = Vec::new();
    put_frame(&mut frame, |to| forget.put_with_header(7, to));
    for is_extended in [false, true] {
        let mut protocol = protocol_with(is_extended);
        protocol.receive(&frame);
        protocol
            .parse_requests(
                BootInstant::from_nanos(0),
                &mut TurnLength::default().start(0),
            )
            .ok();
        let asked = protocol.asks().pop_front().unwrap();
        assert_eq!(matches!(asked, SessionRequest::ForgetWatch(1)), is_extended);
        let answer = Message::Answer {
            zxid: Zxid(3),
            answer: Ok(Reply::Count(1)),
        };
        protocol.encode(answer, BootInstant::from_nanos(0));
        let header: ReplyHeader = wire::Reader::new(&protocol.outgoing()[LENGTH_BYTES..])
            .next()
            .unwrap();
        let (code, zxid) = match is_extended {
            true => (Code::Ok, 3),
            false => (Code::Unimplemented, UNKNOWN_ZXID),
        };
        assert_eq!(header, ReplyHeader::new(7, zxid, code));
        assert_eq!(protocol.is_over, !is_extended);
    }
}

#[test]
fn the_reason_of_a_refusal_is_for_clients_that_read_it() {
    for is_extended in [false, true] {
        let mut protocol = protocol_with(is_extended);
        protocol.receive(&get_data(1));
        protocol
            .parse_requests(
                BootInstant::from_nanos(0),
                &mut TurnLength::default().start(0),
            )
            .unwrap();
        protocol.asks().clear();
        let (what, limit) = ("watches of a session", 3);
        let answer = Message::Answer {
            zxid: Zxid(3),
            answer: Err(Error::LimitReached { what, limit }),
        };
        protocol.encode(answer, BootInstant::from_nanos(0));
        let mut frame = wire::Reader::new(&protocol.outgoing()[LENGTH_BYTES..]);
        let header: ReplyHeader = frame.next().unwrap();
        assert_eq!(header.err, Code::SystemError.number());
        let reason = frame.next::<Refusal<'_>>().ok();
        assert_eq!(reason.map(|reason| reason.limit), is_extended.then_some(3));
    }
}

/// If the client believed that the write was refused, it would leave its entry in the queue.
#[test]
fn a_write_whose_answer_is_too_large_is_not_told_to_be_refused() {
    let acl = crate::model::acl::Acl::open();
    let enqueue = wire::Request::Enqueue(wire::Enqueue {
        parent: "/q".into(),
        name: "lock-".into(),
        data: b"",
        acl: wire::acl_records(&acl),
        blockers: crate::model::protocol::Blockers::All.into(),
        count: false,
        queue_data: None,
        conditions: wire::Conditions::default(),
    });
    let mut frame = Vec::new();
    put_frame(&mut frame, |to| enqueue.put_with_header(7, to));
    let mut protocol = protocol_with(true);
    protocol.receive(&frame);
    protocol
        .parse_requests(
            BootInstant::from_nanos(0),
            &mut TurnLength::default().start(0),
        )
        .unwrap();
    let asked = protocol.asks().pop_front();
    assert!(
        matches!(asked, Some(SessionRequest::Request(_))),
        "{asked:?}"
    );
    let name = "x".repeat(1 << 10);
    let names = vec![name; protocol.limits.outgoing_bytes >> 10];
    let answer = Message::Answer {
        zxid: Zxid(3),
        answer: Ok(Reply::Enqueued {
            path: "/q/lock-0000000000".parse().unwrap(),
            czxid: Zxid(3),
            ahead: crate::model::protocol::Predecessor::Listed(names),
        }),
    };
    protocol.encode(answer, BootInstant::from_nanos(0));
    let mut frame = wire::Reader::new(&protocol.outgoing()[LENGTH_BYTES..]);
    let header: ReplyHeader = frame.next().unwrap();
    assert_eq!(header.err, Code::SystemError.number());
    assert!(frame.next::<Refusal<'_>>().is_err());
}
