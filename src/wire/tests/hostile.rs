//! Any bytes are read as a request or refused, and reading them takes little memory.

use proptest::prelude::*;

use crate::wire::fuzz;
use crate::wire::stat::checked_acl;
use crate::wire::*;

proptest! {
    #[test]
    fn no_bytes_break_the_reader(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        fuzz::request(&bytes);
        fuzz::connect(&bytes);
        fuzz::stream(&bytes);
        for op in Op::ALL {
            fuzz::record(op.number(), &bytes);
            fuzz::reply(op.number(), &bytes);
        }
    }
}

#[test]
fn a_count_that_the_frame_cannot_hold_allocates_nothing() {
    for count in [i32::MAX, 1 << 20] {
        let mut frame = Vec::new();
        RequestHeader {
            xid: 1,
            op: Op::SetWatches.number(),
        }
        .put(&mut frame);
        0_i64.put(&mut frame);
        count.put(&mut frame);
        let code = Code::MarshallingError;
        assert_eq!(
            Incoming::read(&frame),
            Err(Refused::Answer { xid: 1, code })
        );
    }
}

#[test]
fn a_list_takes_at_max_sixteen_times_its_bytes() {
    // Compare each entry's size in memory with sixteen times its smallest size in a frame. Double the size in memory,
    // because vectors grow.
    assert!(2 * size_of::<Text<'_>>() <= 16 * 4);
    assert!(2 * size_of::<AclRecord<'_>>() <= 16 * 12);
    assert!(2 * size_of::<ClientInfo<'_>>() <= 16 * 8);
    let (header, least) = (9, 8);
    assert!(2 * size_of::<MultiOp<'_>>() <= 16 * (header + least));
}

#[test]
fn what_follows_a_request_in_its_frame_is_ignored() {
    let mut frame = Vec::new();
    Request::Ping.put_with_header(xid::PING, &mut frame);
    frame.extend_from_slice(b"more");
    let request = Request::Ping;
    let xid = xid::PING;
    assert_eq!(Incoming::read(&frame), Ok(Incoming { xid, request }));
}

/// If the bytes were replaced with U+FFFD, the list would take up to three times as many bytes, and differ from the
/// client's text.
#[test]
fn a_list_with_text_that_is_no_utf_8_is_refused() {
    for (scheme, id) in [
        (b"digest".as_slice(), b"user\xff:hash".as_slice()),
        (b"digest\xff", b"user:hash"),
        (b"world", b"anyone\xc3"),
    ] {
        let mut create = Vec::new();
        let put = |to: &mut Vec<u8>, bytes: &[u8]| {
            (bytes.len() as i32).put(to);
            to.extend_from_slice(bytes);
        };
        put(&mut create, b"/a");
        put(&mut create, b"data");
        [1_i32, 31]
            .iter()
            .for_each(|number| number.put(&mut create));
        put(&mut create, scheme);
        put(&mut create, id);
        0_i32.put(&mut create);
        let op = Op::Create.number();
        let mut frame = Vec::new();
        RequestHeader { xid: 1, op }.put(&mut frame);
        frame.extend_from_slice(&create);
        let incoming = Incoming::read(&frame).unwrap();
        let refused = to_store(&incoming.request).map(drop);
        assert_eq!(refused, Err(Code::InvalidAcl), "{scheme:?} {id:?}");
    }
    let good = AclRecord {
        perms: 31,
        scheme: "digest".into(),
        id: "us\u{fffd}r:hash".into(),
    };
    assert!(checked_acl(&[good]).is_ok(), "this is what the client says");
}
