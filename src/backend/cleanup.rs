//! [`Cleanup`]: background work that must be completed even if its caller is gone, with pauses between attempts.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_core::Stream;

use super::SessionStatus;
use crate::model::error::{Error, Result};
use crate::model::path::ZnodePath;
use crate::model::types::HumanDuration;

const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A clean-up in progress, which deletes a znode that must not be left behind. [`SessionStatus::pending_cleanups`]
/// counts the clean-up until it is dropped.
///
/// A failed step is repeated unless the session has ended, the znode is gone, or a permission is missing. Other
/// refusals (a limit, a full disk, a server under load) may be temporary, and a leftover znode blocks its lock while
/// the session lives. Only the first refusal is logged as a warning.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use lockkeeper_store::{Cleanup, CreateMode, Error, Store, spawn_detached};
///
/// let mut session = Store::memory().connect().await?.session().await?;
/// let (path, _) = session.create(&"/mine".parse()?, "", CreateMode::Ephemeral).await?;
/// spawn_detached(async move {
///     let mut cleanup = Cleanup::new(&session, &path);
///     while let Err(error) = session.delete(&path, None).await {
///         session = match cleanup.retry_after(session, error).await {
///             Ok(session) => session,
///             Err(_) => return, // it is gone, or never can be deleted
///         };
///     }
/// });
/// # Ok::<(), Error>(()) }).unwrap();
/// ```
pub struct Cleanup {
    status: Arc<SessionStatus>,
    path: ZnodePath,
    pause: Duration,
    /// Number of the connection on which the last reply was lost.
    lost_on: Option<u64>,
    warned: bool,
}

impl Cleanup {
    pub(crate) fn of(status: &Arc<SessionStatus>, path: &ZnodePath) -> Self {
        // Count the clean-up before its first request, because the last client's `drop` waits until the count is 0.
        status.begin_cleanup();
        Self {
            status: status.clone(),
            path: path.clone(),
            pause: SHORTEST_PAUSE,
            lost_on: None,
            warned: false,
        }
    }

    pub(crate) fn status(&self) -> &SessionStatus {
        &self.status
    }

    /// Returns true if the step can be repeated immediately, because the last reply was lost with its connection and
    /// the next request will wait for the reconnection. If a second reply is lost before a reconnection, the caller
    /// must pause, to avoid a busy loop.
    pub(crate) fn waits_for_connection(&mut self, error: &Error) -> bool {
        let connection = Some(self.status.connection());
        *error == Error::ConnectionLoss
            && std::mem::replace(&mut self.lost_on, connection) != connection
    }

    /// Pauses after a refusal.
    ///
    /// # Errors
    /// Returns `error` if repeating the step cannot help.
    pub(crate) async fn pause_after(&mut self, error: Error) -> Result<()> {
        let (session, path, pause) = (self.status.id(), &self.path, self.pause);
        if !is_passing(&error) || self.status.state().is_final() {
            if !error.is_session_end() {
                tracing::warn!(%session, %path, %error, "clean-up given up");
            }
            return Err(error);
        }
        if std::mem::replace(&mut self.warned, true) {
            tracing::debug!(%session, %path, %error, pause = %HumanDuration(pause), "clean-up repeated");
        } else {
            tracing::warn!(%session, %path, %error, "clean-up refused: it will be repeated");
        }
        self.pause = (2 * pause).min(LONGEST_PAUSE);
        let mut states = self.status.states();
        let mut sleep = self.status.clock().sleep(pause);
        // A change of the session's state ends the pause early, because another server may accept the step after a
        // reconnection.
        poll_fn(|context| {
            let changed = Pin::new(&mut states).poll_next(context).is_ready();
            match changed || Pin::new(&mut sleep).poll(context).is_ready() {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
        Ok(())
    }
}

/// Returns true if the same step may succeed later. Waiting does not restore a missing permission, but a user whose
/// login was refused may be added again.
fn is_passing(error: &Error) -> bool {
    match error {
        Error::AuthFailed => true,
        Error::NoNode { .. } | Error::NoAuth { .. } => false,
        error => !error.is_session_end(),
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        self.status.end_cleanup();
    }
}

impl fmt::Debug for Cleanup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cleanup({} of {})", self.path, self.status.id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::types::{SessionId, SessionState};
    use crate::runtime::clock::Clock;

    fn status(clock: &Clock) -> Arc<SessionStatus> {
        let now = clock.now();
        Arc::new(SessionStatus::new(
            SessionId(1),
            clock.clone(),
            Some(Duration::from_secs(10)),
            false,
            now,
        ))
    }

    fn cleanup(status: &Arc<SessionStatus>) -> Cleanup {
        Cleanup::of(status, &"/mine".parse().unwrap())
    }

    fn refusal() -> Error {
        Error::LimitReached {
            what: "requests",
            limit: 1,
        }
    }

    fn now<T>(work: impl Future<Output = T>) -> Poll<T> {
        let mut work = std::pin::pin!(work);
        let waker = std::task::Waker::noop();
        work.as_mut()
            .poll(&mut std::task::Context::from_waker(waker))
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        let clock = Clock::new_virtual();
        let status = status(&clock);
        let mut cleanup = cleanup(&status);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            let mut waiting = Box::pin(cleanup.pause_after(refusal()));
            assert!(now(&mut waiting).is_pending());
            let due = clock.next_timer().expect("a pause ends").since(clock.now());
            clock.advance(due);
            assert_eq!(now(&mut waiting), Poll::Ready(Ok(())));
            pauses.push(due);
        }
        assert_eq!(pauses[0], SHORTEST_PAUSE);
        assert!(
            pauses
                .windows(2)
                .all(|two| two[1] == (2 * two[0]).min(LONGEST_PAUSE))
        );
        assert_eq!(pauses[11], LONGEST_PAUSE);
    }

    #[test]
    fn only_the_end_the_absence_and_a_missing_right_are_final() {
        let clock = Clock::new_virtual();
        let status = status(&clock);
        let path = || "/mine".to_owned();
        let session = status.id();
        for last in [
            Error::NoNode { path: path() },
            Error::NoAuth { path: path() },
            Error::SessionExpired { session },
            Error::SessionClosed { session },
        ] {
            let mut cleanup = cleanup(&status);
            assert_eq!(
                now(cleanup.pause_after(last.clone())),
                Poll::Ready(Err(last))
            );
        }
    }

    #[test]
    fn a_change_of_state_ends_a_pause() {
        let clock = Clock::new_virtual();
        let status = status(&clock);
        let mut cleanup = cleanup(&status);
        let mut waiting = Box::pin(cleanup.pause_after(refusal()));
        assert!(now(&mut waiting).is_pending());
        status.set_state(SessionState::Suspended);
        assert_eq!(now(&mut waiting), Poll::Ready(Ok(())));
    }

    #[test]
    fn a_connection_that_loses_every_reply_is_paused_for() {
        let clock = Clock::new_virtual();
        let status = status(&clock);
        let mut cleanup = cleanup(&status);
        assert!(cleanup.waits_for_connection(&Error::ConnectionLoss));
        assert!(!cleanup.waits_for_connection(&Error::ConnectionLoss));
        status.set_state(SessionState::Suspended);
        status.set_state(SessionState::Reconnected);
        assert!(cleanup.waits_for_connection(&Error::ConnectionLoss));
    }

    #[test]
    fn pending_cleanups_are_counted() {
        let clock = Clock::new_virtual();
        let status = status(&clock);
        let (one, other) = (cleanup(&status), cleanup(&status));
        assert_eq!(status.pending_cleanups(), 2);
        drop((one, other));
        assert_eq!(status.pending_cleanups(), 0);
    }
}
