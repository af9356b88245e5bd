//! [`LockWatcher`]: a warden's loop over one lock.
//!
//! When a holder becomes overdue, we read it again, report it, and only then remove it, at the version that was read.
//! So a holder that gives a sign of life before the delete is never removed, whichever reply is lost (test
//! `no_seed_removes_a_holder_too_early_or_never`).

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lockkeeper_store::{BootInstant, Client, Error, Session, Watcher, ZnodePath};
use parking_lot::Mutex;

use super::hold_times::{HoldTimes, is_same};
use super::removal::{Removal, Removed};
use super::report::{WardenReport, report, report_removal};
use crate::holders::LEASES;
use crate::observe::{Change, QueueEntry, watch_names};
use crate::queue::{holding, in_order, is_shared};
use crate::select::select;
use crate::stream::LossySender;

pub(super) struct LockWatcher {
    pub(super) client: Client,
    pub(super) path: ZnodePath,
    pub(super) hold_times: Arc<Mutex<HoldTimes>>,
    pub(super) reporter: LossySender<WardenReport>,
    pub(super) removal: Option<Removal>,
    /// Holders whose delete got no reply. The next read shows whether they are gone.
    pub(super) unanswered: Vec<QueueEntry>,
}

struct Look {
    holders: Vec<QueueEntry>,
    /// Watchers that fire when another contender may hold the lock, or when a holder writes its data.
    watchers: Vec<Watcher>,
}

/// Pause after failing to open a session. Refused connections fail immediately, so the loop would otherwise be busy.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) trait Watch: Send + 'static {
    fn client(&self) -> &Client;

    fn path(&self) -> &ZnodePath;

    fn reporter(&self) -> &LossySender<WardenReport>;

    fn clear(&self);

    /// Returns the error that ended the watch in this session.
    fn watch_in(&mut self, session: &Session) -> impl Future<Output = Error> + Send;
}

pub(super) async fn watch(mut watcher: impl Watch) {
    let error = loop {
        let session = match watcher.client().session().await {
            Ok(session) => session,
            Err(Error::ConnectFailed { .. }) => {
                watcher.client().clock().sleep(PAUSE).await;
                continue;
            }
            Err(error) if error.is_session_end() => return,
            Err(error) => break error,
        };
        match watcher.watch_in(&session).await {
            // Restart all times, because we may have missed a sign of life between the sessions.
            error if error.is_session_end() => watcher.clear(),
            error => break error,
        }
    };
    let path = watcher.path().clone();
    tracing::warn!(%path, %error, "a lock is not watched any more");
    watcher.clear();
    watcher
        .reporter()
        .send(WardenReport::Failed { path, error });
}

impl Watch for LockWatcher {
    fn client(&self) -> &Client {
        &self.client
    }

    fn path(&self) -> &ZnodePath {
        &self.path
    }

    fn reporter(&self) -> &LossySender<WardenReport> {
        &self.reporter
    }

    fn clear(&self) {
        self.hold_times.lock().clear();
    }

    async fn watch_in(&mut self, session: &Session) -> Error {
        loop {
            // Read the connection number before we read the holders. If the client reconnects after that, the watches
            // may be lost, so the wait must end.
            let connection = session.status().connection();
            let look = match look(session, &self.path).await {
                Ok(Some(look)) => look,
                // Read again. This is not a busy loop, because the next read waits for a connection, or no longer finds
                // the entry that left.
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
}

impl LockWatcher {
    /// Reports removals and overdue holders. Returns the time of the read.
    fn report(&mut self, holders: Vec<QueueEntry>) -> BootInstant {
        let path = &self.path;
        let mut removed = std::mem::take(&mut self.unanswered);
        removed.retain(|entry| !holders.iter().any(|holder| is_same(holder, entry)));
        // Read the clock after the reply. An earlier time could make a hold seem longer than it is.
        let now = self.client.clock().now();
        let mut hold_times = self.hold_times.lock();
        hold_times.update(holders, now);
        let newly_overdue = hold_times.newly_overdue(path, now);
        drop(hold_times);
        // Report after the update, so that `Warden::overdue` agrees with the report.
        report(&self.reporter, path, removed, newly_overdue);
        now
    }

    /// Deletes the holders that were overdue at `now`, the time of the last report. A later time could include an
    /// unreported holder.
    async fn remove_overdue_holders(
        &mut self,
        session: &Session,
        now: BootInstant,
    ) -> Result<bool, Error> {
        let removable = self.hold_times.lock().removable(&self.path, now);
        let mut any = false;
        for entry in removable {
            let Some(removal) = self.removal.clone() else {
                break;
            };
            any = true;
            match removal.remove(session, &entry).await? {
                Removed::Done => {
                    self.hold_times.lock().remove(&entry);
                    report_removal(&self.reporter, &self.path, entry);
                }
                Removed::Refused => {}
                // Report the removal once a read shows that the entry is gone.
                Removed::Unanswered => self.unanswered.push(entry),
                Removed::Forbidden => {
                    super::removal_ended(&self.path);
                    self.removal = None;
                }
            }
        }
        Ok(any)
    }
}

/// Reads the holders, and arms the watches. Returns `None` if a holder left in between.
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

enum Seen {
    Holders(Look),
    /// A persistent znode with a contender's name. It never holds the lock, and does not leave.
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
    // While a single exclusive holder exists, no other contender can hold the lock. The watch on that holder is enough,
    // so contenders that join cost nothing.
    let found = if is_alone {
        found
    } else {
        // List again with a watch, because the watch does not report a change between the first list and its arming.
        let (names, watcher) = watch_names(session, &queue).await?;
        look.watchers.push(watcher);
        holders(&names)?
    };
    // Send all reads before awaiting the first.
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
        look.holders.push(QueueEntry::read(path, data, &stat, None));
    }
    Ok(Seen::Holders(look))
}

type Listed = (ZnodePath, Vec<String>);

/// Lists the queue with the holders, which is `leases` for a semaphore.
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
