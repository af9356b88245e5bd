//! [`ProtocolState`]: the protocol of one connection, without its socket. It turns bytes into requests to the store,
//! and the store's replies and events into bytes.
//!
//! Every parsed request, even a refused one, adds one entry to the queue of pending responses and one to the store's
//! queue. The store replies in the order of its queue, so each reply belongs to the oldest pending response.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use super::access::Access;
use super::audit::claimed_user;
use super::auth::{Admission, Proof};
use super::connection_entry::{LastResponse, TrafficDelta};
use super::options::Limits;
use super::request_counters::RequestCounters;
use super::turn::Turn;
use crate::core::{ANSWER_BYTES, CoreReply, SetWatches, WatchFilter, WatchKey};
use crate::engine::{Message, SessionRequest};
use crate::model::error::Error;
use crate::model::path::ZnodePath;
use crate::model::protocol::Reply;
use crate::model::types::Zxid;
use crate::model::watch::{WatchMode, WatchUpdate};
use crate::runtime::clock::BootInstant;
use crate::wire::{
    self, ClientInfo, Code, Frames, Incoming, LENGTH_BYTES, Op, Path, Refusal, Refused,
    ReplyHeader, Response, Shape, UNKNOWN_ZXID, put_departure, put_event, put_frame, to_store,
};

pub(super) struct ProtocolState {
    limits: Limits,
    admission: Admission,
    requests: Arc<RequestCounters>,
    is_extended: bool,
    frames: Frames,
    asks: VecDeque<SessionRequest>,
    asked_bytes: usize,
    /// Parsed requests without an answer, oldest first.
    pending: VecDeque<PendingResponse>,
    out: Vec<u8>,
    /// Number of sent bytes at the start of `out`.
    sent: usize,
    /// True once no more requests are parsed, for example after closeSession.
    is_over: bool,
    delta: TrafficDelta,
    has_failed_proof: bool,
    proofs: Vec<ProofAttempt>,
    /// Size of the last reply that was too large to send, or the limit if the store stopped composing the reply there.
    too_large: Option<usize>,
}

pub(super) struct Agreed {
    pub(super) is_extended: bool,
    /// Bytes received after the handshake. A client may send requests before it has the handshake's response.
    pub(super) frames: Frames,
}

struct PendingResponse {
    xid: i32,
    op: i32,
    shape: ResponseShape,
    since: BootInstant,
}

enum ResponseShape {
    /// The store's reply.
    Store(Shape),
    /// An error code. The store gets a ping in place of the refused request, so that the responses stay in order.
    Refusal(Code),
    /// Like `Refusal`, for a request that exceeds a limit.
    Limit(Error),
    /// A header with the code of the store's reply.
    Done,
    /// Like `Done`, but `NoWatcher` if no watch was found.
    Watches,
    /// The client's identities.
    WhoAmI(Arc<[(String, String)]>),
    /// The outcome of a proof of identity, with zxid 0.
    Identity(Result<(), Code>),
    /// A code, after which the connection is closed.
    Last { code: Code, zxid: i64 },
}

/// Limit of encoded, unsent bytes. Further replies stay in the outbox, where they count as unread.
const OUTPUT_BUFFER_BYTES: usize = 64 << 10;

/// Upper bound for the memory of a parsed request, as a multiple of its frame's length. The bound is high because every
/// path in a list is a separate allocation.
const ASKED_FACTOR: usize = 8;

const IDLE_BUFFER_BYTES: usize = 8 << 10;

impl ProtocolState {
    pub(super) fn new(
        limits: Limits,
        admission: Admission,
        handshake: Agreed,
        requests: Arc<RequestCounters>,
    ) -> Self {
        Self {
            limits,
            admission,
            requests,
            is_extended: handshake.is_extended,
            frames: handshake.frames,
            asks: VecDeque::new(),
            asked_bytes: 0,
            pending: VecDeque::new(),
            out: Vec::new(),
            sent: 0,
            is_over: false,
            delta: TrafficDelta::default(),
            has_failed_proof: false,
            proofs: Vec::new(),
            too_large: None,
        }
    }

    pub(super) fn is_admitted(&self) -> bool {
        self.admission.is_admitted()
    }

    pub(super) fn has_room(&self) -> bool {
        // Read no more bytes while a whole frame waits to be parsed. Requests that arrive too fast must wait in the
        // client's socket, where they use none of our memory.
        !self.is_over && self.is_caught_up() && self.unsent() < OUTPUT_BUFFER_BYTES
    }

    pub(super) fn is_caught_up(&self) -> bool {
        self.asks.is_empty() && !self.frames.has_next()
    }

    pub(super) fn unfinished_bytes(&self) -> usize {
        self.frames.waiting_bytes()
    }

    /// Returns the approximate number of bytes that are held until the client reads: unsent replies, and parsed
    /// requests that wait behind them.
    pub(super) fn held_bytes(&self) -> usize {
        let asked = match self.asks.is_empty() {
            true => 0,
            false => ASKED_FACTOR * self.asked_bytes,
        };
        self.unsent() + asked
    }

    pub(super) fn receive(&mut self, bytes: &[u8]) {
        self.delta.received_bytes += bytes.len() as u64;
        self.frames.push(bytes);
    }

    /// Parses requests that have arrived, up to the limits of the connection and the turn. After an error, the
    /// connection must be closed without a response.
    pub(super) fn parse_requests(
        &mut self,
        now: BootInstant,
        turn: &mut Turn,
    ) -> Result<(), ProtocolViolation> {
        if self.asks.is_empty() {
            self.asked_bytes = 0;
        }
        // At the limit of requests in flight, the next frame stays unparsed. Then `has_room` returns false, so we read
        // no more bytes.
        while !self.is_over && !turn.is_over() && self.pending.len() < self.limits.in_flight {
            let frame = match self.frames.next() {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(()),
                Err(_) => return Err(ProtocolViolation::Length),
            };
            self.delta.received += 1;
            turn.spend_request(frame.len());
            self.asked_bytes += frame.len();
            // In place of a refused frame, the store gets a ping. The ping keeps the responses in order, and counts as
            // a sign of life.
            let taken = match Incoming::read(frame) {
                // This client has not asked for Lockkeeper's own operations, so refuse them like any unknown operation.
                Ok(Incoming { xid, request }) if !self.is_extended && request.is_extension() => {
                    let (code, zxid) = (Code::Unimplemented, UNKNOWN_ZXID);
                    ParsedRequest::new(
                        xid,
                        0,
                        ResponseShape::Last { code, zxid },
                        SessionRequest::Ping,
                    )
                }
                Ok(incoming) => self.admission.admit(&incoming),
                Err(Refused::Answer { xid, code }) => {
                    ParsedRequest::new(xid, 0, ResponseShape::Refusal(code), SessionRequest::Ping)
                }
                Err(Refused::AnswerAndClose { xid, code }) => {
                    let zxid = UNKNOWN_ZXID;
                    ParsedRequest::new(
                        xid,
                        0,
                        ResponseShape::Last { code, zxid },
                        SessionRequest::Ping,
                    )
                }
                Err(Refused::Close) => return Err(ProtocolViolation::Frame),
            };
            self.is_over = taken.is_last();
            self.proofs.extend(taken.proof);
            // Count the failed proof now, because the client may disconnect before its delayed response is sent.
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

    pub(super) fn has_failed_proof(&mut self) -> bool {
        std::mem::take(&mut self.has_failed_proof)
    }

    pub(super) fn take_proofs(&mut self) -> Vec<ProofAttempt> {
        std::mem::take(&mut self.proofs)
    }

    pub(super) fn identities(&self) -> Vec<String> {
        self.admission.shown()
    }

    pub(super) fn renew(&mut self, access: &Access) -> bool {
        self.admission.renew(access)
    }

    pub(super) fn asks(&mut self) -> &mut VecDeque<SessionRequest> {
        &mut self.asks
    }

    pub(super) fn has_more(&self) -> bool {
        !self.is_over
            && self.asks.is_empty()
            && self.pending.len() < self.limits.in_flight
            && self.frames.has_next()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.unsent() == 0
    }

    pub(super) fn room(&self) -> usize {
        OUTPUT_BUFFER_BYTES.saturating_sub(self.unsent())
    }

    pub(super) fn is_done(&self) -> bool {
        self.is_over && self.is_idle()
    }

    pub(super) fn encode(&mut self, what: Message, now: BootInstant) {
        let start = self.out.len();
        match what {
            Message::WatchUpdate { watch, news } => self.encode_news(watch, &news),
            Message::Answer { zxid, answer } => self.encode_response(zxid, &answer, now),
        }
        self.delta.sent_bytes += (self.out.len() - start) as u64;
    }

    fn encode_news(&mut self, watch: WatchKey, news: &WatchUpdate) {
        self.delta.events += 1;
        put_frame(&mut self.out, |to| match news {
            WatchUpdate::Departure { zxid, gone } => {
                put_departure(&wire::departure(&watch, *gone), zxid.0, to)
            }
            WatchUpdate::Event(event) => {
                let zxid = event.zxid.map(|zxid| zxid.0);
                put_event(&wire::event(event), zxid, to)
            }
        });
    }

    fn encode_response(&mut self, zxid: Zxid, answer: &Result<CoreReply, Error>, now: BootInstant) {
        let Some(pending) = self.pending.pop_front() else {
            return; // cannot happen: the store replies once to each request, and to nothing else
        };
        let (xid, max_bytes) = (pending.xid, self.limits.outgoing_bytes);
        let out = &mut self.out;
        if let Err(error) = answer {
            self.requests.count_refusal(error);
        }
        let is_extended = self.is_extended;
        let reason = |error| Refusal::of(error).filter(|_| is_extended);
        let code = match &pending.shape {
            ResponseShape::Store(shape) => match shape.answer(answer) {
                Ok(response) if response.bytes() > max_bytes => {
                    self.too_large = Some(response.bytes());
                    let (what, limit) = (ANSWER_BYTES, max_bytes);
                    let refusal = Error::LimitReached { what, limit };
                    // A write has been executed even though its response is too large. Send no reason, because the
                    // client would conclude that the request was refused.
                    let refusal = reason(&refusal).filter(|_| shape.op().is_read());
                    put_refusal(out, xid, zxid.0, Code::SystemError, refusal)
                }
                Ok(response) => {
                    // A failed multi also has a response, which contains the codes of its parts.
                    let refusal = shape.failure(answer).and_then(reason);
                    put_response(out, xid, zxid, &response, refusal);
                    code_of(answer)
                }
                Err(code) => {
                    if let Err(Error::LimitReached { what, limit }) = answer
                        && *what == ANSWER_BYTES
                    {
                        self.too_large = Some(*limit);
                    }
                    let refusal = answer.as_ref().err().and_then(reason);
                    put_refusal(out, xid, zxid.0, code, refusal)
                }
            },
            ResponseShape::Refusal(code) => put_code(out, xid, zxid.0, *code),
            ResponseShape::Limit(error) => {
                put_refusal(out, xid, zxid.0, error.into(), reason(error))
            }
            ResponseShape::Last { code, zxid } => put_code(out, xid, *zxid, *code),
            ResponseShape::Identity(proved) => {
                let taken = answer.as_ref().map(|_| ()).map_err(Code::from);
                // `Admission` has already added the identity. If the store refuses it, `Admission` and the store
                // disagree about the client's rights, so the connection ends.
                self.is_over |= proved.is_ok() && taken.is_err();
                let code = proved.and(taken).err().unwrap_or(Code::Ok);
                let refusal = answer.as_ref().err().and_then(reason);
                put_refusal(out, xid, 0, code, refusal.filter(|_| proved.is_ok()))
            }
            ResponseShape::Done => put_code(out, xid, zxid.0, code_of(answer)),
            ResponseShape::Watches => {
                let had = !matches!(answer, Ok(Reply::Count(0)));
                let code = if had {
                    code_of(answer)
                } else {
                    Code::NoWatcher
                };
                put_code(out, xid, zxid.0, code)
            }
            ResponseShape::WhoAmI(who_am_i) => {
                let info = |(scheme, user): &'_ (String, String)| ClientInfo {
                    scheme: scheme.clone().into(),
                    user: user.clone().into(),
                };
                let infos = who_am_i.iter().map(info).collect();
                let response = Response::WhoAmI(infos);
                if response.bytes() > max_bytes {
                    put_code(out, xid, zxid.0, Code::SystemError)
                } else {
                    put_response(out, xid, zxid, &response, None);
                    Code::Ok
                }
            }
        };
        let took = now.since(pending.since);
        self.requests.count(pending.op, code, took);
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

    pub(super) fn outgoing(&self) -> &[u8] {
        &self.out[self.sent..]
    }

    pub(super) fn drop_outgoing(&mut self) {
        self.advance(self.unsent());
    }

    pub(super) fn advance(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.sent == self.out.len() {
            self.out.clear();
            // An idle connection must not keep the buffer of a large reply.
            self.out.shrink_to(IDLE_BUFFER_BYTES);
            self.sent = 0;
        } else if self.sent >= self.unsent() {
            // With a slow client the buffer may never become empty. Move the unsent bytes to the front only when they
            // are no more than the sent bytes. So we move at most one byte for each byte sent.
            self.out.drain(..self.sent);
            self.sent = 0;
        }
    }

    fn unsent(&self) -> usize {
        self.out.len() - self.sent
    }

    pub(super) fn too_large(&mut self) -> Option<usize> {
        self.too_large.take()
    }

    pub(super) fn traffic(&mut self) -> TrafficDelta {
        std::mem::take(&mut self.delta)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ProtocolViolation {
    #[error("the length of a frame is negative or above the limit")]
    Length,
    #[error("a frame has no whole header")]
    Frame,
}

pub(super) struct ParsedRequest {
    xid: i32,
    op: i32,
    shape: ResponseShape,
    ask: SessionRequest,
    /// `None` if the request is not a proof of identity or repeats an earlier proof.
    proof: Option<ProofAttempt>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ProofAttempt {
    Accepted,
    Refused(Option<String>),
}

impl ParsedRequest {
    fn new(xid: i32, op: i32, shape: ResponseShape, ask: SessionRequest) -> Self {
        Self {
            xid,
            op,
            shape,
            ask,
            proof: None,
        }
    }

    fn is_last(&self) -> bool {
        match &self.shape {
            ResponseShape::Last { .. } | ResponseShape::Identity(Err(_)) => true,
            ResponseShape::Store(shape) => shape.op() == Op::CloseSession,
            _ => false,
        }
    }
}

impl Admission {
    /// Converts a client's request to a request to the store, or refuses it. Until the client is admitted, it may only
    /// send proofs of identity, pings and closeSession.
    fn admit(&mut self, incoming: &Incoming<'_>) -> ParsedRequest {
        let (xid, request) = (incoming.xid, &incoming.request);
        let op = request.op();
        let known = self.known();
        let (shape, ask) = match request {
            wire::Request::Auth(auth) => self.auth(&auth.scheme, auth.auth),
            wire::Request::Sasl(_) => (
                ResponseShape::Identity(Err(Code::AuthFailed)),
                SessionRequest::Ping,
            ),
            wire::Request::Ping => (ResponseShape::Done, SessionRequest::Ping),
            wire::Request::CloseSession => store(request),
            // ZooKeeper gives this answer under `enforce.auth`, and clients report it as a failed authentication.
            _ if !self.is_admitted() => {
                let code = Code::SessionClosedRequireSaslAuth;
                (ResponseShape::Last { code, zxid: 0 }, SessionRequest::Ping)
            }
            wire::Request::WhoAmI => (ResponseShape::WhoAmI(self.who_am_i()), SessionRequest::Ping),
            other => store_request(other),
        };
        let proof = match (&shape, request) {
            (ResponseShape::Identity(Err(_)), wire::Request::Auth(auth)) => {
                Some(ProofAttempt::Refused(claimed_user(&auth.scheme, auth.auth)))
            }
            (ResponseShape::Identity(Err(_)), _) => Some(ProofAttempt::Refused(None)),
            // Record each identity once, because a client may prove the same identity any number of times.
            (ResponseShape::Identity(Ok(())), _) => {
                (self.known() > known).then_some(ProofAttempt::Accepted)
            }
            _ => None,
        };
        ParsedRequest {
            proof,
            ..ParsedRequest::new(xid, op.number(), shape, ask)
        }
    }

    fn auth(&mut self, scheme: &str, secret: &[u8]) -> (ResponseShape, SessionRequest) {
        match self.prove(scheme, secret) {
            Proof::Accepted(identity) => (
                ResponseShape::Identity(Ok(())),
                SessionRequest::Identify(identity),
            ),
            Proof::Known => (ResponseShape::Identity(Ok(())), SessionRequest::Ping),
            Proof::Refused => (
                ResponseShape::Identity(Err(Code::AuthFailed)),
                SessionRequest::Ping,
            ),
            Proof::LimitReached(error) => (ResponseShape::Limit(error), SessionRequest::Ping),
        }
    }
}

fn store_request(request: &wire::Request<'_>) -> (ResponseShape, SessionRequest) {
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
        wire::Request::CheckWatches(it) => watches(&it.path, it.kind, SessionRequest::CheckWatches),
        wire::Request::RemoveWatches(it) => {
            watches(&it.path, it.kind, SessionRequest::RemoveWatches)
        }
        wire::Request::ForgetWatch(it) => {
            let number = it.watch.cast_unsigned();
            (ResponseShape::Watches, SessionRequest::ForgetWatch(number))
        }
        wire::Request::Reconfig(_) => (
            ResponseShape::Refusal(Code::Unimplemented),
            SessionRequest::Ping,
        ),
        other => store(other),
    }
}

fn store(request: &wire::Request<'_>) -> (ResponseShape, SessionRequest) {
    match to_store(request) {
        Ok((Some(asked), shape)) => (ResponseShape::Store(shape), SessionRequest::Request(asked)),
        Ok((None, _)) => (
            ResponseShape::Refusal(Code::Unimplemented),
            SessionRequest::Ping,
        ),
        Err(code) => (ResponseShape::Refusal(code), SessionRequest::Ping),
    }
}

fn set_watches(asked: SetWatches) -> (ResponseShape, SessionRequest) {
    (ResponseShape::Done, SessionRequest::SetWatches(asked))
}

/// Leaves out invalid paths, because no event can occur there.
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
    ask: impl FnOnce(ZnodePath, WatchFilter) -> SessionRequest,
) -> (ResponseShape, SessionRequest) {
    let which = match kind {
        1 => WatchFilter::Child,
        2 => WatchFilter::Data,
        3 => WatchFilter::Any,
        4 => WatchFilter::Mode(WatchMode::Persistent),
        5 => WatchFilter::Mode(WatchMode::PersistentRecursive),
        _ => {
            return (
                ResponseShape::Refusal(Code::MarshallingError),
                SessionRequest::Ping,
            );
        }
    };
    match ZnodePath::new(path) {
        Ok(path) => (ResponseShape::Watches, ask(path, which)),
        Err(_) => (
            ResponseShape::Refusal(Code::NoWatcher),
            SessionRequest::Ping,
        ),
    }
}

fn code_of(answer: &Result<CoreReply, Error>) -> Code {
    answer.as_ref().err().map_or(Code::Ok, Code::from)
}

fn put_code(out: &mut Vec<u8>, xid: i32, zxid: i64, code: Code) -> Code {
    use crate::wire::Jute;
    put_frame(out, |to| ReplyHeader::new(xid, zxid, code).put(to));
    code
}

fn put_refusal(
    out: &mut Vec<u8>,
    xid: i32,
    zxid: i64,
    code: Code,
    refusal: Option<Refusal<'_>>,
) -> Code {
    use crate::wire::Jute;
    put_frame(out, |to| {
        ReplyHeader::new(xid, zxid, code).put(to);
        refusal.iter().for_each(|refusal| refusal.put(to));
    });
    code
}

fn put_response(
    out: &mut Vec<u8>,
    xid: i32,
    zxid: Zxid,
    response: &Response<'_>,
    refusal: Option<Refusal<'_>>,
) {
    use crate::wire::Jute;
    out.reserve(response.bytes() + REPLY_HEADER_BYTES);
    put_frame(out, |to| {
        response.put_with_header(xid, zxid.0, to);
        refusal.iter().for_each(|refusal| refusal.put(to));
    });
}

const REPLY_HEADER_BYTES: usize = LENGTH_BYTES + 16;
