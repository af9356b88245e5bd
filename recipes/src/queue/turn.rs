//! Waiting for one's turn: watch the nearest entry that blocks, and confirm after every wake.

use std::time::Duration;

use lockkeeper_store::{
    Ahead, Error, EventKind, LookAhead, Moment, ReadOp, ReadReply, Skip, Watcher, ZnodePath,
    sequence_of,
};

use super::entry::{Entry, Form};
use super::mark::Reading;
use super::snapshot::Snapshot;
use crate::error::{LockError, Result};
use crate::events::LockEvent;
use crate::names::Kind;
use crate::race::{First, race};
use crate::token::FencingToken;

/// What a contender waits for, and how.
pub(crate) struct Terms {
    pub(crate) form: Form,
    pub(crate) queue_limit: Option<usize>,
    /// Whether to give up at once unless nobody is ahead.
    pub(crate) only_if_free: bool,
}

/// What a guard is made of.
pub(crate) struct Held {
    pub(crate) path: ZnodePath,
    pub(crate) token: FencingToken,
    /// How many lapses the session had when this was granted.
    pub(crate) lapses: u64,
    /// The version of the queue's mark, where this contender has read one.
    pub(crate) mark_version: Option<i32>,
}

/// Why a sleep ended.
enum Wake {
    /// The one ahead was deleted.
    Gone,
    /// The one ahead is there; its data was set (it says that it is still at work).
    Changed,
    /// The connection is another: look again.
    Look,
}

/// Where a look at a list of names has led.
enum Turn {
    Mine,
    Look,
}

impl Entry<'_> {
    /// Enters the queue and waits for its turn. `None` when it was to be had at once and was not.
    pub(crate) async fn acquire(self, terms: &Terms) -> Result<Option<Held>> {
        let mut waiting = Waiting {
            skip: terms.form.skip,
            lapses: self.session.status().lapses(),
            entry: self,
            mark_version: None,
            since: None,
            position: None,
        };
        let token = waiting.turn(terms).await?;
        Ok(token.map(|token| waiting.hold(token)))
    }
}

/// An entry on its way to the head of its queue.
struct Waiting<'a> {
    entry: Entry<'a>,
    skip: Skip,
    lapses: u64,
    mark_version: Option<i32>,
    /// When it first had to wait.
    since: Option<Moment>,
    /// The last position that was told.
    position: Option<usize>,
}

impl Waiting<'_> {
    /// Enters, and waits until nobody is ahead. By reference, all of it: what a future takes by value
    /// it keeps twice.
    async fn turn(&mut self, terms: &Terms) -> Result<Option<FencingToken>> {
        let (czxid, mut ahead) = self.entry.enter(&terms.form).await?;
        let token = FencingToken::new(czxid);
        loop {
            match ahead {
                Ahead::Clear if self.may_hold() => return Ok(Some(token)),
                // The turn has come, but the proof that the session lives is old: get a new one.
                Ahead::Clear => Box::pin(self.prove()).await?,
                Ahead::Blocked {
                    by,
                    mut watcher,
                    count,
                } => {
                    check_kind(self.entry.parent, self.entry.kind, [by.name()])?;
                    if terms.only_if_free {
                        return Ok(None);
                    }
                    self.told_ahead(&by, count, terms)?;
                    self.sleep(&mut watcher).await?;
                }
                // Boxed, as all that only a remote store asks for: a waiter in process stays small.
                Ahead::Listed(names) => match Box::pin(self.over_list(names, terms)).await? {
                    None => return Ok(None),
                    Some(Turn::Mine) if self.may_hold() => return Ok(Some(token)),
                    Some(Turn::Mine) => Box::pin(self.prove()).await?,
                    Some(Turn::Look) => {}
                },
                Ahead::Gone => return Err(self.removed()),
                _ => {}
            }
            ahead = self.look(terms).await?;
        }
    }

    /// Works through a list of all names. `None`: not free, and that was the condition.
    async fn over_list(&mut self, names: Vec<String>, terms: &Terms) -> Result<Option<Turn>> {
        check_kind(self.entry.parent, self.entry.kind, &names)?;
        let me = self.entry.path().name();
        let Some(mut snapshot) = Snapshot::of(names, me, self.skip) else {
            // A list that lags behind my own create, or my node was removed: a write tells.
            self.prove().await?;
            return Ok(Some(Turn::Look));
        };
        let Some(nearest) = snapshot.nearest() else {
            return Ok(Some(Turn::Mine));
        };
        if terms.only_if_free {
            return Ok(None);
        }
        let by = self.entry.parent.join(nearest)?;
        self.told_ahead(&by, Some(snapshot.ahead), terms)?;
        if let Wake::Look = self.until_gone(&by).await? {
            return Ok(Some(Turn::Look));
        }
        let released = self.confirm().await?;
        snapshot.shorten(released);
        // Whoever is still on the list left a queue out of turn: who is nearest now, a new list tells.
        Ok(Some(match snapshot.nearest() {
            None => Turn::Mine,
            Some(_) => Turn::Look,
        }))
    }

    /// Waits until a node that a list showed is gone.
    async fn until_gone(&mut self, by: &ZnodePath) -> Result<Wake> {
        loop {
            let wake = match self.entry.session.watch_exists(by).await {
                // It went between the list and the watch.
                Ok((None, _)) => Wake::Gone,
                Ok((Some(_), mut watcher)) => self.sleep(&mut watcher).await?,
                Err(Error::ConnectionLoss) => Wake::Look,
                Err(error) => return Err(error.into()),
            };
            if !matches!(wake, Wake::Changed) {
                return Ok(wake);
            }
        }
    }

    /// Sleeps until the watch fires, the session is connected again, or it ends.
    async fn sleep(&mut self, watcher: &mut Watcher) -> Result<Wake> {
        // Without a timeout the store is in this process: its watchers end with the session, and
        // there is no connection to lose.
        if self.entry.session.timeout().is_none() {
            return wake(watcher.await);
        }
        Box::pin(self.sleep_connected(watcher)).await
    }

    async fn sleep_connected(&mut self, watcher: &mut Watcher) -> Result<Wake> {
        let status = self.entry.session.status().clone();
        let mut states = status.states();
        let connection = status.connection();
        loop {
            match race(&mut *watcher, states.next()).await {
                First::Left(event) => return wake(event),
                First::Right(_) => {
                    if let Some(end) = status.end() {
                        return Err(end.into());
                    }
                    if status.connection() != connection {
                        self.entry.put(|| LockEvent::Resumed);
                        return Ok(Wake::Look);
                    }
                    let held_until = None;
                    self.entry.put(|| LockEvent::Suspended { held_until });
                }
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
        let answers = loop {
            match self.entry.session.multi_read(reads.clone()).await {
                Err(Error::ConnectionLoss) => {}
                answers => break answers?,
            }
        };
        match answers.first() {
            Some(ReadReply::Data { stat, .. })
                if stat.ephemeral_owner == self.entry.session.id() => {}
            _ => return Err(self.removed()),
        }
        let reading = match answers.get(1) {
            Some(ReadReply::Data { data, stat }) => Reading::parse(self.entry.kind, data, stat),
            _ => None,
        };
        self.mark_version = reading.as_ref().map(|reading| reading.version);
        Ok(reading.and_then(|reading| reading.released))
    }

    /// Has the store commit that this entry's node is there, which also proves that the session lives.
    async fn prove(&mut self) -> Result<()> {
        self.lapses = self.entry.session.status().lapses();
        match self.entry.session.check(self.entry.path(), None).await {
            Ok(()) | Err(Error::ConnectionLoss) => Ok(()),
            Err(Error::MultiFailed { .. }) => Err(self.removed()),
            Err(error) => Err(error.into()),
        }
    }

    async fn look(&mut self, terms: &Terms) -> Result<Ahead> {
        loop {
            let look = LookAhead {
                entry: self.entry.path().clone(),
                skip: self.skip,
                count: terms.form.count,
            };
            let ahead = match self.entry.session.look_ahead(look).try_now() {
                Ok(ahead) => ahead,
                Err(call) => Box::pin(call).await,
            };
            match ahead {
                Err(Error::ConnectionLoss) => {}
                Err(Error::NoNode { .. }) => return Ok(Ahead::Gone),
                ahead => return Ok(ahead?),
            }
        }
    }

    /// Notes that somebody is ahead: the queue's limit, the events, the time of the wait.
    fn told_ahead(&mut self, by: &ZnodePath, count: Option<usize>, terms: &Terms) -> Result<()> {
        if let (None, Some(limit), Some(ahead)) = (self.since, terms.queue_limit, count)
            && ahead > limit
        {
            let path = self.entry.parent.clone();
            return Err(LockError::QueueFull { path, ahead, limit });
        }
        let first = self.since.is_none();
        if self.entry.events.is_some() {
            let position = count.unwrap_or(1);
            if first {
                self.entry.put(|| LockEvent::Queued {
                    position,
                    ahead: by.clone(),
                });
            } else if self.position != Some(position) {
                self.entry.put(|| LockEvent::Advanced { position });
            }
            self.position = Some(position);
            self.since
                .get_or_insert_with(|| self.entry.session.clock().now());
        }
        Ok(())
    }

    fn removed(&self) -> LockError {
        match self.entry.session.status().end() {
            Some(end) => end.into(),
            None => LockError::Removed {
                entry: self.entry.path().clone(),
            },
        }
    }

    fn may_hold(&self) -> bool {
        self.entry.session.status().may_hold(self.lapses)
    }

    fn hold(self, token: FencingToken) -> Held {
        let session = self.entry.session;
        let waited = || {
            self.since
                .map_or(Duration::ZERO, |since| session.clock().now().since(since))
        };
        self.entry.put(|| LockEvent::Acquired {
            token,
            waited: waited(),
        });
        Held {
            token,
            lapses: self.lapses,
            mark_version: self.mark_version,
            path: self.entry.into_path(),
        }
    }
}

fn wake(event: Result<lockkeeper_store::WatchedEvent, Error>) -> Result<Wake> {
    match event {
        Ok(event) if event.kind == EventKind::NodeDeleted => Ok(Wake::Gone),
        Ok(_) => Ok(Wake::Changed),
        Err(Error::ConnectionLoss | Error::LimitReached { .. }) => Ok(Wake::Look),
        Err(error) => Err(error.into()),
    }
}

/// Refuses a queue in which a child belongs to another kind of recipe.
pub(crate) fn check_kind<N: AsRef<str>>(
    queue: &ZnodePath,
    expected: Kind,
    children: impl IntoIterator<Item = N>,
) -> Result<()> {
    for child in children {
        if let Some(kind) = expected.stranger(child.as_ref()) {
            return Err(LockError::WrongKind {
                path: queue.clone(),
                expected: expected.title(),
                found: child.as_ref().to_owned(),
                kind,
            });
        }
    }
    Ok(())
}

/// The number of an entry's node.
pub(crate) fn number_of(path: &ZnodePath) -> Option<i64> {
    sequence_of(path.name())
}
