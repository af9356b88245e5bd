//! The process that is killed. It opens the store, reports the znodes found, and writes under load until the end. It
//! reports each acknowledged operation after the reply.

use std::collections::VecDeque;
use std::io::Write;
use std::path::Path;

use lockkeeper_store::{
    Acl, Blockers, Client, CreateMode, Enqueue, Error, GetPredecessor, OpReply, Predecessor, Reply,
    Response, Result, Session, Store, StoreOptions, ZnodePath, sequence_of,
};

use super::program::{WINDOW, WRITERS, Work, home, queue};
use super::report::{Found, Said};
use crate::common::path;

/// Contenders per lock.
const CONTENDERS: usize = 3;
pub(crate) const LOCKS: usize = 2;

pub(crate) async fn live(folder: &Path, options: StoreOptions, seed: u64, life: u64) {
    let store = Store::file_with(folder, options).expect("the store opens after a kill");
    let client = store.connect().await.unwrap();
    say(&Said::Store(client.store_id().unwrap().to_owned()));
    for found in look_around(&client.session().await.unwrap()).await {
        say(&Said::Found(found));
    }
    prepare(&client.session().await.unwrap()).await;
    say(&Said::Ready);
    let mut work = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        work.spawn(Writer::new(&store, seed, life, writer).await.run());
    }
    for number in 0..LOCKS * CONTENDERS {
        let client = store.connect().await.unwrap();
        work.spawn(contend(client, number % LOCKS));
    }
    // It ends only by a kill or a panic.
    while let Some(done) = work.join_next().await {
        done.unwrap();
    }
}

fn say(said: &Said) {
    // In one write, because other tasks print too, and we may be killed right after.
    let line = format!("{said}\n");
    std::io::stdout().write_all(line.as_bytes()).unwrap();
}

/// Returns all znodes except the store's own.
pub(crate) async fn look_around(session: &Session) -> Vec<Found> {
    let mut all = Vec::new();
    let mut paths = vec![ZnodePath::root()];
    while let Some(at) = paths.pop() {
        let (names, _) = session.get_children(&at).await.unwrap();
        paths.extend(names.iter().map(|name| at.join(name).unwrap()));
        paths.retain(|path| path.as_str() != "/zookeeper");
        if !at.is_root() {
            let (data, stat) = session.get_data(&at).await.unwrap();
            all.push(Found {
                path: at.to_string(),
                czxid: stat.czxid.0,
                mzxid: stat.mzxid.0,
                version: stat.version,
                owner: stat.ephemeral_owner.0,
                data: String::from_utf8(data.to_vec()).unwrap(),
            });
        }
    }
    all
}

async fn prepare(session: &Session) {
    let mut all: Vec<_> = (0..WRITERS).map(queue).collect();
    all.extend((0..LOCKS).flat_map(|lock| [lock_at(lock), gate_at(lock)]));
    for at in all {
        match session.create_all(&at, CreateMode::Persistent).await {
            Ok(()) | Err(Error::NodeExists { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn lock_at(lock: usize) -> ZnodePath {
    path(&format!("/lock/{lock}"))
}

fn gate_at(lock: usize) -> ZnodePath {
    path(&format!("/gate/{lock}"))
}

/// A writer that keeps several operations in flight.
struct Writer {
    session: Session,
    seed: u64,
    life: u64,
    number: usize,
    window: VecDeque<(u64, Response)>,
    queued: VecDeque<ZnodePath>,
}

impl Writer {
    async fn new(store: &Store, seed: u64, life: u64, number: usize) -> Self {
        let session = store.connect().await.unwrap().session().await.unwrap();
        // Must be gone in the next life.
        let alive = home(number).join("alive").unwrap();
        let made = session.create(&alive, "", CreateMode::Ephemeral).await;
        made.unwrap();
        let (mut names, _) = session.get_children(&queue(number)).await.unwrap();
        names.sort_by_key(|name| sequence_of(name));
        Self {
            session,
            seed,
            life,
            number,
            window: VecDeque::new(),
            queued: names
                .iter()
                .map(|name| queue(number).join(name).unwrap())
                .collect(),
        }
    }

    async fn run(mut self) {
        for number in 0.. {
            let work = Work::of(self.seed, self.life, self.number, number);
            match work.request(self.number) {
                Some(request) => {
                    let response = self.session.submit(request);
                    self.window.push_back((number, response));
                    while self.window.len() >= WINDOW {
                        self.settle().await;
                    }
                }
                None => {
                    while !self.window.is_empty() {
                        self.settle().await;
                    }
                    match work {
                        Work::Pop => self.pop(number).await,
                        _ => self.blip(number).await,
                    }
                }
            }
        }
    }

    /// Waits for the oldest answer and reports it.
    async fn settle(&mut self) {
        let (number, response) = self.window.pop_front().expect("there is one");
        let reply = response.await;
        let mut sequence = None;
        if let Ok(Reply::Created { path, .. }) = &reply
            && path.parent().as_ref() == Some(&queue(self.number))
        {
            self.queued.push_back(path.clone());
            sequence = sequence_of(path.name());
        }
        self.tell(number, reply.map(|reply| (zxid(&reply), sequence)));
    }

    async fn pop(&mut self, number: u64) {
        let Some(oldest) = self.queued.front() else {
            return say(&Said::Failed(self.number, number));
        };
        let popped = self.session.delete(oldest, None).await;
        if popped.is_ok() {
            self.queued.pop_front();
        }
        self.tell(number, popped.map(|()| (None, None)));
    }

    /// An ephemeral child also takes a number of the queue.
    async fn blip(&mut self, number: u64) {
        let at = queue(self.number).join("s-").unwrap();
        let mode = CreateMode::EphemeralSequential;
        let made = self.session.create(&at, "", mode).await;
        if let Ok((path, _)) = &made {
            self.session.delete(path, None).await.unwrap();
        }
        self.tell(number, made.map(|(_, stat)| (Some(stat.czxid.0), None)));
    }

    /// Reports an operation's outcome, with its zxid and number in the queue if known.
    fn tell(&self, number: u64, outcome: Result<(Option<i64>, Option<i64>)>) {
        let writer = self.number;
        say(&match outcome {
            Ok((zxid, sequence)) => Said::Done {
                writer,
                number,
                zxid,
                sequence,
            },
            Err(Error::LimitReached { .. }) => Said::Refused(writer, number),
            Err(Error::NodeExists { .. } | Error::NoNode { .. } | Error::MultiFailed { .. }) => {
                Said::Failed(writer, number)
            }
            Err(error) => panic!("writer {writer}, operation {number}: {error}"),
        });
    }
}

fn zxid(reply: &Reply) -> Option<i64> {
    let stat = match reply {
        Reply::Created { stat, .. } | Reply::Stat(stat) => *stat,
        Reply::Multi(replies) => replies.iter().find_map(|reply| match reply {
            OpReply::Created { stat, .. } => *stat,
            OpReply::Set(stat) => Some(*stat),
            _ => None,
        })?,
        _ => return None,
    };
    Some(stat.mzxid.0)
}

/// Takes a lock repeatedly and writes its token to the protected resource.
async fn contend(client: Client, lock: usize) {
    let session = client.session().await.unwrap();
    loop {
        match hold(&session, lock).await {
            Ok(()) | Err(Error::LimitReached { .. }) => {}
            Err(error) => panic!("lock {lock}: {error}"),
        }
    }
}

async fn hold(session: &Session, lock: usize) -> Result<()> {
    let enqueue = Enqueue {
        parent: lock_at(lock),
        name: "e-".into(),
        data: "".into(),
        acl: Acl::open(),
        blockers: Blockers::All,
        conditions: Vec::new(),
        count: false,
        queue_data: None,
    };
    let (entry, token, mut ahead) = session.enqueue(enqueue).await?;
    while let Predecessor::Blocked { watcher, .. } = ahead {
        let _departure = watcher.await?;
        let (blockers, count) = (Blockers::All, false);
        let entry = entry.clone();
        ahead = session
            .get_predecessor(GetPredecessor {
                entry,
                blockers,
                conditions: Vec::new(),
                count,
            })
            .await?;
    }
    assert!(matches!(ahead, Predecessor::Clear), "{ahead:?}");
    say(&Said::Token(lock, token.0));
    let shown = session
        .set_data(&gate_at(lock), token.to_string(), None)
        .await;
    if shown.is_ok() {
        say(&Said::Shown(lock, token.0));
    }
    session.delete(&entry, None).await?;
    shown.map(drop)
}
