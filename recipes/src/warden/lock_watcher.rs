//! [`LockWatcher`]: the watch over one lock.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lockkeeper_store::{BootInstant, Client, Error, Session, Watcher, ZnodePath, sequence_of};
use parking_lot::Mutex;

use super::hold_times::{HoldTimes, is_same};
use super::report::WardenReport;
use crate::holders::LEASES;
use crate::metadata::LockMetadata;
use crate::observe::{Change, QueueEntry};
use crate::queue::{holding, in_order, is_shared};
use crate::select::select;
use crate::stream::LossySender;
use crate::token::FencingToken;

/// The watch over one lock.
pub(super) struct LockWatcher {
    pub(super) client: Client,
    pub(super) path: ZnodePath,
    pub(super) hold_times: Arc<Mutex<HoldTimes>>,
    pub(super) reporter: LossySender<WardenReport>,
    pub(super) removes: bool,
    /// Those whose deletion was sent, and not answered.
    pub(super) unanswered: Vec<QueueEntry>,
}

/// A look at a lock.
struct Look {
    holders: Vec<QueueEntry>,
    /// Watchers that fire when somebody else may hold, or a holder writes.
    watchers: Vec<Watcher>,
}

/// Pause after a failed attempt to open a session.
const PAUSE: Duration = Duration::from_secs(1);

impl LockWatcher {
    /// Watches until the client is closed, or the store refuses.
    pub(super) async fn watch(mut self) {
        let error = loop {
            let session = match self.client.session().await {
                Ok(session) => session,
                Err(Error::ConnectFailed { .. }) => {
                    self.client.clock().sleep(PAUSE).await;
                    continue;
                }
                Err(error) if error.is_session_end() => return,
                Err(error) => break error,
            };
            match self.watch_in(&session).await {
                // For a while nobody looked: what was seen before does not count.
                error if error.is_session_end() => self.hold_times.lock().clear(),
                error => break error,
            }
        };
        tracing::warn!(path = %self.path, %error, "a lock is not watched any more");
        self.hold_times.lock().clear();
        let path = self.path;
        self.reporter.send(WardenReport::Failed { path, error });
    }

    /// Looks again at each change, and when somebody becomes overdue; so that what is reported was
    /// read after that moment.
    async fn watch_in(&mut self, session: &Session) -> Error {
        loop {
            let connection = session.status().connection();
            let look = match look(session, &self.path).await {
                Ok(Some(look)) => look,
                Ok(None) | Err(Error::ConnectionLoss) => continue,
                Err(error) => return error,
            };
            let watcher = Watcher::from_future(first_event(look.watchers));
            let change = Change::new(session.clone(), connection, watcher);
            let now = self.report(look.holders);
            match self.remove_overdue_holders(session, now).await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => return error,
            }
            let next_due = self.hold_times.lock().next_due();
            let due = async {
                match next_due {
                    Some(due) => session.clock().sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            select(change.wait(), due).await;
            if let Some(end) = session.status().end() {
                return end;
            }
        }
    }

    /// Tells what is new; as of when.
    fn report(&mut self, holders: Vec<QueueEntry>) -> BootInstant {
        let path = &self.path;
        let mut removed = std::mem::take(&mut self.unanswered);
        removed.retain(|entry| !holders.iter().any(|holder| is_same(holder, entry)));
        // After the answer has come: what it shows was so before.
        let now = self.client.clock().now();
        let mut hold_times = self.hold_times.lock();
        hold_times.update(holders, now);
        let newly_overdue = hold_times.newly_overdue(path, now);
        drop(hold_times);
        // Reported once the list of overdue locks is as the reports say.
        for entry in removed {
            let path = path.clone();
            self.reporter.send(WardenReport::Removed { path, entry });
        }
        for overdue in newly_overdue {
            tracing::warn!(path = %overdue.entry.path, level = ?overdue.level, "a lock is overdue");
            self.reporter.send(WardenReport::Overdue(overdue));
        }
        now
    }

    /// Deletes the holders whose time was up at `now`, the moment of the last report, so that each was reported first.
    /// It deletes the version that was seen: a sign of life since then makes the store refuse. Returns true if the
    /// holders are to be read again.
    async fn remove_overdue_holders(
        &mut self,
        session: &Session,
        now: BootInstant,
    ) -> Result<bool, Error> {
        if !self.removes {
            return Ok(false);
        }
        let removable = self.hold_times.lock().removable(&self.path, now);
        let any = !removable.is_empty();
        for entry in removable {
            match session.delete(&entry.path, Some(entry.version)).await {
                Ok(()) => {
                    tracing::warn!(path = %entry.path, "an overdue lock was taken away");
                    self.hold_times.lock().remove(&entry);
                    let path = self.path.clone();
                    self.reporter.send(WardenReport::Removed { path, entry });
                }
                Err(Error::BadVersion { .. } | Error::NoNode { .. }) => {}
                Err(Error::ConnectionLoss) => self.unanswered.push(entry),
                Err(error) => return Err(error),
            }
        }
        Ok(any)
    }
}

/// Reads who holds, and arms the watches. `None`: somebody left meanwhile.
async fn look(session: &Session, path: &ZnodePath) -> Result<Option<Look>, Error> {
    let mut not_ephemeral = Vec::new();
    loop {
        match look_past(session, path, &not_ephemeral).await? {
            Seen::Holders(look) => return Ok(Some(look)),
            Seen::NotEphemeral(node) => not_ephemeral.push(node),
            Seen::Left => return Ok(None),
        }
    }
}

/// Outcome of one look at those who seem to hold.
enum Seen {
    Holders(Look),
    /// This one only has a contender's name, and never leaves.
    NotEphemeral(ZnodePath),
    Left,
}

async fn look_past(
    session: &Session,
    path: &ZnodePath,
    not_ephemeral: &[ZnodePath],
) -> Result<Seen, Error> {
    let (queue, names) = match list(session, path).await? {
        Some(listed) => listed,
        None => return Ok(Seen::Left),
    };
    let holders = |names: &[String]| {
        let mut contenders = in_order(session, &queue, names)?;
        contenders.retain(|node| !not_ephemeral.contains(node));
        Ok::<_, Error>(holding(contenders))
    };
    let found = holders(&names)?;
    let is_alone = matches!(&found[..], [holder] if !is_shared(holder.name()));
    let mut look = Look {
        holders: Vec::new(),
        watchers: Vec::new(),
    };
    // Nobody else holds before one who is alone leaves: who joins behind it does not matter.
    let found = if is_alone {
        found
    } else {
        let (names, watcher) = watch_names(session, &queue).await?;
        look.watchers.push(watcher);
        holders(&names)?
    };
    let reads: Vec<_> = found.iter().map(|path| session.watch_data(path)).collect();
    for (path, read) in found.into_iter().zip(reads) {
        let (data, stat, watcher) = match read.await {
            Err(Error::NoNode { .. }) => return Ok(Seen::Left),
            read => read?,
        };
        if !stat.is_ephemeral() {
            return Ok(Seen::NotEphemeral(path));
        }
        look.watchers.push(watcher);
        look.holders.push(QueueEntry {
            sequence: sequence_of(path.name()).unwrap_or_default(),
            path,
            fencing_token: FencingToken::new(stat.czxid),
            owner: stat.ephemeral_owner,
            version: stat.version,
            metadata: LockMetadata::parse(&data),
            data,
        });
    }
    Ok(Seen::Holders(look))
}

type Listed = (ZnodePath, Vec<String>);

/// The queue in which holders stand (of a semaphore its `leases`), and the names there.
async fn list(session: &Session, path: &ZnodePath) -> Result<Option<Listed>, Error> {
    let names = match session.get_children(path).await {
        Ok((names, _)) => names,
        Err(Error::NoNode { .. }) => Vec::new(),
        Err(error) => return Err(error),
    };
    if !names.iter().any(|name| name == LEASES) {
        return Ok(Some((path.clone(), names)));
    }
    let leases = path.join(LEASES)?;
    match session.get_children(&leases).await {
        Ok((names, _)) => Ok(Some((leases, names))),
        Err(Error::NoNode { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Arms a watch on a list of names; on a znode that is not there yet, on its making.
async fn watch_names(session: &Session, path: &ZnodePath) -> Result<(Vec<String>, Watcher), Error> {
    loop {
        match session.watch_children(path).await {
            Ok((names, _, watcher)) => return Ok((names, watcher)),
            Err(Error::NoNode { .. }) => {}
            Err(error) => return Err(error),
        }
        if let (None, watcher) = session.watch_exists(path).await? {
            return Ok((Vec::new(), watcher));
        }
    }
}

/// The first event of several watchers.
async fn first_event(mut watchers: Vec<Watcher>) -> Result<lockkeeper_store::WatchedEvent, Error> {
    poll_fn(move |context| {
        let polled = watchers
            .iter_mut()
            .map(|watcher| Pin::new(watcher).poll(context));
        polled
            .into_iter()
            .find(Poll::is_ready)
            .unwrap_or(Poll::Pending)
    })
    .await
}
