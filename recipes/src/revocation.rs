//! [`Revoker`]: asking a holder to give its lock up, or taking it away.

mod inbox;
mod request;

use bytes::Bytes;
use lockkeeper_store::{Client, Error, Session, SessionId, ZnodePath};

use crate::holders::{Survey, survey};
use crate::metadata::LockMetadata;
use crate::path::{IntoLockPath, LockPath};
use crate::retry::retry;

pub(crate) use inbox::{Listener, RevocationInbox};
pub(crate) use request::CURATORS_REQUEST;
pub use request::RevocationRequest;

/// The promise that whatever the lock protects checks fencing tokens.
///
/// A holder that is forced out of a lock does not know it at once: until the news has come it works on as if
/// it held, beside the next holder. Only a resource that refuses the older
/// [`FencingToken`](crate::FencingToken) keeps its writes out; [`FencingGate`](crate::FencingGate)
/// is one way to do so. With this value the caller says that every resource behind the lock does.
/// Otherwise, ask instead of forcing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FencingEnforced;

/// The holder or entry whose lock is to be revoked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevokeTarget(Target);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Holder(LockPath),
    Entry(LockPath),
    Session(LockPath, SessionId),
}

impl RevokeTarget {
    /// All that hold the lock at `path` now: of a mutex or an election the head of the queue; of a
    /// read-write lock the writer at the head, or the readers up to the first writer; of a semaphore
    /// all who have permits. Who waits is left alone.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn holder(path: impl IntoLockPath) -> Result<Self, Error> {
        Ok(Self(Target::Holder(path.into_lock_path()?)))
    }

    /// One entry, by the path of its own znode, as [`QueueEntry::path`](crate::QueueEntry::path)
    /// or [`Guard::path`](crate::Guard::path) tells it. It may still be waiting.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn entry(path: impl IntoLockPath) -> Result<Self, Error> {
        Ok(Self(Target::Entry(path.into_lock_path()?)))
    }

    /// All that a session has in the lock at `path`, whether it holds or waits.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn session(path: impl IntoLockPath, session: SessionId) -> Result<Self, Error> {
        let path = path.into_lock_path()?;
        Ok(Self(Target::Session(path, session)))
    }

    async fn find(&self, session: &Session) -> Result<Vec<ZnodePath>, Error> {
        match &self.0 {
            Target::Entry(path) => Ok(vec![path.as_znode().clone()]),
            Target::Holder(path) => {
                let survey = retry(|| survey(session, path.as_znode())).await?;
                survey.into_holders(session).await
            }
            Target::Session(path, owner) => {
                let survey = retry(|| survey(session, path.as_znode())).await?;
                owned_by(session, survey, *owner).await
            }
        }
    }
}

async fn owned_by(
    session: &Session,
    survey: Survey,
    owner: SessionId,
) -> Result<Vec<ZnodePath>, Error> {
    let mut owned = Vec::new();
    for path in survey.into_all() {
        let stat = retry(|| session.exists(&path)).await?;
        if stat.is_some_and(|stat| stat.ephemeral_owner == owner) {
            owned.push(path);
        }
    }
    Ok(owned)
}

/// Revokes locks of any recipe: asks the holder to give up, or takes the lock away.
///
/// A request is written into the holder's znode. The holder is told once, by
/// [`LockEvent::RevocationRequested`](crate::LockEvent::RevocationRequested) and
/// [`Guard::revocation_requested`](crate::Guard::revocation_requested), and does as it likes. A
/// holder of Curator's or kazoo's is asked in Curator's words: its data is replaced by
/// `__REVOKE__`, to which a Curator mutex made `makeRevocable` listens and everybody else does not.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use lockkeeper::{LostReason, Mutex, Revoker, FencingEnforced, RevokeTarget};
///
/// # let client = lockkeeper::connect("memory:revoker").await?;
/// let guard = Mutex::new(&client, "/lock/orders")?.lock().await?;
///
/// let revoker = Revoker::new(&client).by("ops: jane");
/// let asked = revoker.request(&RevokeTarget::holder("/lock/orders")?).await?;
/// assert_eq!(asked, [guard.path().clone()]);
/// let request = guard.revocation_requested().await?;
/// assert_eq!(request.by.as_deref(), Some("ops: jane"));
///
/// // The holder does not heed it, and what the lock protects checks tokens.
/// revoker.force(&RevokeTarget::holder("/lock/orders")?, FencingEnforced).await?;
/// assert_eq!(guard.lost().await, LostReason::Revoked);
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Revoker {
    client: Client,
    by: Option<String>,
}

impl Revoker {
    /// Creates a revoker that does not say who asks. Nothing is sent.
    pub fn new(client: &Client) -> Self {
        Self {
            client: client.clone(),
            by: None,
        }
    }

    /// Says who asks.
    #[must_use]
    pub fn by(mut self, who: impl Into<String>) -> Self {
        self.by = Some(who.into());
        self
    }

    /// Asks for a lock. Answers the znodes of those that were asked; who has left by then is not
    /// among them.
    ///
    /// A waiter can be asked too, and is told when it holds. When several ask before the holder
    /// has looked, it is told of the last. When an answer of the store is lost and another asks
    /// meanwhile, it may be told twice.
    ///
    /// Dropping the future leaves some asked and some not.
    ///
    /// # Errors
    /// Those of the store, [`Error::TooLarge`] where the entry's metadata leaves no room. Some may
    /// have been asked by then; to ask again is safe.
    pub async fn request(&self, target: &RevokeTarget) -> Result<Vec<ZnodePath>, Error> {
        let session = self.client.session().await?;
        let mut asked = Vec::new();
        for path in target.find(&session).await? {
            if request_one(&session, &path, self.by.as_deref()).await? {
                asked.push(path);
            }
        }
        Ok(asked)
    }

    /// Takes a lock away: deletes the entries, so that the next in the queue hold. Answers the
    /// znodes that were deleted.
    ///
    /// A holder learns that it [`Lost`](crate::LockEvent::Lost) the lock, as
    /// [`Revoked`](crate::LostReason::Revoked), but may work on until then: that is why the caller
    /// has to promise that [`FencingEnforced`]. A waiter that is named by its entry or session
    /// leaves the queue at once; its wait fails with [`Removed`](crate::LockError::EntryDeleted) when it
    /// looks again, which is when the one ahead of it leaves.
    ///
    /// What is deleted is the entries that were looked at, never their successors: the name of an
    /// entry holds a UUID, and no other node ever has it. (Recipes that name entries by their number
    /// alone make an exception: numbers start again when the lock's parent was made anew.) The
    /// version does not matter here: a holder that says meanwhile that it is still at work does not
    /// escape. A [`Warden`](crate::Warden) does ask for it.
    ///
    /// Dropping the future leaves some deleted and some not.
    ///
    /// # Errors
    /// Those of the store. Some may have been deleted by then.
    pub async fn force(
        &self,
        target: &RevokeTarget,
        _promise: FencingEnforced,
    ) -> Result<Vec<ZnodePath>, Error> {
        let session = self.client.session().await?;
        let mut deleted = Vec::new();
        // From the last on: who stands behind another of them must not hold in between.
        for path in target.find(&session).await?.into_iter().rev() {
            if delete_entry(&session, &path).await? {
                tracing::info!(%path, by = self.by, "a lock was taken away");
                deleted.push(path);
            }
        }
        deleted.reverse();
        Ok(deleted)
    }
}

/// Deletes an entry, and answers whether it was there. A lost answer is asked for again.
async fn delete_entry(session: &Session, path: &ZnodePath) -> Result<bool, Error> {
    let mut may_be_done = false;
    loop {
        match session.delete(path, None).await {
            Ok(()) => return Ok(true),
            Err(Error::NoNode { .. }) => return Ok(may_be_done),
            Err(Error::ConnectionLoss) => may_be_done = true,
            Err(error) => return Err(error),
        }
    }
}

/// Writes a request into an entry, keeping what others write there meanwhile. Returns false if the entry was gone
/// before.
async fn request_one(session: &Session, path: &ZnodePath, by: Option<&str>) -> Result<bool, Error> {
    let at_ms = session.clock().unix_ms();
    let mut unanswered: Option<Bytes> = None;
    loop {
        let (data, stat) = match retry(|| session.get_data(path)).await {
            Err(Error::NoNode { .. }) => return Ok(unanswered.is_some()),
            read => read?,
        };
        // What was sent but not answered may stand there.
        if unanswered
            .as_ref()
            .is_some_and(|sent| holds_request(sent, &data))
        {
            return Ok(true);
        }
        let request = request::with_request(&data, by, at_ms);
        let sent = session.set_data(path, request.clone(), Some(stat.version));
        unanswered = match sent.await {
            Ok(_) => return Ok(true),
            Err(Error::NoNode { .. }) => return Ok(false),
            Err(Error::BadVersion { .. }) => None,
            Err(Error::ConnectionLoss) => Some(request),
            Err(error) => return Err(error),
        };
    }
}

/// Returns true if the request in `sent` stands in an entry's data.
fn holds_request(sent: &[u8], data: &[u8]) -> bool {
    match LockMetadata::parse(sent) {
        Some(sent) => {
            LockMetadata::parse(data).is_some_and(|there| there.revocation == sent.revocation)
        }
        None => sent == data,
    }
}
