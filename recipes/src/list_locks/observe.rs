//! [`observe_locks`]: reports the locks below a prefix when they change.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_store::{Client, Error, Session, ZnodePath};

use super::{Changes, LockInfo, LockPrefix, Root, Walk};
use crate::names::LockKind;
use crate::stream::named_stream;
use crate::token::FencingToken;

/// Changes of the locks below a prefix since the previous item.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct LockChange {
    /// The locks whose holders, waiters or holders' data have changed, ordered by path.
    pub changed: Vec<LockInfo>,
    /// The locks that no longer have a contender.
    pub freed: Vec<ZnodePath>,
    /// Znodes that could not be read, with the errors.
    pub unreadable: Vec<(ZnodePath, Error)>,
}

/// Reads the locks at and below a prefix, and reads them again as they change.
///
/// The first item contains all locks. After that, one persistent recursive watch shows which locks have changed, and
/// only these are read again, at most ten times a second. ZooKeeper before 3.6 has no such watches, so there all locks
/// are read every 10 s, or less often if a read takes long. Quick changes may be merged, but the latest change is never
/// missed.
///
/// # Errors
/// The call fails with [`Error::InvalidPath`]. The stream ends with [`Error::SessionClosed`] if the client is closed,
/// or with the store's error if it refuses a request.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # let client = lockkeeper::connect("memory:example-observe-locks").await?;
/// let mut changes = lockkeeper::observe_locks(&client, "/lock")?;
/// assert!(changes.next().await.expect("the stream continues")?.changed.is_empty());
/// let guard = lockkeeper::Mutex::new(&client, "/lock/orders")?.lock().await?;
/// let change = changes.next().await.expect("the stream continues")?;
/// assert_eq!(change.changed[0].holders[0].path, *guard.path());
/// guard.release().await?;
/// let change = changes.next().await.expect("the stream continues")?;
/// assert_eq!(change.freed[0].as_str(), "/lock/orders");
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub fn observe_locks<P>(client: &Client, prefix: P) -> Result<LockChanges, Error>
where
    P: TryInto<LockPrefix>,
    P::Error: Into<Error>,
{
    let prefix = prefix.try_into().map_err(Into::into)?;
    let client = client.clone();
    let changes = Box::pin(async_stream::stream! {
        let mut known = BTreeMap::new();
        let mut is_first = true;
        loop {
            let failed = match client.session().await {
                Ok(session) => match Changes::watch(&session, &prefix).await {
                    Ok(mut changes) => loop {
                        match read(&session, &prefix, &mut changes, &mut known).await {
                            Ok(change) if is_first || change != LockChange::default() => {
                                is_first = false;
                                yield Ok(change);
                            }
                            Ok(_) => {}
                            Err(error) => break error,
                        }
                        if let Err(error) = changes.wait().await {
                            break error;
                        }
                    },
                    Err(error) => error,
                },
                Err(error) => error,
            };
            if !matches!(failed, Error::ConnectionLoss | Error::SessionExpired { .. }) {
                yield Err(failed);
                return;
            }
        }
    });
    Ok(LockChanges(changes))
}

/// The fields that we compare to notice a change of a lock. The data is not among them, because it can be large.
#[derive(PartialEq)]
struct Seen {
    kind: LockKind,
    waiters: usize,
    /// The token (which identifies the entry) and the data version of each holder.
    holders: Box<[(FencingToken, i32)]>,
}

impl Seen {
    fn of(lock: &LockInfo) -> Self {
        let holders = lock.holders.iter();
        Self {
            kind: lock.kind,
            waiters: lock.waiters,
            holders: holders
                .map(|holder| (holder.fencing_token, holder.version))
                .collect(),
        }
    }
}

async fn read(
    session: &Session,
    prefix: &LockPrefix,
    changes: &mut Changes<'_>,
    known: &mut BTreeMap<ZnodePath, Seen>,
) -> Result<LockChange, Error> {
    let mut change = LockChange::default();
    let mut walk = Walk::new(session, prefix);
    let mut unseen: BTreeSet<ZnodePath> = match changes.take() {
        None => {
            walk.add(Root::tree(prefix.top().clone()));
            known.keys().cloned().collect()
        }
        Some(changed) => {
            let locks = changed.iter().flat_map(Root::locks).collect();
            changed.into_iter().for_each(|root| walk.add(root));
            locks
        }
    };
    while let Some(lock) = changes.during(walk.next()).await?? {
        unseen.remove(&lock.path);
        let seen = Seen::of(&lock);
        if known.get(&lock.path) != Some(&seen) {
            known.insert(lock.path.clone(), seen);
            change.changed.push(lock);
        }
    }
    unseen.retain(|path| known.remove(path).is_some());
    change.freed = unseen.into_iter().collect();
    change.unreadable = walk.into_unreadable();
    change
        .changed
        .sort_unstable_by(|one, other| one.path.cmp(&other.path));
    Ok(change)
}

named_stream! {
    /// Stream returned by [`observe_locks`].
    LockChanges of Result<LockChange, Error>;
    /// Waits for the next change. Returns `None` after an error.
    ///
    /// Cancel safe: no change is lost.
}
