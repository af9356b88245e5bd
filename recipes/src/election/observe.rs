//! [`LeaderChanges`]: the leader of an election, again each time that it changes.
//!
//! One watch at a time: on the leader's znode, or, while no candidate stands, on the list of candidates. It is armed
//! by the read whose result is reported, so no change falls between the two.

use lockkeeper_store::{Error, Session, Watcher, ZnodePath};

use super::Election;
use super::leader::{Candidates, Head, Leader};
use super::run::Backoff;
use crate::error::Result;
use crate::observe::{Change, watch_names};
use crate::stream::named_stream;

/// A change of an election's leader.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum LeaderChange {
    /// A new leader, or the first one that is reported.
    Elected(Leader),
    /// The same leader, with other data.
    DataChanged(Leader),
    /// No candidate stands.
    Vacant,
}

impl LeaderChange {
    /// Returns the leader after the change.
    pub fn leader(&self) -> Option<&Leader> {
        match self {
            Self::Elected(leader) | Self::DataChanged(leader) => Some(leader),
            Self::Vacant => None,
        }
    }

    /// Converts it into the leader after the change.
    pub fn into_leader(self) -> Option<Leader> {
        match self {
            Self::Elected(leader) | Self::DataChanged(leader) => Some(leader),
            Self::Vacant => None,
        }
    }

    /// Compares two reads of the leader; `None` if there is no change to report.
    fn between(last: Option<&Option<Leader>>, now: &Option<Leader>) -> Option<Self> {
        match (last, now) {
            (Some(None), None) => None,
            (_, None) => Some(Self::Vacant),
            (Some(Some(last)), Some(now)) if last.epoch == now.epoch => {
                (!last.has_same_data(now)).then(|| Self::DataChanged(now.clone()))
            }
            (_, Some(now)) => Some(Self::Elected(now.clone())),
        }
    }
}

impl Election {
    /// Follows the election: yields the leader now, and each change from then on: a new leader, none, or other data of
    /// the same one.
    ///
    /// The first item comes at once. Changes in quick succession may be seen as one (a term that is over by then is
    /// left out), but the latest is never missed: after every reconnection, and in a new session after an expiry, the
    /// leader is read again. A store that cannot be reached is tried again after pauses that grow from 0.1 s to 30 s.
    ///
    /// While a candidate leads, only its znode is watched: candidates that join or leave behind it cost nothing.
    ///
    /// # Errors
    /// In the stream, and as its last item: [`SessionClosed`](Error::SessionClosed) when the client is closed,
    /// [`LockError::WrongKind`](crate::LockError::WrongKind), and the refusals of the store.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use lockkeeper::{Election, LeaderChange};
    ///
    /// # let client = lockkeeper::connect("memory:election-observe").await?;
    /// let election = Election::new(&client, "/election/scheduler")?;
    /// let mut changes = election.observe();
    /// assert_eq!(changes.next().await, Some(Ok(LeaderChange::Vacant)));
    /// let leadership = election.campaign("10.0.0.1:8080").await?;
    /// let change = changes.next().await.expect("the stream goes on")?;
    /// assert_eq!(change.leader().unwrap().epoch, leadership.epoch());
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn observe(&self) -> LeaderChanges {
        let election = self.clone();
        let changes = Box::pin(async_stream::stream! {
            let mut watch = LeaderWatch::of(&election);
            let mut last: Option<Option<Leader>> = None;
            loop {
                let now = match watch.look().await {
                    Ok(now) => now,
                    Err(error) => {
                        yield Err(error);
                        return;
                    }
                };
                let change = LeaderChange::between(last.as_ref(), &now);
                last = Some(now);
                if let Some(change) = change {
                    yield Ok(change);
                }
                watch.changed().await;
            }
        });
        LeaderChanges(changes)
    }
}

/// Reads the leader of an election, and waits until it may have changed.
struct LeaderWatch<'a> {
    election: &'a Election,
    candidates: Candidates,
    /// The watch of the last read.
    armed: Option<Change>,
    backoff: Backoff,
}

impl<'a> LeaderWatch<'a> {
    fn of(election: &'a Election) -> Self {
        Self {
            election,
            candidates: Candidates::default(),
            armed: None,
            backoff: Backoff::new(election.client()),
        }
    }

    /// Reads the leader, and watches it from now on.
    async fn look(&mut self) -> Result<Option<Leader>> {
        loop {
            match self.try_look().await {
                Ok(leader) => {
                    self.backoff.succeeded();
                    return Ok(leader);
                }
                Err(error) => {
                    // The next answer may come from another server, with a view that the list does not match.
                    self.candidates.clear();
                    self.backoff.failed_with(error).await?;
                }
            }
        }
    }

    async fn try_look(&mut self) -> Result<Option<Leader>> {
        let session = self.election.client().session().await?;
        let path = self.election.path();
        loop {
            // Before the read: a reconnection after it must end the wait, since the watch may not have survived.
            let connection = session.status().connection();
            let (leader, watcher) = match self.candidates.head(&session, path, true).await? {
                Head::Leader(leader, Some(watcher)) => (Some(*leader), watcher),
                Head::Vacant => match self.watch_vacant(&session, path).await? {
                    Some(watcher) => (None, watcher),
                    None => continue,
                },
                _ => continue,
            };
            self.armed = Some(Change::new(session, connection, watcher));
            return Ok(leader);
        }
    }

    /// Watches for a candidate, unless one stands already; `None` if so.
    async fn watch_vacant(
        &mut self,
        session: &Session,
        path: &ZnodePath,
    ) -> Result<Option<Watcher>> {
        let (names, watcher) = match watch_names(session, path).await {
            Ok(watched) => watched,
            Err(Error::ConnectionLoss) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // The list that came with the watch decides: a candidate may have joined since the one before.
        self.candidates.set_names(session, path, names).await?;
        let is_vacant = self.candidates.is_vacant(session, path).await?;
        Ok(is_vacant.then_some(watcher))
    }

    /// Waits until the watch fires, or the connection is replaced.
    async fn changed(&mut self) {
        if let Some(change) = self.armed.take() {
            change.wait().await;
        }
    }
}

named_stream! {
    /// The stream of [`Election::observe`].
    LeaderChanges of Result<LeaderChange>;
    /// Waits for the next change; `None` after an error.
    ///
    /// Cancel safe: no change is lost.
}
