//! [`EtcdSession`]: a session whose znodes belong to one etcd lease.
//!
//! Four tasks serve a session. The first starts the requests, in order for the same queue and concurrently for
//! different queues. The second renews the lease and proves that the session is alive. The third notices the end of the
//! lease, and the fourth serves the watches.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use prost::Message;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;
use tonic::Code;

use super::channel::{Connection, Failure, Members, spawn};
use super::keys::Keys;
use super::messages::{
    Answer, LEASE_GRANT, LEASE_REVOKE, LeaseGrant, LeaseGrantResponse, LeaseRevoke,
    LeaseRevokeResponse, Range, RangeResponse, TXN, Txn, TxnResponse, put, revision,
};
use super::requests::path_of;
use super::watches::{self, Watches};
use crate::backend::{Backend, FLUSH_LIMIT, Flushed, KeepAlive, LAST_DROP_LIMIT, SessionStatus};
use crate::model::error::{Error, Result};
use crate::model::path::ZnodePath;
use crate::model::protocol::{ReadOp, Reply, Request, Response};
use crate::model::types::{HumanDuration, SessionId, SessionState};
use crate::runtime::clock::Clock;

/// Number of keep-alives per lease time.
const BEATS: u32 = 3;
/// A keep-alive that proves nothing is repeated after the lease time divided by this number.
const AGAIN: u32 = 20;
/// Calls time out after the lease time divided by this number, or after [`LONGEST_PATIENCE`].
const PATIENCE: u32 = 4;
/// Longer than etcd's own time limit for a request (7 s by default), so that its answer still arrives.
const LONGEST_PATIENCE: Duration = Duration::from_secs(8);
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Number of tracked znodes above which znodes without a running request are forgotten.
const FORGET_ABOVE: usize = 64;

pub(super) struct EtcdSession {
    pub(super) shared: Arc<Shared>,
    pub(super) store_id: Option<String>,
    requests: mpsc::UnboundedSender<Job>,
}

struct Job {
    number: u64,
    request: Request,
    reply: oneshot::Sender<Result<Reply>>,
}

/// State that the tasks of a session share.
pub(super) struct Shared {
    pub(super) status: Arc<SessionStatus>,
    pub(super) keys: Keys,
    pub(super) lease: i64,
    /// Highest revision that a client has seen in its sessions.
    revision: Arc<AtomicI64>,
    pub(super) watches: Watches,
    members: Members,
    /// Key that represents the session. The lease exists if a read finds this key.
    pub(super) own_key: Vec<u8>,
    /// Key whose revision is that of the connection's [`fence`](Connection::fence).
    pub(super) fence_key: Vec<u8>,
    connection: Mutex<Option<Connection>>,
    connection_lost: Notify,
    /// Held by the task that connects, so that waiting tasks do not make attempts of their own.
    connecting: tokio::sync::Mutex<Pacing>,
    /// Keys and create revisions of the znodes that this session has created, so that their paths need no lookup.
    pub(super) made: Mutex<HashMap<ZnodePath, (Vec<u8>, i64)>>,
    progress: Mutex<Progress>,
    progressed: Condvar,
}

#[derive(Default)]
struct Progress {
    /// Number of the last submitted request.
    submitted: u64,
    /// Numbers of the requests that are not finished.
    unfinished: BTreeSet<u64>,
    /// True if a wait has timed out and no request has finished since.
    is_stuck: bool,
}

/// Pauses before attempts to connect. Attempts within a second of each other are slowed down even if they succeed,
/// because a member may accept connections and keep-alives but refuse all other requests.
#[derive(Default)]
pub(super) struct Pacing {
    last: Option<Instant>,
    pause: Duration,
}

impl Pacing {
    pub(super) fn pause(&mut self, now: Instant) -> Duration {
        let since = self.last.map(|last| now.saturating_duration_since(last));
        self.pause = match since {
            Some(since) if since < LONGEST_PAUSE => {
                (2 * self.pause).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
            }
            _ => Duration::ZERO,
        };
        self.last = Some(now + self.pause);
        self.pause
    }
}

/// Outcome of a keep-alive.
enum Beat {
    Proved,
    /// The lease exists, but the keep-alive proves nothing. Repeat it soon.
    Unproved,
    Gone,
}

impl EtcdSession {
    /// Grants a lease and starts the session's tasks.
    pub(super) async fn open(
        members: Members,
        keys: Keys,
        ttl: Duration,
        clock: Clock,
        revision: Arc<AtomicI64>,
    ) -> Result<Self, Opening> {
        let connection = members.connect(patience(ttl)).await?;
        let sent = clock.now();
        let grant = LeaseGrant::rounded_up(ttl);
        let granted = connection.call(LEASE_GRANT, grant, patience(ttl));
        let granted: LeaseGrantResponse = granted.await?;
        let minimum = Duration::from_secs(granted.ttl.unsigned_abs());
        if minimum > ttl {
            let revoke = LeaseRevoke { id: granted.id };
            let revoked = connection.call(LEASE_REVOKE, revoke, ttl);
            let _: Result<LeaseRevokeResponse, _> = revoked.await;
            return Err(Opening::Final(Error::BadArguments(format!(
                "a session timeout of {ttl:?}: this etcd grants no lease below {minimum:?}, because of its election \
                 timeout"
            ))));
        }
        let status = SessionStatus::new(SessionId(granted.id), clock, Some(ttl), false, sent);
        let (watches, commands) = watches::channel();
        let shared = Arc::new(Shared {
            status: Arc::new(status.with_keep_alive()),
            own_key: keys.session(granted.id),
            fence_key: keys.fence(granted.id),
            keys,
            lease: granted.id,
            revision,
            watches,
            members,
            connection: Mutex::default(),
            connection_lost: Notify::new(),
            connecting: tokio::sync::Mutex::default(),
            made: Mutex::default(),
            progress: Mutex::default(),
            progressed: Condvar::new(),
        });
        shared.fence(connection).await?;
        let (requests, jobs) = mpsc::unbounded_channel();
        tokio::spawn(carry_out_all(shared.clone(), jobs));
        tokio::spawn(keep_alive(shared.clone()));
        tokio::spawn(notice_end(shared.clone()));
        tokio::spawn(watches::run(shared.clone(), commands));
        Ok(Self {
            shared,
            store_id: None,
            requests,
        })
    }
}

fn patience(ttl: Duration) -> Duration {
    LONGEST_PATIENCE.min(ttl / PATIENCE)
}

/// Reason why a session was not opened.
pub(super) enum Opening {
    /// Another attempt may succeed.
    Failed(String),
    /// This client has seen revision `before`, but the store is at the lower revision `now`.
    Replaced {
        before: i64,
        now: i64,
    },
    Final(Error),
}

impl From<Failure> for Opening {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Lost(reason) => Self::Failed(reason),
            Failure::Refused {
                code: Code::Unauthenticated,
                ..
            } => Self::Final(Error::AuthFailed),
            Failure::Refused {
                code: Code::PermissionDenied,
                ..
            } => Self::Final(Error::NoAuth {
                path: "/lockkeeper.sessions".to_owned(),
            }),
            Failure::Refused { code, reason } => Self::Failed(format!("{code:?}: {reason}")),
            Failure::Replaced { before, now } => Self::Replaced { before, now },
        }
    }
}

impl Backend for EtcdSession {
    fn submit(&self, request: Request) -> Response {
        if let Some(end) = self.shared.status.end() {
            return Response::ready(Err(end));
        }
        let (reply, answer) = oneshot::channel();
        let session = self.shared.status.id();
        let mut progress = self.shared.progress.lock();
        progress.submitted += 1;
        let number = progress.submitted;
        let job = Job {
            number,
            request,
            reply,
        };
        if self.requests.send(job).is_ok() {
            progress.unfinished.insert(number);
        }
        drop(progress);
        Response::pending(async move {
            let answer = answer.await;
            answer.unwrap_or(Err(Error::SessionClosed { session }))
        })
    }

    fn status(&self) -> &Arc<SessionStatus> {
        &self.shared.status
    }

    fn store_id(&self) -> Option<&str> {
        self.store_id.as_deref()
    }

    fn prefix_bytes(&self) -> usize {
        self.shared.keys.prefix_bytes()
    }

    fn flush(&self, limit: Duration) -> Flushed {
        if self.shared.connection.lock().is_none() || self.shared.status.end().is_some() {
            return Flushed::Skipped;
        }
        let mut progress = self.shared.progress.lock();
        // A server that does not answer delays only one of many drops.
        if progress.is_stuck {
            return Flushed::Skipped;
        }
        let submitted = progress.submitted;
        let end = std::time::Instant::now() + limit;
        while progress
            .unfinished
            .first()
            .is_some_and(|first| *first <= submitted)
        {
            let timed_out = self.shared.progressed.wait_until(&mut progress, end);
            if timed_out.timed_out() {
                progress.is_stuck = true;
                drop(progress);
                tracing::warn!(limit = %HumanDuration(limit), "requests not written in time");
                return Flushed::TimedOut;
            }
        }
        Flushed::Written
    }
}

impl Drop for EtcdSession {
    /// Waits a limited time until the lease is revoked, because the process may exit right after the drop.
    fn drop(&mut self) {
        // In a forked child, the lease belongs to the parent, so do not revoke it.
        if self.shared.status.end().is_none() {
            drop(self.submit(Request::Close));
            // A session without an id was not opened, and is dropped on the thread that has to revoke its lease.
            if self.store_id.is_some() {
                self.flush(LAST_DROP_LIMIT + FLUSH_LIMIT);
            }
        }
    }
}

impl fmt::Debug for EtcdSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = &self.shared.status;
        write!(f, "EtcdSession({}, {:?})", status.id(), status.state())
    }
}

impl Shared {
    pub(super) fn patience(&self) -> Duration {
        patience(self.status.timeout().unwrap_or_default())
    }

    fn finished(&self, number: u64) {
        let mut progress = self.progress.lock();
        progress.unfinished.remove(&number);
        progress.is_stuck = false;
        drop(progress);
        self.progressed.notify_all();
    }

    pub(super) fn end(&self) -> Error {
        let session = self.status.id();
        self.status
            .end()
            .unwrap_or(Error::SessionClosed { session })
    }

    /// Waits until there is a connection, and returns it.
    ///
    /// # Errors
    /// The reason for the end of the session.
    pub(super) async fn connected(&self) -> Result<Connection> {
        loop {
            if !self.status.is_alive() {
                return Err(self.end());
            }
            if let Some(connection) = self.connection.lock().clone() {
                return Ok(connection);
            }
            let mut pacing = self.connecting.lock().await;
            if self.connection.lock().is_none() {
                tokio::time::sleep(pacing.pause(Instant::now())).await;
                self.reconnect().await;
            }
        }
    }

    /// Connects to another member, if that is possible.
    async fn reconnect(&self) {
        let Ok(connection) = self.members.connect(self.patience()).await else {
            return;
        };
        // Do not renew the lease before the fence is put. Otherwise a session whose puts are refused would never end.
        match self.fence(connection).await {
            Ok(()) => self.status.set_state(SessionState::Reconnected),
            Err(Failure::Refused {
                code: Code::NotFound,
                ..
            }) => self.status.set_state(SessionState::Expired),
            Err(_) => {}
        }
    }

    /// Gives up a connection after an answer was lost.
    pub(super) fn lost(&self, connection: &Connection) {
        let lost = self
            .connection
            .lock()
            .take_if(|current| current.is(connection));
        if lost.is_some() {
            self.connection_lost.notify_one();
            self.status.set_state(SessionState::Suspended);
        }
    }

    /// Renews the lease, and checks whether the session was alive when the renewal was sent.
    async fn beat(&self, connection: &Connection) -> Result<Beat, Failure> {
        let sent = self.status.clock().now();
        let renewed = connection.keep_alive(self.lease, self.patience()).await?;
        // Before 3.4.20 and 3.5.3, a lease that was just granted may be answered like one that has ended.
        if renewed.ttl <= 0 {
            return self.look_for_lease(connection).await;
        }
        let term = renewed.header.unwrap_or_default().term;
        let range = Range {
            key: self.own_key.clone(),
            keys_only: true,
            ..Range::default()
        };
        let read = self.call_kv(connection, "/etcdserverpb.KV/Range", range);
        let read: RangeResponse = read.await?;
        let has_own_key = read.kvs.first().is_some_and(|kv| kv.lease == self.lease);
        let read_term = read.header.unwrap_or_default().term;
        if let Some(sent) = (KeepAlive { sent, term }).confirmed_by(read_term, has_own_key) {
            return Ok(match self.status.prove(sent) {
                true => Beat::Proved,
                false => Beat::Unproved,
            });
        }
        match has_own_key {
            true => Ok(Beat::Unproved),
            false => self.look_for_lease(connection).await,
        }
    }

    async fn look_for_lease(&self, connection: &Connection) -> Result<Beat, Failure> {
        match self.put_own_keys(connection).await {
            Err(Failure::Refused {
                code: Code::NotFound,
                ..
            }) => Ok(Beat::Gone),
            Err(failure) => Err(failure),
            Ok(_) => Ok(Beat::Unproved),
        }
    }

    /// Returns an error, and ends the session, if a keep-alive shows that the lease has ended.
    pub(super) async fn check_alive(&self, connection: &Connection) -> Result<()> {
        match self.beat(connection).await {
            Ok(Beat::Gone) => {
                self.status.set_state(SessionState::Expired);
                Err(self.end())
            }
            Ok(_) => Ok(()),
            Err(_) => Err(Error::ConnectionLoss),
        }
    }

    /// Calls the key-value service. Its answers are linearizable, so their revisions are at least as high as in all
    /// answers that arrived before the call. A lower revision shows that the store was replaced, and ends the session.
    pub(super) async fn call_kv<Q, A>(
        &self,
        connection: &Connection,
        method: &'static str,
        request: Q,
    ) -> Result<A, Failure>
    where
        Q: Message + Send + Sync + 'static,
        A: Answer,
    {
        let before = self.revision.load(Ordering::Acquire);
        let answer: A = connection.call(method, request, self.patience()).await?;
        let now = answer.header().map_or(0, |header| header.revision);
        if now < before {
            self.status.set_state(SessionState::Expired);
            return Err(Failure::Replaced { before, now });
        }
        self.revision.fetch_max(now, Ordering::AcqRel);
        Ok(answer)
    }

    /// Uses a connection from now on. No write of an earlier connection is executed afterwards, however late it
    /// arrives: each compares the revision of the session's fence. So a client that has lost an answer and then reads
    /// that its entry is absent knows that the entry will not be created.
    async fn fence(&self, mut connection: Connection) -> Result<(), Failure> {
        connection.fence = self.put_own_keys(&connection).await?;
        *self.connection.lock() = Some(connection);
        Ok(())
    }

    /// Puts the session's keys, and returns the revision.
    async fn put_own_keys(&self, connection: &Connection) -> Result<i64, Failure> {
        let put = |key: &Vec<u8>| put(key.clone(), Bytes::new(), self.lease);
        let txn = Txn {
            success: vec![put(&self.own_key), put(&self.fence_key)],
            ..Txn::default()
        };
        let answer: TxnResponse = self.call_kv(connection, TXN, txn).await?;
        Ok(revision(answer.header))
    }
}

/// Starts requests in the order of submission. A request waits for earlier requests about the same queue, and the close
/// of the session waits for all requests.
async fn carry_out_all(shared: Arc<Shared>, mut jobs: mpsc::UnboundedReceiver<Job>) {
    let mut last = HashMap::<ZnodePath, watch::Receiver<()>>::new();
    let mut limit = FORGET_ABOVE;
    while let Some(job) = jobs.recv().await {
        if job.request == Request::Close {
            for mut earlier in last.into_values() {
                let _ = earlier.changed().await;
            }
            let answer = close(&shared).await;
            shared.finished(job.number);
            let _ = job.reply.send(answer);
            return;
        }
        // Dropping `running` tells later requests that this request is finished.
        let (running, finished) = watch::channel(());
        let places = places(&job.request);
        let earlier = places
            .into_iter()
            .filter_map(|place| last.insert(place, finished.clone()));
        let earlier: Vec<_> = earlier.collect();
        let shared = shared.clone();
        tokio::spawn(async move {
            for mut earlier in earlier {
                let _ = earlier.changed().await;
            }
            shared.carry_out_job(job).await;
            drop(running);
        });
        if last.len() > limit {
            last.retain(|_, finished| finished.has_changed().is_ok());
            limit = FORGET_ABOVE.max(2 * last.len());
        }
    }
}

/// Returns the parents of the znodes that a request reads or writes, and the znodes whose children it reads. Requests
/// that share one of these znodes must stay in order.
fn places(request: &Request) -> Vec<ZnodePath> {
    let parent = |path: &ZnodePath| path.parent().unwrap_or_else(ZnodePath::root);
    let mut places = match request {
        Request::Create(create) => vec![parent(&create.path)],
        Request::Delete { path, .. } | Request::SetData { path, .. } => vec![parent(path)],
        Request::Withdraw { entry } => vec![parent(entry)],
        Request::GetPredecessor(look) => vec![parent(&look.entry)],
        Request::Enqueue(enqueue) => vec![enqueue.parent.clone()],
        Request::GetQueue { parent, .. } => vec![parent.clone()],
        Request::GetChildren { path, .. } | Request::GetAllChildrenNumber { path } => {
            vec![path.clone()]
        }
        Request::Exists { path, .. } | Request::GetData { path, .. } => {
            vec![path.clone(), parent(path)]
        }
        Request::Multi(ops) => ops.iter().map(|op| parent(path_of(op))).collect(),
        Request::MultiRead(ops) => {
            let paths = ops.iter().map(ReadOp::path);
            paths
                .flat_map(|path| [path.clone(), parent(path)])
                .collect()
        }
        _ => Vec::new(),
    };
    places.sort_unstable();
    places.dedup();
    places
}

impl Shared {
    async fn carry_out_job(self: &Arc<Self>, job: Job) {
        let answer = match self.connected().await {
            Ok(connection) => {
                let answer = self.carry_out(&connection, job.request).await;
                if matches!(answer, Err(Error::ConnectionLoss)) {
                    self.lost(&connection);
                }
                answer
            }
            Err(end) => Err(end),
        };
        if let Err(Error::SessionExpired { .. }) = answer {
            self.status.set_state(SessionState::Expired);
        }
        self.finished(job.number);
        let _ = job.reply.send(answer);
    }
}

/// Revokes the lease. If that fails, the lease ends when its time has passed.
async fn close(shared: &Shared) -> Result<Reply> {
    let revoke = LeaseRevoke { id: shared.lease };
    let connection = shared.connection.lock().clone();
    let revoked = match connection {
        Some(connection) => {
            let call = connection.call(LEASE_REVOKE, revoke, shared.patience());
            call.await
        }
        None => Err(Failure::Lost("no connection".to_owned())),
    };
    shared.status.set_state(SessionState::Closed);
    // Close the connection, and end the task that renews the lease.
    shared.connection.lock().take();
    shared.connection_lost.notify_one();
    match revoked {
        Ok(LeaseRevokeResponse {}) => Ok(Reply::Done),
        Err(Failure::Refused {
            code: Code::NotFound,
            ..
        }) => Err(Error::SessionExpired {
            session: shared.status.id(),
        }),
        Err(_) => Err(Error::ConnectionLoss),
    }
}

async fn keep_alive(shared: Arc<Shared>) {
    let ttl = shared.status.timeout().unwrap_or_default();
    let mut pause = ttl / BEATS;
    loop {
        // Connect again as soon as a connection is lost, because callers wait for that before they repeat a request.
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = shared.connection_lost.notified() => {}
        }
        let Ok(connection) = shared.connected().await else {
            return;
        };
        pause = match shared.beat(&connection).await {
            Ok(Beat::Proved) => ttl / BEATS,
            Ok(Beat::Unproved) => ttl / AGAIN,
            Ok(Beat::Gone) => return shared.status.set_state(SessionState::Expired),
            Err(_) => {
                shared.lost(&connection);
                Duration::ZERO
            }
        };
    }
}

/// Notices the end of the lease immediately by watching the session's own key, which etcd then deletes.
async fn notice_end(shared: Arc<Shared>) {
    // Each release puts this key, so watch only its deletion.
    let own_key = watches::Target::Deletion {
        key: shared.own_key.clone(),
        copies: 1,
    };
    let Some(mut armed) = shared.watches.arm(own_key).await else {
        return;
    };
    while armed.changed().await {
        let Ok(connection) = shared.connected().await else {
            return;
        };
        if let Ok(Beat::Gone) = shared.beat(&connection).await {
            return shared.status.set_state(SessionState::Expired);
        }
    }
}

/// Runs work on the sessions' thread, and returns its result.
pub(super) async fn on_thread<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let (send, result) = oneshot::channel();
    spawn(async move {
        let _ = send.send(work.await);
    })?;
    let ended = || Error::Protocol("the thread of etcd's sessions has ended".to_owned());
    result.await.unwrap_or_else(|_| Err(ended()))
}

/// Revokes the lease of a session, as if the lease had expired.
#[cfg(feature = "test-util")]
pub(super) async fn revoke(members: Members, lease: i64) -> Result<()> {
    let limit = Duration::from_secs(10);
    let failed = |failure| Error::Protocol(format!("the lease is not revoked: {failure:?}"));
    let connection = members.connect(limit).await.map_err(failed)?;
    let revoke = LeaseRevoke { id: lease };
    let revoked = connection.call(LEASE_REVOKE, revoke, limit).await;
    revoked.map(|LeaseRevokeResponse {}| ()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A member that had received a snapshot accepted 180 connections a second, and refused as many transactions.
    #[test]
    fn a_member_that_accepts_only_connections_is_not_asked_without_end() {
        let (mut pacing, mut now) = (Pacing::default(), Instant::now());
        let mut attempt = |after| {
            now += after;
            let pause = pacing.pause(now);
            now += pause;
            pause
        };
        let soon = Duration::from_millis(5);
        assert_eq!(attempt(Duration::ZERO), Duration::ZERO);
        assert_eq!(attempt(soon), SHORTEST_PAUSE);
        let pauses: Vec<_> = (0..20).map(|_| attempt(soon)).collect();
        assert!(pauses.is_sorted() && pauses[19] == LONGEST_PAUSE);
        assert_eq!(attempt(LONGEST_PAUSE), Duration::ZERO, "it has served");
    }
}
