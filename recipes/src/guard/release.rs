//! The release of a guard: a delete that is retried until the znode is gone or the session has ended (invariant 7).

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::Ordering;

use lockkeeper_store::{
    Call, Cleanup, DeleteReason, Error, Op, OpReply, Session, ZnodePath, spawn_detached,
};
use tokio::sync::oneshot;

use super::{Guard, lost_with};
use crate::error::{LockError, LostReason, Result};
use crate::events::LockEvent;
use crate::queue::{PendingDelete, delete_until_gone};
use crate::reporter::Reporter;

impl Guard {
    /// Releases a shared guard. Its other owners then see the guard as lost. A second release fails with
    /// [`LostReason::Released`].
    pub(crate) fn release_in_place(
        &self,
    ) -> impl Future<Output = Result<()>> + Send + 'static + use<> {
        // Record the release before sending the delete, because another client may hold the lock as soon as the delete
        // is sent.
        let known = self.reason();
        self.note(LostReason::Released);
        let first = !self.0.released.swap(true, Ordering::AcqRel);
        let release = first.then(|| self.send_release());
        async move {
            match release {
                None => Err(known.unwrap_or(LostReason::Released).into()),
                Some(release) => release.confirmed(known).await,
            }
        }
    }

    pub(super) fn release_owned(self) -> impl Future<Output = Result<()>> + Send + 'static + use<> {
        let (release, known) = self.begin_release();
        release.confirmed(known)
    }

    #[inline]
    fn begin_release(mut self) -> SentRelease {
        let known = self.reason();
        if self.0.monitor.is_some() {
            self.note(LostReason::Released);
        }
        *self.0.released.get_mut() = true;
        (self.send_release(), known)
    }

    pub(super) fn send_release(&self) -> Release {
        // End the monitor before sending the delete. Otherwise it would mistake the delete for a removal by another
        // client.
        if let Some(monitor) = &self.0.monitor {
            monitor.end(self);
        }
        // Write the release marker only for an exclusive lock. The marker declares all earlier entries released, but a
        // shared lock may have earlier holders.
        let marker = self
            .0
            .held
            .marker
            .filter(|_| self.0.kind.is_exclusive())
            .and_then(|marker| {
                marker.release(
                    self.0.session.store_id(),
                    self.0.kind,
                    self.0.held.node.path(),
                )
            });
        match marker {
            Some(marker) => {
                let (session, path) = (self.0.session.clone(), self.0.held.node.path().clone());
                let marked = self.marked_delete(marker);
                self.in_background(after_marked_delete(session, path, marked))
            }
            None if self.leaves_by_reference() => self.left(true),
            None => match self
                .0
                .session
                .delete(self.0.held.node.path(), None)
                .now_or_never()
            {
                Ok(Ok(())) => self.left(true),
                Ok(Err(Error::NoNode { .. })) => self.left(false),
                Ok(refused) => {
                    let (session, path) = (self.0.session.clone(), self.0.held.node.path().clone());
                    self.in_background(delete_until_gone(session, path, Ok(refused)))
                }
                Err(call) => Release::Sent(Box::new(SentDelete {
                    session: self.0.session.clone(),
                    path: self.0.held.node.path().clone(),
                    reporter: self.0.reporter.clone(),
                    call: Some(call),
                })),
            },
        }
    }

    /// Deletes the entry directly in an embedded store, without a request. Returns false if that is not possible.
    #[inline]
    fn leaves_by_reference(&self) -> bool {
        let entry = self.0.held.node.key();
        entry.is_some_and(|entry| self.0.session.leave(entry, DeleteReason::Released))
    }

    fn left(&self, was_there: bool) -> Release {
        report_released(&self.0.reporter, &Ok(was_there));
        Release::Done(was_there)
    }

    fn in_background(
        &self,
        work: impl Future<Output = Result<bool, Error>> + Send + 'static,
    ) -> Release {
        Release::InBackground(finish_in_background(work, self.0.reporter.clone()))
    }

    fn marked_delete(&self, marker: Op) -> Call<Vec<OpReply>> {
        let path = self.0.held.node.path().clone();
        let version = None;
        self.0.session.multi([Op::Delete { path, version }, marker])
    }
}

pub(super) enum Release {
    Done(bool),
    /// Boxed to keep the enum small, because an embedded store rarely needs this variant.
    Sent(Box<SentDelete>),
    InBackground(oneshot::Receiver<Result<bool, Error>>),
}

pub(super) type SentRelease = (Release, Option<LostReason>);

impl Release {
    pub(super) fn is_under_way(&self) -> bool {
        !matches!(self, Self::Done(_))
    }

    async fn confirmed(self, known: Option<LostReason>) -> Result<()> {
        let answer = match self {
            Self::Done(was_there) => Ok(was_there),
            Self::Sent(delete) => delete.answered().await?,
            Self::InBackground(answer) => of_background(answer).await?,
        };
        outcome(answer, known)
    }
}

/// Returns the result of a release. A loss that was known before the release is an error even if the delete found the
/// znode, because the znode may outlive the lease.
fn outcome(answer: Result<bool, Error>, known: Option<LostReason>) -> Result<()> {
    match (answer, known) {
        (_, Some(reason)) => Err(reason.into()),
        (Ok(true), None) => Ok(()),
        (Ok(false), None) => Err(LostReason::Revoked.into()),
        (Err(error), None) => Err(lost_with(&error).map_or(error.into(), Into::into)),
    }
}

/// A sent delete whose reply goes directly to the caller. A background task starts only if the caller drops this value
/// or the delete must be retried.
pub(super) struct SentDelete {
    session: Session,
    path: ZnodePath,
    reporter: Reporter,
    call: Option<Call<()>>,
}

impl SentDelete {
    async fn answered(mut self: Box<Self>) -> Result<Result<bool, Error>> {
        // Poll the call in place. If this future is dropped, `self` must still own the call.
        let first = poll_fn(|context| match &mut self.call {
            Some(call) => Pin::new(call).poll(context),
            None => unreachable!("the answer is taken below"),
        })
        .await;
        self.call = None;
        let answer = match first {
            Ok(()) => Ok(true),
            Err(Error::NoNode { .. }) => Ok(false),
            refused => return of_background(self.repeat(Ok(refused))).await,
        };
        report_released(&self.reporter, &answer);
        Ok(answer)
    }

    fn repeat(&self, first: PendingDelete) -> oneshot::Receiver<Result<bool, Error>> {
        let work = delete_until_gone(self.session.clone(), self.path.clone(), first);
        finish_in_background(work, self.reporter.clone())
    }
}

impl Drop for SentDelete {
    fn drop(&mut self) {
        // Dropping the future must not end the release, because the delete may have to be retried (invariant 7).
        if let Some(call) = self.call.take() {
            self.repeat(Err(call));
        }
    }
}

fn finish_in_background(
    work: impl Future<Output = Result<bool, Error>> + Send + 'static,
    reporter: Reporter,
) -> oneshot::Receiver<Result<bool, Error>> {
    let (send, answer) = oneshot::channel();
    spawn_detached(async move {
        let done = work.await;
        report_released(&reporter, &done);
        let _ = send.send(done);
    });
    answer
}

async fn of_background(
    answer: oneshot::Receiver<Result<bool, Error>>,
) -> Result<Result<bool, Error>> {
    let lost = |_| LockError::from(LostReason::SessionClosed);
    answer.await.map_err(lost)
}

fn report_released(reporter: &Reporter, answer: &Result<bool, Error>) {
    if let Ok(true) = answer {
        reporter.report(LockEvent::Released);
    }
}

/// Waits for a delete that was sent together with a marker. If the store refused the request or its reply was lost,
/// sends plain deletes, because the marker is only an optimization.
async fn after_marked_delete(
    session: Session,
    path: ZnodePath,
    marked: Call<Vec<OpReply>>,
) -> Result<bool, Error> {
    let pending = Cleanup::new(&session, &path);
    let session = session;
    let Err(error) = marked.await else {
        return Ok(true);
    };
    drop(pending);
    let first = Err(session.delete(&path, None));
    let was_there = delete_until_gone(session, path, first).await?;
    // If the reply was lost, the first delete may have removed the znode.
    Ok(was_there || error.is_ambiguous())
}

pub(super) fn drop_all(guards: impl IntoIterator<Item = Guard>) {
    let mut under_way = None;
    for mut guard in guards {
        if !std::mem::replace(guard.0.released.get_mut(), true)
            && guard.send_release().is_under_way()
        {
            under_way = Some(guard.0.session.clone());
        }
    }
    if let Some(session) = under_way {
        session.flush();
    }
}

pub(super) fn send_all(guards: impl IntoIterator<Item = Guard>) -> Vec<SentRelease> {
    let sent = guards.into_iter().map(Guard::begin_release);
    sent.filter(|sent| !matches!(sent, (Release::Done(true), None)))
        .collect()
}

pub(super) async fn all_confirmed(sent: Vec<SentRelease>) -> Result<()> {
    let mut first = Ok(());
    for (release, known) in sent {
        first = first.and(release.confirmed(known).await);
    }
    first
}
