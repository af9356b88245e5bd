//! [`Leader`]: the leader of an election, as others see it, and the search for it.

use bytes::Bytes;
use lockkeeper_store::{Error, Session, SessionId, Stat, Watcher, ZnodePath};
use serde_json::Value;

use super::{DATA, Election};
use crate::error::Result;
use crate::metadata::LockMetadata;
use crate::names::Kind;
use crate::queue::{check_kind, contenders, first_ephemeral};
use crate::token::FencingToken;

/// The leader of an election, as others see it.
///
/// A leader may not know yet that it leads, or that it has lost. Its rights at a resource depend on the
/// [`epoch`](Self::epoch) alone, which the resource checks.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Leader {
    /// The number of its term, which is its fencing token, greater than that of every earlier leader.
    pub epoch: FencingToken,
    /// Data with which it campaigned, or that it has set since. `None` if another library wrote its znode; see
    /// [`raw`](Self::raw).
    pub data: Option<String>,
    /// All metadata of its entry; `None` if another library wrote it.
    pub metadata: Option<LockMetadata>,
    /// The data of its znode, unparsed. Curator's `LeaderLatch` writes the participant's id there.
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

    /// Returns true if its data is the same. Other metadata does not count: a `keep_alive` is no change of the leader.
    pub(super) fn has_same_data(&self, other: &Self) -> bool {
        match (&self.data, &other.data) {
            (None, None) => self.raw == other.raw,
            (one, other) => one == other,
        }
    }
}

impl Election {
    /// Returns the leader; `None` if no candidate stands.
    ///
    /// The answer is as stale as the server that answers, and old when it arrives: follow the election by
    /// [`observe`](Self::observe), and have resources check the [`epoch`](Leader::epoch). Cancel safe.
    ///
    /// # Errors
    /// [`LockError::WrongKind`](crate::LockError::WrongKind) if another recipe uses the path, and those of the store.
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
                // A request waits for the next connection by itself, so this is no busy loop.
                Head::Unknown => {}
            }
        }
    }
}

/// The candidates, in order, as they were last listed. Later ones stand behind them all. So while one of these exists,
/// the first that does leads, and a change of leaders needs no new list.
#[derive(Default)]
pub(super) struct Candidates {
    /// In reverse order: the head is the last, to be popped.
    names: Vec<String>,
    /// Number of candidates that have turned out to be gone, one after the other, since the last one that existed.
    gone: usize,
}

/// Head of the candidates.
pub(super) enum Head {
    /// The leader, and the watcher of its znode if one was requested.
    Leader(Box<Leader>, Option<Watcher>),
    /// The list was empty.
    Vacant,
    /// The candidates or the connection have changed: look again.
    Unknown,
}

/// Number of missing candidates in a row after which the candidates are listed anew: after a mass departure, one list
/// costs less than a read for each.
const MAX_GONE: usize = 8;

impl Candidates {
    /// Reads the first candidate that exists. One missing candidate is skipped in each call.
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
                // A persistent znode with the name of a candidate does not stand for election.
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
        // An older list lacks the candidates that joined after it: only a fresh one proves that none stands.
        Ok(if is_fresh {
            Head::Vacant
        } else {
            Head::Unknown
        })
    }

    /// Lists the candidates; of a store with an index only the head. Returns false if the connection was lost.
    async fn fetch(&mut self, session: &Session, path: &ZnodePath) -> Result<bool> {
        for limit in [1, 0] {
            match session.get_queue(path, limit).await {
                Ok((names, _)) => {
                    let are_all = names.len() != limit;
                    self.set_names(session, path, names).await?;
                    // The index also holds numbered znodes that are no candidates, and the first may be one of these:
                    // then all are listed.
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

    /// Replaces the candidates by those among these children.
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

    /// Returns true if no listed candidate exists: each has left, or is a persistent znode with a candidate's name.
    pub(super) async fn is_vacant(&self, session: &Session, path: &ZnodePath) -> Result<bool> {
        let names: Vec<_> = self.names.iter().rev().map(String::as_str).collect();
        Ok(first_ephemeral(session, path, &names).await?.is_none())
    }

    /// Discards the list.
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
