//! [`Guard`]: the holding of a lock.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, OnceLock};

use lockkeeper_store::{
    Call, Deadline, Error, Keep, Op, OpReply, Session, SessionState, SessionStatus, ZnodePath,
    drive,
};
use tokio::sync::oneshot::{self, error::TryRecvError};

use crate::error::{LockError, LostReason, Result};
use crate::events::{EventSink, LockEvent};
use crate::metadata::{EntryData, LockMetadata};
use crate::names::Kind;
use crate::queue::{Held, Mark, delete_until_gone, number_of, remove};
use crate::race::{First, race};
use crate::token::FencingToken;

/// The holding of a lock. Dropping it releases the lock, in the background where the store is
/// elsewhere; [`release`](Self::release) says when that is done.
///
/// A guard belongs to the session that took it, and is lost with it. [`is_held`](Self::is_held) is
/// advice, good against everything but frozen clocks, trouble of an ensemble's leader and forced
/// removal; what makes a lock safe is the [`fencing_token`](Self::fencing_token), checked by the
/// resource itself.
#[must_use = "dropping a guard releases the lock"]
pub struct Guard {
    session: Session,
    path: ZnodePath,
    kind: Kind,
    token: FencingToken,
    lapses: u64,
    mark_version: Option<i32>,
    data: EntryData,
    lost: OnceLock<LostReason>,
    monitor: Option<Box<Monitor>>,
    events: Option<EventSink>,
    released: bool,
}

/// What looks after a guard whose session can lapse, or whose events somebody reads.
struct Monitor {
    lost: Arc<OnceLock<LostReason>>,
    /// Dropping it ends the monitor.
    _guard_lives: oneshot::Sender<()>,
    _keep: Keep,
}

impl Guard {
    pub(crate) fn new(
        session: Session,
        held: Held,
        kind: Kind,
        data: EntryData,
        events: Option<EventSink>,
    ) -> Self {
        let Held {
            path,
            token,
            lapses,
            mark_version,
        } = held;
        let watched = session.timeout().is_some() || events.is_some();
        let monitor =
            watched.then(|| Box::new(Monitor::start(&session, &path, lapses, events.clone())));
        Self {
            session,
            path,
            kind,
            token,
            lapses,
            mark_version,
            data,
            lost: OnceLock::new(),
            monitor,
            events,
            released: false,
        }
    }

    /// The token that the resource must check. It is greater than that of every earlier holder.
    pub fn fencing_token(&self) -> FencingToken {
        self.token
    }

    /// Until when nobody else can hold the lock, as far as clocks and the server allow; it moves on
    /// while the session lives. `None`: until it is released, closed or removed.
    pub fn held_until(&self) -> Option<Deadline> {
        self.session.held_until()
    }

    /// Whether the lock can be believed to be held. Once it says no, it stays with that.
    pub fn is_held(&self) -> bool {
        self.reason().is_none()
    }

    /// Why the lock is lost, if that is known.
    fn reason(&self) -> Option<LostReason> {
        if let Some(reason) = self.lost.get() {
            return Some(*reason);
        }
        let told = self
            .monitor
            .as_ref()
            .and_then(|monitor| monitor.lost.get().copied());
        let reason = told.or_else(|| reason_of(self.session.status(), self.lapses))?;
        Some(*self.lost.get_or_init(|| reason))
    }

    /// Waits until the lock is lost, and says why. While it waits, a forced removal is noticed too.
    ///
    /// Cancel safe.
    pub async fn lost(&self) -> LostReason {
        if let Some(reason) = self.reason() {
            return reason;
        }
        let reason = loss(&self.session, &self.path, self.lapses, true, None).await;
        *self.lost.get_or_init(|| reason)
    }

    /// Runs a future for as long as the lock is held.
    ///
    /// # Errors
    /// [`LostReason`], if the lock is lost first. The future is dropped then; but what it spawned
    /// or sent goes on, and only the token stops that.
    pub async fn protect<F: Future>(&self, future: F) -> Result<F::Output, LostReason> {
        match race(self.lost(), future).await {
            First::Left(reason) => Err(reason),
            First::Right(output) => Ok(output),
        }
    }

    /// What this holder wrote of itself into its znode.
    pub fn metadata(&self) -> LockMetadata {
        LockMetadata::parse(&self.data.to_bytes()).unwrap_or_default()
    }

    /// Says that the holder is still at work: its expected duration counts anew from now.
    ///
    /// # Errors
    /// [`LockError::Lost`] when the lock is lost, and those of the store.
    pub async fn keep_alive(&mut self) -> Result<()> {
        if let Some(reason) = self.reason() {
            return Err(reason.into());
        }
        let mut metadata = self.metadata();
        metadata.kept_alive = Some(metadata.kept_alive.unwrap_or(0) + 1);
        let data = metadata.to_bytes();
        match self.session.set_data(&self.path, data.clone(), None).await {
            Ok(_) => {
                self.data = EntryData::Written(data);
                Ok(())
            }
            Err(Error::NoNode { .. }) => Err(self.note(LostReason::Revoked).into()),
            Err(error) => Err(self.note_end(error)),
        }
    }

    /// The holder's znode.
    pub fn path(&self) -> &ZnodePath {
        &self.path
    }

    /// The session that holds.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Releases the lock and waits until the store has confirmed it.
    ///
    /// The release is sent by the call itself; dropping the future does not stop it.
    ///
    /// # Errors
    /// [`LockError::Lost`] when the lock had been lost before: what was done under it since may
    /// have been done beside another holder.
    pub fn release(mut self) -> impl Future<Output = Result<()>> + Send + 'static {
        let known = self.reason();
        let leave = self.leave();
        async move {
            let had_it = match leave {
                Leave::Done(answer) => answer,
                Leave::UnderWay(answer) => {
                    let lost = || LockError::from(LostReason::SessionClosed);
                    answer.await.map_err(|_| lost())?
                }
            };
            match (had_it, known) {
                (_, Some(reason)) => Err(reason.into()),
                (Ok(true), None) => Ok(()),
                (Ok(false), None) => Err(self.note(LostReason::Revoked).into()),
                (Err(error), None) => Err(self.note_end(error)),
            }
        }
    }

    /// Sends the delete, with the queue's mark where this holder knows its version.
    fn leave(&mut self) -> Leave {
        self.released = true;
        // First, or the monitor would take the deletion for somebody else's.
        self.monitor = None;
        let mark = self
            .mark_version
            .and_then(|version| Some((version, number_of(&self.path)?)));
        match mark {
            Some((version, number)) => {
                let marked = self.marked_delete(version, number);
                self.see_through(move |session, path| async move {
                    after_marked(&session, &path, marked).await
                })
            }
            None => match self.session.delete(&self.path, None).try_now() {
                Ok(Ok(())) => self.left(Ok(true)),
                Ok(Err(Error::NoNode { .. })) => self.left(Ok(false)),
                Ok(Err(error)) if error != Error::ConnectionLoss => self.left(Err(error)),
                // The lost answer may have been that of the delete that did it.
                Ok(_) => self.see_through(|session, path| async move {
                    let again = session.delete(&path, None);
                    delete_until_gone(&session, &path, again)
                        .await
                        .map(|_| true)
                }),
                Err(call) => self.see_through(|session, path| async move {
                    delete_until_gone(&session, &path, call).await
                }),
            },
        }
    }

    fn left(&self, answer: Result<bool, Error>) -> Leave {
        tell_left(self.events.as_ref(), &answer);
        Leave::Done(answer)
    }

    /// Finishes a release in the background.
    fn see_through<F, W>(&self, work: F) -> Leave
    where
        F: FnOnce(Session, ZnodePath) -> W,
        W: Future<Output = Result<bool, Error>> + Send + 'static,
    {
        let work = work(self.session.clone(), self.path.clone());
        let events = self.events.clone();
        let (send, answer) = oneshot::channel();
        drive(async move {
            let done = work.await;
            tell_left(events.as_ref(), &done);
            // Nobody may be waiting for it.
            let _ = send.send(done);
        });
        Leave::UnderWay(answer)
    }

    fn marked_delete(&self, version: i32, number: i64) -> Call<Vec<OpReply>> {
        let parent = self.path.parent().expect("an entry has a parent");
        self.session.multi([
            Op::Delete {
                path: self.path.clone(),
                version: None,
            },
            Op::SetData {
                path: parent,
                data: Mark::released_to(self.kind, number).to_bytes(),
                version: Some(version),
            },
        ])
    }

    fn note(&self, reason: LostReason) -> LostReason {
        *self.lost.get_or_init(|| reason)
    }

    fn note_end(&self, error: Error) -> LockError {
        match error {
            Error::SessionExpired { .. } => self.note(LostReason::SessionExpired).into(),
            Error::SessionClosed { .. } => self.note(LostReason::SessionClosed).into(),
            error => error.into(),
        }
    }
}

/// How far a release has come.
enum Leave {
    Done(Result<bool, Error>),
    UnderWay(oneshot::Receiver<Result<bool, Error>>),
}

fn tell_left(events: Option<&EventSink>, answer: &Result<bool, Error>) {
    if let (Some(events), Ok(true)) = (events, answer) {
        events.put(LockEvent::Released);
    }
}

/// Sees a delete with a mark through: when it is refused or its answer lost, a plain delete follows.
async fn after_marked(
    session: &Session,
    path: &ZnodePath,
    marked: Call<Vec<OpReply>>,
) -> Result<bool, Error> {
    let answer = marked.await;
    if answer.is_ok() {
        return Ok(true);
    }
    let was_there = delete_until_gone(session, path, session.delete(path, None)).await?;
    // After a lost answer the first delete may have been the one that did it.
    Ok(was_there || answer == Err(Error::ConnectionLoss))
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.released {
            drop(self.leave());
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("path", &self.path)
            .field("token", &self.token)
            .field("held", &self.is_held())
            .finish()
    }
}

impl Monitor {
    fn start(session: &Session, path: &ZnodePath, lapses: u64, events: Option<EventSink>) -> Self {
        let lost = Arc::new(OnceLock::new());
        let (guard_lives, mut guard_gone) = oneshot::channel::<()>();
        let keep = session.keep(path.clone());
        let (session, path, told) = (session.clone(), path.clone(), lost.clone());
        drive(async move {
            let watch_node = events.is_some();
            let loss = loss(&session, &path, lapses, watch_node, events.as_ref());
            let First::Right(reason) = race(&mut guard_gone, loss).await else {
                return;
            };
            // Asked again: in a task that has used up tokio's budget a receiver is never ready.
            if guard_gone.try_recv() == Err(TryRecvError::Closed) {
                return;
            }
            told.get_or_init(|| reason);
            tracing::warn!(%path, %reason, "a lock was lost");
            if let Some(events) = &events {
                events.put(LockEvent::Lost { reason });
            }
            // The session may survive what its holder no longer believes in: let others in.
            if reason == LostReason::Lapsed {
                remove(&session, &path);
            }
        });
        Self {
            lost,
            _guard_lives: guard_lives,
            _keep: keep,
        }
    }
}

/// Why a session can no longer be believed to hold what it took at `lapses`.
fn reason_of(status: &SessionStatus, lapses: u64) -> Option<LostReason> {
    if status.may_hold(lapses) {
        return None;
    }
    Some(match status.state() {
        SessionState::Expired => LostReason::SessionExpired,
        SessionState::Closed => LostReason::SessionClosed,
        _ if !status.is_alive() => LostReason::SessionClosed,
        _ => LostReason::Lapsed,
    })
}

/// Waits until a held node is lost.
async fn loss(
    session: &Session,
    path: &ZnodePath,
    lapses: u64,
    watch_node: bool,
    events: Option<&EventSink>,
) -> LostReason {
    let status = session.status();
    let mut states = status.states();
    let mut removal = Box::pin(async {
        if watch_node {
            removed(session, path).await;
        } else {
            std::future::pending::<()>().await;
        }
    });
    loop {
        if let Some(reason) = reason_of(status, lapses) {
            return reason;
        }
        let deadline = async {
            match status.held_until() {
                Some(deadline) => session.clock().sleep_until(deadline.moment()).await,
                None => std::future::pending().await,
            }
        };
        match race(race(removal.as_mut(), states.next()), deadline).await {
            First::Left(First::Left(())) => {
                return reason_of(status, lapses).unwrap_or(LostReason::Revoked);
            }
            First::Left(First::Right(Some(state))) => tell_state(events, status, state),
            _ => {}
        }
    }
}

fn tell_state(events: Option<&EventSink>, status: &SessionStatus, state: SessionState) {
    let Some(events) = events else { return };
    match state {
        SessionState::Suspended => events.put(LockEvent::Suspended {
            held_until: status.held_until(),
        }),
        SessionState::Reconnected => events.put(LockEvent::Resumed),
        _ => {}
    }
}

/// Waits until a node is gone; for ever, if the session ends first: that is noticed elsewhere.
///
/// An event alone is not believed: at the session's end it may come before that is known.
async fn removed(session: &Session, path: &ZnodePath) {
    loop {
        match session.watch_exists(path).await {
            Ok((Some(stat), watcher)) if stat.ephemeral_owner == session.id() => {
                let _ = watcher.await;
            }
            Ok(_) => return,
            Err(Error::ConnectionLoss) => {}
            // Refused for good, or over: a removal cannot be seen.
            Err(_) => std::future::pending().await,
        }
        if !session.status().is_alive() {
            std::future::pending::<()>().await;
        }
    }
}
