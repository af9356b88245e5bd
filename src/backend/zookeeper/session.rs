//! A session at a ZooKeeper server, as a [`Backend`].

use std::convert::Infallible;
use std::fmt;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use parking_lot::Mutex;
use zookeeper_client as zk;

use super::agreement::{Asker, follow};
use super::convert::{self, About, Acls, CREATE};
use super::io::{self, Task, spawn, until};
use super::nodelay::send_at_once;
use super::numbers::{Numbers, made_by, used_up};
use crate::backend::{Backend, Cleanup, FLUSH_LIMIT, Flushed, LAST_DROP_LIMIT, SessionStatus};
use crate::error::{Error, Result};
use crate::future::BoxFuture;
use crate::path::ZnodePath;
use crate::protocol::{
    Create, Enqueue, Op, Predecessor, ReadOp, ReadReply, Reply, Request, Response,
};
use crate::types::{CreateMode, SessionId, SessionState};
use crate::watch::{PersistentWatcher, WatchMode, WatchedEvent, Watcher};

/// How many requests of one session may be under way at once.
const MOST_UNDER_WAY: usize = 100_000;

/// A session at a ZooKeeper server.
pub(super) struct ZooKeeperSession {
    link: Arc<Link>,
    place: Chroot,
    /// Disconnected when nothing holds the client any more.
    let_go: Mutex<Receiver<Infallible>>,
}

/// The crate's client, whose drop closes the session, and word of that drop.
struct Client {
    client: zk::Client,
    _let_go: Sender<Infallible>,
}

impl Deref for Client {
    type Target = zk::Client;

    fn deref(&self) -> &zk::Client {
        &self.client
    }
}

/// Where a session's paths begin.
pub(super) struct Chroot {
    pub(super) store_id: Option<String>,
    pub(super) prefix_bytes: usize,
    pub(super) numbers: Numbers,
}

/// What a session's requests and watchers share.
struct Link {
    /// `None` once the session is being closed. The session closes when no request holds it either.
    client: Mutex<Option<Arc<Client>>>,
    state: zk::StateWatcher,
    status: Arc<SessionStatus>,
    numbers: Numbers,
    under_way: AtomicUsize,
    /// A server has said that it knows no multiRead: before ZooKeeper 3.6.
    lacks_multi_read: AtomicBool,
    close_timeout: Duration,
}

impl ZooKeeperSession {
    /// A session over a connected client. Closing it takes at most `close_timeout`.
    pub(super) fn new(
        client: zk::Client,
        status: Arc<SessionStatus>,
        asker: Asker,
        place: Chroot,
        close_timeout: Duration,
    ) -> Self {
        drop(spawn(Box::pin(publish(
            client.state_watcher(),
            status.clone(),
            asker.hosts.clone(),
        ))));
        drop(spawn(Box::pin(follow(asker, status.clone()))));
        let (sender, let_go) = channel();
        let link = Link {
            state: client.state_watcher(),
            client: Mutex::new(Some(Arc::new(Client {
                client,
                _let_go: sender,
            }))),
            status,
            numbers: place.numbers,
            under_way: AtomicUsize::new(0),
            lacks_multi_read: AtomicBool::new(false),
            close_timeout,
        };
        Self {
            link: Arc::new(link),
            place,
            let_go: Mutex::new(let_go),
        }
    }
}

/// Writes the connection's state to the session's status. Nobody else does, so that no
/// reconnection is missed; only an expiry may be written by whoever hears of it first.
async fn publish(mut watcher: zk::StateWatcher, status: Arc<SessionStatus>, hosts: String) {
    let mut state = watcher.state();
    let mut disconnected = status.clock().now();
    loop {
        match state {
            zk::SessionState::SyncConnected | zk::SessionState::ConnectedReadOnly => {
                if status.state() == SessionState::Suspended {
                    send_at_once(&hosts);
                    // A member of an ensemble has a session that comes back confirmed by the leader, which
                    // touches it (ZooKeeper 3.9: `Learner.validateSession`, `Leader.revalidateSession`).
                    // The handshake was sent after the connection before was known to be lost.
                    status.prove(disconnected);
                    status.set_state(SessionState::Reconnected);
                }
            }
            zk::SessionState::Disconnected => {
                disconnected = status.clock().now();
                status.unsettle_timeout();
                status.set_state(SessionState::Suspended);
            }
            zk::SessionState::Expired | zk::SessionState::AuthFailed => {
                return status.set_state(SessionState::Expired);
            }
            zk::SessionState::Closed => return status.set_state(SessionState::Closed),
        }
        state = watcher.changed().await;
    }
}

impl Backend for ZooKeeperSession {
    fn submit(&self, request: Request) -> Response {
        match request {
            Request::Close => self.link.close(),
            request => self.link.submit(request),
        }
    }

    fn status(&self) -> &Arc<SessionStatus> {
        &self.link.status
    }

    fn store_id(&self) -> Option<&str> {
        self.place.store_id.as_deref()
    }

    fn prefix_bytes(&self) -> usize {
        self.place.prefix_bytes
    }

    fn flush(&self, limit: Duration) -> Flushed {
        io::flush(limit)
    }
}

impl Drop for ZooKeeperSession {
    /// Closes the session. The process may be about to end, so the request for that is waited for until it has been
    /// written. It follows the answers to the requests that are under way, which hold the client until then.
    fn drop(&mut self) {
        drop(self.link.client.lock().take());
        if !self.link.status.state().is_connected() || !io::can_wait() {
            return;
        }
        let let_go = self.let_go.get_mut();
        if let_go.try_recv() == Err(TryRecvError::Empty)
            && let_go.recv_timeout(LAST_DROP_LIMIT) == Err(RecvTimeoutError::Timeout)
        {
            let (session, limit) = (self.link.session(), LAST_DROP_LIMIT);
            tracing::warn!(%session, ?limit, "the end of a session was not written in time");
            return;
        }
        io::flush(FLUSH_LIMIT);
    }
}

impl fmt::Debug for ZooKeeperSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ZooKeeperSession({}, {:?})",
            self.link.status.id(),
            self.link.status.state()
        )
    }
}

impl Link {
    fn submit(self: &Arc<Self>, request: Request) -> Response {
        let Some(client) = self.client.lock().clone() else {
            return Response::ready(Err(self.end()));
        };
        if self.under_way.fetch_add(1, Ordering::Relaxed) >= MOST_UNDER_WAY {
            self.under_way.fetch_sub(1, Ordering::Relaxed);
            return Response::ready(Err(Error::LimitReached {
                what: "requests under way in one session",
                limit: MOST_UNDER_WAY,
            }));
        }
        let link = self.clone();
        let carried_out = sent(Box::pin(async move {
            let reply = carry_out(&link, client, request).await;
            link.under_way.fetch_sub(1, Ordering::Relaxed);
            link.settle().await;
            link.noting_the_end(reply)
        }));
        match carried_out {
            Ok(reply) => Response::ready(reply),
            Err(pending) => Response::pending(async move { pending.await? }),
        }
    }

    /// Lets go of the client, and waits until it has told the server.
    fn close(&self) -> Response {
        if self.client.lock().take().is_none() {
            return Response::ready(Err(self.end()));
        }
        let (status, timeout) = (self.status.clone(), self.close_timeout);
        let closing = spawn(Box::pin(async move {
            let deadline = status.clock().now().after(timeout);
            if until(status.clock(), deadline, final_state(&status))
                .await
                .is_none()
            {
                status.set_state(SessionState::Closed);
                return Err(Error::ConnectionLoss);
            }
            match status.end() {
                Some(error @ Error::SessionExpired { .. }) => Err(error),
                _ => Ok(Reply::Done),
            }
        }));
        Response::pending(async move { closing.await? })
    }

    /// Waits until the status shows what the connection knows already, so that who sees a reply
    /// or an event of a new connection sees the new connection too.
    async fn settle(&self) {
        if self.is_settled() {
            return;
        }
        let mut changes = self.status.states();
        while !self.is_settled() && changes.next().await.is_some() {}
    }

    /// Writes the session's expiry to its status before anybody is told of it: the crate tells its
    /// watchers first and its state afterwards, and who is told goes on with a new session at once.
    fn noting_the_end<T>(&self, answer: Result<T>) -> Result<T> {
        if let Err(Error::SessionExpired { .. }) = answer {
            self.status.set_state(SessionState::Expired);
        }
        answer
    }

    fn is_settled(&self) -> bool {
        let state = self.status.state();
        match self.state.peek_state() {
            zk::SessionState::SyncConnected | zk::SessionState::ConnectedReadOnly => {
                state != SessionState::Suspended
            }
            zk::SessionState::Disconnected => !state.is_connected(),
            _ => state.is_final(),
        }
    }

    fn session(&self) -> SessionId {
        self.status.id()
    }

    /// The error of a request that comes after the session.
    fn end(&self) -> Error {
        self.status.end().unwrap_or(Error::SessionClosed {
            session: self.session(),
        })
    }
}

/// Waits until the session is over.
pub(super) async fn final_state(status: &SessionStatus) {
    let mut changes = status.states();
    while !status.state().is_final() && changes.next().await.is_some() {}
}

/// Polls once, which sends what the future has to send, and leaves the rest to the thread of the
/// connections: it goes on when the caller does not, and lets go of the client when it is done.
fn sent<T: Send + 'static>(mut work: BoxFuture<T>) -> Result<T, Task<T>> {
    match work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Ok(answer),
        Poll::Pending => Err(spawn(work)),
    }
}

/// Sends a request before its first await, and answers its reply.
async fn carry_out(link: &Arc<Link>, client: Arc<Client>, request: Request) -> Result<Reply> {
    let session = link.session();
    let about = |what, path, version| About {
        what,
        path,
        version,
        session,
    };
    match request {
        Request::Create(create) => {
            let (path, stat) = self::create(link, &client, &create).await?;
            Ok(Reply::Created { path, stat })
        }
        Request::Delete { path, version } => delete(&client, path.as_str(), version, session).await,
        Request::Withdraw { entry } => delete(&client, entry.as_str(), None, session).await,
        Request::Exists { path, watch } => exists(link, &client, path.as_str(), watch).await,
        Request::GetData { path, watch } => get_data(link, &client, path.as_str(), watch).await,
        Request::SetData {
            path,
            data,
            version,
        } => {
            let path = path.as_str();
            let set = client.set_data(path, &data, version).await;
            let stat = set.map_err(|error| about("setData", path, version).error(error))?;
            Ok(Reply::Stat(convert::stat(stat)))
        }
        Request::GetChildren { path, watch } => {
            get_children(link, &client, path.as_str(), watch).await
        }
        Request::Multi(ops) => multi(link, &client, &ops).await,
        Request::MultiRead(ops) => multi_read(link, &client, &ops).await,
        Request::Sync { path } => {
            let path = path.as_str();
            let synced = client.sync(path).await;
            synced.map_err(|error| about("sync", path, None).error(error))?;
            Ok(Reply::Done)
        }
        Request::GetEphemerals { prefix } => {
            let path = prefix.as_str();
            let found = client.list_ephemerals(path).await;
            let paths = found.map_err(|error| about("getEphemerals", path, None).error(error))?;
            Ok(Reply::Paths(
                paths.iter().map(ZnodePath::new).collect::<Result<_>>()?,
            ))
        }
        Request::GetAllChildrenNumber { path } => {
            let path = path.as_str();
            let counted = client.count_descendants_number(path).await;
            counted
                .map(Reply::Count)
                .map_err(|error| about("getAllChildrenNumber", path, None).error(error))
        }
        Request::AddWatch { path, mode } => {
            let watching = client.watch(path.as_str(), convert::watch_mode(mode)).await;
            let watcher =
                watching.map_err(|error| about("addWatch", path.as_str(), None).error(error))?;
            let events = events(link.clone(), watcher, path, mode);
            Ok(Reply::Watching(PersistentWatcher::from_stream(events)))
        }
        Request::Enqueue(entry) => enqueue(link, &client, entry).await,
        Request::GetPredecessor(look) => {
            let parent = look.entry.parent().unwrap_or_else(ZnodePath::root);
            match client.list_children(parent.as_str()).await {
                Ok(names) => Ok(Reply::Predecessor(Predecessor::Listed(names))),
                Err(zk::Error::NoNode) => Ok(Reply::Predecessor(Predecessor::Gone)),
                Err(error) => Err(about("getChildren", parent.as_str(), None).error(error)),
            }
        }
        Request::GetQueue { parent, .. } => {
            let path = parent.as_str();
            let listed = client.list_children(path).await;
            let names = listed.map_err(|error| about("getChildren", path, None).error(error))?;
            Ok(Reply::Queue {
                names,
                sorted: false,
            })
        }
        Request::GetAcl { path } => {
            let path = path.as_str();
            let found = client.get_acl(path).await;
            let (acl, stat) = found.map_err(|error| about("getACL", path, None).error(error))?;
            let (acl, stat) = (convert::acl(&acl), convert::stat(stat));
            Ok(Reply::Acl { acl, stat })
        }
        Request::SetAcl { path, acl, version } => {
            let (path, acls) = (path.as_str(), Acls::new(&acl));
            let set = client.set_acl(path, &acls.list(), version).await;
            let stat = set.map_err(|error| about("setACL", path, version).error(error))?;
            Ok(Reply::Stat(convert::stat(stat)))
        }
        Request::AddAuth { scheme, secret } => {
            let proved = client.auth(&scheme, secret.as_bytes()).await;
            proved.map_err(|error| about("auth", "/", None).error(error))?;
            Ok(Reply::Done)
        }
        Request::Close => unreachable!("closing is no request to the crate"),
    }
}

async fn delete(
    client: &zk::Client,
    path: &str,
    version: Option<i32>,
    session: SessionId,
) -> Result<Reply> {
    let about = About {
        what: "delete",
        path,
        version,
        session,
    };
    let deleted = client.delete(path, version).await;
    deleted.map_err(|error| about.error(error))?;
    Ok(Reply::Done)
}

async fn exists(link: &Arc<Link>, client: &zk::Client, path: &str, watch: bool) -> Result<Reply> {
    let found = if watch {
        let found = client.check_and_watch_stat(path).await;
        found.map(|(stat, watcher)| (stat, Some(oneshot(link, watcher))))
    } else {
        client.check_stat(path).await.map(|stat| (stat, None))
    };
    let (stat, watcher) = found.map_err(|error| read_at(link, "exists", path).error(error))?;
    Ok(Reply::Exists {
        stat: stat.map(convert::stat),
        watcher,
    })
}

async fn get_data(link: &Arc<Link>, client: &zk::Client, path: &str, watch: bool) -> Result<Reply> {
    let found = if watch {
        let found = client.get_and_watch_data(path).await;
        found.map(|(data, stat, watcher)| (data, stat, Some(oneshot(link, watcher))))
    } else {
        client
            .get_data(path)
            .await
            .map(|(data, stat)| (data, stat, None))
    };
    let (data, stat, watcher) =
        found.map_err(|error| read_at(link, "getData", path).error(error))?;
    Ok(Reply::Data {
        data: Bytes::from(data),
        stat: convert::stat(stat),
        watcher,
    })
}

async fn get_children(
    link: &Arc<Link>,
    client: &zk::Client,
    path: &str,
    watch: bool,
) -> Result<Reply> {
    let found = if watch {
        let found = client.get_and_watch_children(path).await;
        found.map(|(names, stat, watcher)| (names, stat, Some(oneshot(link, watcher))))
    } else {
        client
            .get_children(path)
            .await
            .map(|(names, stat)| (names, stat, None))
    };
    let (names, stat, watcher) =
        found.map_err(|error| read_at(link, "getChildren", path).error(error))?;
    Ok(Reply::Children {
        names,
        stat: convert::stat(stat),
        watcher,
    })
}

fn read_at<'a>(link: &Link, what: &'static str, path: &'a str) -> About<'a> {
    About {
        what,
        path,
        version: None,
        session: link.session(),
    }
}

async fn create(
    link: &Arc<Link>,
    client: &zk::Client,
    create: &Create,
) -> Result<(ZnodePath, crate::types::Stat)> {
    let acls = Acls::new(&create.acl);
    let path = create.path.as_str();
    let made = client
        .create(path, &create.data, &acls.options(create.mode))
        .await;
    created(link, create, made)
}

/// What a create's answer says. One whose number is near the end of ZooKeeper's counter is undone.
fn created(
    link: &Arc<Link>,
    create: &Create,
    made: Result<(zk::Stat, zk::CreateSequence), zk::Error>,
) -> Result<(ZnodePath, crate::types::Stat)> {
    let about = About {
        what: CREATE,
        path: create.path.as_str(),
        version: None,
        session: link.session(),
    };
    let (stat, number) = made.map_err(|error| about.error(error))?;
    let path = convert::made(create, number);
    if create.mode.is_sequential() && !link.numbers.has(number.into_i64()) {
        let error = used_up(&path);
        undo(link, vec![path]);
        return Err(error);
    }
    Ok((path, convert::stat(stat)))
}

/// Deletes znodes one after the other in the background, and sees that through. It keeps no client:
/// closing the session ends it.
fn undo(link: &Arc<Link>, made: Vec<ZnodePath>) {
    let link = link.clone();
    drop(spawn(Box::pin(async move {
        for path in made {
            let mut cleanup = Cleanup::of(&link.status, &path);
            loop {
                let path = path.clone();
                let version = None;
                let Err(error) = link.submit(Request::Delete { path, version }).await else {
                    break;
                };
                if cleanup.retry(error).await.is_err() {
                    break;
                }
            }
        }
    })));
}

/// Sends the create and the question who is ahead together: one round trip.
async fn enqueue(link: &Arc<Link>, client: &zk::Client, entry: Enqueue) -> Result<Reply> {
    let create = Create {
        path: entry.parent.join(&entry.name)?,
        data: entry.data,
        mode: CreateMode::EphemeralSequential,
        acl: entry.acl,
    };
    let acls = Acls::new(&create.acl);
    let making = client.create(
        create.path.as_str(),
        &create.data,
        &acls.options(create.mode),
    );
    let listing = client.list_children(entry.parent.as_str());
    let made = making.await;
    // A list whose create failed is thrown away: it may have run on the next connection.
    let (path, stat) = created(link, &create, made)?;
    let ahead = match listing.await {
        Ok(names) => Predecessor::Listed(names),
        Err(_) => Predecessor::Unknown,
    };
    Ok(Reply::Enqueued {
        path,
        czxid: stat.czxid,
        ahead,
    })
}

async fn multi(link: &Arc<Link>, client: &zk::Client, ops: &[Op]) -> Result<Reply> {
    let session = link.session();
    let failed = |index: usize, error| Error::MultiFailed {
        index,
        source: Box::new(convert::about_op(&ops[index], session).error(error)),
    };
    let mut writer = client.new_multi_writer();
    for (index, op) in ops.iter().enumerate() {
        convert::add_op(&mut writer, op).map_err(|error| failed(index, error))?;
    }
    let results = writer.commit().await.map_err(|error| match error {
        zk::MultiWriteError::OperationFailed { index, source } if index < ops.len() => {
            failed(index, source)
        }
        error => About {
            what: "multi",
            path: "/",
            version: None,
            session,
        }
        .error(error.into()),
    })?;
    let replies = results.into_iter().map(convert::op_reply);
    let replies = replies.collect::<Result<Vec<_>>>()?;
    if let Some(error) = link.numbers.exhausted(ops, &replies) {
        undo(link, made_by(&replies));
        return Err(error);
    }
    Ok(Reply::Multi(replies))
}

/// Reads several things together, or, where a server is too old for that, one by one in their order:
/// others may write in between.
async fn multi_read(link: &Link, client: &zk::Client, ops: &[ReadOp]) -> Result<Reply> {
    let session = link.session();
    if link.lacks_multi_read.load(Ordering::Relaxed) {
        return read_each(client, ops, session).await;
    }
    let mut reader = client.new_multi_reader();
    for op in ops {
        convert::add_read(&mut reader, op)
            .map_err(|error| convert::about_read(op, session).error(error))?;
    }
    let about = About {
        what: "multiRead",
        path: "/",
        version: None,
        session,
    };
    let results = match reader.commit().await {
        Err(zk::Error::Unimplemented) => {
            link.lacks_multi_read.store(true, Ordering::Relaxed);
            tracing::info!(%session, "the server knows no multiRead: it is asked one by one");
            return loop {
                // With that answer the server breaks the connection off (`UnimplementedRequestProcessor`).
                match read_each(client, ops, session).await {
                    Err(Error::ConnectionLoss) => {}
                    read => break read,
                }
            };
        }
        results => results.map_err(|error| about.error(error))?,
    };
    let replies = ops.iter().zip(results);
    Ok(Reply::MultiRead(
        replies
            .map(|(op, result)| convert::read_reply(op, result, session))
            .collect(),
    ))
}

/// Sends all reads, then awaits them: one round trip, as a multiRead is.
async fn read_each(client: &zk::Client, ops: &[ReadOp], session: SessionId) -> Result<Reply> {
    let mut reading: Vec<Reading<'_>> = Vec::with_capacity(ops.len());
    for op in ops {
        reading.push(match op {
            ReadOp::GetData(path) => {
                let found = client.get_data(path.as_str());
                Box::pin(async move {
                    let (data, stat) = found.await?;
                    let (data, stat) = (Bytes::from(data), convert::stat(stat));
                    Ok(ReadReply::Data { data, stat })
                })
            }
            ReadOp::GetChildren(path) => {
                let found = client.list_children(path.as_str());
                Box::pin(async move { found.await.map(ReadReply::Children) })
            }
        });
    }
    let mut replies = Vec::with_capacity(ops.len());
    for (op, reading) in ops.iter().zip(reading) {
        let reply = reading.await;
        let reply = reply.map_err(|error| convert::about_read(op, session).error(error));
        replies.push(match reply {
            Err(error) if error.is_answer() => ReadReply::Failed(error),
            reply => reply?,
        });
    }
    Ok(Reply::MultiRead(replies))
}

type Reading<'a> = Pin<Box<dyn Future<Output = Result<ReadReply, zk::Error>> + Send + 'a>>;

fn oneshot(link: &Arc<Link>, watcher: zk::OneshotWatcher) -> Watcher {
    let link = link.clone();
    Watcher::from_future(async move {
        let event = watcher.changed().await;
        link.settle().await;
        link.noting_the_end(convert::event(event, link.session()))
    })
}

/// The events of a watch that survives firing.
///
/// Unread events wait in the crate, which sets no limit to them. It also forgets to arm such
/// watches anew after a reconnection, and ZooKeeper loses what happened meanwhile
/// (ZOOKEEPER-4698): so the watch is added again, and then the loss told.
fn events(
    link: Arc<Link>,
    mut watcher: zk::PersistentWatcher,
    path: ZnodePath,
    mode: WatchMode,
) -> impl Stream<Item = Result<WatchedEvent>> + Send + 'static {
    async_stream::stream! {
        loop {
            let event = watcher.changed().await;
            link.settle().await;
            let state = event.session_state;
            let of_session = event.event_type == zk::EventType::Session;
            match link.noting_the_end(convert::event(event, link.session())) {
                Err(Error::ConnectionLoss) if of_session => {
                    if state == zk::SessionState::Disconnected {
                        continue;
                    }
                    match watch_again(&link, &path, mode).await {
                        Ok(again) => watcher = again,
                        Err(error) => {
                            yield Err(error);
                            return;
                        }
                    }
                    yield Err(Error::ConnectionLoss);
                }
                Err(end) => {
                    yield Err(end);
                    return;
                }
                event => yield event,
            }
        }
    }
}

async fn watch_again(
    link: &Link,
    path: &ZnodePath,
    mode: WatchMode,
) -> Result<zk::PersistentWatcher> {
    loop {
        let Some(client) = link.client.lock().clone() else {
            return Err(link.end());
        };
        let (path, session) = (path.clone(), link.session());
        let watching = sent(Box::pin(async move {
            let watching = client.watch(path.as_str(), convert::watch_mode(mode)).await;
            let about = About {
                what: "addWatch",
                path: path.as_str(),
                version: None,
                session,
            };
            watching.map_err(|error| about.error(error))
        }));
        let watching = match watching {
            Ok(watching) => watching,
            Err(pending) => pending.await?,
        };
        match watching {
            Err(Error::ConnectionLoss) => {}
            done => return done,
        }
    }
}
