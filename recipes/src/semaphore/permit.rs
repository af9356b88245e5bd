//! [`Permit`]: the guard of a semaphore's permits.

use std::fmt;
use std::future::Future;
use std::ops::Deref;

use crate::error::Result;
use crate::guard::GuardSet;

/// The guard of one or more permits of a [`Semaphore`](crate::Semaphore). Dropping it gives them back, as the drop
/// of a [`Guard`](crate::Guard) does; [`release`](Self::release) says when that is done.
///
/// It is a [`GuardSet`], one znode for each permit, and has its methods. It belongs to the session that took it, and is
/// lost with it. The loss of one permit, by a forced removal for instance, is the loss of all.
///
/// A semaphore of more than one permit has several holders at a time, so the
/// [`fencing_token`](GuardSet::fencing_token) must not be used to refuse writes: a resource that refuses older tokens
/// would refuse holders that still hold. It identifies the grant, in the logs of the resource for instance. Only with a
/// single permit in all, and as long as that is not changed, is it a fencing token like a mutex's.
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

    /// Returns the number of permits that this holds, at least one. They may be lost; see
    /// [`is_held`](GuardSet::is_held).
    pub fn count(&self) -> u32 {
        u32::try_from(self.leases.guards().len()).unwrap_or(u32::MAX)
    }

    /// Takes `count` permits out of this, to be held and given back by themselves; the rest stays. Both keep the token
    /// of their grant. `None`, and nothing changes, if `count` is 0 or no permit would stay. Nothing is sent.
    ///
    /// Events of the wait continue with the permits that stay.
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

    /// Gives the permits back, and waits until the store has confirmed it.
    ///
    /// The releases of all are sent by the call itself; dropping the future does not stop them.
    ///
    /// # Errors
    /// [`LockError::Lost`](crate::LockError::Lost) when one had been lost before, and those of the store. The others
    /// are given back in any case.
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
