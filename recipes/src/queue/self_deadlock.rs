//! Warning of a self-deadlock: a wait for a lock that the same session holds.
//!
//! Tasks of one client wait for each other all the time, and no task has an identity. Only the duration tells such a wait
//! from one that never ends, so the warning is a guess, and nothing but a line in the log.

use std::pin::Pin;
use std::time::Duration;

use lockkeeper_store::{BootInstant, Error, Stat, ZnodePath};

use super::Queue;
use super::contenders::{first_such, in_order};
use super::order::holding;
use crate::metadata::EntryData;
use crate::names::Kind;
use crate::reporter::label;
use crate::select::{Either, select};

/// Longest duration of a wait behind the same session before the warning. It is less for a session with a shorter timeout.
const MAX_DELAY: Duration = Duration::from_secs(10);

/// Number of entries at the head of a queue that are read to find the holders: there can be any number of readers.
const MAX_HEAD: usize = 64;

/// Runs `sleep`, a wait behind the entry `by`, and warns once if the session itself holds the lock for so long that it may
/// be a deadlock.
pub(super) async fn or_warn<T>(
    queue: Queue<'_>,
    by: &ZnodePath,
    data: &EntryData,
    mut sleep: Pin<&mut (impl Future<Output = T> + Send)>,
) -> T {
    // Candidates of one client wait behind each other for as long as it lives.
    if queue.kind == Kind::Candidate {
        return sleep.await;
    }
    // All waits share the clock's tick, and only a wait that outlasts one sets a timer: the others are granted long before,
    // and setting and removing a timer would be a tenth of the cost of a hand-over in memory.
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

/// Warns of a wait that began before `since`, if it is not dropped before the warning is due.
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

/// Warns of a wait behind `by` if the session itself holds the lock, with that entry or with one ahead of it. An error ends
/// the attempt: the wait itself will meet it, too.
async fn warn_if_own(queue: Queue<'_>, by: &ZnodePath, data: &EntryData) -> Result<(), Error> {
    let Queue { session, path, .. } = queue;
    let (names, _) = session.get_queue(path, MAX_HEAD).await?;
    let mut holders = holding(in_order(session, path, &names)?);
    if queue.kind == Kind::Acquirer {
        // The head of a semaphore's queue waits, too.
        holders.retain(|holder| holder == by);
    }
    let is_own = |stat: &Stat| stat.ephemeral_owner == session.id();
    // An entry of the session that waits as well is not the cause, and its own wait warns.
    if !holders.contains(by) && session.exists(by).await?.as_ref().is_some_and(is_own) {
        return Ok(());
    }
    let names: Vec<_> = holders.iter().map(ZnodePath::name).collect();
    let Some(own) = first_such(session, path, &names, is_own).await? else {
        return Ok(());
    };
    let entry = &holders[own];
    let (holder, _) = session.get_data(entry).await?;
    tracing::warn!(
        path = %path,
        label = label(data),
        entry = %entry,
        holder = label(&EntryData::Written(holder)),
        session = %session.id(),
        "a wait for a lock that the same session holds: a task that asks again for what it holds waits for ever"
    );
    Ok(())
}
