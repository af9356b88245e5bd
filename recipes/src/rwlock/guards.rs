//! [`ReadGuard`] and [`WriteGuard`]: the guards of a read-write lock.

use std::ops::Deref;

use super::convert;
use crate::error::Result;
use crate::guard::Guard;

/// The guard of a reader: a [`Guard`] that can be upgraded.
///
/// Other readers may have lower or higher [tokens](Guard::fencing_token) at the same time. So the resource must admit a
/// reader's token with [`FencingGate::admit_shared`](crate::FencingGate::admit_shared).
#[derive(Debug)]
#[must_use = "dropping a guard releases the lock"]
pub struct ReadGuard(Guard);

/// The guard of a writer: a [`Guard`] that can be downgraded.
#[derive(Debug)]
#[must_use = "dropping a guard releases the lock"]
pub struct WriteGuard(Guard);

/// Result of [`ReadGuard::try_upgrade`].
#[derive(Debug)]
#[must_use = "dropping it releases the lock"]
pub enum Upgrade<R = ReadGuard, W = WriteGuard> {
    /// The reader is now the writer.
    Upgraded(W),
    /// Another contender holds the lock or waits for it, so the reader is still a reader.
    Refused(R),
}

impl ReadGuard {
    pub(super) fn new(guard: Guard) -> Self {
        Self(guard)
    }

    /// Releases the lock, and waits until the store has confirmed the release.
    ///
    /// # Errors
    /// Same as [`Guard::release`].
    pub fn release(self) -> impl Future<Output = Result<()>> + Send + 'static {
        self.0.release()
    }

    /// Converts this into a plain guard, which cannot be upgraded. Sends nothing.
    pub fn into_guard(self) -> Guard {
        self.0
    }

    /// Becomes the writer if no other contender holds the lock or waits for it, otherwise stays a reader. Never waits
    /// for other contenders, because two readers that wait to become the writer would deadlock.
    ///
    /// The lock is never free in between, so no other client writes between this reader's reads and its writes. The
    /// writer gets a new token.
    ///
    /// If the upgrade is refused, a contender that joins during the attempt may see this reader as a writer until the
    /// attempt is undone.
    ///
    /// Not cancel safe: if the future is dropped, the upgrade continues and then releases the lock.
    ///
    /// # Errors
    /// [`LockError::Lost`](crate::LockError::Lost) if the lock was lost, and store errors. After an error nothing is
    /// held.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use lockkeeper::{RwLock, Upgrade};
    ///
    /// # let client = lockkeeper::connect("memory:upgrade").await?;
    /// let lock = RwLock::new(&client, "/lock/report")?;
    /// let reader = lock.read().await?;
    /// let old = reader.fencing_token();
    /// match reader.try_upgrade().await? {
    ///     Upgrade::Upgraded(writer) => assert!(writer.fencing_token() > old),
    ///     Upgrade::Refused(_reader) => unreachable!("there is no other contender"),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn try_upgrade(self) -> impl Future<Output = Result<Upgrade>> + Send + 'static {
        let upgrade = convert::in_background(convert::upgrade(self.0));
        async move {
            Ok(match upgrade.await? {
                convert::Upgraded::Yes(guard) => Upgrade::Upgraded(WriteGuard(guard)),
                convert::Upgraded::No(guard) => Upgrade::Refused(ReadGuard(guard)),
            })
        }
    }
}

impl WriteGuard {
    pub(super) fn new(guard: Guard) -> Self {
        Self(guard)
    }

    /// Releases the lock, and waits until the store has confirmed the release.
    ///
    /// # Errors
    /// Same as [`Guard::release`].
    pub fn release(self) -> impl Future<Output = Result<()>> + Send + 'static {
        self.0.release()
    }

    /// Converts this into a plain guard, which cannot be downgraded. Sends nothing.
    pub fn into_guard(self) -> Guard {
        self.0
    }

    /// Becomes a reader at the same position in the queue, so no writer gets in between. The readers directly behind
    /// it, up to the next writer, now also hold the lock. The token stays the same.
    ///
    /// Not cancel safe: if the future is dropped, the downgrade continues and then releases the lock.
    ///
    /// # Errors
    /// [`LockError::Lost`](crate::LockError::Lost) if the lock was lost, and store errors. After an error nothing is
    /// held.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let client = lockkeeper::connect("memory:downgrade").await?;
    /// let lock = lockkeeper::RwLock::new(&client, "/lock/report")?;
    /// let writer = lock.write().await?;
    /// let reader = writer.downgrade().await?;
    /// let another = lock.read().await?; // beside it
    /// assert!(reader.is_held() && another.is_held());
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn downgrade(self) -> impl Future<Output = Result<ReadGuard>> + Send + 'static {
        let downgrade = convert::in_background(convert::downgrade(self.0));
        async move { downgrade.await.map(ReadGuard) }
    }
}

macro_rules! is_a_guard {
    ($($name:ident)*) => {$(
        impl Deref for $name {
            type Target = Guard;

            fn deref(&self) -> &Guard {
                &self.0
            }
        }

        impl From<$name> for Guard {
            fn from(guard: $name) -> Self {
                guard.0
            }
        }
    )*};
}
is_a_guard!(ReadGuard WriteGuard);
