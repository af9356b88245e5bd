//! [`Leader`]: the leader as observers see it.

use bytes::Bytes;
use lockkeeper_store::{Error, Session, SessionId, Stat, Watcher, ZnodePath};
use serde_json::Value;

use super::{DATA, Election};
use crate::error::Result;
use crate::metadata::LockMetadata;
use crate::names::Kind;
use crate::queue::{check_kind, contenders, first_ephemeral};
use crate::token::FencingToken;

/// The leader of an election as observers see it.
///
/// The leader may not know yet that it leads, or that it has lost the leadership. A resource checks the
/// [`epoch`](Self::epoch) to reject writes of former leaders.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Leader {
    /// The fencing token of the leader's term, greater than the epoch of every earlier leader.
    pub epoch: FencingToken,
    /// Data that the leader passed to its campaign or has set since then. `None` if another library wrote the znode.
    pub data: Option<String>,
    /// Metadata in the leader's znode. `None` if another library wrote the znode.
    pub metadata: Option<LockMetadata>,
    /// Unparsed data of the leader's znode. Curator's `LeaderLatch` writes the participant's id there.
    pub raw: Bytes,
    /// The session that leads.
    pub owner: SessionId,
    /// The leader's znode.
    pub path: ZnodePath,
}

impl Leader {
    fn new(path: ZnodePath, raw: Bytes, stat: &Stat) -> Self {
        let metadata = LockMetadata::parse(&raw);
        let data = metadata
            .as_ref()
            .and_then(|metadata| metadata.other.get(DATA));
        Self {
            epoch: FencingToken::new(stat.czxid),
            data: data.and_then(Value::as_str).map(str::to_owned),
            metadata,
            raw,
            owner: stat.ephemeral_owner,
            path,
        }
    }

    /// Compares `data` and not the metadata, because each `keep_alive` changes the metadata. Without `data`, compares
    /// `raw`.
    pub(super) fn has_same_data(&self, other: &Self) -> bool {
        match (&self.data, &other.data) {
            (None, None) => self.raw == other.raw,
            (one, other) => one == other,
        }
    }
}

impl Election {
    /// Returns the leader, or `None` if there is no candidate.
    ///
    /// The result can be as outdated as the server that answers. Use [`observe`](Self::observe) to follow the election,
    /// and let resources check the [`epoch`](Leader::epoch). Cancel safe.
    ///
    /// # Errors
    /// [`LockError::WrongKind`](crate::LockError::WrongKind) if another recipe uses the path, and store errors.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let client = lockkeeper::connect("memory:example-election-leader-leader").await?;
    /// let election = lockkeeper::Election::new(&client, "/election/scheduler")?;
    /// assert!(election.leader().await?.is_none());
    /// let _leadership = election.campaign("10.0.0.1:8080").await?;
    /// let leader = election.leader().await?.expect("a candidate leads");
    /// println!("{} leads, epoch {}", leader.data.as_deref().unwrap_or("?"), leader.epoch);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let session = self.client().session().await?;
        let mut candidates = Candidates::default();
        loop {
            match candidates.head(&session, self.path(), false).await? {
                Head::Leader(leader, _) => return Ok(Some(*leader)),
                Head::Vacant => return Ok(None),
                // Requests wait for the next connection, so this is not a busy loop.
                Head::Unknown => {}
            }
        }
    }
}

/// The candidates as last listed. New candidates queue behind them. So the first listed candidate that still exists is
/// the leader, and a change of leader needs no new list.
#[derive(Default)]
pub(super) struct Candidates {
    names: Vec<String>,
    /// Number of consecutive candidates that no longer existed.
    gone: usize,
}

pub(super) enum Head {
    Leader(Box<Leader>, Option<Watcher>),
    Vacant,
    /// The candidates or the connection changed, so look again.
    Unknown,
}

/// After this many missing candidates in a row, we list the candidates again, because one list costs less than many
/// reads.
const MAX_GONE: usize = 8;

impl Candidates {
    /// Reads the first candidate that exists. Each call skips at most one candidate that has left.
    pub(super) async fn head(
        &mut self,
        session: &Session,
        path: &ZnodePath,
        watch: bool,
    ) -> Result<Head> {
        let is_fresh = self.names.is_empty() || self.gone >= MAX_GONE;
        if is_fresh && !self.fetch(session, path).await? {
            return Ok(Head::Unknown);
        }
        while let Some(name) = self.names.last() {
            let path = path.join(name)?;
            match read_candidate(session, &path, watch).await {
                Ok((_, stat, _)) if !stat.is_ephemeral() => _ = self.names.pop(),
                Ok((data, stat, watcher)) => {
                    self.gone = 0;
                    let leader = Leader::new(path, data, &stat);
                    return Ok(Head::Leader(Box::new(leader), watcher));
                }
                Err(Error::NoNode { .. }) => {
                    self.names.pop();
                    self.gone += 1;
                    return Ok(Head::Unknown);
                }
                Err(Error::ConnectionLoss) => return Ok(Head::Unknown),
                Err(error) => return Err(error.into()),
            }
        }
        // Only a fresh list proves that there is no candidate, because an older list lacks later candidates.
        Ok(if is_fresh {
            Head::Vacant
        } else {
            Head::Unknown
        })
    }

    /// Lists the candidates, or only the first entry if the store supports that. Returns false on connection loss.
    async fn fetch(&mut self, session: &Session, path: &ZnodePath) -> Result<bool> {
        for limit in [1, 0] {
            match session.get_queue(path, limit).await {
                Ok((names, _)) => {
                    let are_all = names.len() != limit;
                    self.set_names(session, path, names).await?;
                    // The first entry may be a numbered znode that is not a candidate. In that case, list all children.
                    if are_all || !self.is_empty() {
                        break;
                    }
                }
                Err(Error::NoNode { .. }) => self.names.clear(),
                Err(Error::ConnectionLoss) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    pub(super) async fn set_names(
        &mut self,
        session: &Session,
        path: &ZnodePath,
        names: Vec<String>,
    ) -> Result<()> {
        check_kind(session, path, Kind::Candidate, &names).await?;
        let candidates = contenders(session, &names).into_iter().rev();
        self.names = candidates.map(|(_, name)| name.to_owned()).collect();
        self.gone = 0;
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub(super) async fn is_vacant(&self, session: &Session, path: &ZnodePath) -> Result<bool> {
        let names: Vec<_> = self.names.iter().rev().map(String::as_str).collect();
        Ok(first_ephemeral(session, path, &names).await?.is_none())
    }

    pub(super) fn clear(&mut self) {
        self.names.clear();
    }
}

type Candidate = (Bytes, Stat, Option<Watcher>);

async fn read_candidate(
    session: &Session,
    path: &ZnodePath,
    watch: bool,
) -> Result<Candidate, Error> {
    if watch {
        let (data, stat, watcher) = session.watch_data(path).await?;
        return Ok((data, stat, Some(watcher)));
    }
    let (data, stat) = session.get_data(path).await?;
    Ok((data, stat, None))
}
