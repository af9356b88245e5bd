//! [`Revoker`]: asks a holder to release its lock, or removes it by force.

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
#[cfg(feature = "simulation")]
pub(crate) use request::{request_in, with_request};

/// Your promise that every resource protected by the lock checks fencing tokens.
///
/// A removed holder may continue to work until it notices the removal, while the next holder already works. Only a
/// resource that checks tokens, for example with a [`FencingGate`](crate::FencingGate), rejects the removed holder's
/// writes. If a resource checks no tokens, use [`Revoker::request`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FencingEnforced;

/// Selects the holders or entries to revoke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevokeTarget(Target);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Holder(LockPath),
    Entry(LockPath),
    Session(LockPath, SessionId),
}

impl RevokeTarget {
    /// Targets all current holders of the lock at `path`, but no waiters.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn holder(path: impl IntoLockPath) -> Result<Self, Error> {
        Ok(Self(Target::Holder(path.into_lock_path()?)))
    }

    /// Targets one entry, holder or waiter, by the path of its znode ([`QueueEntry::path`](crate::QueueEntry::path) or
    /// [`Guard::path`](crate::Guard::path)).
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let client = lockkeeper::connect("memory:example-revocation-entry").await?;
    /// use lockkeeper::{Mutex, RevokeTarget, Revoker};
    ///
    /// let _guard = Mutex::new(&client, "/lock/orders")?.lock().await?;
    /// for entry in lockkeeper::queue(&client, "/lock/orders").await? {
    ///     Revoker::new(&client).request(&RevokeTarget::entry(entry.path)?).await?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn entry(path: impl IntoLockPath) -> Result<Self, Error> {
        Ok(Self(Target::Entry(path.into_lock_path()?)))
    }

    /// Targets all entries of a session at the lock `path`, both holders and waiters.
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
    // Names do not contain the session, so read each entry's owner.
    for path in survey.into_all() {
        let stat = retry(|| session.exists(&path)).await?;
        if stat.is_some_and(|stat| stat.ephemeral_owner == owner) {
            owned.push(path);
        }
    }
    Ok(owned)
}

/// Revokes locks of any recipe: requests a release, or removes the holder by force.
///
/// The holder receives a request as [`LockEvent::RevocationRequested`](crate::LockEvent::RevocationRequested) and from
/// [`Guard::revocation_requested`](crate::Guard::revocation_requested), and decides whether to release the lock. For a
/// holder of another library, the request replaces the znode's data with Curator's `__REVOKE__`. Only a Curator mutex
/// that has called `makeRevocable` reacts to this data.
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
/// // The holder ignores it, and every resource behind the lock checks tokens.
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
    /// Creates a revoker without a name.
    pub fn new(client: &Client) -> Self {
        Self {
            client: client.clone(),
            by: None,
        }
    }

    /// Sets the name of the revoker, which the holder receives.
    #[must_use]
    pub fn by(mut self, name: impl Into<String>) -> Self {
        self.by = Some(name.into());
        self
    }

    /// Requests the release of a lock. Returns the znodes of the entries that received the request.
    ///
    /// A targeted waiter receives the request when it becomes the holder. If several requests arrive in quick
    /// succession, the holder receives only the last one. If the store's reply is lost while another revoker writes,
    /// the holder may receive a request twice.
    ///
    /// Not cancel safe: a dropped call may leave the request in only some entries. You can repeat the call.
    ///
    /// # Errors
    /// Store errors, including [`Error::TooLarge`] if the entry's metadata leaves no room.
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

    /// Removes the entries of a lock, so that the next contenders hold it. Returns the deleted znodes.
    ///
    /// A removed holder receives [`Lost`](crate::LockEvent::Lost) with the reason
    /// [`Revoked`](crate::LostReason::Revoked), and may work until then. A targeted waiter leaves the queue
    /// immediately. It watches only the entry ahead of it, so its wait fails with
    /// [`EntryDeleted`](crate::LockError::EntryDeleted) when that entry leaves.
    ///
    /// The call never deletes a newer entry in place of a target that has left, because an entry's name contains a UUID
    /// (unless its library only numbers entries). Unlike a [`Warden`](crate::Warden), this call ignores a concurrent
    /// `keep_alive`.
    ///
    /// Not cancel safe: a dropped call may delete only some entries. You can repeat the call.
    ///
    /// # Errors
    /// Store errors. Some entries may already have been deleted.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let client = lockkeeper::connect("memory:example-revocation-force").await?;
    /// use lockkeeper::{FencingEnforced, Mutex, RevokeTarget, Revoker};
    ///
    /// let mutex = Mutex::new(&client, "/lock/orders")?;
    /// let old = mutex.lock().await?;
    /// Revoker::new(&client).force(&RevokeTarget::holder("/lock/orders")?, FencingEnforced).await?;
    /// let new = mutex.lock().await?;
    /// assert!(new.fencing_token() > old.fencing_token()); // by which the resource refuses the old holder
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn force(
        &self,
        target: &RevokeTarget,
        _promise: FencingEnforced,
    ) -> Result<Vec<ZnodePath>, Error> {
        let session = self.client.session().await?;
        let mut deleted = Vec::new();
        // Delete from last to first, because the other order would briefly make the next target a holder.
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

/// Deletes an entry. Returns true if this call deleted the entry, or may have deleted it in an attempt whose reply was
/// lost.
async fn delete_entry(session: &Session, path: &ZnodePath) -> Result<bool, Error> {
    let mut may_be_done = false;
    loop {
        match session.delete(path, None).await {
            Ok(()) => return Ok(true),
            Err(Error::NoNode { .. }) => return Ok(may_be_done),
            // A repeated delete cannot delete a newer entry, because the name has a UUID.
            Err(Error::ConnectionLoss) => may_be_done = true,
            Err(error) => return Err(error),
        }
    }
}

async fn request_one(session: &Session, path: &ZnodePath, by: Option<&str>) -> Result<bool, Error> {
    // Take the time once, because all attempts must write the same request.
    let at_ms = session.clock().unix_ms();
    let mut unanswered: Option<Bytes> = None;
    loop {
        let (data, stat) = match retry(|| session.get_data(path)).await {
            Err(Error::NoNode { .. }) => return Ok(unanswered.is_some()),
            read => read?,
        };
        // The write whose reply was lost may have been executed. Another write would increment the request's number,
        // and the holder would receive the request twice.
        if unanswered
            .as_ref()
            .is_some_and(|sent| holds_request(sent, &data))
        {
            return Ok(true);
        }
        let request = request::with_request(&data, by, at_ms);
        // Write at the version that was read, so that a concurrent `keep_alive` or request is not overwritten.
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

fn holds_request(sent: &[u8], data: &[u8]) -> bool {
    match LockMetadata::parse(sent) {
        Some(sent) => {
            LockMetadata::parse(data).is_some_and(|there| there.revocation == sent.revocation)
        }
        None => sent == data,
    }
}
