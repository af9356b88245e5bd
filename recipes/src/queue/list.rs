//! Waiting at a store that only lists: who is ahead is told from the names, and what has become of
//! them is asked, so that a hand-over does not cost another list.

use lockkeeper_store::{Error, ReadOp, ReadReply, ZnodePath};

use super::blocker::Blocker;
use super::claim::{Entry, Form};
use super::contenders::check_kind;
use super::order::{Nearest, Snapshot};
use super::release_marker::Reading;
use super::sleep::Wake;
use super::wait::{Terms, Waiting, number_of};
use crate::error::Result;
use crate::events::PreviousHolder;
use crate::names::{contender_number, converted};
use crate::retry::retry;

/// Where a look at a list of names has led.
pub(super) enum Turn {
    Mine,
    Look,
}

/// How many are asked about at first, and at the most in one request.
const FEW: usize = 8;
const MOST: usize = 128;

/// Under how many names one is asked about.
const MOST_NAMES: usize = 3;

impl Waiting<'_> {
    /// Works through a list of all names. `None`: not free, and that was the condition.
    pub(super) async fn over_list(
        &mut self,
        names: Vec<String>,
        terms: &Terms,
    ) -> Result<Option<Turn>> {
        let Entry {
            session,
            parent,
            kind,
            ..
        } = self.entry;
        check_kind(session, parent, kind, &names).await?;
        let me = self.entry.path().name();
        let number = |name: &str| contender_number(session, name);
        let Some(mut snapshot) = Snapshot::of(names, me, self.skip(), number) else {
            // A list that lags behind my own create, or my node was removed: a write tells.
            self.prove().await?;
            return Ok(Some(Turn::Look));
        };
        loop {
            let Some(nearest) = snapshot.nearest() else {
                return Ok(Some(Turn::Mine));
            };
            let by = parent.join(nearest)?;
            let blocker = match Blocker::watch(session, &by).await {
                Err(Error::ConnectionLoss) => return Ok(Some(Turn::Look)),
                blocker => blocker?,
            };
            if blocker.stays {
                snapshot.discard_nearest();
                continue;
            }
            if terms.only_if_free {
                return Ok(None);
            }
            self.told_ahead(&by, Some(snapshot.ahead), terms)?;
            if let Wake::Look = self.until_gone(&by, blocker, &terms.form).await? {
                return Ok(Some(Turn::Look));
            }
            let released = self.confirm().await?;
            // Whoever is behind me has written no mark yet: one as high as its number is its own.
            if released.is_some() && released >= number_of(&by) {
                self.previous = PreviousHolder::Released;
            }
            snapshot.shorten(released);
            if snapshot.nearest().is_some() && !self.ask_about(&mut snapshot).await? {
                return Ok(Some(Turn::Look));
            }
        }
    }

    /// Asks whether the nearest few are there still: who died while waiting, or left a shared lock,
    /// has left no mark. When all of them have gone, it goes on with more, as long as a new list
    /// would be longer. Answers whether that tells who is nearest.
    async fn ask_about(&mut self, snapshot: &mut Snapshot) -> Result<bool> {
        let mut few = FEW;
        loop {
            let asked: Vec<_> = snapshot.nearest_few(few).map(names_of).collect();
            let standing = self.standing(asked).await?;
            match snapshot.update(standing, self.skip()) {
                Nearest::Known => return Ok(true),
                Nearest::Unknown => return Ok(false),
                Nearest::Further => {}
            }
            few = (4 * few).min(MOST);
            if MOST_NAMES * few.min(snapshot.len()) > self.queued {
                return Ok(false);
            }
        }
    }

    /// Under which of its names each of these stands there, if it does.
    async fn standing(&mut self, asked: Vec<Vec<String>>) -> Result<Vec<Option<String>>> {
        let mut reads = Vec::new();
        for name in asked.iter().flatten() {
            reads.push(ReadOp::GetData(self.entry.parent.join(name)?));
        }
        let session = self.entry.session;
        let answers = retry(|| session.multi_read(reads.clone())).await?;
        let mut answers = answers.into_iter();
        let found = asked.into_iter().map(|names| {
            let answers: Vec<_> = answers.by_ref().take(names.len()).collect();
            let mut found = names.into_iter().zip(&answers);
            let there = found.rfind(
                |(_, answer)| matches!(answer, ReadReply::Data { stat, .. } if stat.is_ephemeral()),
            );
            there.map(|(name, _)| name)
        });
        Ok(found.collect())
    }

    /// Waits until a node that is watched is gone.
    async fn until_gone(
        &mut self,
        by: &ZnodePath,
        mut blocker: Blocker,
        form: &Form,
    ) -> Result<Wake> {
        loop {
            let wake = match blocker.watcher {
                Some(mut watcher) => self.sleep_behind(by, &mut watcher, form).await?,
                // It went between the list and the watch.
                None => Wake::Gone,
            };
            match wake {
                Wake::Changed => match Blocker::watch(self.entry.session, by).await {
                    Err(Error::ConnectionLoss) => return Ok(Wake::Look),
                    again => blocker = again?,
                },
                Wake::Gone if !blocker.is_traceable => return Ok(Wake::Look),
                wake => return Ok(wake),
            }
        }
    }

    /// Confirms that this entry's own node is there and its session's, and reads how far the queue
    /// has been released: one request of a size that does not depend on the queue's.
    async fn confirm(&mut self) -> Result<Option<i64>> {
        let reads = [
            ReadOp::GetData(self.entry.path().clone()),
            ReadOp::GetData(self.entry.parent.clone()),
        ];
        let session = self.entry.session;
        let answers = retry(|| session.multi_read(reads.clone())).await?;
        match answers.first() {
            Some(ReadReply::Data { stat, .. })
                if stat.ephemeral_owner == self.entry.session.id() => {}
            _ => return Err(self.removed()),
        }
        let reading = match answers.get(1) {
            Some(ReadReply::Data { data, stat }) => {
                self.queued = usize::try_from(stat.num_children).unwrap_or(0);
                Reading::parse(self.entry.kind, self.entry.session.store_id(), data, stat)
            }
            _ => None,
        };
        self.mark = reading.as_ref().map(|reading| reading.current);
        Ok(reading.and_then(|reading| reading.released))
    }
}

/// The names under which an entry may stand there.
fn names_of(name: &str) -> Vec<String> {
    match converted(name) {
        // A reader that tries to become a writer, and fails, comes back under its first name: a
        // server may carry that out between two of these reads.
        Some(other) => vec![name.to_owned(), other, name.to_owned()],
        None => vec![name.to_owned()],
    }
}
