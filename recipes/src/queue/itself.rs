//! A wait behind an entry of the same session, which may be a task that waits for itself.

use std::pin::pin;
use std::time::Duration;

use lockkeeper_store::{Error, Session, ZnodePath};

use super::claim::Form;
use super::sleep::{Wake, Watch};
use super::wait::Waiting;
use crate::error::Result;
use crate::holders::{holding, in_order};
use crate::metadata::LockMetadata;
use crate::names::Kind;
use crate::select::{Either, select};

/// Duration of a wait behind the same session before it is told. Tasks of one client take turns all the time, so a wait
/// behind another task is told from one that never ends only by how long it lasts.
const PATIENCE: Duration = Duration::from_secs(10);

/// Number of entries at the head of a queue that are looked at.
const FEW: usize = 64;

impl Waiting<'_> {
    /// Sleeps until the entry ahead has gone. If the session itself holds the lock with it, and goes on to for as
    /// long as a session may be silent, a warning says so: no lock is re-entrant.
    pub(super) async fn sleep_behind(
        &mut self,
        by: &ZnodePath,
        watcher: &mut (impl Watch + Unpin),
        form: &Form,
    ) -> Result<Wake> {
        // Candidates stand behind each other for as long as they live.
        if self.entry.kind == Kind::Candidate {
            return self.sleep(watcher).await;
        }
        let (session, queue) = (self.entry.session, self.entry.parent);
        let timeout = session.timeout().unwrap_or(PATIENCE);
        let patience = session.clock().sleep(timeout.min(PATIENCE));
        let mut sleep = pin!(self.sleep(watcher));
        if let Either::Left(wake) = select(sleep.as_mut(), patience).await {
            return wake;
        }
        let told = Box::pin(tell_if_own(session, queue, by, form));
        match select(sleep.as_mut(), told).await {
            Either::Left(wake) => wake,
            Either::Right(_) => sleep.await,
        }
    }
}

/// Warns if the session holds the lock with this entry. What cannot be read is not told.
async fn tell_if_own(
    session: &Session,
    queue: &ZnodePath,
    by: &ZnodePath,
    form: &Form,
) -> Result<(), Error> {
    let (data, stat) = session.get_data(by).await?;
    if stat.ephemeral_owner != session.id() {
        return Ok(());
    }
    let (names, _) = session.get_queue(queue, FEW).await?;
    // One of the session's that waits itself is not to blame, and its own wait tells.
    if !holding(in_order(session, queue, &names)?).contains(by) {
        return Ok(());
    }
    tracing::warn!(
        path = %queue,
        label = label(&form.data.to_bytes()),
        entry = %by,
        holder = label(&data),
        session = %session.id(),
        "a wait for a lock that the same session holds: a task that asks again for what it holds waits for ever"
    );
    Ok(())
}

fn label(data: &[u8]) -> Option<String> {
    LockMetadata::parse(data).and_then(|metadata| metadata.label)
}
