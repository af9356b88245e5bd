//! [`ReadGuard`] and [`WriteGuard`]: the guards of a read-write lock, and the conversions between them.

use std::ops::Deref;

use super::convert;
use crate::error::Result;
use crate::guard::Guard;

/// The guard of a read-write lock that is held together with other readers: a [`Guard`], and the upgrade.
///
/// Its [token](Guard::fencing_token) is shared: the resource admits it with
/// [`FencingGate::admit_shared`](crate::FencingGate::admit_shared).
#[derive(Debug)]
#[must_use = "dropping a guard releases the lock"]
pub struct ReadGuard(Guard);

/// The guard of a read-write lock that is held alone: a [`Guard`], and the downgrade.
#[derive(Debug)]
#[must_use = "dropping a guard releases the lock"]
pub struct WriteGuard(Guard);

/// Outcome of [`ReadGuard::try_upgrade`].
#[derive(Debug)]
#[must_use = "dropping it releases the lock"]
pub enum Upgrade<R = ReadGuard, W = WriteGuard> {
    /// The reader is the writer now.
    Upgraded(W),
    /// Another contender holds the lock or waits for it: the reader is still a reader.
    Refused(R),
}

impl ReadGuard {
    pub(super) fn new(guard: Guard) -> Self {
        Self(guard)
    }

    /// Releases the lock and waits until the store has confirmed it. See [`Guard::release`].
    ///
    /// # Errors
    /// Those of [`Guard::release`].
    pub fn release(self) -> impl Future<Output = Result<()>> + Send + 'static {
        self.0.release()
    }

    /// Turns it into the plain guard, which cannot be upgraded.
    pub fn into_guard(self) -> Guard {
        self.0
    }

    /// Becomes the writer, in the same place, if nobody else holds the lock or waits for it; else
    /// stays a reader. It never waits for others: two readers that both waited to write would wait
    /// for each other for ever.
    ///
    /// Nobody writes between the reading and the writing. The writer's token is a new one, greater
    /// than any before.
    ///
    /// The upgrade is sent by the call itself, and goes on when the future is dropped; what came of
    /// it is released then. If somebody else is there at the first look, that look is all that is
    /// sent; a contender that joins just after it may see this reader as a writer for a moment.
    ///
    /// # Errors
    /// [`LockError::Lost`](crate::LockError::Lost) when the lock was lost, and those of the store.
    /// Nothing is held after an error.
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
    ///     Upgrade::Refused(_reader) => unreachable!("nobody else is here"),
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

    /// Releases the lock and waits until the store has confirmed it. See [`Guard::release`].
    ///
    /// # Errors
    /// Those of [`Guard::release`].
    pub fn release(self) -> impl Future<Output = Result<()>> + Send + 'static {
        self.0.release()
    }

    /// Turns it into the plain guard, which cannot be downgraded.
    pub fn into_guard(self) -> Guard {
        self.0
    }

    /// Becomes a reader, in the same place: no writer gets in between, and the readers up to the
    /// next writer have the lock from now on, too. The token stays the same.
    ///
    /// The change is sent by the call itself, and goes on when the future is dropped; the lock is
    /// released then.
    ///
    /// # Errors
    /// [`LockError::Lost`](crate::LockError::Lost) when the lock was lost, and those of the store.
    /// Nothing is held after an error.
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
