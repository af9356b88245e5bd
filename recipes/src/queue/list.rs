//! [`ListedQueue`]: finds the blocker in a store that only lists names, such as ZooKeeper.
//!
//! The waiter lists and orders the names once ([`Predecessors`]). Later it reads only the release marker and a few
//! entries ahead, so the cost of a hand-over does not grow with the queue.

use lockkeeper_store::{Error, ReadOp, ReadReply, Session, ZnodePath};

use super::contenders::check_kind;
use super::order::{CurrentMarker, MarkerReading, Nearest, Predecessors, number_of};
use super::{Blocker, BlockerSource, Queue, QueuePosition};
use crate::error::Result;
use crate::metadata::LockMetadata;
use crate::names::{contender_number, converted, is_writer};
use crate::retry::retry;

/// Number of entries that the first request reads. If all of them have left, the next request reads more.
const FIRST_READS: usize = 8;
const MAX_READS: usize = 128;

const MAX_NAMES: usize = 3;

#[derive(Default)]
pub(super) struct ListedQueue {
    predecessors: Predecessors,
    /// Number of names that a new list would return.
    queued: usize,
    pub(super) marker: Option<CurrentMarker>,
    /// Number in the release marker. All entries up to this number have left.
    released: Option<i64>,
}

impl ListedQueue {
    /// Orders a list of all names, and watches the nearest entry that blocks `entry`. The list does not show whether
    /// our session owns `entry`, so the caller passes what it knows as `own`.
    pub(super) async fn order(
        &mut self,
        queue: Queue<'_>,
        entry: &ZnodePath,
        names: Vec<String>,
        own: Own,
    ) -> Result<QueuePosition> {
        let Queue {
            session,
            path,
            kind,
        } = queue;
        check_kind(session, path, kind, &names).await?;
        let number = |name: &str| contender_number(session, name);
        let Some(predecessors) = Predecessors::of(names, entry.name(), kind.blockers(), number)
        else {
            return Ok(QueuePosition::Unlisted);
        };
        self.predecessors = predecessors;
        self.find(queue, entry, own).await
    }

    pub(super) async fn watch_again(
        &mut self,
        queue: Queue<'_>,
        entry: &ZnodePath,
    ) -> Result<QueuePosition> {
        self.find(queue, entry, Own::Unknown).await
    }

    /// Watches the nearest blocking entry. If no entry blocks, confirms that our entry exists (invariant 8), unless an
    /// earlier reply has already shown that (`Own::Seen`).
    async fn find(
        &mut self,
        queue: Queue<'_>,
        entry: &ZnodePath,
        mut own: Own,
    ) -> Result<QueuePosition> {
        while let Some(nearest) = self.predecessors.nearest() {
            let by = queue.path.join(nearest)?;
            match watch(queue.session, by, self.predecessors.ahead).await {
                Ok(Some(blocker)) => return Ok(QueuePosition::Behind(blocker)),
                // A persistent znode with a contender's name does not block.
                Ok(None) => {
                    self.predecessors.discard_nearest();
                    own = Own::Unknown;
                }
                // Do not retry here, because after a reconnection we must read the queue again (invariant 8).
                Err(Error::ConnectionLoss) => return Ok(QueuePosition::Recheck),
                Err(error) => return Err(error.into()),
            }
        }
        match own {
            Own::Seen => Ok(QueuePosition::Clear),
            Own::Unknown if self.confirm(queue, entry).await? => Ok(QueuePosition::Clear),
            Own::Unknown => Ok(QueuePosition::Gone),
        }
    }

    /// Confirms that `entry` exists after its nearest blocker has left (invariant 8), and watches the next blocker.
    pub(super) async fn pass(
        &mut self,
        queue: Queue<'_>,
        entry: &ZnodePath,
    ) -> Result<QueuePosition> {
        if !self.confirm(queue, entry).await? {
            return Ok(QueuePosition::Gone);
        }
        self.predecessors.shorten(self.released);
        if self.predecessors.nearest().is_some() {
            match self.ask_about_nearest(queue, entry).await? {
                Some(Nearest::Known) => {}
                Some(Nearest::Further | Nearest::Unknown) => return Ok(QueuePosition::Recheck),
                None => return Ok(QueuePosition::Gone),
            }
        }
        self.find(queue, entry, Own::Seen).await
    }

    /// Returns true if the marker that we read last shows that `entry`, the entry just ahead of us, was released.
    pub(super) fn has_released(&self, entry: &ZnodePath) -> bool {
        self.released.is_some() && self.released >= number_of(entry)
    }

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
            _ => None,
        };
        self.marker = reading.as_ref().map(|reading| reading.current);
        self.released = reading.and_then(|reading| reading.released);
        Ok(true)
    }

    /// Reads whether the nearest entries still exist, because an entry can leave without writing a marker, for example
    /// when its session ends. Reads further entries as long as that costs less than a new list. Returns `None` if our
    /// entry has been removed.
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

fn exceeds_list(few: usize, left: usize, queued: usize) -> bool {
    MAX_NAMES * few.min(left) > queued
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Own {
    Seen,
    Unknown,
}

fn is_own(session: &Session, read: Option<&ReadReply>) -> bool {
    matches!(read, Some(ReadReply::Data { stat, .. }) if stat.ephemeral_owner == session.id())
}

/// Watches the znode `by`. Returns `None` if the znode is persistent and therefore does not block.
async fn watch(session: &Session, by: ZnodePath, count: usize) -> Result<Option<Blocker>, Error> {
    let (stat, watcher, is_traceable) = if is_writer(by.name()) {
        // If a client of this library converts an entry between reader and writer, the new name can be derived from the
        // old one. Since version 5.5 (CURATOR-621), Curator converts a writer into a reader in a new znode that has the
        // same number but an arbitrary name. Only a new list shows this name.
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
        // If the znode is missing, `exists` watches for its creation. Dropping the watcher removes that watch.
        (stat, stat.map(|_| watcher), true)
    };
    if stat.is_some_and(|stat| !stat.is_ephemeral()) {
        return Ok(None);
    }
    Ok(Some(Blocker {
        by,
        watcher,
        count: Some(count),
        source: BlockerSource::List { is_traceable },
    }))
}

/// Returns the current name of each entry, or `None` for an entry that has left. Our `entry` is read last, so if it
/// exists, it has outlived the missing entries.
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

fn names_of(name: &str) -> Vec<String> {
    match converted(name) {
        // A reader whose upgrade fails returns to its first name, possibly between two of our reads. So we read the
        // first name twice.
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
