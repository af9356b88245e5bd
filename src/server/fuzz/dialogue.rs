//! [`Dialogue`]: one connection as its client sees it, with checks of the order of replies and events.
//!
//! The dialogue parses the client's bytes like the server does, so it knows which replies are due, even for malformed
//! bytes.

use std::collections::{BTreeSet, VecDeque};

use crate::server::handshake::MAX_HANDSHAKE_BYTES;
use crate::wire::admin::Word;
use crate::wire::fuzz::Known;
use crate::wire::{
    Ahead, Code, ConnectResponse, Departure, Frames, Handshake, Incoming, LARGEST_FRAME_BYTES, Op,
    Reader, Refusal, Refused, ReplyHeader, Request, Response, UNKNOWN_ZXID, WatcherEvent, xid,
};

pub(super) struct Dialogue {
    sent: Frames,
    told: Frames,
    phase: Phase,
    version: i32,
    pending: VecDeque<Pending>,
    /// True once the server must close the connection.
    is_over: bool,
    replied: i64,
    fired: i64,
    armed: BTreeSet<i64>,
    watched: BTreeSet<String>,
    recursive: BTreeSet<String>,
    pub(super) replies: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    New,
    Asked,
    Open,
    Closed,
    /// A request has used the xid of events, so its reply cannot be distinguished from an event.
    Ambiguous,
}

struct Pending {
    xid: i32,
    due: Result<Op, Code>,
    arms: Vec<(String, bool)>,
}

pub(super) struct Granted {
    pub(super) session: i64,
    pub(super) password: Vec<u8>,
}

impl Dialogue {
    pub(super) fn new() -> Self {
        Self {
            sent: Frames::new(MAX_HANDSHAKE_BYTES),
            told: Frames::new(LARGEST_FRAME_BYTES),
            phase: Phase::New,
            version: 0,
            pending: VecDeque::new(),
            is_over: false,
            replied: 0,
            fired: 0,
            armed: BTreeSet::new(),
            watched: BTreeSet::new(),
            recursive: BTreeSet::new(),
            replies: 0,
        }
    }

    pub(super) fn is_answered(&self) -> bool {
        let is_proof = |it: &Pending| matches!(it.due, Ok(Op::Auth | Op::Sasl));
        self.phase != Phase::Open || self.pending.is_empty() || self.pending.iter().any(is_proof)
    }

    // -- The client's bytes

    pub(super) fn send(&mut self, bytes: &[u8], frame_bytes: usize) {
        self.sent.push(bytes);
        if self.phase == Phase::New && self.sent.word().and_then(Word::parse).is_some() {
            self.phase = Phase::Closed;
        }
        while !self.is_over && self.phase != Phase::Closed {
            let frame = match self.sent.next() {
                Ok(Some(frame)) => frame.to_vec(),
                Ok(None) => return,
                Err(_) => break,
            };
            match self.phase {
                Phase::New => self.ask(&frame),
                _ => self.expect(&frame),
            }
            self.sent.set_limit(frame_bytes);
        }
        self.is_over = true;
    }

    fn ask(&mut self, frame: &[u8]) {
        self.phase = match Handshake::read(frame) {
            Ok(handshake) => {
                self.version = handshake.version;
                Phase::Asked
            }
            Err(_) => Phase::Closed,
        };
    }

    fn expect(&mut self, frame: &[u8]) {
        let (xid, due, arms) = match Incoming::read(frame) {
            Ok(Incoming { xid, request }) if self.version == 0 && request.is_extension() => {
                self.is_over = true;
                (xid, Err(Code::Unimplemented), Vec::new())
            }
            Ok(Incoming { xid, request }) => {
                self.is_over |= matches!(request, Request::CloseSession | Request::Sasl(_));
                (xid, Ok(request.op()), armed_by(&request))
            }
            Err(Refused::Answer { xid, code }) => (xid, Err(code), Vec::new()),
            Err(Refused::AnswerAndClose { xid, code }) => {
                self.is_over = true;
                (xid, Err(code), Vec::new())
            }
            Err(Refused::Close) => {
                self.is_over = true;
                return;
            }
        };
        if [xid::EVENT, xid::DEPARTURE].contains(&xid) {
            self.phase = Phase::Ambiguous;
        }
        self.pending.push_back(Pending { xid, due, arms });
    }

    // -- The server's bytes

    pub(super) fn receive(&mut self, bytes: &[u8], known: &mut Known) -> Option<Granted> {
        if matches!(self.phase, Phase::Closed | Phase::Ambiguous) {
            return None;
        }
        self.told.push(bytes);
        let mut granted = None;
        while let Some(frame) = self.told.next().expect("the server's frames have lengths") {
            let frame = frame.to_vec();
            match self.phase {
                Phase::Asked => granted = self.welcome(&frame),
                Phase::Open => self.hear(&frame, known),
                other => panic!("a frame to a client that is {other:?}"),
            }
        }
        granted
    }

    fn welcome(&mut self, frame: &[u8]) -> Option<Granted> {
        let response: ConnectResponse<'_> = Reader::new(frame).next().expect("a ConnectResponse");
        let is_open = response.session != 0;
        self.phase = if is_open { Phase::Open } else { Phase::Closed };
        let version = response.protocol_version;
        let agreed = if is_open { self.version } else { 0 };
        assert_eq!(version, agreed, "the version that was asked for");
        is_open.then(|| Granted {
            session: response.session,
            password: response.password.to_vec(),
        })
    }

    fn hear(&mut self, frame: &[u8], known: &mut Known) {
        let mut body = Reader::new(frame);
        let header: ReplyHeader = body.next().expect("a header");
        match header.xid {
            xid::EVENT => self.hear_event(&header, &mut body),
            xid::DEPARTURE => self.hear_departure(&header, &mut body),
            _ => self.hear_reply(&header, frame, known),
        }
    }

    fn hear_event(&mut self, header: &ReplyHeader, body: &mut Reader<'_>) {
        let event: WatcherEvent<'_> = body.next().expect("an event");
        assert_eq!((header.err, event.state), (0, 3));
        assert!(body.is_empty(), "bytes behind {event:?}");
        let path = &*event.path.0;
        let mut setting = self.pending.iter().filter(|it| {
            let is_setting = matches!(it.due, Ok(Op::SetWatches | Op::SetWatches2));
            is_setting && it.arms.iter().any(|(at, below)| covers(at, *below, path))
        });
        let is_setting = setting.next().is_some();
        if header.zxid == UNKNOWN_ZXID {
            assert!(is_setting, "no setWatches asks for {event:?}");
            return;
        }
        self.hear_transaction(header);
        let is_armed = self.watched.iter().any(|at| covers(at, false, path))
            || self.recursive.iter().any(|at| covers(at, true, path));
        assert!(is_armed || is_setting, "no reply has armed {event:?}");
    }

    fn hear_departure(&mut self, header: &ReplyHeader, body: &mut Reader<'_>) {
        let departure: Departure = body.next().expect("a departure");
        assert!(self.version != 0 && body.is_empty(), "{departure:?}");
        self.hear_transaction(header);
        let was_armed = self.armed.remove(&departure.watch);
        assert!(was_armed, "no reply has armed {departure:?}");
    }

    /// An event must arrive before any reply that reveals the event's transaction.
    fn hear_transaction(&mut self, header: &ReplyHeader) {
        let zxid = header.zxid;
        assert!(zxid >= self.fired, "{header:?} after {:#x}", self.fired);
        assert!(zxid > self.replied, "{header:?} after {:#x}", self.replied);
        self.fired = zxid;
    }

    fn hear_reply(&mut self, header: &ReplyHeader, frame: &[u8], known: &mut Known) {
        let record = &frame[REPLY_HEADER_BYTES..];
        let mut body = Reader::new(record);
        let pending = self.pending.pop_front().expect("a reply is due");
        assert_eq!(header.xid, pending.xid, "replies come in turn");
        self.check_zxid(header, &pending);
        self.replies += 1;
        known.seen = self.replied;
        match (header.err, pending.due) {
            (0, Ok(op)) => {
                let response = Response::read(op, &mut body).expect("the record of a reply");
                let mut again = Vec::new();
                response.put(&mut again);
                assert!(record.starts_with(&again), "{response:?}");
                self.check_reason(&mut body);
                self.learn(&response, known);
            }
            (0, Err(code)) => panic!("{code:?} is due, and not a reply"),
            _ => self.check_reason(&mut body),
        }
        let is_missing = header.err == Code::NoNode.number() && pending.due == Ok(Op::Exists);
        if header.err == 0 || is_missing {
            for (path, below) in pending.arms {
                match below {
                    true => self.recursive.insert(path),
                    false => self.watched.insert(path),
                };
            }
        }
    }

    fn check_reason(&self, rest: &mut Reader<'_>) {
        if rest.is_empty() {
            return;
        }
        assert!(self.version != 0, "a reply has a reason");
        let refusal = rest.next::<Refusal<'_>>();
        refusal.expect("the reason of a refusal");
        assert!(rest.is_empty(), "bytes behind a refusal");
    }

    fn check_zxid(&mut self, header: &ReplyHeader, pending: &Pending) {
        match (header.zxid, pending.due) {
            (0, Ok(Op::Auth | Op::Sasl)) => {}
            (0, _) => assert_eq!(header.err, Code::SessionClosedRequireSaslAuth.number()),
            (UNKNOWN_ZXID, due) => assert_eq!(due, Err(Code::Unimplemented)),
            (zxid, _) => {
                assert!(zxid >= self.replied, "{header:?} after {:#x}", self.replied);
                assert!(zxid >= self.fired, "{header:?} after {:#x}", self.fired);
                self.replied = zxid;
            }
        }
    }

    fn learn(&mut self, response: &Response<'_>, known: &mut Known) {
        let mut learn_path = |path: &str| {
            if known.paths.len() < MAX_KNOWN {
                known.paths.push(path.to_owned());
            }
        };
        match response {
            Response::Path(path) => learn_path(&path.0),
            Response::Created(path, stat) => {
                learn_path(&path.0);
                known.mzxid = stat.mzxid.0;
            }
            Response::Enqueued(path, _, ahead) => {
                learn_path(&path.0);
                self.learn_watch(ahead, known);
            }
            Response::Ahead(ahead) => self.learn_watch(ahead, known),
            Response::Stat(stat) => known.mzxid = stat.mzxid.0,
            Response::Multi(results) => {
                for result in results {
                    if let Ok((_, Response::Path(path) | Response::Created(path, _))) = result {
                        learn_path(&path.0);
                    }
                }
            }
            _ => {}
        }
    }

    fn learn_watch(&mut self, ahead: &Ahead<'_>, known: &mut Known) {
        if let Ahead::Blocked { watch, .. } = ahead {
            self.armed.insert(*watch);
            if known.watches.len() < MAX_KNOWN {
                known.watches.push(*watch);
            }
        }
    }
}

const REPLY_HEADER_BYTES: usize = 16;

const MAX_KNOWN: usize = 64;

fn covers(at: &str, is_recursive: bool, path: &str) -> bool {
    let root = if at.is_empty() { "/" } else { at };
    let below = root.trim_end_matches('/');
    root == path
        || is_recursive
            && path
                .strip_prefix(below)
                .is_some_and(|rest| rest.starts_with('/'))
}

fn armed_by(request: &Request<'_>) -> Vec<(String, bool)> {
    let one = |path: &str, below| vec![(path.to_owned(), below)];
    match request {
        Request::Exists(read)
        | Request::GetData(read)
        | Request::GetChildren(read)
        | Request::GetChildren2(read)
            if read.watch =>
        {
            one(&read.path.0, false)
        }
        Request::AddWatch(add) => one(&add.path, add.mode == 1),
        Request::SetWatches(set) => {
            let lists = [&set.data.0, &set.exist.0, &set.child.0];
            let paths = lists.into_iter().flatten();
            paths.map(|path| (path.0.to_string(), false)).collect()
        }
        Request::SetWatches2(set) => {
            let lists = [&set.data.0, &set.exist.0, &set.child.0, &set.persistent.0];
            let paths = lists.into_iter().flatten().map(|path| (path, false));
            let below = set.recursive.0.iter().map(|path| (path, true));
            let all = paths.chain(below);
            all.map(|(path, below)| (path.0.to_string(), below))
                .collect()
        }
        _ => Vec::new(),
    }
}
