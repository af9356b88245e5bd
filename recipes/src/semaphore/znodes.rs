//! [`Znodes`]: the znodes of a semaphore, and the number of its permits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use lockkeeper_store::{
    Condition, CreateMode, Error, ReadOp, ReadReply, Session, Stat, ZnodeHandle, ZnodePath,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::error::{LockError, Result};
use crate::names::Kind;
use crate::path::LockPath;
use crate::queue::{check_kind, create_above};
use crate::retry::retry;

pub(super) struct Znodes {
    pub(super) root: ZnodePath,
    pub(super) locks: ZnodeHandle,
    /// The held permits, one child each.
    pub(super) leases: Arc<ZnodeHandle>,
    pub(super) permits: ZnodeHandle,
    /// The number that the caller stated. `None` uses the stored number.
    stated: Option<u32>,
    /// True once `stated` has been compared with the stored number. From then on the handle follows changes of the
    /// stored number.
    is_checked: AtomicBool,
    /// The number of permits as last read. It may be outdated, so each grant's transaction checks the stored number.
    last_seen: Mutex<Total>,
    /// True once the store has refused a transaction with [conditions](Self::conditions).
    lacks_conditions: AtomicBool,
    /// Hint that a request should join the queue without trying to take free permits first.
    is_contended: AtomicBool,
}

const MAX_NUMBER_BYTES: usize = 256;

#[derive(Clone, Debug, Default)]
pub(super) struct Total {
    pub(super) number: u32,
    pub(super) data: Bytes,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct PermitsData {
    v: u32,
    permits: u32,
}

impl PermitsData {
    const VERSION: u32 = 1;

    pub(crate) fn to_bytes(permits: u32) -> Bytes {
        let v = Self::VERSION;
        let number = serde_json::to_vec(&Self { v, permits });
        number.expect("a number is plain JSON").into()
    }

    /// Parses the number. Returns `None` for data of another version.
    pub(crate) fn parse(data: &[u8]) -> Option<u32> {
        let number: Self = serde_json::from_slice(data).ok()?;
        (number.v == Self::VERSION).then_some(number.permits)
    }
}

#[derive(Debug)]
pub(super) struct Supply {
    pub(super) total: u32,
    pub(super) version: i32,
    pub(super) held: u32,
    pub(super) has_leases: bool,
}

impl Supply {
    pub(super) fn free(&self) -> u32 {
        self.total.saturating_sub(self.held)
    }
}

impl Znodes {
    pub(super) fn new(path: LockPath, stated: Option<u32>) -> Result<Self, Error> {
        let root = path.as_znode().clone();
        Ok(Self {
            locks: ZnodeHandle::new(root.join("locks")?),
            leases: Arc::new(ZnodeHandle::new(root.join("leases")?)),
            permits: ZnodeHandle::new(root.join("permits")?),
            root,
            stated,
            is_checked: AtomicBool::new(false),
            last_seen: Mutex::default(),
            lacks_conditions: AtomicBool::new(false),
            is_contended: AtomicBool::new(false),
        })
    }

    pub(super) fn last_seen(&self) -> Total {
        self.last_seen.lock().clone()
    }

    fn note_total(&self, number: u32, data: &[u8]) {
        // Copy the data, because the slice may keep a whole receive buffer alive. If the data is too long, build short
        // data from the number instead. If the stored data is different, a condition on the short data fails, and we
        // read the number.
        let data = match data.len() <= MAX_NUMBER_BYTES {
            true => Bytes::copy_from_slice(data),
            false => PermitsData::to_bytes(number),
        };
        *self.last_seen.lock() = Total { number, data };
    }

    pub(super) fn is_checked(&self) -> bool {
        self.is_checked.load(Ordering::Relaxed)
    }

    pub(super) fn may_have_conditions(&self) -> bool {
        !self.lacks_conditions.load(Ordering::Relaxed)
    }

    pub(super) fn note_no_conditions(&self) {
        self.lacks_conditions.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_contended(&self) -> bool {
        self.is_contended.load(Ordering::Relaxed)
    }

    pub(super) fn note_contended(&self, is_contended: bool) {
        self.is_contended.store(is_contended, Ordering::Relaxed);
    }

    /// Returns the conditions for taking `wanted` of `total` permits without a read. The conditions compare the data,
    /// because a recreated znode may have the same version.
    pub(super) fn conditions(&self, wanted: u32, total: Total) -> [Condition; 2] {
        [
            Condition::Data {
                znode: self.permits.path().clone(),
                data: total.data,
            },
            Condition::Children {
                znode: self.leases.path().clone(),
                limit: total.number.saturating_sub(wanted),
            },
        ]
    }

    pub(super) fn check_total(&self, wanted: u32, total: u32) -> Result<()> {
        if wanted <= total {
            return Ok(());
        }
        Err(LockError::TooManyPermits {
            path: self.root.clone(),
            wanted,
            total,
        })
    }

    /// Compares the handle's number with the stored number at the first use.
    pub(super) async fn check_stated(&self, session: &Session) -> Result<()> {
        if self.is_checked() {
            return Ok(());
        }
        Box::pin(self.check_stated_now(session)).await
    }

    async fn check_stated_now(&self, session: &Session) -> Result<()> {
        // A number must not be stored in another recipe's queue.
        self.check_kind(session).await?;
        let stored = self.read(session).await?.total;
        if let Some(stated) = self.stated.filter(|stated| *stated != stored) {
            // Leave `is_checked` false, so that the next use compares again.
            let path = self.root.clone();
            return Err(LockError::PermitsMismatch {
                path,
                stated,
                stored,
            });
        }
        self.is_checked.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn check_kind(&self, session: &Session) -> Result<()> {
        match retry(|| session.get_children(&self.root)).await {
            Ok((names, _)) => check_kind(session, &self.root, Kind::Lease, &names).await,
            Err(Error::NoNode { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) async fn change(&self, session: &Session, permits: u32) -> Result<()> {
        if !self.is_checked() {
            self.check_kind(session).await?;
        }
        let data = PermitsData::to_bytes(permits);
        loop {
            // Write at any version, so that the last of several concurrent changes wins. A retry after a lost reply may
            // undo another client's change.
            match retry(|| session.set_data(self.permits.path(), data.clone(), None)).await {
                Ok(_) => break,
                Err(Error::NoNode { .. }) => self.store_first(session, permits).await?,
                Err(error) => return Err(error.into()),
            }
        }
        self.note_total(permits, &data);
        self.is_checked.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn store_first(&self, session: &Session, permits: u32) -> Result<()> {
        loop {
            let data = PermitsData::to_bytes(permits);
            let mode = CreateMode::Persistent;
            match retry(|| session.create(self.permits.path(), data.clone(), mode)).await {
                Ok(_) | Err(Error::NodeExists { .. }) => return Ok(()),
                Err(Error::NoNode { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            // The server deletes a container once it is empty.
            create_above(session, &self.root, CreateMode::Container).await?;
        }
    }

    /// Returns the reads that show how many permits are free. The number of leases is in the Stat of the znode `leases`,
    /// so they need not be listed.
    pub(super) fn reads(&self) -> Vec<ReadOp> {
        [self.permits.path(), self.leases.path()]
            .map(|path| ReadOp::GetData(path.clone()))
            .to_vec()
    }

    pub(super) async fn read(&self, session: &Session) -> Result<Supply> {
        Ok(self.read_with(session, None).await?.0)
    }

    /// Reads the supply, and the Stat of another znode if given, in one request. Stores the stated number of permits if
    /// none is stored.
    pub(super) async fn read_with(
        &self,
        session: &Session,
        other: Option<&ZnodePath>,
    ) -> Result<(Supply, Option<Stat>)> {
        loop {
            let mut reads = self.reads();
            reads.extend(other.cloned().map(ReadOp::GetData));
            let answers = retry(|| session.multi_read(reads.clone())).await?;
            match self.parse(&answers)? {
                Some(supply) => {
                    let other = match answers.get(2) {
                        Some(ReadReply::Data { stat, .. }) => Some(*stat),
                        _ => None,
                    };
                    return Ok((supply, other));
                }
                None => Box::pin(self.store_stated(session)).await?,
            }
        }
    }

    async fn store_stated(&self, session: &Session) -> Result<()> {
        match self.stated {
            Some(stated) => self.store_first(session, stated).await,
            None => Err(LockError::NoPermits {
                path: self.root.clone(),
            }),
        }
    }

    /// Parses the replies to [`reads`](Self::reads). Returns `None` if no number is stored.
    pub(super) fn parse(&self, answers: &[ReadReply]) -> Result<Option<Supply>> {
        let (total, version) = match answers.first() {
            Some(ReadReply::Data { data, stat }) => {
                let total = self.number(data)?;
                self.note_total(total, data);
                (total, stat.version)
            }
            Some(ReadReply::Failed(Error::NoNode { .. })) => return Ok(None),
            answer => return Err(unexpected(answer)),
        };
        let (held, has_leases) = match answers.get(1) {
            Some(ReadReply::Data { stat, .. }) => (stat.num_children, true),
            Some(ReadReply::Failed(Error::NoNode { .. })) => (0, false),
            answer => return Err(unexpected(answer)),
        };
        Ok(Some(Supply {
            total,
            version,
            held: u32::try_from(held).unwrap_or(0),
            has_leases,
        }))
    }

    /// Parses the stored number. Refuses data of another version, because a wrong number could grant too many permits.
    pub(super) fn number(&self, data: &[u8]) -> Result<u32> {
        PermitsData::parse(data).ok_or_else(|| LockError::InvalidPermitsData {
            path: self.permits.path().clone(),
            found: String::from_utf8_lossy(data).into_owned(),
        })
    }

    /// Returns true if one read shows enough free permits and an empty queue. Children that are not contenders count
    /// too, so the result can be false although no request waits.
    pub(super) async fn looks_free(&self, session: &Session, count: u32) -> Result<bool> {
        let (supply, queue) = self.read_with(session, Some(self.locks.path())).await?;
        self.check_total(count, supply.total)?;
        let is_empty = queue.is_none_or(|queue| queue.num_children == 0);
        Ok(count <= supply.free() && is_empty)
    }
}

fn unexpected(answer: Option<&ReadReply>) -> LockError {
    match answer {
        Some(ReadReply::Failed(error)) => error.clone().into(),
        _ => Error::Protocol(
            "a semaphore was read, and a result is missing or of another kind".to_owned(),
        )
        .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_number_that_this_version_knows_is_one() {
        let znodes = Znodes::new(LockPath::new("/s").unwrap(), None).unwrap();
        assert_eq!(&PermitsData::to_bytes(7)[..], br#"{"v":1,"permits":7}"#);
        assert_eq!(znodes.number(br#"{"v":1,"permits":7}"#), Ok(7));
        assert_eq!(znodes.number(br#"{"v":1,"permits":7,"by":"x"}"#), Ok(7));
        for foreign in ["", "7", r#"{"v":2,"permits":7}"#, r#"{"v":1,"permits":-7}"#] {
            let refused = LockError::InvalidPermitsData {
                path: znodes.permits.path().clone(),
                found: foreign.to_owned(),
            };
            assert_eq!(znodes.number(foreign.as_bytes()), Err(refused));
        }
    }
}
