//! Watches of a session, over one stream.
//!
//! A watch starts at the current revision, because etcd updates watches that start at earlier revisions only ten times
//! a second. We arm a watch before we read the watched keys, so that no change in between is missed. After a
//! reconnection, all watches are armed again, and their watchers assume that they may have missed a change.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures_core::Stream;
use tokio::sync::{mpsc, oneshot};

use super::keys::Keys;
use super::messages::{
    Event, KeyValue, NO_PUT, Range, RangeResponse, WatchCancel, WatchCommand, WatchCreate,
    WatchRequest, WatchResponse,
};
use super::requests::Waiter;
use super::session::Shared;
use crate::model::error::{Error, Result};
use crate::model::path::ZnodePath;
use crate::model::types::Zxid;
use crate::model::watch::{
    DeleteReason, EventKind, PredecessorGone, WatchMode, WatchedEvent, Watcher,
};

const DELETE: i32 = 1;

/// Pause before a stream is opened again after a failure.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) enum Command {
    Arm(WatchCreate, mpsc::UnboundedSender<Signal>),
    Cancel(i64),
}

pub(super) enum Signal {
    /// The watch is armed. Changes before this signal may have fired no event.
    Armed,
    Event(Event),
}

pub(super) struct Watches {
    commands: mpsc::UnboundedSender<Command>,
    last: AtomicI64,
}

pub(super) fn channel() -> (Watches, mpsc::UnboundedReceiver<Command>) {
    let (commands, receiver) = mpsc::unbounded_channel();
    let last = AtomicI64::new(0);
    (Watches { commands, last }, receiver)
}

pub(super) enum Target {
    /// The possible keys of a znode.
    Node(Vec<Vec<u8>>),
    /// The range of the keys below a znode.
    Below(Vec<u8>, Vec<u8>),
    /// A key that is watched only for its deletion.
    Deletion { key: Vec<u8>, copies: usize },
}

impl Target {
    pub(super) fn node(keys: &Keys, path: &ZnodePath) -> Self {
        let candidates = keys.candidates(path);
        let numbered = candidates.numbered.map(|(key, _)| key);
        Self::Node(numbered.into_iter().chain([candidates.exact]).collect())
    }

    pub(super) fn children(keys: &Keys, path: &ZnodePath) -> Self {
        let (key, end) = keys.below(path);
        Self::Below(key, end)
    }

    fn creates(self) -> Vec<WatchCreate> {
        let create = |key, end| WatchCreate {
            key,
            end,
            has_previous: true,
            ..WatchCreate::default()
        };
        match self {
            Self::Node(keys) => {
                let keys = keys.into_iter();
                keys.map(|key| create(key, Vec::new())).collect()
            }
            Self::Below(key, end) => vec![create(key, end)],
            Self::Deletion { key, copies } => {
                let create = WatchCreate {
                    key,
                    filters: vec![NO_PUT],
                    ..WatchCreate::default()
                };
                vec![create; copies]
            }
        }
    }
}

/// Armed watches. Dropping them cancels the watches.
pub(super) struct Armed {
    ids: Vec<i64>,
    signals: mpsc::UnboundedReceiver<Signal>,
    commands: mpsc::UnboundedSender<Command>,
    is_below: bool,
}

impl Drop for Armed {
    fn drop(&mut self) {
        for id in self.ids.drain(..) {
            let _ = self.commands.send(Command::Cancel(id));
        }
    }
}

impl Watches {
    fn register(&self, target: Target) -> Armed {
        let (send, signals) = mpsc::unbounded_channel();
        let is_below = matches!(target, Target::Below(..));
        let arm = |mut create: WatchCreate| {
            create.id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
            let id = create.id;
            let _ = self.commands.send(Command::Arm(create, send.clone()));
            id
        };
        Armed {
            ids: target.creates().into_iter().map(arm).collect(),
            signals,
            commands: self.commands.clone(),
            is_below,
        }
    }

    /// Arms a watch, and waits until it is armed. `None` if the session has ended.
    pub(super) async fn arm(&self, target: Target) -> Option<Armed> {
        let mut armed = self.register(target);
        armed.until_armed().await.then_some(armed)
    }

    /// Watches for the deletion of the entry ahead of a waiter. `is_soon` tells that it is expected within 100 ms.
    ///
    /// If a write is committed while etcd creates a watch, its events are late by up to 100 ms. Of two watches, one is
    /// usually in time.
    pub(super) fn departure(
        &self,
        waiter: Waiter,
        by: ZnodePath,
        kv: &KeyValue,
        is_soon: bool,
    ) -> Watcher {
        let (created, lease) = (kv.create_revision, kv.lease);
        let key = kv.key.to_vec();
        let armed = self.register(Target::Deletion {
            key: key.clone(),
            copies: if is_soon { 2 } else { 1 },
        });
        watcher(async move {
            let at = departed(&waiter.shared, armed, key, created).await?;
            // If the answer is lost, the caller looks for its predecessor again.
            let unknown = || PredecessorGone::new(false, DeleteReason::Unknown);
            let gone = match at {
                Some(at) => waiter
                    .consequence(lease, at)
                    .await
                    .unwrap_or_else(|_| unknown()),
                None => unknown(),
            };
            Ok(WatchedEvent {
                kind: EventKind::NodeDeleted,
                path: by,
                zxid: at.map(Zxid),
                predecessor_gone: Some(gone),
            })
        })
    }

    /// Watches a znode, and with [`WatchMode::PersistentRecursive`] all keys below it.
    pub(super) async fn persistent(
        &self,
        shared: Arc<Shared>,
        path: ZnodePath,
        mode: WatchMode,
    ) -> Result<impl Stream<Item = Result<WatchedEvent>> + Send + 'static> {
        let node = self.arm(Target::node(&shared.keys, &path)).await;
        let below = self.arm(Target::children(&shared.keys, &path)).await;
        let (Some(mut node), Some(mut below)) = (node, below) else {
            return Err(shared.end());
        };
        Ok(async_stream::stream! {
            loop {
                let (signal, is_below) = tokio::select! {
                    signal = node.signals.recv() => (signal, false),
                    signal = below.signals.recv() => (signal, true),
                };
                match signal {
                    None => {
                        yield Err(shared.end());
                        return;
                    }
                    // After a reconnection, both watches signal that they are armed again. Report the gap only once.
                    Some(Signal::Armed) if is_below => yield Err(Error::ConnectionLoss),
                    Some(Signal::Armed) => {}
                    Some(Signal::Event(event)) => {
                        if let Some(event) = persistent_event(&shared.keys, &path, mode, &event, is_below) {
                            yield Ok(event);
                        }
                    }
                }
            }
        })
    }
}

fn persistent_event(
    keys: &Keys,
    watched: &ZnodePath,
    mode: WatchMode,
    event: &Event,
    is_below: bool,
) -> Option<WatchedEvent> {
    let kv = event.kv.as_ref()?;
    let kind = kind(event, kv);
    let zxid = Some(Zxid(kv.mod_revision));
    let predecessor_gone = None;
    if is_below && mode == WatchMode::Persistent {
        return (kind != EventKind::NodeDataChanged).then(|| WatchedEvent {
            kind: EventKind::NodeChildrenChanged,
            path: watched.clone(),
            zxid,
            predecessor_gone,
        });
    }
    // A deletion event contains neither the lease nor the create revision, so use the key's previous state.
    let kv = event.previous.as_ref().filter(|_| event.kind == DELETE);
    let kv = kv.or(event.kv.as_ref())?;
    Some(WatchedEvent {
        kind,
        path: keys.path(kv)?,
        zxid,
        predecessor_gone,
    })
}

fn kind(event: &Event, kv: &KeyValue) -> EventKind {
    match event.kind {
        DELETE => EventKind::NodeDeleted,
        _ if kv.version == 1 => EventKind::NodeCreated,
        _ => EventKind::NodeDataChanged,
    }
}

impl Armed {
    async fn until_armed(&mut self) -> bool {
        let mut missing = self.ids.len();
        while missing > 0 {
            match self.signals.recv().await {
                Some(Signal::Armed) => missing -= 1,
                Some(Signal::Event(_)) => {}
                None => return false,
            }
        }
        true
    }

    /// Waits for a change, or until changes may have been missed. Returns false when the session has ended.
    pub(super) async fn changed(&mut self) -> bool {
        self.signals.recv().await.is_some()
    }

    /// Returns a watcher for the next change of a znode. `kv` is the znode's key, as read at revision `at`.
    pub(super) fn watcher(
        mut self,
        shared: Arc<Shared>,
        path: ZnodePath,
        kv: Option<KeyValue>,
        at: i64,
    ) -> Watcher {
        watcher(async move {
            loop {
                let Some(signal) = self.signals.recv().await else {
                    return Err(shared.end());
                };
                let changed = match signal {
                    Signal::Event(event) => self.change(&event, kv.as_ref(), at),
                    // The watch was armed again, so changes may have been missed. A false report only costs the watcher
                    // a read.
                    Signal::Armed => Some(match (self.is_below, &kv) {
                        (true, _) => EventKind::NodeChildrenChanged,
                        (false, Some(_)) => EventKind::NodeDataChanged,
                        (false, None) => EventKind::NodeCreated,
                    }),
                };
                if let Some(kind) = changed {
                    // The end of the session also deletes its znodes. In this case, return the session's end as the
                    // error.
                    let is_own = kv.as_ref().is_some_and(|kv| kv.lease == shared.lease);
                    if is_own && kind == EventKind::NodeDeleted {
                        let connection = shared.connected().await?;
                        shared.check_alive(&connection).await?;
                    }
                    return Ok(WatchedEvent {
                        kind,
                        path,
                        zxid: None,
                        predecessor_gone: None,
                    });
                }
            }
        })
    }

    fn change(&self, event: &Event, kv: Option<&KeyValue>, at: i64) -> Option<EventKind> {
        let changed = event.kv.as_ref().filter(|kv| kv.mod_revision > at)?;
        let kind = kind(event, changed);
        if self.is_below {
            return (kind != EventKind::NodeDataChanged).then_some(EventKind::NodeChildrenChanged);
        }
        match kv {
            Some(kv) if kv.key != changed.key => None,
            _ => Some(kind),
        }
    }
}

/// Waits until a key is deleted. Returns the revision of the deletion, or `None` if the key was deleted before the
/// watch was armed.
async fn departed(
    shared: &Shared,
    mut armed: Armed,
    key: Vec<u8>,
    created: i64,
) -> Result<Option<i64>> {
    let mut copies = 0;
    loop {
        match armed.signals.recv().await {
            None => return Err(shared.end()),
            Some(Signal::Armed) if copies > 0 => copies -= 1,
            Some(Signal::Event(event)) => {
                if let Some(kv) = event.kv.filter(|kv| kv.create_revision != created) {
                    return Ok((event.kind == DELETE).then_some(kv.mod_revision));
                }
            }
            // Read the key, because it may have been deleted before the watch was armed. What the watch's member has
            // applied is enough, and after a reconnection there is another signal.
            Some(Signal::Armed) => {
                copies = armed.ids.len() - 1;
                let range = Range {
                    key: key.clone(),
                    keys_only: true,
                    serializable: true,
                    ..Range::default()
                };
                let connection = shared.connected().await?;
                let read = connection.call("/etcdserverpb.KV/Range", range, shared.patience());
                let Ok(RangeResponse { kvs, .. }) = read.await else {
                    // The watch is armed again on the next connection.
                    shared.lost(&connection);
                    continue;
                };
                if kvs.first().is_none_or(|kv| kv.create_revision != created) {
                    return Ok(None);
                }
            }
        }
    }
}

/// Runs a watch on the sessions' thread until its watcher is dropped.
fn watcher(event: impl Future<Output = Result<WatchedEvent>> + Send + 'static) -> Watcher {
    let (mut send, receive) = oneshot::channel();
    tokio::spawn(async move {
        tokio::select! {
            event = event => drop(send.send(event)),
            () = send.closed() => {}
        }
    });
    Watcher::from_future(async move { receive.await.unwrap_or(Err(Error::ConnectionLoss)) })
}

type Registered = HashMap<i64, (WatchCreate, mpsc::UnboundedSender<Signal>)>;

/// Serves the watches of a session until it ends.
pub(super) async fn run(shared: Arc<Shared>, mut commands: mpsc::UnboundedReceiver<Command>) {
    let mut registered = Registered::new();
    let mut states = shared.status.states();
    let mut pause = Duration::ZERO;
    loop {
        // Pause after a failure, so that a member that refuses watches is not flooded with requests.
        tokio::time::sleep(pause).await;
        pause = PAUSE;
        // Wait for a watch, because etcd does not answer a stream before the stream's first watch.
        while registered.is_empty() {
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => drop(apply(command, &mut registered)),
                    None => return,
                },
                _ = states.next() => {}
            }
            if shared.status.end().is_some() {
                return;
            }
        }
        let Ok(connection) = shared.connected().await else {
            return;
        };
        let (requests, receiver) = mpsc::unbounded_channel();
        let mut unanswered = VecDeque::new();
        for (create, _) in registered.values() {
            unanswered.push_back(create.id);
            let _ = requests.send(request(WatchCommand::Create(create.clone())));
        }
        let connected = shared.status.connection();
        let opened = tokio::time::timeout(shared.patience(), connection.watch(receiver));
        let Ok(Ok(mut answers)) = opened.await else {
            shared.lost(&connection);
            continue;
        };
        loop {
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => {
                        if let Command::Arm(create, _) = &command {
                            unanswered.push_back(create.id);
                        }
                        let _ = requests.send(apply(command, &mut registered));
                    }
                    None => return,
                },
                answer = answers.message() => match answer {
                    Ok(Some(answer)) if is_canceled(&answer, &registered) => break,
                    Ok(Some(mut answer)) => {
                        // etcd answers in order, and since 3.5 it sends no id with a refusal. Report a refused watch as
                        // armed: the read that follows is refused, too, and tells why.
                        if answer.created {
                            answer.id = unanswered.pop_front().unwrap_or(answer.id);
                        }
                        deliver(answer, &registered);
                    }
                    _ => {
                        shared.lost(&connection);
                        break;
                    }
                },
                _ = states.next() => {}
            }
            if shared.status.end().is_some() {
                return;
            }
            if shared.status.connection() != connected {
                pause = Duration::ZERO;
                break;
            }
        }
    }
}

fn request(command: WatchCommand) -> WatchRequest {
    let command = Some(command);
    WatchRequest { command }
}

fn apply(command: Command, registered: &mut Registered) -> WatchRequest {
    request(match command {
        Command::Arm(create, signals) => {
            registered.insert(create.id, (create.clone(), signals));
            WatchCommand::Create(create)
        }
        Command::Cancel(id) => {
            registered.remove(&id);
            WatchCommand::Cancel(WatchCancel { id })
        }
    })
}

/// Returns true if etcd has canceled a watch that we need, for example because of a compaction. The caller then arms
/// all watches again.
fn is_canceled(answer: &WatchResponse, registered: &Registered) -> bool {
    answer.canceled && !answer.created && registered.contains_key(&answer.id)
}

fn deliver(answer: WatchResponse, registered: &Registered) {
    let Some((_, signals)) = registered.get(&answer.id) else {
        return;
    };
    if answer.created {
        let _ = signals.send(Signal::Armed);
    }
    for event in answer.events {
        let _ = signals.send(Signal::Event(event));
    }
}
