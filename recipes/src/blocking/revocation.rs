//! [`Revoker`]: revokes locks.

use lockkeeper_store::ZnodePath;

use super::Client;
use super::forward::forward_methods;
use crate::revocation::{FencingEnforced, RevokeTarget};

/// Revokes locks of any recipe. See [`Revoker`](crate::Revoker).
///
/// ```
/// use std::time::Duration;
/// use lockkeeper::RevokeTarget;
/// use lockkeeper::blocking::{self, Mutex, Revoker};
///
/// let client = blocking::connect("memory:blocking-revoker")?;
/// let guard = Mutex::new(&client, "/lock/orders")?.lock()?;
/// let revoker = Revoker::new(&client).by("ops: jane");
/// revoker.request(&RevokeTarget::holder("/lock/orders")?)?;
/// let request = guard.revocation_requested_timeout(Duration::from_secs(5))?;
/// assert_eq!(request.and_then(|request| request.by).as_deref(), Some("ops: jane"));
/// # Ok::<(), lockkeeper::LockError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Revoker(crate::Revoker);

impl Revoker {
    /// Creates a revoker without a name.
    pub fn new(client: &Client) -> Self {
        Self(crate::Revoker::new(client.as_async()))
    }

    /// Sets the name of the revoker, which the holder finds in the request.
    #[must_use]
    pub fn by(self, name: impl Into<String>) -> Self {
        Self(self.0.by(name))
    }
}

forward_methods! { Revoker {
    /// Requests the release of a lock. Returns the znodes of the entries that received the request.
    fn request(target: &RevokeTarget) -> Vec<ZnodePath>;

    /// Removes the entries of a lock. Returns the deleted znodes. See [`Revoker::force`](crate::Revoker::force).
    fn force(target: &RevokeTarget, promise: FencingEnforced) -> Vec<ZnodePath>;
}}
