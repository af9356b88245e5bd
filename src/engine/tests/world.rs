//! A store on a simulated disk with a log that is written step by step, and the content that it must have after a
//! crash.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::core::NodeKind;
use crate::engine::file;
use crate::log::{Boot, Disk, StepWriter};
use crate::model::protocol::{Reply, Request, Response};
use crate::model::types::Zxid;
use crate::model::watch::Watcher;
pub(super) use crate::runtime::splitmix::Random;

/// A persistent znode in the model.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    data: Bytes,
    kind: NodeKind,
    czxid: Zxid,
    mzxid: Zxid,
    times: (i64, i64),
    version: i32,
}

type Image = BTreeMap<String, Kept>;

/// The history of a store over all its runs.
#[derive(Default)]
pub(super) struct Past {
    /// The persistent znodes after each transaction that changed them, by zxid.
    images: Vec<(Zxid, Image)>,
    /// Transactions that are logged synchronously. No answer or event that shows one of them may leave before the log
    /// has it.
    surely: BTreeSet<Zxid>,
    /// The last of these transactions that each path showed. The entry for the children of a path is at `path/`.
    changed: BTreeMap<String, Zxid>,
    /// All transactions up to this zxid must survive, because they were acknowledged or seen.
    pub(super) must: Zxid,
    /// The last zxid that the store has used.
    last: Zxid,
    /// The sequential znodes with an acknowledged create.
    pub(super) numbered: BTreeSet<String>,
}

/// A run of a store between two starts of the machine.
pub(super) struct World {
    pub(super) hand: Option<StepWriter>,
    pub(super) store: Store,
    pub(super) clock: Clock,
    pub(super) sessions: Vec<Asker>,
}

/// A session, and the replies and events that it waits for.
pub(super) struct Asker {
    pub(super) backend: Arc<dyn Backend>,
    pending: Vec<Pending>,
    watchers: Vec<Watching>,
}

struct Pending {
    response: Response,
    asked: Asked,
}

#[derive(Clone, Default)]
struct Asked {
    /// The last zxid right after the request was submitted.
    after: Zxid,
    /// All transactions up to this zxid must survive once the request is answered, whether it succeeds or not.
    floor: Zxid,
    watched: Option<Spot>,
    /// True if the request creates a persistent sequential znode.
    is_numbered: bool,
}

struct Watching {
    watcher: Watcher,
    spot: Spot,
    /// The last zxid when the watch was armed.
    armed: Zxid,
}

/// A watched place, which is a znode, or its children if the text ends with a slash.
type Spot = String;

pub(super) fn wait<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(future)
}

pub(super) fn options(clock: &Clock) -> StoreOptions {
    StoreOptions::new().clock(clock.clone()).segment_bytes(1, 1)
}

impl World {
    pub(super) fn open(boot: Boot, options: &StoreOptions) -> Result<Self> {
        let disk: Arc<dyn Disk> = Arc::new(boot.clone());
        let (engine, parts, _) = file::read(&disk, "file:/sim".into(), options)?;
        Ok(Self {
            hand: Some(StepWriter::new(parts)),
            store: Store(file::serve(engine, None)),
            clock: options.clock.clone(),
            sessions: Vec::new(),
        })
    }

    /// Opens a store whose log is written by its own threads.
    pub(super) fn open_with_threads(boot: Boot, options: &StoreOptions) -> Result<Self> {
        let disk: Arc<dyn Disk> = Arc::new(boot.clone());
        let engine = file::open_disk(&disk, "file:/sim".into(), options, Arc::new(()))?;
        Ok(Self {
            hand: None,
            store: Store(engine),
            clock: options.clock.clone(),
            sessions: Vec::new(),
        })
    }

    pub(super) fn connect(&mut self) -> Result<()> {
        let backend = now(self.store.connector().open(&ConnectOptions::new()))?;
        self.sessions.push(Asker {
            backend,
            pending: Vec::new(),
            watchers: Vec::new(),
        });
        Ok(())
    }

    fn image(&self) -> Image {
        let state = self.store.0.state.lock();
        let nodes = state.core.node_images();
        nodes
            .filter(|node| node.kind != NodeKind::Ephemeral)
            .map(|node| {
                let kept = Kept {
                    data: node.data,
                    kind: node.kind,
                    czxid: node.czxid,
                    mzxid: node.mzxid,
                    times: (node.ctime, node.mtime),
                    version: node.version,
                };
                (node.path.to_string(), kept)
            })
            .collect()
    }

    fn last_zxid(&self) -> Zxid {
        self.store.0.state.lock().core.last_zxid()
    }

    pub(super) fn failure(&self) -> Option<Error> {
        self.store.0.log_queue()?.barrier.failure()
    }
}

impl Past {
    /// Compares the recovered content with the expected content, and continues with the recovered content.
    pub(super) fn check(&mut self, world: &World) {
        let image = world.image();
        let found = self.images.iter().rposition(|(_, known)| *known == image);
        let found = match found {
            Some(found) => found,
            None if self.images.is_empty() && self.must == Zxid(0) => return self.begin(world),
            None => panic!(
                "never was there: {image:#?}\nlast: {:#?}",
                self.images.last()
            ),
        };
        let lost = self.images[found + 1..]
            .iter()
            .find(|(zxid, _)| *zxid <= self.must);
        assert!(
            lost.is_none(),
            "{:?} was told of and is lost: {:?} is there",
            lost.map(|(zxid, _)| zxid),
            self.images[found].0
        );
        let last = world.last_zxid();
        assert!(last > self.last, "{last} after {}", self.last);
        self.begin(world);
    }

    /// Notes that the store was closed cleanly, so everything must survive.
    pub(super) fn closed(&mut self) {
        self.must = self.last;
    }

    fn begin(&mut self, world: &World) {
        self.images = vec![(world.last_zxid(), world.image())];
        self.last = world.last_zxid();
        self.must = self.last;
        self.surely.clear();
        self.changed.clear();
    }

    /// Notes the changes of a call.
    fn note(&mut self, world: &World) {
        let zxid = world.last_zxid();
        assert!(zxid >= self.last);
        self.last = zxid;
        let image = world.image();
        let (_, before) = self.images.last().expect("it has begun");
        let is_other = |path: &&String| before.get(*path) != image.get(*path);
        let paths = before.keys().chain(image.keys());
        let changed: BTreeSet<String> = paths.filter(is_other).cloned().collect();
        if changed.is_empty() {
            return;
        }
        let is_new_container = |path: &String| {
            let kind = image.get(path).map(|kept| kept.kind);
            kind == Some(NodeKind::Container) && !before.contains_key(path)
        };
        for path in changed.iter().filter(|path| !is_new_container(path)) {
            self.surely.insert(zxid);
            self.changed.insert(path.clone(), zxid);
            if before.contains_key(path) != image.contains_key(path) {
                self.changed.insert(children_of(path), zxid);
            }
        }
        self.images.push((zxid, image));
    }

    fn changed(&self, spot: &str) -> Zxid {
        self.changed.get(spot).copied().unwrap_or_default()
    }

    fn shows(&mut self, zxid: Zxid) {
        self.must = self.must.max(zxid);
    }
}

/// Returns the spot for the children of the path's parent.
fn children_of(path: &str) -> Spot {
    let (parent, _) = path.rsplit_once('/').expect("no root");
    format!("{}/", if parent.is_empty() { "/" } else { parent })
}

impl World {
    /// Submits a request in a session. `touched` are the znodes that the answer may show.
    pub(super) fn ask(
        &self,
        past: &mut Past,
        of: usize,
        request: Request,
        touched: &[&str],
    ) -> Asking {
        let last_kept = self.store.0.state.lock().core.last_kept();
        let before: Zxid = touched
            .iter()
            .map(|spot| past.changed(spot))
            .max()
            .unwrap_or_default();
        let is_sync = matches!(request, Request::Sync { .. });
        let watched = watched(&request);
        let is_numbered = matches!(&request, Request::Create(create)
            // Numbers below `/c` are not unique, because a container that is created again counts from 0.
            if create.mode == CreateMode::PersistentSequential && !create.path.as_str().starts_with("/c"));
        let surely = past.surely.len();
        let response = self.sessions[of].backend.submit(request);
        past.note(self);
        let wrote = past.surely.len() > surely;
        let floor = match (wrote, is_sync) {
            (true, _) => past.last,
            (false, true) => last_kept,
            (false, false) => before,
        };
        Asking(Pending {
            response,
            asked: Asked {
                after: past.last,
                floor,
                watched,
                is_numbered,
            },
        })
    }

    /// Lets time pass, and notes the changes that timers make.
    pub(super) fn pass(&self, past: &mut Past, time: Duration) {
        self.clock.advance(time);
        past.note(self);
    }

    /// Takes the replies and events that have arrived. Panics if a reply or an event is too early or too late.
    pub(super) fn listen(&mut self, past: &mut Past) {
        for asker in &mut self.sessions {
            asker.listen(past);
        }
    }
}

pub(super) struct Asking(Pending);

impl Asker {
    pub(super) fn expect(&mut self, asking: Asking) {
        self.pending.push(asking.0);
    }

    /// Checks that replies have the order of their requests, and that an event precedes the replies to later requests.
    fn listen(&mut self, past: &mut Past) {
        // Poll the latest reply first, because if it is ready, all earlier replies must be ready, too.
        let polled = self.pending.iter_mut().rev();
        let replies: Vec<_> = polled.map(|pending| poll(&mut pending.response)).collect();
        let mut replies: Vec<_> = replies.into_iter().rev().collect();
        let ready = replies.iter().take_while(|reply| reply.is_ready()).count();
        assert!(
            replies[ready..].iter().all(Poll::is_pending),
            "a reply overtook another"
        );
        let later = replies.drain(..ready);
        let told: Vec<Pending> = self.pending.drain(..ready).collect();
        for (pending, reply) in told.into_iter().zip(later) {
            let Poll::Ready(reply) = reply else {
                unreachable!()
            };
            take_events(&mut self.watchers, past, pending.asked.after);
            if !says_nothing(&reply) {
                past.shows(pending.asked.floor);
            }
            if let Ok(reply) = reply {
                self.take(reply, &pending.asked, past);
            }
        }
        take_events(&mut self.watchers, past, Zxid(0));
    }

    fn take(&mut self, reply: Reply, asked: &Asked, past: &mut Past) {
        let watcher = match reply {
            Reply::Created { path, .. } if asked.is_numbered => {
                assert!(past.numbered.insert(path.to_string()), "a second {path}");
                None
            }
            Reply::Exists { watcher, .. }
            | Reply::Data { watcher, .. }
            | Reply::Children { watcher, .. } => watcher,
            _ => None,
        };
        if let (Some(watcher), Some(spot)) = (watcher, asked.watched.clone()) {
            self.watchers.push(Watching {
                watcher,
                spot,
                armed: asked.after,
            });
        }
    }

    pub(super) fn waits(&self) -> usize {
        self.pending.len()
    }

    /// Checks that all replies and events that are still pending end with the failure of the store.
    pub(super) fn check_end(&mut self) {
        for pending in &mut self.pending {
            let reply = poll(&mut pending.response);
            let is_end = matches!(reply, Poll::Ready(Err(Error::StoreFailed { .. })));
            assert!(is_end, "{reply:?}");
        }
        for watching in &mut self.watchers {
            let event = poll(&mut watching.watcher);
            let is_end = matches!(event, Poll::Ready(Ok(_) | Err(Error::StoreFailed { .. })));
            assert!(is_end, "{event:?}");
        }
        assert!(!self.backend.status().is_alive());
        assert_eq!(self.backend.status().state(), SessionState::Expired);
        let refused = now(self.backend.submit(Request::Sync { path: path("/") }));
        assert!(
            matches!(refused, Err(Error::StoreFailed { .. })),
            "{refused:?}"
        );
    }
}

/// Returns true if a request was refused before the store examined its znodes.
fn says_nothing(reply: &Result<Reply>) -> bool {
    matches!(
        reply,
        Err(Error::StoreFailed { .. } | Error::DiskFull { .. } | Error::LimitReached { .. })
    )
}

/// Takes the events that have arrived. All events of changes up to `seen` must have arrived.
fn take_events(watchers: &mut Vec<Watching>, past: &mut Past, seen: Zxid) {
    watchers.retain_mut(|watching| {
        let due = past.changed(&watching.spot);
        match poll(&mut watching.watcher) {
            Poll::Ready(Ok(event)) => {
                let zxid = event.zxid.expect("the store knows it");
                if past.surely.contains(&zxid) {
                    past.shows(zxid);
                }
                false
            }
            Poll::Ready(Err(_)) => false,
            Poll::Pending => {
                let is_late = due > watching.armed && due <= seen;
                assert!(
                    !is_late,
                    "an answer overtook the event of {due} at {}",
                    watching.spot
                );
                true
            }
        }
    });
}

fn watched(request: &Request) -> Option<Spot> {
    match request {
        Request::Exists { path, watch: true } | Request::GetData { path, watch: true } => {
            Some(path.to_string())
        }
        Request::GetChildren { path, watch: true } => Some(format!("{path}/")),
        _ => None,
    }
}

/// Returns `count`, or ten times as many with `tests/run --full`.
pub(super) fn scaled(count: u64) -> u64 {
    let full = std::env::var_os("LOCKKEEPER_FULL").is_some_and(|full| full == "1");
    if full { count * 10 } else { count }
}
