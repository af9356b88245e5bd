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

/// Outcome of [`ReadGuard::try_upgrade`]. `R` and `W` are the guards: by default the async ones, in
/// [`blocking`](crate::blocking) those of blocking code.
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

    /// Converts it into the plain guard, which cannot be upgraded. Nothing is sent.
    pub fn into_guard(self) -> Guard {
        self.0
    }

    /// Becomes the writer if no other contender holds the lock or waits for it; otherwise stays a reader. The position
    /// in the queue is kept. It never waits for other contenders: two readers that both waited to write would deadlock.
    ///
    /// No other client writes between this reader's reads and its writes. The writer's token is a new one, greater than
    /// any before.
    ///
    /// If the first look shows another contender, that look is all that is sent. One that joins just after it may see
    /// this reader as a writer until the upgrade has been taken back.
    ///
    /// Not cancel safe: the upgrade is sent by the call itself and continues when the future is dropped; the lock is
    /// released then.
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

    /// Releases the lock and waits until the store has confirmed it. See [`Guard::release`].
    ///
    /// # Errors
    /// Those of [`Guard::release`].
    pub fn release(self) -> impl Future<Output = Result<()>> + Send + 'static {
        self.0.release()
    }

    /// Converts it into the plain guard, which cannot be downgraded. Nothing is sent.
    pub fn into_guard(self) -> Guard {
        self.0
    }

    /// Becomes a reader, in the same position of the queue: no writer gets in between, and the readers up to the next
    /// writer hold the lock from now on, too. The token stays the same, and is shared from now on.
    ///
    /// Not cancel safe: the change is sent by the call itself and continues when the future is dropped; the lock is
    /// released then.
    ///
    /// # Errors
    /// [`LockError::Lost`](crate::LockError::Lost) when the lock was lost, and those of the store.
    /// Nothing is held after an error.
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
