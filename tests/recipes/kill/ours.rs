//! A client of this library, in a separate process: see [`line`](super::line).

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex};
use std::time::{Duration, Instant};

use lockkeeper::{Client, ConnectOptions, Guard, Mutex, Session, SessionState, connect_with};
use lockkeeper_store::{Acl, Create, CreateMode, Error, Op, OpReply, Result};
use tokio::task::JoinSet;

use super::line::Work;
use crate::common::path;

/// Arguments of the process.
pub(crate) struct Orders {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) timeout: Duration,
    pub(crate) writers: usize,
}

/// Does what a client does, until its stdin ends.
pub(crate) async fn live(orders: Orders) {
    let over = Arc::new(AtomicBool::new(false));
    let flag = over.clone();
    let end = tokio::task::spawn_blocking(move || {
        // Only its end is of interest.
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        flag.store(true, Ordering::SeqCst);
    });
    let writers = orders.writers;
    let client = Arc::new(Survivor::connect(orders, over).await);
    let mut writing = JoinSet::new();
    for number in 0..writers {
        let client = client.clone();
        writing.spawn(async move { client.write(number).await });
    }
    let mut others = JoinSet::new();
    for task in [Task::Listen, Task::Contend, Task::Watch] {
        let client = client.clone();
        others.spawn(async move { client.run(task).await });
    }
    tokio::select! {
        _ = end => {}
        ended = others.join_next() => panic!("it goes on for ever: {ended:?}"),
        // A writer may see the end before this task does.
        ended = writing.join_next() => {
            let is_over = client.over.load(Ordering::SeqCst);
            assert!(is_over && matches!(ended, Some(Ok(_))), "it goes on for ever: {ended:?}");
        }
    }
    while let Some(ended) = writing.join_next().await {
        ended.unwrap();
    }
    // From here on no other task of this thread has a turn.
    client.say(format_args!("ended"));
    others.shutdown().await;
    let _ = client.client.close().await;
}

#[derive(Clone, Copy)]
enum Task {
    Listen,
    Contend,
    Watch,
}

struct Survivor {
    name: String,
    client: Client,
    over: Arc<AtomicBool>,
    start: Instant,
    /// Moment at which the last answered request was sent, in milliseconds since the start.
    proved: AtomicU64,
    /// The session that created the present ephemeral znode.
    at_home_in: StdMutex<Option<i64>>,
}

impl Survivor {
    async fn connect(orders: Orders, over: Arc<AtomicBool>) -> Self {
        let start = Instant::now();
        let options = ConnectOptions::new()
            .session_timeout(orders.timeout)
            .connect_timeout(Duration::from_secs(120));
        let client = connect_with(orders.url.as_str(), options).await.unwrap();
        Self {
            name: orders.name,
            client,
            over,
            start,
            proved: AtomicU64::new(0),
            at_home_in: StdMutex::new(None),
        }
    }

    /// One write: it is whole, and in order with what other processes write. The test harness has
    /// stdout for itself.
    fn say(&self, words: std::fmt::Arguments<'_>) {
        let line = format!("{} {words}\n", self.name);
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }

    async fn run(&self, task: Task) {
        match task {
            Task::Listen => self.listen().await,
            Task::Contend => self.contend().await,
            Task::Watch => self.watch().await,
        }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    fn silent(&self) -> u64 {
        self.now() - self.proved.load(Ordering::SeqCst)
    }

    async fn session(&self) -> Session {
        connected(&self.client).await
    }

    /// Tells what becomes of the session.
    async fn listen(&self) {
        loop {
            let session = self.session().await;
            let id = session.id().0;
            let mut states = session.states();
            let mut state = session.state();
            let mut is_away = false;
            while !state.is_final() {
                match state {
                    SessionState::Suspended if !is_away => self.say(format_args!("away {id}")),
                    SessionState::Reconnected if is_away => {
                        self.say(format_args!("back {id} {}", self.silent()));
                    }
                    _ => {}
                }
                is_away = state == SessionState::Suspended;
                match states.next().await {
                    Some(next) => state = next,
                    None => break,
                }
            }
            self.say(format_args!("lost {id} {}", self.silent()));
            self.proved.fetch_max(self.now(), Ordering::SeqCst);
        }
    }

    // Writing.

    async fn write(&self, writer: usize) {
        let home = format!("/work/{}/{writer}", self.name);
        for znode in ["counter", "pair"] {
            self.make(&format!("{home}/{znode}")).await;
        }
        for number in 0.. {
            if self.over.load(Ordering::SeqCst) {
                return;
            }
            let session = self.session().await;
            let sent = self.now();
            match step(&session, &home, number).await {
                Ok((zxid, version)) => {
                    self.say(format_args!("done {writer} {number} {zxid} {version}"));
                    self.proved.fetch_max(sent, Ordering::SeqCst);
                }
                Err(Error::NoNode { .. }) => self.say(format_args!("refused {writer} {number}")),
                Err(error) if is_unknown(&error) => {
                    self.say(format_args!("unknown {writer} {number}"));
                }
                Err(error) => panic!("write {number} of writer {writer}: {error}"),
            }
        }
    }

    async fn make(&self, znode: &str) {
        let znode = path(znode);
        loop {
            let session = self.session().await;
            let parent = znode.parent().expect("it is not the root");
            let made = match session.create_all(&parent, CreateMode::Persistent).await {
                Ok(()) => session
                    .create(&znode, "-1", CreateMode::Persistent)
                    .await
                    .map(drop),
                failed => failed,
            };
            match made {
                Ok(()) | Err(Error::NodeExists { .. }) => return,
                Err(error) if is_unknown(&error) => {}
                Err(error) => panic!("{znode}: {error}"),
            }
        }
    }

    // The lock.

    async fn contend(&self) {
        let mutex = Mutex::new(&self.client, "/lock").unwrap();
        loop {
            // What fails here fails with its session or its connection: then it is tried again.
            let Ok(guard) = mutex.lock().await else {
                self.session().await;
                continue;
            };
            let (session, token) = (guard.session().id().0, guard.fencing_token());
            if !guard.is_held() {
                continue;
            }
            self.say(format_args!("held {session} {token}"));
            let token: i64 = token.to_string().parse().unwrap();
            let _ = guard.protect(self.pass_gate(&guard, token)).await;
            self.say(format_args!("left {session} {token}"));
            // An answer that is lost is looked for behind the scenes.
            let _ = guard.release().await;
        }
    }

    /// Uses the protected resource: writes the token to it.
    async fn pass_gate(&self, guard: &Guard, token: i64) {
        let gate = path("/gate");
        let session = guard.session();
        loop {
            let tried = async {
                let (data, stat) = session.get_data(&gate).await?;
                let seen: i64 = std::str::from_utf8(&data).unwrap().parse().unwrap();
                if seen >= token {
                    return Ok(());
                }
                let set = session.set_data(&gate, token.to_string(), Some(stat.version));
                set.await?;
                self.say(format_args!("shown {} {token}", session.id().0));
                Ok(())
            };
            match tried.await {
                Ok(()) => return,
                // This client's own write, whose answer was lost; or the lock is lost.
                Err(Error::BadVersion { .. }) => {}
                Err(error) if is_unknown(&error) => {
                    self.session().await;
                }
                Err(error) => panic!("the gate: {error}"),
            }
        }
    }

    // The bell, and what must live as long as the session.

    async fn watch(&self) {
        let bell = path("/bell");
        loop {
            let session = self.session().await;
            let id = session.id().0;
            match session.watch_data(&bell).await {
                Ok((_, stat, watcher)) => {
                    self.say(format_args!("saw {id} {}", stat.version));
                    while self.look_home().await.is_err() {}
                    if watcher.await.is_ok() {
                        self.say(format_args!("fired {id}"));
                    }
                }
                Err(error) if is_unknown(&error) => {}
                Err(error) => panic!("the bell: {error}"),
            }
        }
    }

    async fn look_home(&self) -> Result<()> {
        let session = self.session().await;
        let id = session.id().0;
        let znode = path(&format!("/alive/{}", self.name));
        let at_home_in = *self.at_home_in.lock().unwrap();
        if at_home_in != Some(id) {
            match session.create(&znode, "", CreateMode::Ephemeral).await {
                // This session's own create, whose answer was lost; or the znode of the session before.
                Ok(_) | Err(Error::NodeExists { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let (stat, changed) = session.watch_exists(&znode).await?;
        let owner = stat.map(|stat| stat.ephemeral_owner.0);
        if at_home_in != Some(id) && owner != Some(id) {
            // Of the session before: it is waited out.
            changed.await?;
            return Err(Error::ConnectionLoss);
        }
        *self.at_home_in.lock().unwrap() = Some(id);
        let czxid = stat.map_or(0, |stat| stat.czxid.0);
        self.say(format_args!("alive {id} {czxid}"));
        Ok(())
    }
}

/// A client's session, connected; another one if the last is over.
pub(crate) async fn connected(client: &Client) -> Session {
    loop {
        let session = match client.session().await {
            Ok(session) => session,
            Err(error) if is_unknown(&error) => continue,
            Err(error) => panic!("{error}"),
        };
        let mut states = session.states();
        while !session.state().is_connected() {
            if states.next().await.is_none() {
                break;
            }
        }
        if session.state().is_connected() {
            return session;
        }
    }
}

/// Returns true if the outcome of the request is unknown.
pub(crate) fn is_unknown(error: &Error) -> bool {
    matches!(error, Error::ConnectionLoss | Error::ConnectFailed { .. }) || error.is_session_end()
}

/// Carries out a write, and returns the zxid and the version that its answer tells.
async fn step(session: &Session, home: &str, number: u64) -> Result<(i64, i32)> {
    let (counter, pair) = (
        path(&format!("{home}/counter")),
        path(&format!("{home}/pair")),
    );
    let data = number.to_string();
    match Work::of(number) {
        Work::Make => {
            let znode = path(&format!("{home}/n-{number}"));
            let made = session.create(&znode, data, CreateMode::Persistent).await?;
            Ok((made.1.czxid.0, -1))
        }
        Work::Count => {
            let stat = session.set_data(&counter, data, None).await?;
            Ok((stat.mzxid.0, stat.version))
        }
        Work::Both => {
            let set = Op::SetData {
                path: pair,
                data: data.clone().into(),
                version: None,
            };
            let make = Op::Create(Create {
                path: path(&format!("{home}/m-{number}")),
                data: data.into(),
                mode: CreateMode::Persistent,
                acl: Acl::open(),
            });
            let replies = session.multi([set, make]).await?;
            let Some(OpReply::Set(stat)) = replies.first() else {
                panic!("{replies:?}");
            };
            Ok((stat.mzxid.0, stat.version))
        }
        Work::Delete(made) => {
            let znode = path(&format!("{home}/n-{made}"));
            session.delete(&znode, None).await?;
            Ok((-1, -1))
        }
    }
}
