//! [`ListedQueue`]: the search for the blocker in a store that only lists names, such as ZooKeeper.
//!
//! The names are listed and ordered once ([`Predecessors`]). From then on the waiter reads the release marker and single
//! entries ahead instead of another list, so the requests and bytes of a hand-over do not grow with the queue.

use lockkeeper_store::{Error, ReadOp, ReadReply, Session, ZnodePath};

use super::contenders::check_kind;
use super::order::{CurrentMarker, MarkerReading, Nearest, Predecessors, number_of};
use super::{Blocker, Queue, Source, Step};
use crate::error::Result;
use crate::metadata::LockMetadata;
use crate::names::{contender_number, converted, is_writer};
use crate::retry::retry;

/// Number of entries that are read at first, and at most, in one request. It grows while all that were read turn out to be
/// gone.
const FIRST_READS: usize = 8;
const MAX_READS: usize = 128;

/// Largest number of names under which one entry is read, see [`names_of`].
const MAX_NAMES: usize = 3;

/// A queue as it was listed once, and the knowledge gained since.
#[derive(Default)]
pub(super) struct ListedQueue {
    predecessors: Predecessors,
    /// Length that a new list would have, as of the last look at the parent.
    queued: usize,
    /// The queue's release marker, as it was last read.
    pub(super) marker: Option<CurrentMarker>,
    /// All entries up to this number have left, according to that marker.
    released: Option<i64>,
}

impl ListedQueue {
    /// Takes over a list of all names, and watches the nearest entry that blocks `entry`. `own` tells whether the entry was
    /// seen to be the session's by the request that listed: a list shows a name, and not whose it is.
    pub(super) async fn order(
        &mut self,
        queue: Queue<'_>,
        entry: &ZnodePath,
        names: Vec<String>,
        own: Own,
    ) -> Result<Step> {
        let Queue {
            session,
            path,
            kind,
        } = queue;
        check_kind(session, path, kind, &names).await?;
        let number = |name: &str| contender_number(session, name);
        let Some(predecessors) = Predecessors::of(names, entry.name(), kind.blockers(), number)
        else {
            return Ok(Step::Unlisted);
        };
        self.predecessors = predecessors;
        self.find(queue, entry, own).await
    }

    /// Watches the nearest entry that blocks, after a change of its data.
    pub(super) async fn watch_again(
        &mut self,
        queue: Queue<'_>,
        entry: &ZnodePath,
    ) -> Result<Step> {
        self.find(queue, entry, Own::Unknown).await
    }

    /// Finds and watches the nearest entry that blocks. If none does, the turn has come only if the own entry exists then:
    /// it is confirmed unless it was seen after all that is known of those ahead (invariant 8).
    async fn find(&mut self, queue: Queue<'_>, entry: &ZnodePath, mut own: Own) -> Result<Step> {
        while let Some(nearest) = self.predecessors.nearest() {
            let by = queue.path.join(nearest)?;
            match watch(queue.session, by, self.predecessors.ahead).await {
                Ok(Some(blocker)) => return Ok(Step::Behind(blocker)),
                // A persistent znode with a contender's name: it blocks no lock.
                Ok(None) => {
                    self.predecessors.discard_nearest();
                    own = Own::Unknown;
                }
                // Not repeated on the next connection: after a reconnection the queue is read anew (invariant 8).
                Err(Error::ConnectionLoss) => return Ok(Step::Recheck),
                Err(error) => return Err(error.into()),
            }
        }
        match own {
            Own::Seen => Ok(Step::Clear),
            Own::Unknown if self.confirm(queue, entry).await? => Ok(Step::Clear),
            Own::Unknown => Ok(Step::Gone),
        }
    }

    /// Confirms `entry` after the nearest blocker is gone (invariant 8), and watches the next one.
    pub(super) async fn pass(&mut self, queue: Queue<'_>, entry: &ZnodePath) -> Result<Step> {
        if !self.confirm(queue, entry).await? {
            return Ok(Step::Gone);
        }
        self.predecessors.shorten(self.released);
        if self.predecessors.nearest().is_some() {
            match self.ask_about_nearest(queue, entry).await? {
                Some(Nearest::Known) => {}
                Some(Nearest::Further | Nearest::Unknown) => return Ok(Step::Recheck),
                None => return Ok(Step::Gone),
            }
        }
        self.find(queue, entry, Own::Seen).await
    }

    /// Returns true if the marker that was read last shows that `entry`, the one just ahead, was released. A marker that
    /// high is its own: no entry behind the reader can have written one yet.
    pub(super) fn has_released(&self, entry: &ZnodePath) -> bool {
        self.released.is_some() && self.released >= number_of(entry)
    }

    /// Reads the own entry and how far the queue has been released: one request of a size that does not depend on the
    /// queue's. Returns true if the entry exists, and is the session's.
    async fn confirm(&mut self, queue: Queue<'_>, entry: &ZnodePath) -> Result<bool> {
        let Queue {
            session,
            path,
            kind,
        } = queue;
        let reads = vec![
            ReadOp::GetData(entry.clone()),
            ReadOp::GetData(path.clone()),
        ];
        let replies = retry(|| session.multi_read(reads.clone())).await?;
        if !is_own(session, replies.first()) {
            return Ok(false);
        }
        let reading = match replies.get(1) {
            Some(ReadReply::Data { data, stat }) => {
                self.queued = usize::try_from(stat.num_children).unwrap_or(0);
                MarkerReading::parse(kind, session.store_id(), data, stat)
            }
            // Missing the right to read it, for one.
            _ => None,
        };
        self.marker = reading.as_ref().map(|reading| reading.current);
        self.released = reading.and_then(|reading| reading.released);
        Ok(true)
    }

    /// Reads whether the nearest few still exist: an entry that died while it waited, or left a shared lock, has left no
    /// marker. If all are gone it goes on with more, as long as that is less to read than a new list. `None` if the own
    /// entry is gone.
    async fn ask_about_nearest(
        &mut self,
        queue: Queue<'_>,
        entry: &ZnodePath,
    ) -> Result<Option<Nearest>> {
        let mut few = FIRST_READS;
        loop {
            let asked: Vec<_> = self.predecessors.nearest_few(few).map(names_of).collect();
            let Some(standing) = standing(queue, entry, asked).await? else {
                return Ok(None);
            };
            let nearest = self.predecessors.update(standing, queue.kind.blockers());
            few = (4 * few).min(MAX_READS);
            let left = self.predecessors.len();
            if nearest != Nearest::Further || exceeds_list(few, left, self.queued) {
                return Ok(Some(nearest));
            }
        }
    }
}

/// Returns true if reading the next `few` of the entries that are `left` may be more than a list of `queued` names.
fn exceeds_list(few: usize, left: usize, queued: usize) -> bool {
    MAX_NAMES * few.min(left) > queued
}

/// Knowledge that the own entry exists and is the session's, when those ahead were looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Own {
    Seen,
    Unknown,
}

/// Returns true for the reply of a read of the own entry. The owner is compared, too: a name can be copied.
fn is_own(session: &Session, read: Option<&ReadReply>) -> bool {
    matches!(read, Some(ReadReply::Data { stat, .. }) if stat.ephemeral_owner == session.id())
}

/// Arms a watch on the entry `by`. Returns `None` for a znode that is not ephemeral.
async fn watch(session: &Session, by: ZnodePath, count: usize) -> Result<Option<Blocker>, Error> {
    let (stat, watcher, is_traceable) = if is_writer(by.name()) {
        // Entries of ours are converted between reader and writer under names that follow from each other. A writer
        // of Curator's (since 5.5, CURATOR-621) becomes a reader in a new znode of the same number and any name,
        // which only a new list shows.
        match session.watch_data(&by).await {
            Ok((data, stat, watcher)) => {
                let is_ours = LockMetadata::parse(&data).is_some();
                (Some(stat), Some(watcher), is_ours)
            }
            Err(Error::NoNode { .. }) => (None, None, false),
            Err(error) => return Err(error),
        }
    } else {
        let (stat, watcher) = session.watch_exists(&by).await?;
        // On a missing znode `exists` arms a watch for its creation: dropping the watcher takes it away again.
        (stat, stat.map(|_| watcher), true)
    };
    if stat.is_some_and(|stat| !stat.is_ephemeral()) {
        return Ok(None);
    }
    Ok(Some(Blocker {
        by,
        watcher,
        count: Some(count),
        source: Source::List { is_traceable },
    }))
}

/// Returns the name under which each of these entries exists; `None` for one that does not. The own `entry` is read last:
/// it was there when all that were missing had gone. `None` for all if it is not.
async fn standing(
    queue: Queue<'_>,
    entry: &ZnodePath,
    asked: Vec<Vec<String>>,
) -> Result<Option<Vec<Option<String>>>> {
    let mut reads = Vec::new();
    for name in asked.iter().flatten() {
        reads.push(ReadOp::GetData(queue.path.join(name)?));
    }
    reads.push(ReadOp::GetData(entry.clone()));
    let replies = retry(|| queue.session.multi_read(reads.clone())).await?;
    if !is_own(queue.session, replies.last()) {
        return Ok(None);
    }
    let mut replies = replies.into_iter();
    let found = asked.into_iter().map(|names| {
        let replies: Vec<_> = replies.by_ref().take(names.len()).collect();
        let mut found = names.into_iter().zip(&replies);
        let exists = found.rfind(
            |(_, reply)| matches!(reply, ReadReply::Data { stat, .. } if stat.is_ephemeral()),
        );
        exists.map(|(name, _)| name)
    });
    Ok(Some(found.collect()))
}

/// Returns the names under which an entry may exist, in the order in which to read them.
fn names_of(name: &str) -> Vec<String> {
    match converted(name) {
        // A reader whose upgrade fails comes back under its first name, perhaps between two of these reads: read only
        // once, it would be missed under both names.
        Some(other) => vec![name.to_owned(), other, name.to_owned()],
        None => vec![name.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_while_that_is_no_more_than_a_list() {
        for (few, left) in [(8, 100), (100, 8)] {
            assert!(!exceeds_list(few, left, 24));
            assert!(exceeds_list(few, left, 23));
        }
    }
}
