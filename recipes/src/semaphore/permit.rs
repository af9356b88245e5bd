//! [`Permit`]: the guard of a semaphore's permits.

use std::fmt;
use std::future::Future;
use std::ops::Deref;

use crate::error::Result;
use crate::guard::GuardSet;

/// The guard of one or more permits of a [`Semaphore`](crate::Semaphore). Dropping it returns the permits.
///
/// It is a [`GuardSet`] with one znode per permit. If one permit is lost, for example by a forced removal, all of them
/// count as lost.
///
/// If the semaphore has a single permit, a resource can use the [`fencing_token`](GuardSet::fencing_token) to refuse
/// writes. With more permits, the resource would refuse current holders, because their tokens differ.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # let client = lockkeeper::connect("memory:permit").await?;
/// let quota = lockkeeper::Semaphore::new(&client, "/quota/geocoder", 10)?;
/// let mut permit = quota.acquire_many(3).await?;
/// let one = permit.split(1).expect("three are more than one");
/// one.release().await?;
/// assert!(permit.is_held() && permit.count() == 2);
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[must_use = "dropping a permit gives it back"]
pub struct Permit {
    leases: GuardSet,
}

impl Permit {
    pub(super) fn new(leases: GuardSet) -> Self {
        Self { leases }
    }

    /// Returns the number of permits in this guard, at least one. The permits may be lost (see
    /// [`is_held`](GuardSet::is_held)).
    pub fn count(&self) -> u32 {
        u32::try_from(self.leases.guards().len()).unwrap_or(u32::MAX)
    }

    /// Splits off `count` permits into a separate guard with the same token. Returns `None` without a change if `count`
    /// is 0 or no permit would remain. Sends nothing.
    ///
    /// The new guard reports no events.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let client = lockkeeper::connect("memory:example-semaphore-permit-split").await?;
    /// let quota = lockkeeper::Semaphore::new(&client, "/quota/geocoder", 10)?;
    /// let mut permit = quota.acquire_many(3).await?;
    /// let two = permit.split(2).expect("one stays");
    /// assert_eq!((permit.count(), two.count()), (1, 2));
    /// assert!(permit.split(1).is_none()); // none would stay
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn split(&mut self, count: u32) -> Option<Self> {
        let leases = self.leases.split_off(usize::try_from(count).ok()?)?;
        Some(Self { leases })
    }

    /// Returns the permits, and waits until the store has confirmed that.
    ///
    /// Dropping the future does not stop the releases.
    ///
    /// # Errors
    /// [`LockError::Lost`](crate::LockError::Lost) if a permit was lost before the call, and store errors. The other
    /// permits are returned anyway.
    pub fn release(self) -> impl Future<Output = Result<()>> + Send + 'static {
        self.leases.release()
    }
}

impl Deref for Permit {
    type Target = GuardSet;

    fn deref(&self) -> &GuardSet {
        &self.leases
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("count", &self.count())
            .field("fencing_token", &self.fencing_token())
            .field("held", &self.is_held())
            .finish()
    }
}
