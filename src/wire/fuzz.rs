//! Entry points of the fuzzers. They read arbitrary bytes as a frame, a record or a stream, and check that accepted
//! content is consistent.

#[cfg(feature = "simulation")]
mod choice;
mod corpus;

use super::connect::{ConnectRequest, RequestHeader};
use super::convert::to_store;
use super::frame::{Frames, LARGEST_FRAME_BYTES, put_frame};
use super::jute::{Jute, Reader};
use super::request::Incoming;
use super::request::Op;
use super::response::Response;

#[cfg(feature = "simulation")]
pub(crate) use choice::{Choice, Known};
#[cfg(feature = "simulation")]
pub(crate) use corpus::Inputs;
pub(crate) use corpus::{connections, handshakes, requests, streams};

pub(crate) fn request(bytes: &[u8]) -> bool {
    let Ok(read) = Incoming::read(bytes) else {
        return false;
    };
    let mut again = Vec::new();
    read.request.put_with_header(read.xid, &mut again);
    assert_eq!(Incoming::read(&again).as_ref(), Ok(&read));
    if let Ok((_, shape)) = to_store(&read.request) {
        assert_eq!(shape.op(), read.request.op());
    }
    true
}

pub(crate) fn record(op: i32, bytes: &[u8]) -> bool {
    let mut frame = Vec::new();
    RequestHeader { xid: 1, op }.put(&mut frame);
    frame.extend_from_slice(bytes);
    request(&frame)
}

pub(crate) fn reply(op: i32, bytes: &[u8]) -> bool {
    let Some(op) = Op::of(op) else {
        return false;
    };
    let Ok(response) = Response::read(op, &mut Reader::new(bytes)) else {
        return false;
    };
    let mut again = Vec::new();
    response.put(&mut again);
    assert_eq!(Response::read(op, &mut Reader::new(&again)), Ok(response));
    true
}

pub(crate) fn connect(bytes: &[u8]) -> bool {
    let Ok(read) = Reader::new(bytes).next::<ConnectRequest<'_>>() else {
        return false;
    };
    let mut again = Vec::new();
    read.put(&mut again);
    assert_eq!(Reader::new(&again).next(), Ok(read));
    true
}

pub(crate) fn stream(bytes: &[u8]) -> bool {
    let Some((piece, stream)) = bytes.split_first() else {
        return false;
    };
    let piece = usize::from(*piece).max(1);
    let (whole, left) = frames(stream, stream.len().max(1));
    assert_eq!(frames(stream, piece), (whole.clone(), left));
    whole.iter().for_each(|frame| {
        request(frame);
    });
    let mut again = Vec::new();
    for frame in &whole {
        put_frame(&mut again, |to| to.extend_from_slice(frame));
    }
    assert!(stream.starts_with(&again));
    left == Some(0)
}

fn frames(stream: &[u8], piece: usize) -> (Vec<Vec<u8>>, Option<usize>) {
    let mut frames = Frames::new(LARGEST_FRAME_BYTES);
    let mut found = Vec::new();
    for bytes in stream.chunks(piece) {
        frames.push(bytes);
        loop {
            match frames.next() {
                Ok(Some(frame)) => found.push(frame.to_vec()),
                Ok(None) => break,
                Err(_) => return (found, None),
            }
        }
    }
    let left = frames.waiting_bytes();
    (found, Some(left))
}
