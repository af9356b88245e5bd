//! [`LockGuard`]: the interface that the guards of all recipes share.

use std::fmt;
use std::future::Future;
use std::slice;

use lockkeeper_store::{Deadline, Session, ZnodePath};

use crate::election::Leadership;
use crate::error::{LostReason, Result};
use crate::guard::{Guard, GuardSet};
use crate::many::MultiGuard;
use crate::metadata::LockMetadata;
use crate::reentrant::ReentrantGuard;
use crate::revocation::RevocationRequest;
use crate::rwlock::{ReadGuard, WriteGuard};
use crate::semaphore::Permit;
use crate::token::FencingToken;

/// The interface of all guards, for code that accepts any of them. The trait is sealed.
///
/// You need not import the trait to call these methods on a concrete guard.
///
/// | guard | returned by | additional methods |
/// |---|---|---|
/// | [`Guard`] | [`Mutex`](crate::Mutex), [`lock_each`](crate::lock_each()), [`try_lock_many`](crate::try_lock_many()) | `path` |
/// | [`ReadGuard`], [`WriteGuard`] | [`RwLock`](crate::RwLock) | `path`, `try_upgrade`, `downgrade` |
/// | [`ReentrantGuard`] | [`ReentrantMutex`](crate::ReentrantMutex) | `path`, `entries` |
/// | [`Leadership`] | [`Election`](crate::Election) | `path`, `epoch`, `data`, `set_data`, `resign` |
/// | [`Permit`] | [`Semaphore`](crate::Semaphore) | `count`, `split` |
/// | [`MultiGuard`] | [`lock_all`](crate::lock_all()) | `keys`, `get`, `into_guards` |
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use lockkeeper::{FencingGate, LockError, LockGuard, Mutex, Semaphore, lock_all};
///
/// async fn finish(guard: impl LockGuard, ledger: &mut FencingGate) -> Result<(), LockError> {
///     if guard.is_held() && ledger.admit(guard.fencing_token()).is_ok() {
///         println!("written under {:?}", guard.paths().collect::<Vec<_>>());
///     }
///     guard.release().await
/// }
///
/// # let client = lockkeeper::connect("memory:family").await?;
/// # let mut ledger = FencingGate::default();
/// finish(Mutex::new(&client, "/lock/orders")?.lock().await?, &mut ledger).await?;
/// finish(lock_all(&client, ["/lock/orders", "/lock/stock"]).await?, &mut ledger).await?;
/// finish(Semaphore::new(&client, "/quota", 1)?.acquire().await?, &mut ledger).await?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub trait LockGuard: sealed::Guards + fmt::Debug + Send + Sync + 'static {
    /// Returns the token that the resource must check. See [`Guard::fencing_token`].
    fn fencing_token(&self) -> FencingToken {
        self.guards()[0].fencing_token()
    }

    /// Returns `true` while the guard holds all its locks or permits. See [`Guard::is_held`].
    fn is_held(&self) -> bool {
        self.guards().iter().all(Guard::is_held)
    }

    /// Returns the deadline until which no other client can hold the lock. See [`Guard::held_until`].
    fn held_until(&self) -> Option<Deadline> {
        self.guards()[0].held_until()
    }

    /// Waits until any lock or permit is lost, and returns the reason. See [`Guard::lost`].
    fn lost(&self) -> impl Future<Output = LostReason> + Send;

    /// Waits until another client requests a release. See [`Guard::revocation_requested`].
    ///
    /// # Errors
    /// [`LostReason`], if any lock or permit is lost first.
    fn revocation_requested(
        &self,
    ) -> impl Future<Output = Result<RevocationRequest, LostReason>> + Send;

    /// Runs a future while the guard holds all its locks or permits. See [`Guard::protect`].
    ///
    /// # Errors
    /// [`LostReason`], if any lock or permit is lost first.
    fn protect<F>(&self, future: F) -> impl Future<Output = Result<F::Output, LostReason>> + Send
    where
        F: Future<Output: Send> + Send;

    /// Reports that the holder is still working. See [`Guard::keep_alive`].
    ///
    /// # Errors
    /// [`LockError::Lost`](crate::LockError::Lost) if any lock or permit is lost, and store errors.
    fn keep_alive(&self) -> impl Future<Output = Result<()>> + Send;

    /// Returns the holder's metadata. See [`Guard::metadata`].
    fn metadata(&self) -> LockMetadata {
        self.guards()[0].metadata()
    }

    /// Returns the holder's znodes, one per lock or permit.
    fn paths(&self) -> impl Iterator<Item = &ZnodePath> {
        self.guards().iter().map(Guard::path)
    }

    /// Returns the session that holds the lock.
    fn session(&self) -> &Session {
        self.guards()[0].session()
    }

    /// Releases all locks or permits, and waits until the store has confirmed that. See [`Guard::release`].
    ///
    /// # Errors
    /// [`LockError::Lost`](crate::LockError::Lost) if any lock or permit was lost before the call.
    fn release(self) -> impl Future<Output = Result<()>> + Send + 'static;
}

mod sealed {
    use super::Guard;

    pub trait Guards {
        /// Returns at least one guard, each with one znode.
        fn guards(&self) -> &[Guard];
    }
}

/// Implements the trait with the inherent methods of `$core`, to which the guard dereferences.
macro_rules! lock_guards {
    ($($name:ty: $core:ident, $guards:path;)*) => {$(
        impl sealed::Guards for $name {
            fn guards(&self) -> &[Guard] {
                $guards(self as &$core)
            }
        }

        impl LockGuard for $name {
            async fn lost(&self) -> LostReason {
                $core::lost(self).await
            }

            async fn revocation_requested(&self) -> Result<RevocationRequest, LostReason> {
                $core::revocation_requested(self).await
            }

            async fn protect<F>(&self, future: F) -> Result<F::Output, LostReason>
            where
                F: Future<Output: Send> + Send,
            {
                $core::protect(self, future).await
            }

            async fn keep_alive(&self) -> Result<()> {
                $core::keep_alive(self).await
            }

            fn release(self) -> impl Future<Output = Result<()>> + Send + 'static {
                // Call the guard's own `release`, because the `release` of a leadership notifies its election first.
                <$name>::release(self)
            }
        }
    )*};
}

lock_guards! {
    Guard: Guard, slice::from_ref;
    ReadGuard: Guard, slice::from_ref;
    WriteGuard: Guard, slice::from_ref;
    ReentrantGuard: Guard, slice::from_ref;
    Leadership: Guard, slice::from_ref;
    Permit: GuardSet, GuardSet::guards;
    MultiGuard: GuardSet, GuardSet::guards;
}
