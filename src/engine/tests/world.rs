//! A store on a simulated disk, and a model of the content that it must have after a crash.

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

#[derive(Default)]
pub(super) struct Past {
    images: Vec<(Zxid, Image)>,
    /// Transactions that are logged synchronously. No answer or event may leave before the log has the transactions
    /// that it shows.
    surely: BTreeSet<Zxid>,
    /// For each path, the last transaction of `surely` that changed it. The entry `path/` is for the children of
    /// `path`.
    changed: BTreeMap<String, Zxid>,
    /// Transactions up to this zxid must survive, because they were acknowledged or seen.
    pub(super) must: Zxid,
    last: Zxid,
    pub(super) numbered: BTreeSet<String>,
}

pub(super) struct World {
    pub(super) hand: Option<StepWriter>,
    pub(super) store: Store,
    pub(super) clock: Clock,
    pub(super) sessions: Vec<Asker>,
}

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
    after: Zxid,
    /// Transactions up to this zxid must survive once the request is answered, whether it succeeds or not.
    floor: Zxid,
    watched: Option<Spot>,
    is_numbered: bool,
}

struct Watching {
    watcher: Watcher,
    spot: Spot,
    armed: Zxid,
}

/// A watched znode, or the children of a znode if the text ends with a slash.
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

fn children_of(path: &str) -> Spot {
    let (parent, _) = path.rsplit_once('/').expect("no root");
    format!("{}/", if parent.is_empty() { "/" } else { parent })
}

impl World {
    /// `touched` contains the znodes that the answer may show.
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

    pub(super) fn pass(&self, past: &mut Past, time: Duration) {
        self.clock.advance(time);
        past.note(self);
    }

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

    fn listen(&mut self, past: &mut Past) {
        // If the latest reply is ready, all earlier replies must be ready, too.
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

fn says_nothing(reply: &Result<Reply>) -> bool {
    matches!(
        reply,
        Err(Error::StoreFailed { .. } | Error::DiskFull { .. } | Error::LimitReached { .. })
    )
}

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
