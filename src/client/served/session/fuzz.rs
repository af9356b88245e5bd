//! Entry point of the fuzzer `client`, which runs a session against a server that sends well-formed and malformed
//! answers. The fuzzer checks that each request is answered exactly once, that the session sends only valid frames, and
//! that each event belongs to a watch that a reply armed.

use std::collections::{BTreeSet, VecDeque};

use super::*;
use crate::model::types::Stat;
use crate::wire::fuzz::{Choice, Inputs, Known};
use crate::wire::{
    AclRecord, Ahead, ClientInfo, Code, ConnectResponse, Departure, Incoming, LARGEST_FRAME_BYTES,
    Reader, ReplyHeader, Request as WireRequest, Response, WatcherEvent, put_departure, put_event,
    to_store,
};

const STEP_BYTES: usize = 6;

const MAX_STEPS: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Connect,
    Welcome,
    Lose,
    Wait,
    Submit,
    Answer,
    Event,
    Departure,
    Raw,
    Unwatch,
    Close,
    Other,
}

const ACTIONS: [Action; 16] = [
    Action::Connect,
    Action::Welcome,
    Action::Lose,
    Action::Wait,
    Action::Submit,
    Action::Submit,
    Action::Submit,
    Action::Answer,
    Action::Answer,
    Action::Answer,
    Action::Event,
    Action::Departure,
    Action::Raw,
    Action::Unwatch,
    Action::Close,
    Action::Other,
];

#[derive(Default)]
struct Asked {
    frames: Option<Frames>,
    has_handshake: bool,
    requests: VecDeque<(i32, Op)>,
}

struct World {
    session: ClientSession<u32>,
    now: BootInstant,
    asked: Asked,
    callers: BTreeSet<u32>,
    next_caller: u32,
    watches: BTreeSet<WatchKey>,
    known: Known,
    replies: usize,
}

pub(crate) fn client(bytes: &[u8]) -> bool {
    let mut world = World::new();
    let mut rest = bytes;
    for _ in 0..MAX_STEPS {
        let Some((step, after)) = rest.split_first_chunk() else {
            break;
        };
        rest = world.take(*step, after);
        world.settle();
    }
    world.finish()
}

impl World {
    fn new() -> Self {
        let now = BootInstant::from_nanos(1_000_000_000);
        let options = SessionOptions {
            is_plain: false,
            servers: 1,
            tick: Duration::from_secs(2),
            timeout: Duration::from_secs(12),
            close_timeout: Duration::from_secs(3),
            auth: vec![("digest".into(), Secret::new(&b"u:secret"[..]))],
            process: None,
            longest_pause: Duration::from_secs(1),
            seed: 7,
        };
        Self {
            session: ClientSession::new(options, now),
            now,
            asked: Asked::default(),
            callers: BTreeSet::new(),
            next_caller: 0,
            watches: BTreeSet::new(),
            known: Known::default(),
            replies: 0,
        }
    }

    fn take<'a>(&mut self, step: [u8; STEP_BYTES], rest: &'a [u8]) -> &'a [u8] {
        let [action, count, op, path, detail, flags] = step;
        let choice = Choice {
            op,
            path,
            detail,
            flags,
        };
        let (raw, after) = rest.split_at(usize::from(count % 64).min(rest.len()));
        match ACTIONS[usize::from(action % 16)] {
            Action::Connect => {
                self.asked = Asked {
                    frames: Some(Frames::new(LARGEST_FRAME_BYTES)),
                    ..Asked::default()
                };
                self.session.connected(self.now);
            }
            Action::Welcome => self.welcome(choice),
            Action::Lose => self.session.disconnected(self.now),
            Action::Wait => {
                let next = self.session.next_timeout().filter(|_| op % 4 > 0);
                let later = self.now.after(Duration::from_secs(u64::from(count)));
                self.now = next.map_or(later, |next| next.max(self.now));
                self.session.handle_timeout(self.now);
            }
            Action::Submit => self.submit(choice),
            Action::Answer => {
                let is_raw = count & 128 != 0;
                self.answer(choice, if is_raw { raw } else { &[] });
                return if is_raw { after } else { rest };
            }
            Action::Event => self.send(|to| {
                let path = choice.path(&Known::default());
                let event = WatcherEvent {
                    kind: i32::from(detail % 6),
                    state: 3,
                    path: path.into(),
                };
                put_event(&event, Some(i64::from(flags) - 1), to);
            }),
            Action::Departure => {
                let departure = Departure {
                    watch: i64::from(detail % 8),
                    clear: flags.is_multiple_of(2),
                    reason: i32::from(flags / 2),
                };
                self.send(|to| put_departure(&departure, i64::from(op), to));
            }
            Action::Raw => {
                match op % 2 {
                    0 => self.session.received(raw, self.now),
                    _ => self.send(|to| to.extend_from_slice(raw)),
                }
                return after;
            }
            Action::Unwatch => {
                let chosen = self.watches.iter().nth(usize::from(detail % 8)).copied();
                let key = chosen.unwrap_or(u64::from(detail));
                self.watches.remove(&key);
                self.session.unwatch(key, self.now);
            }
            Action::Close => self.submit_request(Request::Close),
            Action::Other => match detail % 8 {
                0 => self.session.give_up(),
                1 => self.session.abandon(),
                2 => self.session.set_chroot(&"/a".parse().expect("a path")),
                _ => self.session.set_chroot(&ZnodePath::root()),
            },
        }
        rest
    }

    fn send(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        let mut frame = Vec::new();
        put_frame(&mut frame, put);
        self.session.received(&frame, self.now);
    }

    fn welcome(&mut self, choice: Choice) {
        let Choice {
            op,
            path,
            detail,
            flags,
        } = choice;
        let response = ConnectResponse {
            protocol_version: match op % 4 {
                0..2 => EXTENSION,
                2 => 0,
                _ => EXTENSION - 1,
            },
            timeout_ms: [12_000, 4_000, 0, -1, i32::MAX, 1][usize::from(path % 6)],
            session: [0x17, 0x17, 0x17, 0x17, 0x18, 0, -1, 0x17][usize::from(detail % 8)],
            password: [&[7; PASSWORD_BYTES][..], &[], &[8; PASSWORD_BYTES]]
                [usize::from(flags >> 1).min(2)],
            read_only: (flags.is_multiple_of(2)).then_some(false),
        };
        self.send(|to| response.put(to));
    }

    fn submit(&mut self, choice: Choice) {
        let mut more = || Some(choice.next());
        let request = choice.request(&self.known, &mut more);
        if let WireRequest::Auth(auth) = &request {
            let secret = Secret::new(auth.auth.to_vec());
            let scheme = auth.scheme.to_string();
            return self.submit_request(Request::AddAuth { scheme, secret });
        }
        if let Ok((Some(request), _)) = to_store(&request) {
            self.submit_request(request);
        }
    }

    fn submit_request(&mut self, request: Request) {
        self.next_caller += 1;
        self.callers.insert(self.next_caller);
        self.session.submit(self.next_caller, request, self.now);
    }

    fn answer(&mut self, choice: Choice, raw: &[u8]) {
        let Some((xid, op)) = self.asked.requests.pop_front() else {
            return;
        };
        let code = match choice.detail % 8 {
            0 => Code::NoNode,
            1 => Code::SessionExpired,
            2 => Code::SystemError,
            3 => Code::NodeExists,
            _ => Code::Ok,
        };
        let xid = if choice.flags == 255 { xid + 1 } else { xid };
        let zxid = i64::from(choice.flags);
        let path = choice.path(&self.known);
        self.send(|to| {
            ReplyHeader::new(xid, zxid, code).put(to);
            match raw {
                [] if code == Code::Ok => response_of(op, &path, choice).put(to),
                raw => to.extend_from_slice(raw),
            }
        });
    }

    fn settle(&mut self) {
        while let Some(output) = self.session.next_output() {
            self.carry_out(output);
        }
        let bytes = self.session.outgoing().to_vec();
        self.session.advance(bytes.len());
        self.asked.read(&bytes);
        let under_way = self.session.under_way.len() + self.session.queued.len();
        assert!(under_way > 0 || self.session.held_bytes == 0);
        assert!(under_way == 0 || !self.session.is_over());
        if let Some(next) = self.session.next_timeout() {
            assert!(!self.session.is_over(), "{next:?}");
        }
    }

    fn carry_out(&mut self, output: Output<u32>) {
        match output {
            Output::Reply(caller, reply) => {
                assert!(self.callers.remove(&caller), "{caller} is answered again");
                if let Ok(reply) = &reply {
                    self.replies += 1;
                    self.learn(reply);
                }
            }
            Output::Event {
                key,
                is_last,
                event,
            } => {
                assert!(self.watches.contains(&key), "{event:?} of no watch");
                if is_last {
                    self.watches.remove(&key);
                }
            }
            Output::Unwatched(key) => {
                assert!(self.watches.remove(&key), "{key} is no watch");
            }
            Output::Interrupted(key) => assert!(self.watches.contains(&key), "{key}"),
            Output::Disconnect => self.asked = Asked::default(),
            Output::Connect(_) | Output::Opened(_) | Output::Suspended | Output::Ended(_) => {}
        }
    }

    fn learn(&mut self, reply: &Reply<WatchKey, WatchKey>) {
        let watch = match reply {
            Reply::Exists { watcher, .. }
            | Reply::Data { watcher, .. }
            | Reply::Children { watcher, .. } => *watcher,
            Reply::Watching(key) => Some(*key),
            Reply::Enqueued { ahead, .. } | Reply::Predecessor(ahead) => match ahead {
                Predecessor::Blocked { watcher, .. } => Some(*watcher),
                _ => None,
            },
            _ => None,
        };
        if let Some(key) = watch {
            assert!(self.watches.insert(key), "watch {key} is given out again");
        }
        if let Reply::Created { path, .. } | Reply::Enqueued { path, .. } = reply
            && self.known.paths.len() < 8
        {
            self.known.paths.push(path.to_string());
        }
    }

    fn finish(mut self) -> bool {
        self.session.give_up();
        self.settle();
        assert_eq!(self.callers, BTreeSet::new(), "callers without an answer");
        assert_eq!(self.session.next_timeout(), None);
        self.replies > 0
    }
}

impl Asked {
    fn read(&mut self, bytes: &[u8]) {
        let Some(frames) = &mut self.frames else {
            return;
        };
        frames.push(bytes);
        while let Some(frame) = frames.next().expect("a frame within the limit") {
            if !self.has_handshake {
                let handshake = Reader::new(frame).next::<wire::ConnectRequest<'_>>();
                handshake.expect("a handshake");
                self.has_handshake = true;
                continue;
            }
            let Incoming { xid, request } = Incoming::read(frame).expect("a request");
            self.requests.push_back((xid, request.op()));
        }
    }
}

fn response_of<'a>(op: Op, path: &'a str, choice: Choice) -> Response<'a> {
    let stat = Stat {
        version: i32::from(choice.flags),
        ..Stat::default()
    };
    let open = || AclRecord {
        perms: i32::from(choice.flags),
        scheme: "world".into(),
        id: "anyone".into(),
    };
    let names = || vec![path.into(), "lock-0000000001".into()];
    let ahead = || match choice.detail >> 4 {
        0..10 => Ahead::Blocked {
            by: path.into(),
            watch: i64::from(choice.flags % 8),
            count: i32::from(choice.flags) - 1,
        },
        10 | 11 => Ahead::Clear,
        12 => Ahead::Gone,
        13 => Ahead::Listed(names()),
        _ => Ahead::Unknown,
    };
    match op {
        Op::Create => Response::Path(path.into()),
        Op::Create2 | Op::CreateContainer | Op::CreateTtl => Response::Created(path.into(), stat),
        Op::Exists | Op::SetData | Op::SetAcl => Response::Stat(stat),
        Op::GetData | Op::Reconfig => Response::Data(b"data", stat),
        Op::GetAcl => Response::Acl(vec![open()], stat),
        Op::GetChildren | Op::GetEphemerals => Response::Names(names()),
        Op::GetChildren2 => Response::Children(names(), stat),
        Op::GetAllChildrenNumber => Response::Count(i32::from(choice.flags) - 8),
        Op::AddWatch => Response::Watching(0),
        Op::Sync => Response::Synced(Some(path.into())),
        Op::Multi | Op::MultiRead => {
            let results = [
                Ok((Op::Create2, Response::Created(path.into(), stat))),
                Ok((Op::Create, Response::Path(path.into()))),
                Ok((Op::Delete, Response::Empty)),
                Ok((Op::SetData, Response::Stat(stat))),
                Ok((Op::Check, Response::Empty)),
                Ok((Op::GetData, Response::Data(b"data", stat))),
                Ok((Op::GetChildren, Response::Names(names()))),
                Err(i32::from(choice.op) - 120),
            ];
            let first = usize::from(choice.op) % results.len();
            let count = usize::from(choice.detail >> 4) % 5;
            let results = results.into_iter().cycle().skip(first).take(count);
            Response::Multi(results.collect())
        }
        Op::Sasl => Response::Token(None),
        Op::WhoAmI => Response::WhoAmI(vec![ClientInfo {
            scheme: "ip".into(),
            user: path.into(),
        }]),
        Op::Enqueue => Response::Enqueued(path.into(), i64::from(choice.flags), ahead()),
        Op::GetPredecessor => Response::Ahead(ahead()),
        Op::GetQueue => Response::Queue(names(), choice.flags.is_multiple_of(2)),
        _ => Response::Empty,
    }
}

pub(crate) fn sessions() -> Inputs {
    let opened = [[0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]];
    let step = |action: Action, choice: Choice| {
        let number = ACTIONS.iter().position(|other| *other == action);
        let [op, path, detail, flags] = choice.bytes();
        [
            number.map_or(0, |number| number as u8),
            0,
            op,
            path,
            detail,
            flags,
        ]
    };
    let ask = |op, path, detail, flags| step(Action::Submit, Choice::of(op, path, detail, flags));
    let answer = |detail, flags| step(Action::Answer, Choice::of(Op::Ping, "/a", detail, flags));
    let event = |kind| step(Action::Event, Choice::of(Op::Ping, "/a", kind, 9));
    let wait = [3, 0, 1, 0, 0, 0];
    let proved = answer(4, 0);
    let locks = [
        ask(Op::Enqueue, "/q", 0, 2),
        answer(4, 3),
        step(Action::Departure, Choice::of(Op::Ping, "/", 3, 2)),
        ask(Op::GetPredecessor, "/q", 0, 1),
        answer(4, 4),
        step(Action::Unwatch, Choice::of(Op::Ping, "/", 0, 0)),
        ask(Op::Withdraw, "/q", 0, 0),
        answer(4, 0),
    ];
    let watches = [
        ask(Op::GetData, "/a", 0, 1),
        ask(Op::Exists, "/a", 0, 1),
        ask(Op::AddWatch, "/a", 1, 0),
        answer(4, 1),
        answer(0, 1),
        answer(4, 1),
        event(1),
        event(3),
        step(Action::Lose, Choice::of(Op::Ping, "/", 0, 0)),
        wait,
        opened[0],
        opened[1],
        answer(4, 0),
        event(2),
    ];
    let every: Vec<_> = Op::ALL
        .iter()
        .flat_map(|op| [ask(*op, "/a", 4, 0), answer(4, 3)])
        .collect();
    let close = [
        step(Action::Close, Choice::of(Op::Ping, "/", 0, 0)),
        answer(4, 0),
    ];
    let of = |begin: &[[u8; STEP_BYTES]], rest: &[[u8; STEP_BYTES]]| {
        [&[wait][..], begin, &[proved], rest].concat().concat()
    };
    let plain = [opened[0], [1, 0, 2, 0, 0, 0]];
    vec![
        ("locks", of(&opened, &locks)),
        ("watches", of(&opened, &watches)),
        ("watches-plain", of(&plain, &watches)),
        ("every", of(&opened, &every)),
        ("every-plain", of(&plain, &every)),
        ("close", of(&opened, &[&locks[..2], &close].concat())),
        ("cut", of(&opened[..1], &[[12, 0, 0, 0, 0, 0]])),
    ]
}
