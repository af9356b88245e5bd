//! Every written record is read again to its last byte.

use proptest::prelude::*;

use super::records;
use crate::model::types::CreateMode;
use crate::wire::*;

fn whole<'a, T: Jute<'a>>(bytes: &'a [u8]) -> T {
    let mut from = Reader::new(bytes);
    let value = from.next().unwrap();
    assert!(from.is_empty());
    value
}

proptest! {
    #[test]
    fn requests(xid in any::<i32>(), request in records::request()) {
        let mut frame = Vec::new();
        request.put_with_header(xid, &mut frame);
        match Incoming::read(&frame) {
            Ok(read) => prop_assert_eq!(read, Incoming { xid, request }),
            Err(refused) => {
                prop_assert_eq!(request.op(), Op::Check);
                let code = Code::Unimplemented;
                prop_assert_eq!(refused, Refused::AnswerAndClose { xid, code });
            }
        }
    }

    #[test]
    fn a_request_that_is_cut_anywhere_is_refused(request in records::request(), cut in any::<prop::sample::Index>()) {
        let mut frame = Vec::new();
        request.put_with_header(1, &mut frame);
        prop_assume!(request.op() != Op::Check);
        let read = Incoming::read(&frame[..cut.index(frame.len())]);
        // A frame that is cut right before its last field, the conditions, is a valid request of version 3.
        let mut older = request;
        if let Request::Enqueue(Enqueue { conditions, .. })
        | Request::GetPredecessor(GetPredecessor { conditions, .. }) = &mut older
        {
            *conditions = Conditions::default();
        }
        prop_assert!(read.as_ref().map_or(true, |read| read.request == older), "{:?}", read);
    }

    #[test]
    fn responses((op, response) in records::response(), xid in any::<i32>(), zxid in any::<i64>()) {
        let mut frame = Vec::new();
        response.put_with_header(xid, zxid, &mut frame);
        prop_assert_eq!(frame.len(), 16 + response.bytes());
        let mut from = Reader::new(&frame);
        let header: ReplyHeader = from.next().unwrap();
        prop_assert_eq!(header, ReplyHeader { xid, zxid, err: 0 });
        prop_assert_eq!(Response::read(op, &mut from), Ok(response));
        prop_assert!(from.is_empty());
    }

    #[test]
    fn handshakes(asked in records::connect_request()) {
        let mut bytes = Vec::new();
        asked.put(&mut bytes);
        prop_assert_eq!(whole::<ConnectRequest<'_>>(&bytes), asked.clone());
        let answer = ConnectResponse {
            protocol_version: asked.protocol_version,
            timeout_ms: asked.timeout_ms,
            session: asked.session,
            password: asked.password,
            read_only: asked.read_only,
        };
        let mut bytes = Vec::new();
        answer.put(&mut bytes);
        prop_assert_eq!(whole::<ConnectResponse<'_>>(&bytes), answer);
    }

    #[test]
    fn events(event in records::event(), zxid in 1..i64::MAX) {
        let mut bytes = Vec::new();
        put_event(&event, Some(zxid), &mut bytes);
        let mut from = Reader::new(&bytes);
        let header = ReplyHeader { xid: xid::EVENT, zxid, err: 0 };
        prop_assert_eq!(from.next(), Ok(header));
        prop_assert_eq!(from.next(), Ok(event));
        prop_assert!(from.is_empty());
    }

    #[test]
    fn departures(watch in any::<i64>(), clear in any::<bool>(), reason in any::<i32>(), zxid in 1..i64::MAX) {
        let departure = Departure { watch, clear, reason };
        let mut bytes = Vec::new();
        put_departure(&departure, zxid, &mut bytes);
        let mut from = Reader::new(&bytes);
        let header = ReplyHeader { xid: xid::DEPARTURE, zxid, err: 0 };
        prop_assert_eq!(from.next(), Ok(header));
        prop_assert_eq!(from.next(), Ok(departure));
        prop_assert!(from.is_empty());
    }

    #[test]
    fn modes(flags in 0..7, ttl_ms in 1_i64..1 << 40) {
        let op = match flags {
            4 => Op::CreateContainer,
            5 | 6 => Op::CreateTtl,
            _ => Op::Create2,
        };
        prop_assert_eq!(create_mode(op, flags, ttl_ms).map(super::super::flags), Ok(flags));
    }
}

#[test]
fn the_operation_decides_what_is_a_container_and_the_flags_what_is_numbered() {
    let mode = |op, flags| create_mode(op, flags, -1);
    assert_eq!(mode(Op::CreateContainer, 0), Ok(CreateMode::Container));
    assert_eq!(mode(Op::Create, 4), Ok(CreateMode::Persistent));
    let numbered = CreateMode::EphemeralSequential;
    assert_eq!(mode(Op::Create2, 3), Ok(numbered));
    for (op, flags) in [
        (Op::Create, 5),
        (Op::Create, 7),
        (Op::Create, -1),
        (Op::CreateTtl, 5),
    ] {
        assert_eq!(mode(op, flags), Err(Code::BadArguments), "{op:?} {flags}");
    }
}

#[test]
fn of_a_multi_that_failed_every_result_is_an_error() {
    let results = failed(4, 2, Code::NoNode);
    let expected = [0, 0, -101, -2].map(Err);
    assert_eq!(results, expected);
}
