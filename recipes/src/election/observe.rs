//! [`LeaderChanges`]: the leader of an election, again each time that it changes.

use lockkeeper_store::{Error, Session, Watcher, ZnodePath};

use super::Election;
use super::leader::{Candidates, Head, Leader};
use super::run::Backoff;
use crate::error::Result;
use crate::observe::Change;
use crate::stream::named_stream;

/// A change in who leads an election.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum LeaderChange {
    /// Another leads than was told last, or the first that is told.
    Elected(Leader),
    /// The same leads, and says something else of itself.
    DataChanged(Leader),
    /// Nobody leads.
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

    /// Turns it into the leader after the change.
    pub fn into_leader(self) -> Option<Leader> {
        match self {
            Self::Elected(leader) | Self::DataChanged(leader) => Some(leader),
            Self::Vacant => None,
        }
    }

    /// Compares two looks; `None` if nothing has changed that is worth telling.
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
    /// The first item comes at once. Changes that come faster than they are read may be seen
    /// together (a term that is over by then is left out), but the latest is never missed: after
    /// every reconnection, and in a new session after an expiry, the election is looked at anew. A
    /// store that cannot be reached is tried again, with growing pauses. The stream ends after an
    /// error, such as the end of the client.
    ///
    /// While somebody leads, only the leader's znode is watched: candidates that join, or go, behind
    /// it cost nothing.
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

/// Looks at an election, and waits until another look is worth while.
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

    /// Reads the leader, and watches it from now on.
    async fn look(&mut self) -> Result<Option<Leader>> {
        loop {
            match self.try_look().await {
                Ok(leader) => {
                    self.backoff.succeeded();
                    return Ok(leader);
                }
                Err(error) => {
                    // It may be another server, or another's view, that answers next.
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

    /// Watches for somebody to stand, unless somebody does already.
    async fn watch_vacant(
        &mut self,
        session: &Session,
        path: &ZnodePath,
    ) -> Result<Option<Watcher>> {
        match session.watch_children(path).await {
            Ok((names, _, watcher)) => {
                self.candidates.set_names(session, path, names).await?;
                let is_vacant = self.candidates.is_vacant(session, path).await?;
                Ok(is_vacant.then_some(watcher))
            }
            Err(Error::NoNode { .. }) => match session.watch_exists(path).await {
                Ok((None, watcher)) => Ok(Some(watcher)),
                Ok((Some(_), _)) | Err(Error::ConnectionLoss) => Ok(None),
                Err(error) => Err(error.into()),
            },
            Err(Error::ConnectionLoss) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until what is watched has changed, or the connection is another.
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
    /// Cancel safe.
}
