//! Logs a warning if a wait may be a self-deadlock, which means that the same session holds the lock.
//!
//! Tasks of one client often wait for each other, and we cannot identify tasks. Only a long wait hints at a
//! self-deadlock, so the warning is a guess and only appears in the log.

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

/// Maximum delay of the warning. A shorter session timeout is used instead.
const MAX_DELAY: Duration = Duration::from_secs(10);

/// Limits the entries to read, because any number of readers can hold the lock.
const MAX_HEAD: usize = 64;

pub(super) async fn warn_if_slow<T>(
    queue: Queue<'_>,
    by: &ZnodePath,
    data: &EntryData,
    mut sleep: Pin<&mut (impl Future<Output = T> + Send)>,
) -> T {
    // Do not warn about candidates, because one client's candidates often wait behind each other for as long as the
    // client runs.
    if queue.kind == Kind::Candidate {
        return sleep.await;
    }
    // First wait for the clock's tick, which all waits share. Set a timer only for a longer wait, because a timer would
    // cost a tenth of an in-memory hand-over.
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

/// Warns if our session holds the lock with the entry `by` or with an entry ahead of it. The caller may ignore an
/// error, because the wait itself will get it too.
async fn warn_if_own(queue: Queue<'_>, by: &ZnodePath, data: &EntryData) -> Result<(), Error> {
    let Queue { session, path, .. } = queue;
    let (names, _) = session.get_queue(path, MAX_HEAD).await?;
    let mut holders = holding(in_order(session, path, &names)?);
    if queue.kind == Kind::Acquirer {
        // The first entry of a semaphore's queue is also a waiter, so keep it only if it is directly ahead of us.
        holders.retain(|holder| holder == by);
    }
    let is_own = |stat: &Stat| stat.ephemeral_owner == session.id();
    // If `by` is our own entry and is itself waiting, that wait logs its own warning.
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
