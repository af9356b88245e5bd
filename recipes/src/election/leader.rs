//! [`Leader`]: who leads an election, as others see it.

use bytes::Bytes;
use lockkeeper_store::{Error, Session, SessionId, Stat, Watcher, ZnodePath, sequence_of};
use serde_json::Value;

use super::{DATA, Election};
use crate::error::Result;
use crate::metadata::LockMetadata;
use crate::names::Kind;
use crate::queue::check_kind;
use crate::token::FencingToken;

/// Who leads an election, as others see it.
///
/// A leader may not know yet that it leads, or that it has lost; for what it may do to a resource
/// only the [`epoch`](Self::epoch) counts, which the resource checks.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Leader {
    /// The number of its term, which is its fencing token. Each leader's is greater than those before.
    pub epoch: FencingToken,
    /// What it says of itself: what it campaigned with, or has set since. `None` when another
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

    /// Whether it says the same of itself. That it is still at work is nothing new.
    pub(super) fn says_as(&self, other: &Self) -> bool {
        match (&self.data, &other.data) {
            (None, None) => self.raw == other.raw,
            (one, other) => one == other,
        }
    }
}

impl Election {
    /// Who leads now; `None` if nobody stands. As stale as the server that answers.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// [`LockError::WrongKind`](crate::LockError::WrongKind), and those of the store.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let session = self.client().session().await?;
        let mut line = Line::default();
        loop {
            match line.head(&session, self.path(), false).await? {
                Head::Leader(leader, _) => return Ok(Some(*leader)),
                Head::Nobody => return Ok(None),
                Head::Unknown => {}
            }
        }
    }
}

/// The candidates, in order, as they were last listed. Those who joined later are behind them all,
/// so that for as long as one of them is there, the first of them leads: a change of leaders does
/// not need the list again.
#[derive(Default)]
pub(super) struct Line {
    /// The last one is the head.
    names: Vec<String>,
    /// How many of those that were looked at since the list have turned out to be gone.
    gone: usize,
}

/// What a look at the head of the line has found.
pub(super) enum Head {
    /// The one who leads, watched if that was asked for.
    Leader(Box<Leader>, Option<Watcher>),
    /// The list was empty.
    Nobody,
    /// The line has changed, or the connection: look again.
    Unknown,
}

/// After so many in a row that have gone the line is listed anew.
const MOST_GONE: usize = 8;

impl Line {
    /// Looks at the head.
    pub(super) async fn head(
        &mut self,
        session: &Session,
        path: &ZnodePath,
        watch: bool,
    ) -> Result<Head> {
        if self.names.is_empty() || self.gone >= MOST_GONE {
            match session.get_queue(path, 1).await {
                Ok((names, _)) => self.list(path, names)?,
                Err(Error::NoNode { .. }) => self.names.clear(),
                Err(Error::ConnectionLoss) => return Ok(Head::Unknown),
                Err(error) => return Err(error.into()),
            }
        }
        let Some(name) = self.names.last() else {
            return Ok(Head::Nobody);
        };
        let path = path.join(name)?;
        match look_at(session, &path, watch).await {
            Ok((data, stat, watcher)) => {
                self.gone = 0;
                let leader = Leader::new(path, data, &stat);
                Ok(Head::Leader(Box::new(leader), watcher))
            }
            Err(Error::NoNode { .. }) => {
                self.names.pop();
                self.gone += 1;
                Ok(Head::Unknown)
            }
            Err(Error::ConnectionLoss) => Ok(Head::Unknown),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes in a list of all children.
    pub(super) fn list(&mut self, path: &ZnodePath, mut names: Vec<String>) -> Result<()> {
        check_kind(path, Kind::Candidate, &names)?;
        names.retain(|name| sequence_of(name).is_some());
        names.sort_unstable_by(|a, b| (sequence_of(b), b).cmp(&(sequence_of(a), a)));
        self.names = names;
        self.gone = 0;
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Forgets what was listed.
    pub(super) fn clear(&mut self) {
        self.names.clear();
    }
}

type Look = (Bytes, Stat, Option<Watcher>);

async fn look_at(session: &Session, path: &ZnodePath, watch: bool) -> Result<Look, Error> {
    if watch {
        let (data, stat, watcher) = session.watch_data(path).await?;
        return Ok((data, stat, Some(watcher)));
    }
    let (data, stat) = session.get_data(path).await?;
    Ok((data, stat, None))
}
