//! [`Contest`]: the taking of a place in one queue, as one kind of entry; what all recipes share.

use std::time::Duration;

use lockkeeper_store::{Client, Error, Predecessor, Session, ZnodePath};

use crate::error::{LockError, Result};
use crate::guard::Guard;
use crate::metadata::EntryData;
use crate::names::{EntryId, Kind};
use crate::options::LockOptions;
use crate::queue::{
    Entry, Form, Held, Terms, Waiting, any_contends, ask, blocks, check_kind, contenders,
};
use crate::select::{Either, select};

/// Who contends for what.
#[derive(Clone, Copy)]
pub(crate) struct Contest<'a> {
    pub(crate) client: &'a Client,
    pub(crate) path: &'a ZnodePath,
    pub(crate) kind: Kind,
}

impl Contest<'_> {
    /// Waits, on the common terms: without a limit, without events.
    pub(crate) async fn acquire(self) -> Result<Guard> {
        let session = self.client.session().await?;
        let queued_at_ms = session.clock().unix_ms();
        let data = EntryData::Default { queued_at_ms };
        let form = Form {
            data: data.clone(),
            count: false,
        };
        // A free lock of a store in this process takes no more than this: nobody waits, so there is
        // nothing that a dropped wait could leave behind.
        let (id, lapses) = (EntryId::fresh(), session.status().lapses());
        let answer = ask(&session, self.path, self.kind, id, &form).now_or_never();
        let answer = match answer {
            Ok(Ok((path, czxid, Predecessor::Clear))) if session.status().may_grant(lapses) => {
                let held = Held::at_once(path, czxid, lapses);
                return Ok(Guard::new(session, held, self.kind, data, None));
            }
            answer => answer,
        };
        let terms = Terms {
            form,
            queue_limit: None,
            only_if_free: false,
            progress: None,
        };
        let entry = Entry::asked(&session, self.path, self.kind, id, answer);
        let held = Waiting::new(entry, lapses).acquire(&terms).await?;
        let held = held.expect("only a try comes back without the lock");
        Ok(Guard::new(session, held, self.kind, data, None))
    }

    /// Waits on terms of the caller's, under one deadline.
    pub(crate) async fn acquire_with(self, mut options: LockOptions) -> Result<Guard> {
        let (timeout, progress) = (options.timeout, options.begin());
        let wait = async {
            let guard = self.contend(options, false).await?;
            Ok(guard.expect("only a try comes back without the lock"))
        };
        let timed_out = |after| progress.timed_out(self.client, self.path, self.path, after);
        in_time(self.client, timeout, wait, timed_out).await
    }

    /// Takes what is to be had now. A look comes first: what is taken costs one read and no write.
    pub(crate) async fn try_acquire(self, mut options: LockOptions) -> Result<Option<Guard>> {
        let (timeout, progress) = (options.timeout, options.begin());
        let attempt = async {
            if self.looks_taken(options.synced).await? {
                return Ok(None);
            }
            self.contend(options, true).await
        };
        let timed_out = |after| progress.timed_out(self.client, self.path, self.path, after);
        in_time(self.client, timeout, attempt, timed_out).await
    }

    async fn contend(self, options: LockOptions, only_if_free: bool) -> Result<Option<Guard>> {
        let session = self.client.session().await?;
        let data = options.data(session.clock().unix_ms());
        let events = options.events.clone();
        let terms = options.terms(data.clone(), only_if_free);
        let entry = Entry::new(&session, self.path, self.kind, events.clone());
        let held = entry.acquire(&terms).await?;
        Ok(held.map(|held| Guard::new(session, held, self.kind, data, events)))
    }

    /// Returns true if anybody in a queue would block: known for certain by a store's index, by the names in a
    /// list.
    async fn is_taken(self, session: &Session, names: Vec<String>, is_index: bool) -> Result<bool> {
        check_kind(session, self.path, self.kind, &names).await?;
        let contenders = contenders(session, &names).into_iter();
        let blocking: Vec<_> = contenders
            .map(|(_, name)| name)
            .filter(|name| blocks(name, self.kind.skip()))
            .collect();
        if is_index {
            return Ok(!blocking.is_empty());
        }
        Ok(any_contends(session, self.path, &blocking).await?)
    }

    /// Whether a list of the queue shows anybody who would block.
    async fn looks_taken(self, synced: bool) -> Result<bool> {
        let session = self.client.session().await?;
        // A reader may have any number of readers before the first who blocks it.
        let limit = usize::from(self.kind.is_exclusive());
        loop {
            let barrier = synced.then(|| session.sync(self.path));
            let queue = session.get_queue(self.path, limit);
            let caught_up = match barrier {
                Some(barrier) => barrier.await,
                None => Ok(()),
            };
            match (caught_up, queue.await) {
                (Err(Error::ConnectionLoss), _) | (_, Err(Error::ConnectionLoss)) => {}
                (_, Err(Error::NoNode { .. })) => return Ok(false),
                (Ok(()) | Err(Error::NoNode { .. }), Ok((names, is_index))) => {
                    return self.is_taken(&session, names, is_index).await;
                }
                (Err(error), _) | (_, Err(error)) => return Err(error.into()),
            }
        }
    }
}

/// Runs a wait under a deadline for all of it. `timed_out` makes the error of one that was too long.
pub(crate) async fn in_time<T>(
    client: &Client,
    timeout: Option<Duration>,
    wait: impl Future<Output = Result<T>>,
    timed_out: impl FnOnce(Duration) -> LockError,
) -> Result<T> {
    let Some(after) = timeout else {
        return wait.await;
    };
    match select(wait, client.clock().sleep(after)).await {
        Either::Left(outcome) => outcome,
        Either::Right(()) => Err(timed_out(after)),
    }
}
