//! [`Leader`]: the leader of an election, as others see it.

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
/// A leader may not know yet that it leads, or that it has lost; for what it may do to a resource
/// only the [`epoch`](Self::epoch) counts, which the resource checks.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Leader {
    /// The number of its term, which is its fencing token. Each leader's is greater than those before.
    pub epoch: FencingToken,
    /// Data that it campaigned with, or has set since. `None` when another
    /// library wrote its znode; what stands there is in [`raw`](Self::raw).
    pub data: Option<String>,
    /// All that it says of itself; `None` when another library wrote it.
    pub metadata: Option<LockMetadata>,
    /// The data of its znode as it is. Curator's `LeaderLatch` has the participant's id there.
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

    /// Returns true if it says the same of itself. That it is still at work is nothing new.
    pub(super) fn has_same_data(&self, other: &Self) -> bool {
        match (&self.data, &other.data) {
            (None, None) => self.raw == other.raw,
            (one, other) => one == other,
        }
    }
}

impl Election {
    /// Returns the leader; `None` if nobody stands. As stale as the server that answers.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// [`LockError::WrongKind`](crate::LockError::WrongKind), and those of the store.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let session = self.client().session().await?;
        let mut candidates = Candidates::default();
        loop {
            match candidates.head(&session, self.path(), false).await? {
                Head::Leader(leader, _) => return Ok(Some(*leader)),
                Head::Vacant => return Ok(None),
                Head::Unknown => {}
            }
        }
    }
}

/// The candidates, in order, as they were last listed. Those who joined later are behind them all,
/// so that for as long as one of them is there, the first of them leads: a change of leaders does
/// not need the list again.
#[derive(Default)]
pub(super) struct Candidates {
    /// The last one is the head.
    names: Vec<String>,
    /// Number of candidates that have turned out to be gone, one after the other, since the list.
    gone: usize,
}

/// Outcome of a look at the head of the candidates.
pub(super) enum Head {
    /// The one who leads, watched if that was asked for.
    Leader(Box<Leader>, Option<Watcher>),
    /// The list was empty.
    Vacant,
    /// The line has changed, or the connection: look again.
    Unknown,
}

/// After so many in a row that have gone the line is listed anew.
const MAX_GONE: usize = 8;

impl Candidates {
    /// Looks at the head.
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
                // It only has the name of a candidate.
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
        // Those who joined after an older list are not in it.
        Ok(if is_fresh {
            Head::Vacant
        } else {
            Head::Unknown
        })
    }

    /// Lists the candidates; of an index the head will do. Answers false when the connection was lost.
    async fn fetch(&mut self, session: &Session, path: &ZnodePath) -> Result<bool> {
        for limit in [1, 0] {
            match session.get_queue(path, limit).await {
                Ok((names, _)) => {
                    let are_all = names.len() != limit;
                    self.set_names(session, path, names).await?;
                    // An index has other numbered nodes too, and one of these may be the first.
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

    /// Takes in a list of all children.
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

    /// Returns true if none of those that were listed stands: each has left, or was no candidate.
    pub(super) async fn is_vacant(&self, session: &Session, path: &ZnodePath) -> Result<bool> {
        let names: Vec<_> = self.names.iter().rev().map(String::as_str).collect();
        Ok(first_ephemeral(session, path, &names).await?.is_none())
    }

    /// Forgets what was listed.
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
