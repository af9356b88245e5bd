//! Entry point of the fuzzer `conversation`: several clients talk to one server, in virtual time.
//!
//! The first byte chooses the limits and the size of pieces. Each of the following groups of six bytes is a
//! [`FuzzStep`], so every input is a valid conversation. [`Dialogue`] checks each connection.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::Instant;

use super::dialogue::Dialogue;
use super::pipe::Pipe;
use super::{RUNTIME, Woken, assert_all_ends};
use crate::engine::{Store, StoreOptions};
use crate::model::types::SessionId;
use crate::runtime::clock::Clock;
use crate::runtime::future::BoxFuture;
use crate::server::admin::ListenAddresses;
use crate::server::connection::serve;
use crate::server::{ServerOptions, Shared, shared_state};
use crate::wire::admin::Word;
use crate::wire::fuzz::{Choice, Known};
use crate::wire::{
    ConnectRequest, EXTENSION, Jute, OLDEST_EXTENSION, PASSWORD_BYTES, Request, put_frame, xid,
};

const STEP_BYTES: usize = 6;

const MAX_STEPS: usize = 512;

const CLIENTS: usize = 3;

const MAX_LINES: usize = 16;

#[derive(Clone, Copy, Debug)]
pub(super) struct FuzzStep([u8; STEP_BYTES]);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Connect,
    /// Sends the start of a request, and closes the connection.
    Cut,
    Close,
    Reset,
    Stall,
    Time,
    /// Sends bytes of the input, framed or not.
    Raw,
    Kick,
    Word,
    /// Sends a request that the server reads together with the next request.
    Pipeline,
    Request,
}

const ACTIONS: [Action; 16] = [
    Action::Connect,
    Action::Cut,
    Action::Close,
    Action::Reset,
    Action::Stall,
    Action::Time,
    Action::Raw,
    Action::Kick,
    Action::Word,
    Action::Pipeline,
    Action::Pipeline,
    Action::Request,
    Action::Request,
    Action::Request,
    Action::Request,
    Action::Request,
];

impl FuzzStep {
    pub(super) fn of(action: Action, client: u8, details: [u8; STEP_BYTES - 1]) -> Self {
        let mut bytes = [0; STEP_BYTES];
        let number = ACTIONS.iter().position(|other| *other == action);
        bytes[0] = client << 4 | number.map_or(0, |number| number as u8);
        bytes[1..].copy_from_slice(&details);
        Self(bytes)
    }

    pub(super) fn bytes(self) -> [u8; STEP_BYTES] {
        self.0
    }

    fn action(self) -> Action {
        ACTIONS[usize::from(self.0[0] & 15)]
    }

    fn client(self) -> usize {
        usize::from(self.0[0] >> 4) % CLIENTS
    }

    fn choice(self) -> Choice {
        let [_, _, op, path, detail, flags] = self.0;
        Choice {
            op,
            path,
            detail,
            flags,
        }
    }
}

struct Input<'a> {
    rest: &'a [u8],
    steps: usize,
}

impl<'a> Input<'a> {
    fn step(&mut self) -> Option<FuzzStep> {
        let (step, rest) = self.rest.split_first_chunk()?;
        self.steps += 1;
        self.rest = rest;
        (self.steps <= MAX_STEPS).then_some(FuzzStep(*step))
    }

    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (bytes, rest) = self.rest.split_at(count.min(self.rest.len()));
        self.rest = rest;
        bytes
    }
}

struct Line {
    pipe: Pipe,
    task: Option<BoxFuture<()>>,
    woken: Arc<Woken>,
    dialogue: Dialogue,
    client: usize,
}

#[derive(Default)]
struct Client {
    session: i64,
    password: Vec<u8>,
    last_xid: i32,
}

struct World {
    clock: Clock,
    store: Store,
    shared: Arc<Shared>,
    piece: usize,
    clients: [Client; CLIENTS],
    lines: Vec<Line>,
    known: Known,
    replies: usize,
}

pub(crate) fn conversation(bytes: &[u8]) -> bool {
    let Some((options, rest)) = bytes.split_first() else {
        return false;
    };
    let _here = RUNTIME.enter();
    let mut world = World::new(*options);
    let mut input = Input { rest, steps: 0 };
    while let Some(step) = input.step() {
        world.take(step, &mut input);
    }
    world.finish()
}

pub(super) const TIGHT: u8 = 1;
pub(super) const REQUIRES_AUTH: u8 = 2;

impl World {
    fn new(flags: u8) -> Self {
        let clock = Clock::new_virtual();
        let (mut of_store, mut of_server) = (StoreOptions::new(), ServerOptions::new());
        if flags & TIGHT != 0 {
            of_store = of_store
                .max_znodes(24)
                .max_bytes(96 << 10)
                .max_sessions(4)
                .max_watches_per_session(6);
            of_server = of_server
                .max_connections(6)
                .max_half_open(2)
                .max_in_flight(3)
                .max_frame_bytes(30_000)
                .max_outgoing_bytes(40_000)
                .max_all_outgoing_bytes(80_000)
                .max_unfinished_bytes(40_000);
        }
        let of_server = of_server.require_auth(flags & REQUIRES_AUTH != 0);
        // Refuse all four-letter words, because a blocking thread would answer them at an unpredictable time.
        let of_server = of_server.four_letter_words_from("10.0.0.0/8");
        let of_server = of_server.expect("a network");
        let store = Store::memory_with(of_store.clock(clock.clone()));
        store.keep_transactions();
        let shared = shared_state(&store, of_server, ListenAddresses::default());
        let shared = shared.expect("a store in memory can be shared");
        Self {
            clock,
            store,
            shared: Arc::new(shared),
            piece: [usize::MAX, 1, 7, 100][usize::from(flags >> 2 & 3)],
            clients: Default::default(),
            lines: Vec::new(),
            known: Known::default(),
            replies: 0,
        }
    }

    fn take(&mut self, step: FuzzStep, input: &mut Input<'_>) {
        let client = step.client();
        match step.action() {
            Action::Connect => self.connect(client, step),
            Action::Cut => {
                let request = self.request(client, step, input);
                let count = usize::from(step.0[1]) % request.len().max(1);
                self.send(client, &request[..count]);
                self.with_pipe(client, Pipe::close);
            }
            Action::Close => self.with_pipe(client, Pipe::close),
            Action::Reset => self.with_pipe(client, Pipe::reset),
            Action::Stall => self.with_pipe(client, Pipe::stall),
            Action::Time => {
                const MILLIS: [u64; 8] = [1, 50, 1_000, 3_300, 4_000, 10_000, 60_000, 3_600_000];
                let millis = MILLIS[usize::from(step.0[1]) % MILLIS.len()];
                self.clock.advance(Duration::from_millis(millis));
            }
            Action::Raw => self.send_raw(client, step, input),
            Action::Kick => self.kick(client),
            Action::Word => {
                let word = Word::ALL[usize::from(step.0[1]) % Word::ALL.len()];
                self.shared.admin.text(word, &self.shared.drain);
            }
            Action::Pipeline | Action::Request => {
                let request = self.request(client, step, input);
                self.send(client, &request);
            }
        }
        if step.action() != Action::Pipeline {
            self.run();
        }
    }

    fn open(&mut self, client: usize) {
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
        let guard = match self.shared.table.enter(address) {
            Ok(guard) if self.lines.len() < MAX_LINES => guard,
            _ => return,
        };
        let (pipe, shared) = (Pipe::new(self.piece), self.shared.clone());
        let deadline = Instant::now() + Duration::from_secs(3_600);
        let task = serve(pipe.clone(), guard, shared, deadline, None);
        self.lines.push(Line {
            pipe,
            task: Some(Box::pin(task)),
            woken: Arc::default(),
            dialogue: Dialogue::new(),
            client,
        });
    }

    fn connect(&mut self, client: usize, step: FuzzStep) {
        let [_, kind, timeout, seen, flags, _] = step.0;
        let whose = match kind % 8 {
            6 => (client + 1) % CLIENTS,
            _ => client,
        };
        let Client {
            session, password, ..
        } = &self.clients[whose];
        let new = (0, vec![0; PASSWORD_BYTES]);
        let (session, password) = match kind % 8 {
            0 | 1 => new,
            2 => (*session, vec![7; PASSWORD_BYTES]),
            3 => (*session, password.get(..3).unwrap_or_default().to_vec()),
            4 => (0x17, password.clone()),
            _ => (*session, password.clone()),
        };
        let request = ConnectRequest {
            protocol_version: match flags % 8 {
                0..4 => OLDEST_EXTENSION,
                4 => EXTENSION,
                5 | 6 => 0,
                _ => EXTENSION + 1,
            },
            last_zxid_seen: match seen % 8 {
                0 => i64::MAX,
                1..4 => self.known.seen,
                _ => 0,
            },
            timeout_ms: [30_000, 4_000, 0, -1, i32::MAX, 10_000][usize::from(timeout % 6)],
            session,
            password: &password,
            read_only: [Some(false), None, Some(true), Some(false)][usize::from(flags >> 6)],
        };
        let mut bytes = Vec::new();
        put_frame(&mut bytes, |to| {
            request.put(to);
            if flags % 8 < 3 {
                EXTENSION.put(to);
            }
        });
        self.open(client);
        self.send(client, &bytes);
    }

    fn request(&mut self, client: usize, step: FuzzStep, input: &mut Input<'_>) -> Vec<u8> {
        let mut more = || input.step().map(FuzzStep::choice);
        let request = step.choice().request(&self.known, &mut more);
        let client = &mut self.clients[client];
        client.last_xid += 1;
        let xid = match request {
            Request::Ping => xid::PING,
            Request::Auth(_) => xid::AUTH,
            Request::SetWatches(_) | Request::SetWatches2(_) => xid::SET_WATCHES,
            _ => client.last_xid,
        };
        let mut bytes = Vec::new();
        put_frame(&mut bytes, |to| request.put_with_header(xid, to));
        bytes
    }

    fn send_raw(&mut self, client: usize, step: FuzzStep, input: &mut Input<'_>) {
        let raw = input.bytes(usize::from(step.0[1] % 64));
        let mut bytes = Vec::new();
        match step.0[2] % 4 {
            0 => put_frame(&mut bytes, |to| to.extend_from_slice(raw)),
            1 | 2 => put_frame(&mut bytes, |to| {
                let mut request = Vec::new();
                let choice = step.choice();
                let request_of = choice.request(&self.known, &mut || None);
                request_of.put_with_header(7, &mut request);
                request.truncate(usize::from(step.0[1]));
                to.extend_from_slice(&request);
                to.extend_from_slice(raw);
            }),
            _ => bytes.extend_from_slice(raw),
        }
        self.send(client, &bytes);
    }

    fn line(&mut self, client: usize) -> Option<&mut Line> {
        let mut lines = self.lines.iter_mut().rev();
        lines.find(|line| line.client == client)
    }

    fn send(&mut self, client: usize, bytes: &[u8]) {
        let frame_bytes = self.shared.limits.frame_bytes;
        if let Some(line) = self.line(client)
            && line.pipe.send(bytes)
        {
            line.dialogue.send(bytes, frame_bytes);
            line.woken.0.store(true, SeqCst);
        }
    }

    fn with_pipe(&mut self, client: usize, act: impl FnOnce(&Pipe)) {
        if let Some(line) = self.line(client) {
            act(&line.pipe);
            line.woken.0.store(true, SeqCst);
        }
    }

    fn kick(&mut self, client: usize) {
        let id = SessionId(self.clients[client].session);
        let mut kicked = pin!(self.shared.remote.kick(id));
        let polled = kicked
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_ready(), "a store in memory waits for nothing");
    }

    fn run(&mut self) {
        for _ in 0..100_000 {
            let mut has_run = false;
            for index in 0..self.lines.len() {
                has_run |= self.poll(index);
            }
            if !has_run {
                self.lines.retain(|line| line.task.is_some());
                return;
            }
        }
        panic!("a connection's task never rests");
    }

    fn poll(&mut self, index: usize) -> bool {
        let line = &mut self.lines[index];
        let Some(task) = line.task.as_mut() else {
            return false;
        };
        if !line.woken.0.swap(false, SeqCst) {
            return false;
        }
        let waker = Waker::from(line.woken.clone());
        let polled = Pin::new(task).poll(&mut Context::from_waker(&waker));
        if polled == Poll::Ready(()) {
            line.task = None;
        }
        self.receive(index);
        true
    }

    fn receive(&mut self, index: usize) {
        let line = &mut self.lines[index];
        let before = line.dialogue.replies;
        let bytes = line.pipe.take_output();
        let granted = line.dialogue.receive(&bytes, &mut self.known);
        self.replies += line.dialogue.replies - before;
        if let Some(granted) = granted {
            let client = &mut self.clients[line.client];
            client.session = granted.session;
            client.password = granted.password;
        }
        if line.pipe.is_shut() {
            line.pipe.close();
            line.woken.0.store(true, SeqCst);
        }
    }

    fn finish(mut self) -> bool {
        for line in &self.lines {
            line.pipe.read_on();
            line.woken.0.store(true, SeqCst);
        }
        self.run();
        for line in &self.lines {
            assert!(line.dialogue.is_answered(), "a request has no reply");
        }
        self.store.check_replay();
        for line in &self.lines {
            line.pipe.close();
            line.woken.0.store(true, SeqCst);
        }
        // After the longest penalty and the longest timeout, no connection and no session is left.
        for seconds in [4, 120] {
            self.run();
            self.clock.advance(Duration::from_secs(seconds));
        }
        self.run();
        assert!(self.lines.is_empty(), "a connection is never closed");
        assert_eq!(self.shared.table.connections(), 0);
        assert_eq!(self.shared.remote.unread_bytes(), 0);
        let counts = self.store.counts();
        assert_eq!(
            (counts.sessions, counts.ephemerals, counts.watches),
            (0, 0, 0)
        );
        assert_eq!((counts.session_bytes, counts.watch_bytes), (0, 0));
        self.store.check_replay();
        let Self {
            clock,
            store,
            shared,
            ..
        } = self;
        drop((store, shared));
        assert_all_ends(&clock);
        self.replies > 0
    }
}
