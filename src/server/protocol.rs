//! [`ProtocolState`]: one connection's side of the protocol, without its socket: bytes in, questions to the store;
//! answers and events of the store, bytes out.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use super::auth::{Admission, Proof};
use super::connection_entry::{LastResponse, TrafficDelta};
use super::options::Limits;
use crate::backend::Reply;
use crate::clock::BootInstant;
use crate::core::{ANSWER_BYTES, SetWatches, WatchFilter};
use crate::engine::{Ask, Message};
use crate::error::Error;
use crate::path::ZnodePath;
use crate::types::{WatchMode, WatchedEvent, Zxid};
use crate::wire::{
    self, ClientInfo, Code, Frames, Incoming, LENGTH_BYTES, Op, Path, Refused, ReplyHeader,
    Response, Shape, UNKNOWN_ZXID, put_event, put_frame, to_store,
};

/// The talk with one client, after the handshake.
pub(super) struct ProtocolState {
    limits: Limits,
    admission: Admission,
    frames: Frames,
    /// What the store is to be asked next.
    asks: VecDeque<Ask>,
    /// The bytes of the frames that those are made of.
    asked_bytes: usize,
    /// What answers are due, oldest first: of all that was asked, and not answered yet.
    pending: VecDeque<PendingResponse>,
    out: Vec<u8>,
    /// How much of that has been sent.
    sent: usize,
    /// Nothing more is taken up: the client has closed its session, or has said what nobody can
    /// understand.
    is_over: bool,
    delta: TrafficDelta,
    /// True if the last request that was taken up is a proof of identity that failed.
    has_failed_proof: bool,
    /// The bytes of the last reply that was too large to be sent, as far as it was put together.
    too_large: Option<usize>,
}

/// An answer that is due.
struct PendingResponse {
    xid: i32,
    op: i32,
    shape: ResponseShape,
    since: BootInstant,
}

/// What an answer looks like.
enum ResponseShape {
    /// What the store says.
    Store(Shape),
    /// This code, whatever the store says.
    Refusal(Code),
    /// That all is well.
    Done,
    /// As `Done`, unless there was no such watch.
    Watches,
    /// Who the client is.
    Who(Arc<[(String, String)]>),
    /// To a proof of identity: the store is asked nothing that it could show, so there is no zxid.
    Identity(Result<(), Code>),
    /// This code, and the end.
    Last { code: Code, zxid: i64 },
}

/// What one reading makes of a talk: no more than this is encoded before it is sent.
const OUTPUT_BUFFER_BYTES: usize = 64 << 10;

/// A request takes in memory up to so many times its bytes in a frame: a path of two bytes among many is a text of its
/// own in a list.
const ASKED_FACTOR: usize = 8;

/// An idle connection keeps no larger buffer.
const IDLE_BUFFER_BYTES: usize = 8 << 10;

/// The rest of a connection's turn: what it may still do before others have theirs. Requests count, and bytes, of
/// requests taken up and of answers and events sent: either alone could take long.
pub(super) struct Turn {
    requests: usize,
    bytes: usize,
}

/// More requests in a turn are not carried out faster, and make the others wait longer.
const TURN_REQUESTS: usize = 32;

/// The turn ends with the request or the write that reaches this.
const TURN_BYTES: usize = 64 << 10;

impl Turn {
    /// A turn that begins with so many requests taken up in an earlier one, but not carried out yet.
    pub(super) fn new(left_over: usize) -> Self {
        Self {
            requests: TURN_REQUESTS.saturating_sub(left_over),
            bytes: TURN_BYTES,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.requests == 0 || self.bytes == 0
    }

    fn spend_request(&mut self, bytes: usize) {
        self.requests -= 1;
        self.spend_bytes(bytes);
    }

    pub(super) fn spend_bytes(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

impl ProtocolState {
    /// `frames` has what came behind the handshake.
    pub(super) fn new(limits: Limits, admission: Admission, frames: Frames) -> Self {
        Self {
            limits,
            admission,
            frames,
            asks: VecDeque::new(),
            asked_bytes: 0,
            pending: VecDeque::new(),
            out: Vec::new(),
            sent: 0,
            is_over: false,
            delta: TrafficDelta::default(),
            has_failed_proof: false,
            too_large: None,
        }
    }

    /// Whether the client may ask for anything.
    pub(super) fn is_admitted(&self) -> bool {
        self.admission.is_admitted()
    }

    /// Whether more bytes of the client can be taken now.
    pub(super) fn has_room(&self) -> bool {
        // With a whole frame there already, what a client sends faster than it is taken up would pile up.
        !self.is_over && self.is_caught_up() && self.unsent() < OUTPUT_BUFFER_BYTES
    }

    /// Returns true if every request that has come was taken up, and handed to the store.
    pub(super) fn is_caught_up(&self) -> bool {
        self.asks.is_empty() && !self.frames.has_next()
    }

    /// How much has come of a request whose end has not, or that was not taken up yet.
    pub(super) fn unfinished_bytes(&self) -> usize {
        self.frames.waiting_bytes()
    }

    /// About how many bytes wait until the client reads: answers that are not sent, and requests behind them.
    pub(super) fn held_bytes(&self) -> usize {
        let asked = match self.asks.is_empty() {
            true => 0,
            false => ASKED_FACTOR * self.asked_bytes,
        };
        self.unsent() + asked
    }

    /// Takes in what has arrived.
    pub(super) fn receive(&mut self, bytes: &[u8]) {
        self.delta.received_bytes += bytes.len() as u64;
        self.frames.push(bytes);
    }

    /// Makes questions of what has arrived, as many as may be under way and as the turn has room for.
    ///
    /// # Errors
    /// The connection must be closed, without another word.
    pub(super) fn parse_requests(
        &mut self,
        now: BootInstant,
        turn: &mut Turn,
    ) -> Result<(), ProtocolViolation> {
        if self.asks.is_empty() {
            self.asked_bytes = 0;
        }
        while !self.is_over && !turn.is_over() && self.pending.len() < self.limits.in_flight {
            let frame = match self.frames.next() {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(()),
                Err(_) => return Err(ProtocolViolation::Length),
            };
            self.delta.received += 1;
            turn.spend_request(frame.len());
            self.asked_bytes += frame.len();
            let taken = match Incoming::read(frame) {
                Ok(incoming) => self.admission.admit(&incoming),
                Err(Refused::Answer { xid, code }) => {
                    ParsedRequest::new(xid, 0, ResponseShape::Refusal(code), Ask::Ping)
                }
                Err(Refused::AnswerAndClose { xid, code }) => {
                    let zxid = UNKNOWN_ZXID;
                    ParsedRequest::new(xid, 0, ResponseShape::Last { code, zxid }, Ask::Ping)
                }
                Err(Refused::Close) => return Err(ProtocolViolation::Frame),
            };
            self.is_over = taken.is_last();
            // Counted now: its answer comes late, if the client waits for it.
            self.has_failed_proof = matches!(taken.shape, ResponseShape::Identity(Err(_)));
            self.delta.has_failed_proof |= self.has_failed_proof;
            self.asks.push_back(taken.ask);
            self.pending.push_back(PendingResponse {
                xid: taken.xid,
                op: taken.op,
                shape: taken.shape,
                since: now,
            });
        }
        Ok(())
    }

    /// Returns true, once, if a proof of identity has failed.
    pub(super) fn has_failed_proof(&mut self) -> bool {
        std::mem::take(&mut self.has_failed_proof)
    }

    /// What the store is to be asked.
    pub(super) fn asks(&mut self) -> &mut VecDeque<Ask> {
        &mut self.asks
    }

    /// Whether requests have come that are not taken up yet, though they could be.
    pub(super) fn has_more(&self) -> bool {
        !self.is_over
            && self.asks.is_empty()
            && self.pending.len() < self.limits.in_flight
            && self.frames.has_next()
    }

    /// Whether everything is answered.
    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.unsent() == 0
    }

    /// How many more bytes may be encoded before some are sent.
    pub(super) fn room(&self) -> usize {
        OUTPUT_BUFFER_BYTES.saturating_sub(self.unsent())
    }

    /// Whether all has been said that will be, and sent.
    pub(super) fn is_done(&self) -> bool {
        self.is_over && self.is_idle()
    }

    /// Writes down what the store has said.
    pub(super) fn encode(&mut self, what: Message, now: BootInstant) {
        let start = self.out.len();
        match what {
            Message::Event(event) => self.encode_event(&event),
            Message::Answer { zxid, answer } => self.encode_response(zxid, &answer, now),
        }
        self.delta.sent_bytes += (self.out.len() - start) as u64;
    }

    fn encode_event(&mut self, event: &WatchedEvent) {
        self.delta.events += 1;
        let zxid = event.zxid.map(|zxid| zxid.0);
        put_frame(&mut self.out, |to| {
            put_event(&wire::event(event), zxid, to);
        });
    }

    fn encode_response(&mut self, zxid: Zxid, answer: &Result<Reply, Error>, now: BootInstant) {
        let Some(pending) = self.pending.pop_front() else {
            return; // the store answers nothing that was not asked
        };
        let (xid, most) = (pending.xid, self.limits.outgoing_bytes);
        let out = &mut self.out;
        match &pending.shape {
            ResponseShape::Store(shape) => match shape.answer(answer) {
                Ok(response) => {
                    let too_large = put_response(out, xid, zxid, &response, most);
                    self.too_large = too_large.or(self.too_large);
                }
                Err(code) => {
                    if let Err(Error::LimitReached { what, limit }) = answer
                        && *what == ANSWER_BYTES
                    {
                        self.too_large = Some(*limit);
                    }
                    put_code(out, xid, zxid.0, code);
                }
            },
            ResponseShape::Refusal(code) => put_code(out, xid, zxid.0, *code),
            ResponseShape::Last { code, zxid } => put_code(out, xid, *zxid, *code),
            ResponseShape::Identity(proved) => {
                // One that the store did not take is none.
                let taken = answer.as_ref().map(|_| ()).map_err(Code::from);
                // The store is full of identities: the copy that is kept here must not stay either.
                self.is_over |= proved.is_ok() && taken.is_err();
                let code = proved.and(taken).err().unwrap_or(Code::Ok);
                put_code(out, xid, 0, code);
            }
            ResponseShape::Done => put_code(out, xid, zxid.0, code_of(answer)),
            ResponseShape::Watches => {
                let had = !matches!(answer, Ok(Reply::Count(0)));
                let code = if had {
                    code_of(answer)
                } else {
                    Code::NoWatcher
                };
                put_code(out, xid, zxid.0, code);
            }
            ResponseShape::Who(who) => {
                let info = |(scheme, user): &'_ (String, String)| ClientInfo {
                    scheme: scheme.clone().into(),
                    user: user.clone().into(),
                };
                let infos = who.iter().map(info).collect();
                put_response(out, xid, zxid, &Response::Who(infos), most);
            }
        }
        self.count(&pending, zxid, now);
    }

    fn count(&mut self, pending: &PendingResponse, zxid: Zxid, now: BootInstant) {
        let took = now.since(pending.since);
        self.delta.answered += 1;
        self.delta.latency.add(1, took);
        self.delta.last = Some(LastResponse {
            op: pending.op,
            xid: pending.xid,
            zxid,
            at: now,
            took,
        });
    }

    /// What is to be sent.
    pub(super) fn outgoing(&self) -> &[u8] {
        &self.out[self.sent..]
    }

    /// Drops what is to be sent: nobody takes it.
    pub(super) fn drop_outgoing(&mut self) {
        self.advance(self.unsent());
    }

    /// So much of it was sent.
    pub(super) fn advance(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.sent == self.out.len() {
            self.out.clear();
            self.out.shrink_to(IDLE_BUFFER_BYTES);
            self.sent = 0;
        } else if self.sent >= self.unsent() {
            // More may be written down before all is sent, again and again. Each byte is moved once at most
            // for each that was sent.
            self.out.drain(..self.sent);
            self.sent = 0;
        }
    }

    fn unsent(&self) -> usize {
        self.out.len() - self.sent
    }

    /// How large the last reply is that was too large to be sent, since the last call.
    pub(super) fn too_large(&mut self) -> Option<usize> {
        self.too_large.take()
    }

    /// What has gone over the connection since the last call.
    pub(super) fn traffic(&mut self) -> TrafficDelta {
        std::mem::take(&mut self.delta)
    }
}

/// What nobody can understand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProtocolViolation {
    /// A frame's length that none has.
    Length,
    /// A frame without so much as a header.
    Frame,
}

/// A request that was taken up.
pub(super) struct ParsedRequest {
    xid: i32,
    op: i32,
    shape: ResponseShape,
    ask: Ask,
}

impl ParsedRequest {
    fn new(xid: i32, op: i32, shape: ResponseShape, ask: Ask) -> Self {
        Self {
            xid,
            op,
            shape,
            ask,
        }
    }

    /// Whether nothing may follow it.
    fn is_last(&self) -> bool {
        match &self.shape {
            ResponseShape::Last { .. } | ResponseShape::Identity(Err(_)) => true,
            ResponseShape::Store(shape) => shape.op() == Op::CloseSession,
            _ => false,
        }
    }
}

impl Admission {
    /// What becomes of a request.
    fn admit(&mut self, incoming: &Incoming<'_>) -> ParsedRequest {
        let (xid, request) = (incoming.xid, &incoming.request);
        let op = request.op();
        let (shape, ask) = match request {
            wire::Request::Auth(auth) => self.auth(&auth.scheme, auth.auth),
            wire::Request::Sasl(_) => (ResponseShape::Identity(Err(Code::AuthFailed)), Ask::Ping),
            wire::Request::Ping => (ResponseShape::Done, Ask::Ping),
            wire::Request::CloseSession => store(request),
            _ if !self.is_admitted() => {
                let code = Code::SessionClosedRequireSaslAuth;
                (ResponseShape::Last { code, zxid: 0 }, Ask::Ping)
            }
            wire::Request::WhoAmI => (ResponseShape::Who(self.who()), Ask::Ping),
            other => store_request(other),
        };
        ParsedRequest::new(xid, op.number(), shape, ask)
    }

    fn auth(&mut self, scheme: &str, secret: &[u8]) -> (ResponseShape, Ask) {
        match self.prove(scheme, secret) {
            Proof::Of(identity) => (ResponseShape::Identity(Ok(())), Ask::Identify(identity)),
            Proof::Nothing => (ResponseShape::Identity(Ok(())), Ask::Ping),
            Proof::Refused => (ResponseShape::Identity(Err(Code::AuthFailed)), Ask::Ping),
            Proof::BeyondLimit(error) => (ResponseShape::Refusal(Code::from(&error)), Ask::Ping),
        }
    }
}

/// What the store is asked for a request of somebody who may ask.
fn store_request(request: &wire::Request<'_>) -> (ResponseShape, Ask) {
    match request {
        wire::Request::SetWatches(it) => set_watches(SetWatches {
            since: Zxid(it.relative_zxid),
            data: paths(it.data.0.iter()),
            exist: paths(it.exist.0.iter()),
            child: paths(it.child.0.iter()),
            ..SetWatches::default()
        }),
        wire::Request::SetWatches2(it) => set_watches(SetWatches {
            since: Zxid(it.relative_zxid),
            data: paths(it.data.0.iter()),
            exist: paths(it.exist.0.iter()),
            child: paths(it.child.0.iter()),
            persistent: paths(it.persistent.0.iter()),
            recursive: paths(it.recursive.0.iter()),
            done: 0,
        }),
        wire::Request::CheckWatches(it) => watches(&it.path, it.kind, Ask::CheckWatches),
        wire::Request::RemoveWatches(it) => watches(&it.path, it.kind, Ask::RemoveWatches),
        wire::Request::Reconfig(_) => (ResponseShape::Refusal(Code::Unimplemented), Ask::Ping),
        other => store(other),
    }
}

fn store(request: &wire::Request<'_>) -> (ResponseShape, Ask) {
    match to_store(request) {
        Ok((Some(asked), shape)) => (ResponseShape::Store(shape), Ask::Request(asked)),
        Ok((None, _)) => (ResponseShape::Refusal(Code::Unimplemented), Ask::Ping),
        Err(code) => (ResponseShape::Refusal(code), Ask::Ping),
    }
}

fn set_watches(asked: SetWatches) -> (ResponseShape, Ask) {
    (ResponseShape::Done, Ask::SetWatches(asked))
}

/// What is no path names no znode, and nothing will ever happen to it.
fn paths<'a, 'b: 'a>(list: impl Iterator<Item = &'a Path<'b>>) -> Vec<ZnodePath> {
    list.filter_map(|path| match path.0.as_ref() {
        "" => Some(ZnodePath::root()),
        text => ZnodePath::new(text).ok(),
    })
    .collect()
}

fn watches(
    path: &str,
    kind: i32,
    ask: impl FnOnce(ZnodePath, WatchFilter) -> Ask,
) -> (ResponseShape, Ask) {
    let which = match kind {
        1 => WatchFilter::Child,
        2 => WatchFilter::Data,
        3 => WatchFilter::Any,
        4 => WatchFilter::Mode(WatchMode::Persistent),
        5 => WatchFilter::Mode(WatchMode::PersistentRecursive),
        _ => return (ResponseShape::Refusal(Code::MarshallingError), Ask::Ping),
    };
    match ZnodePath::new(path) {
        Ok(path) => (ResponseShape::Watches, ask(path, which)),
        Err(_) => (ResponseShape::Refusal(Code::NoWatcher), Ask::Ping),
    }
}

fn code_of(answer: &Result<Reply, Error>) -> Code {
    answer.as_ref().err().map_or(Code::Ok, Code::from)
}

fn put_code(out: &mut Vec<u8>, xid: i32, zxid: i64, code: Code) {
    use crate::wire::Jute;
    put_frame(out, |to| ReplyHeader::new(xid, zxid, code).put(to));
}

/// A reply that is larger than what may wait for a client is none: how large it would be.
fn put_response(
    out: &mut Vec<u8>,
    xid: i32,
    zxid: Zxid,
    response: &Response<'_>,
    most: usize,
) -> Option<usize> {
    let bytes = response.record_bytes();
    if bytes > most {
        put_code(out, xid, zxid.0, Code::SystemError);
        return Some(bytes);
    }
    out.reserve(bytes + REPLY_HEADER_BYTES);
    put_frame(out, |to| response.put_with_header(xid, zxid.0, to));
    None
}

/// A frame's length, and a reply's header.
const REPLY_HEADER_BYTES: usize = LENGTH_BYTES + 16;
