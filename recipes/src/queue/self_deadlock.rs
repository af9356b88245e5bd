//! Warning of a wait for a lock that the same session holds: a task that waits for itself.

use std::pin::Pin;
use std::time::Duration;

use lockkeeper_store::{BootInstant, Error, ZnodePath};

use super::Queue;
use super::contenders::in_order;
use super::order::holding;
use crate::metadata::{EntryData, LockMetadata};
use crate::names::Kind;
use crate::select::{Either, select};

/// Duration of a wait behind the same session before it is told. Tasks of one client take turns all the time, so a wait
/// behind another task is told from one that never ends only by how long it lasts.
const MAX_DELAY: Duration = Duration::from_secs(10);

/// Number of entries at the head of a queue that are looked at.
const MAX_HEAD: usize = 64;

/// Runs a sleep behind the entry `by`. If the session itself holds the lock with that entry, and goes on to for as long
/// as a session may be silent, a warning says so: no lock is re-entrant.
pub(super) async fn or_warn<T>(
    queue: Queue<'_>,
    by: &ZnodePath,
    data: &EntryData,
    mut sleep: Pin<&mut (impl Future<Output = T> + Send)>,
) -> T {
    // Candidates stand behind each other for as long as they live.
    if queue.kind == Kind::Candidate {
        return sleep.await;
    }
    // The clock's tick is common to all waits. Only one that it finds still waiting gets a timer of its own: most are
    // granted long before, and a hand-over between tasks would pay for that timer with a tenth of its time.
    let tick = match select(sleep.as_mut(), queue.session.clock().next_tick()).await {
        Either::Left(output) => return output,
        Either::Right(tick) => tick,
    };
    let warning = Box::pin(warn_after(tick, queue, by, data));
    match select(sleep.as_mut(), warning).await {
        Either::Left(output) => output,
        Either::Right(_) => sleep.await,
    }
}

/// Warns of a wait that has begun before `since`, if it lasts for as long as a session may be silent.
async fn warn_after(
    since: BootInstant,
    queue: Queue<'_>,
    by: &ZnodePath,
    data: &EntryData,
) -> Result<(), Error> {
    let timeout = queue.session.timeout().unwrap_or(MAX_DELAY);
    let end = since.after(timeout.min(MAX_DELAY));
    queue.session.clock().sleep_until(end).await;
    warn_if_own(queue, by, data).await
}

/// Warns if the session holds the lock with this entry. What cannot be read is not told.
async fn warn_if_own(queue: Queue<'_>, by: &ZnodePath, data: &EntryData) -> Result<(), Error> {
    let Queue { session, path, .. } = queue;
    let (holder, stat) = session.get_data(by).await?;
    if stat.ephemeral_owner != session.id() {
        return Ok(());
    }
    let (names, _) = session.get_queue(path, MAX_HEAD).await?;
    // One of the session's that waits itself is not to blame, and its own wait tells.
    if !holding(in_order(session, path, &names)?).contains(by) {
        return Ok(());
    }
    tracing::warn!(
        path = %path,
        label = label(&data.to_bytes()),
        entry = %by,
        holder = label(&holder),
        session = %session.id(),
        "a wait for a lock that the same session holds: a task that asks again for what it holds waits for ever"
    );
    Ok(())
}

fn label(data: &[u8]) -> Option<String> {
    LockMetadata::parse(data).and_then(|metadata| metadata.label)
}
