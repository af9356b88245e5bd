//! [`LeaderChanges`]: a stream of the leaders of an election.
//!
//! One watch is armed at a time, on the leader's znode or, without a candidate, on the list of candidates. The read
//! whose result we report also arms the watch, so the stream misses no later change.

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
    /// A new leader, or the first leader reported.
    Elected(Leader),
    /// The same leader, with other data.
    DataChanged(Leader),
    /// There is no candidate.
    Vacant,
}

impl LeaderChange {
    /// Returns the leader after the change, or `None` if there is no candidate.
    pub fn leader(&self) -> Option<&Leader> {
        match self {
            Self::Elected(leader) | Self::DataChanged(leader) => Some(leader),
            Self::Vacant => None,
        }
    }

    /// Converts this into the leader after the change, or `None` if there is no candidate.
    pub fn into_leader(self) -> Option<Leader> {
        match self {
            Self::Elected(leader) | Self::DataChanged(leader) => Some(leader),
            Self::Vacant => None,
        }
    }

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
    /// Yields the current leader immediately, and then each change of the leader or its data.
    ///
    /// Quick changes may be merged. The stream may skip a short term, but never the latest change. It reads the leader
    /// again after every reconnection, and in a new session after an expiry. It retries failed reads after pauses that
    /// grow from 0.1 s to 30 s.
    ///
    /// # Errors
    /// The stream ends with [`SessionClosed`](Error::SessionClosed) if the client is closed, with
    /// [`LockError::WrongKind`](crate::LockError::WrongKind) if another recipe uses the path, or with the store's error
    /// if it refuses a request.
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

struct LeaderWatch<'a> {
    election: &'a Election,
    candidates: Candidates,
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

    async fn look(&mut self) -> Result<Option<Leader>> {
        loop {
            match self.try_look().await {
                Ok(leader) => {
                    self.backoff.succeeded();
                    return Ok(leader);
                }
                Err(error) => {
                    // The next reply may be from another server, which may list other candidates.
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
            // Read the connection number before we read the leader. If the client reconnects after that, the watch may
            // be lost, so the wait must end.
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
        // A candidate may have joined before the watch was armed. The list that was read with the watch shows this
        // candidate.
        self.candidates.set_names(session, path, names).await?;
        let is_vacant = self.candidates.is_vacant(session, path).await?;
        Ok(is_vacant.then_some(watcher))
    }

    async fn changed(&mut self) {
        if let Some(change) = self.armed.take() {
            change.wait().await;
        }
    }
}

named_stream! {
    /// Stream returned by [`Election::observe`].
    LeaderChanges of Result<LeaderChange>;
    /// Waits for the next change. Returns `None` after an error.
    ///
    /// Cancel safe: no change is lost.
}
