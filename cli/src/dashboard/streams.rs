//! The event streams, one per viewer.
//!
//! We create an event from the current state, and only when the stream has room for the event. A slow viewer therefore
//! has at most one pending event, and misses the changes in between.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use lockkeeper::{Client, Error, LockQueuePart, QueueEntry, lock_queue_part};
use serde_json::{Value, json};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::watch;

use super::board::{Board, Cursor, PACE, Row, StoreState, Window, shorten};
use super::query::QueueCursor;
use super::shared::Shared;
use crate::live::add_seen;
use crate::locks::names::lock_name;
use crate::who;

/// Interval of keep-alive lines. They keep proxies from closing the stream, and a failed write shows that a viewer has
/// disconnected.
const IDLE: Duration = Duration::from_secs(15);

/// After creating an event, we pause for this many times as long as its creation took.
const PAUSE_FACTOR: u32 = 4;

/// Interval at which we read a queue again even if its lock has not changed in the list. Writes by waiters change the
/// queue, but not the list of locks.
const READ_AGAIN: Duration = Duration::from_secs(5);

const MAX_BACKTRACE: usize = 16 << 10;

const MAX_EVENT: usize = 2 << 20;

pub(super) fn open<F>(
    shared: &Arc<Shared>,
    serve: impl FnOnce(Arc<Shared>, Sender<Bytes>) -> F,
) -> Option<Receiver<Bytes>>
where
    F: Future<Output = ()> + Send + 'static,
{
    let place = shared.viewers.clone().try_acquire_owned().ok()?;
    let (to, events) = channel(1);
    let served = serve(shared.clone(), to.clone());
    tokio::spawn(async move {
        let _place = place;
        tokio::select! {
            () = to.closed() => {}
            () = served => {}
        }
    });
    Some(events)
}

fn event(text: &mut String, name: &str, data: &Value) {
    // An event's data must not contain line breaks, and our JSON contains none.
    let _ = write!(text, "event: {name}\ndata: {data}\n\n");
}

async fn send(to: &Sender<Bytes>, text: String, sent: &mut Instant) -> Result<(), Gone> {
    let text = match text.is_empty() {
        true if sent.elapsed() < IDLE => return Ok(()),
        true => ": still there\n\n".to_owned(),
        false => text,
    };
    *sent = Instant::now();
    to.send(text.into()).await.map_err(|_| Gone)
}

struct Gone;

async fn pause(changed: &mut watch::Receiver<()>, begun: Instant, limit: Duration) {
    tokio::time::sleep(PACE.max(begun.elapsed() * PAUSE_FACTOR)).await;
    let _ = tokio::time::timeout(limit, changed.changed()).await;
}

#[derive(Debug, Default)]
pub(super) struct Told {
    store: Option<StoreState>,
    second: Option<i64>,
    window: Option<Window>,
}

impl Told {
    pub(super) fn news(
        &mut self,
        board: &mut Board,
        cursor: &Cursor,
        now_ms: i64,
        now: Instant,
    ) -> String {
        let mut text = String::new();
        let store = board.store(now);
        if self.store.as_ref() != Some(&store) {
            event(&mut text, "store", &store.json());
            self.store = Some(store);
        }
        board.handovers.advance(now_ms);
        if let Some((second, counts)) = board.handovers.since(self.second) {
            let data = json!({ "end_ms": second * 1_000, "step_ms": 1_000, "counts": counts });
            event(&mut text, "handovers", &data);
            self.second = Some(second);
        }
        let window = board.window(cursor, now_ms);
        if self.window.as_ref() != Some(&window) {
            event(&mut text, "locks", &window.json(now_ms));
            self.window = Some(window);
        }
        text
    }
}

pub(super) async fn locks(shared: Arc<Shared>, cursor: Cursor, to: Sender<Bytes>) {
    let mut changed = shared.changed.subscribe();
    let mut told = Told::default();
    let mut sent = Instant::now();
    loop {
        if to.reserve().await.is_err() {
            return;
        }
        changed.mark_unchanged();
        let begun = Instant::now();
        let now_ms = shared.now_ms();
        let text = told.news(&mut shared.board.lock(), &cursor, now_ms, begun);
        if send(&to, text, &mut sent).await.is_err() {
            return;
        }
        // Wake up at the next full second, when the hand-overs of the past second can be sent.
        let left = 1_000 - shared.now_ms().rem_euclid(1_000);
        pause(
            &mut changed,
            begun,
            Duration::from_millis(left.unsigned_abs()),
        )
        .await;
    }
}

type Reading = Result<LockQueuePart, String>;

pub(super) async fn queue(shared: Arc<Shared>, cursor: QueueCursor, to: Sender<Bytes>) {
    let mut changed = shared.changed.subscribe();
    let (mut store, mut told): (Option<StoreState>, Option<Reading>) = (None, None);
    let (mut read, mut read_at): (Option<Option<Arc<Row>>>, _) = (None, Instant::now());
    let mut sent = Instant::now();
    loop {
        if to.reserve().await.is_err() {
            return;
        }
        changed.mark_unchanged();
        let mut text = String::new();
        let (now_store, lock) = {
            let board = shared.board.lock();
            (
                board.store(Instant::now()),
                board.lock(&cursor.path).cloned(),
            )
        };
        if store.as_ref() != Some(&now_store) {
            event(&mut text, "store", &now_store.json());
            store = Some(now_store);
        }
        let begun = Instant::now();
        let is_same = read.as_ref().is_some_and(|read| same(read, &lock));
        if !is_same || read_at.elapsed() >= READ_AGAIN {
            let client = shared.feed.client();
            let queue = shared.read(part(&client, &cursor)).await;
            let queue = match queue {
                // Ignore these errors, because the state of the connection already reports them.
                Err(Error::ConnectionLoss | Error::SessionExpired { .. }) => None,
                queue => Some(queue.map_err(|error| error.to_string())),
            };
            let queue = queue.map(|queue| {
                queue.map(|mut queue| {
                    add_seen(
                        lock.as_deref().map_or(&[], Row::holders),
                        &mut queue.holders,
                    );
                    queue
                })
            });
            (read, read_at) = (Some(lock), Instant::now());
            if let Some(queue) = queue
                && told.as_ref() != Some(&queue)
            {
                let now_ms = shared.now_ms();
                match &queue {
                    Ok(queue) => event(&mut text, "lock", &shown(queue, now_ms)),
                    Err(error) => event(&mut text, "unreadable", &json!({ "error": error })),
                }
                told = Some(queue);
            }
        }
        if send(&to, text, &mut sent).await.is_err() {
            return;
        }
        pause(&mut changed, begun, Duration::from_secs(1)).await;
    }
}

fn same(one: &Option<Arc<Row>>, other: &Option<Arc<Row>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (one, other) => one.is_none() && other.is_none(),
    }
}

async fn part(client: &Client, cursor: &QueueCursor) -> Result<LockQueuePart, Error> {
    let (mut from, limit) = (cursor.offset, cursor.limit);
    loop {
        let part = lock_queue_part(
            client,
            &cursor.path,
            limit,
            from..from.saturating_add(limit),
        )
        .await?;
        if from == 0 || from < part.waiter_count {
            return Ok(part);
        }
        from = part.waiter_count.saturating_sub(limit);
    }
}

fn shown(part: &LockQueuePart, now_ms: i64) -> Value {
    let mut bytes = 0;
    let mut entry = |position: usize, entry: &QueueEntry| {
        let mut entry = entry.clone();
        if let Some(metadata) = &mut entry.metadata {
            shorten(metadata, MAX_BACKTRACE);
        }
        let object = who::object(&part.path, part.kind, position, &entry, now_ms);
        bytes += object.to_string().len();
        (bytes <= MAX_EVENT).then_some(object)
    };
    let holders: Vec<_> = part.holders.iter().map_while(|it| entry(0, it)).collect();
    let waiters = part.waiters.iter();
    let waiters: Vec<_> = waiters
        .map_while(|(index, it)| entry(index + 1, it))
        .collect();
    json!({
        "lock": lock_name(&part.path),
        "path": part.path.as_str(),
        "kind": part.kind.as_str(),
        "exists": part.holder_count + part.waiter_count > 0,
        "holders": holders,
        "holder_count": part.holder_count,
        "waiters": part.waiter_count,
        "offset": part.waiters.first().map_or(0, |(index, _)| *index),
        "queue": waiters,
        "now_ms": now_ms,
    })
}
