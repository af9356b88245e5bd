//! The guards of the blocking recipes.

use std::time::Duration;

use lockkeeper_store::Deadline;

use super::wait;
use crate::error::{LockError, LostReason, Result};
use crate::metadata::LockMetadata;
use crate::revocation::RevocationRequest;
use crate::select::{Either, select};
use crate::token::FencingToken;

/// What all guards can do.
macro_rules! guards {
    ($($(#[$meta:meta])* $name:ident($inner:ty) $token:ident;)*) => {$(
        $(#[$meta])*
        #[derive(Debug)]
        #[must_use = "dropping it releases what it holds"]
        pub struct $name(pub(super) $inner);

        impl $name {
            /// The token of the grant, which the resource must check.
            pub fn $token(&self) -> FencingToken {
                self.0.$token()
            }

            /// Whether it can be believed to be held. Once this says no, it stays with that.
            pub fn is_held(&self) -> bool {
                self.0.is_held()
            }

            /// Until when nobody else can hold it, as far as clocks and the server allow. `None`:
            /// until it is released, closed or removed.
            pub fn held_until(&self) -> Option<Deadline> {
                self.0.held_until()
            }

            /// Blocks until it is lost, and says why.
            ///
            /// # Errors
            /// [`LockError::InsideRuntime`].
            pub fn lost(&self) -> Result<LostReason> {
                wait(async { Ok::<_, LockError>(self.0.lost().await) })
            }

            /// Blocks until it is lost, but no longer than `timeout`: why it is lost, or `None` if
            /// it is still held.
            ///
            /// # Errors
            /// [`LockError::InsideRuntime`].
            pub fn lost_within(&self, timeout: Duration) -> Result<Option<LostReason>> {
                let clock = self.0.session().clock();
                wait(async {
                    Ok::<_, LockError>(match select(self.0.lost(), clock.sleep(timeout)).await {
                        Either::Left(reason) => Some(reason),
                        Either::Right(()) => None,
                    })
                })
            }

            /// Blocks until somebody asks for it, but no longer than `timeout`: what was asked, or
            /// `None` if nobody has. Each request is answered once.
            ///
            /// # Errors
            /// [`LockError::Lost`], if it is lost first, and [`LockError::InsideRuntime`].
            pub fn revocation_requested_within(
                &self,
                timeout: Duration,
            ) -> Result<Option<RevocationRequest>> {
                let clock = self.0.session().clock();
                wait(async {
                    match select(self.0.revocation_requested(), clock.sleep(timeout)).await {
                        Either::Left(request) => request.map(Some),
                        Either::Right(()) => Ok(None),
                    }
                })
            }

            /// Says that the holder is still at work: its expected duration counts anew from now.
            ///
            /// # Errors
            /// Those of [`Guard::keep_alive`](crate::Guard::keep_alive).
            pub fn keep_alive(&mut self) -> Result<()> {
                wait(self.0.keep_alive())
            }

            /// What this holder wrote of itself into its znode.
            pub fn metadata(&self) -> LockMetadata {
                self.0.metadata()
            }

            /// The same for async code.
            pub fn into_async(self) -> $inner {
                self.0
            }
        }
    )*};
}

guards! {
    /// The holding of a mutex. Dropping it releases the lock. See [`Guard`](crate::Guard).
    Guard(crate::Guard) fencing_token;
    /// The holding of a read-write lock with other readers. Dropping it releases the lock. See
    /// [`ReadGuard`](crate::ReadGuard).
    ReadGuard(crate::ReadGuard) fencing_token;
    /// The holding of a read-write lock alone. Dropping it releases the lock. See
    /// [`WriteGuard`](crate::WriteGuard).
    WriteGuard(crate::WriteGuard) fencing_token;
    /// The holding of permits. Dropping it gives them back. See [`Permit`](crate::Permit).
    Permit(crate::Permit) fencing_token;
    /// The holding of an election. Dropping it resigns. See [`Leadership`](crate::Leadership).
    Leadership(crate::Leadership) epoch;
}

/// The giving back, which is sent at once, and confirmed outside of any runtime only.
macro_rules! releases {
    ($($name:ident $release:ident;)*) => {$(
        impl $name {
            /// Gives it back and blocks until the store has confirmed that. Inside a runtime it is
            /// given back in the background, without a confirmation.
            ///
            /// # Errors
            /// [`LockError::Lost`] when it had been lost before, [`LockError::InsideRuntime`], and
            /// those of the store.
            pub fn $release(self) -> Result<()> {
                wait(self.0.$release())
            }
        }
    )*};
}

releases! {
    Guard release;
    ReadGuard release;
    WriteGuard release;
    Permit release;
    Leadership resign;
}

/// What came of [`ReadGuard::try_upgrade`].
#[derive(Debug)]
#[must_use = "dropping it releases the lock"]
pub enum Upgrade {
    /// The reader is the writer now.
    Upgraded(WriteGuard),
    /// Somebody else holds the lock too, or waits for it: the reader is still a reader.
    Refused(ReadGuard),
}

impl ReadGuard {
    /// Becomes the writer if nobody else holds the lock or waits for it. See
    /// [`ReadGuard::try_upgrade`](crate::ReadGuard::try_upgrade).
    ///
    /// # Errors
    /// Those of [`ReadGuard::try_upgrade`](crate::ReadGuard::try_upgrade). Nothing is held then.
    pub fn try_upgrade(self) -> Result<Upgrade> {
        Ok(match wait(self.0.try_upgrade())? {
            crate::Upgrade::Upgraded(guard) => Upgrade::Upgraded(WriteGuard(guard)),
            crate::Upgrade::Refused(guard) => Upgrade::Refused(Self(guard)),
        })
    }
}

impl WriteGuard {
    /// Becomes a reader, in the same place. See
    /// [`WriteGuard::downgrade`](crate::WriteGuard::downgrade).
    ///
    /// # Errors
    /// Those of [`WriteGuard::downgrade`](crate::WriteGuard::downgrade). Nothing is held then.
    pub fn downgrade(self) -> Result<ReadGuard> {
        wait(self.0.downgrade()).map(ReadGuard)
    }
}

impl Permit {
    /// How many permits this holds: one at least.
    pub fn count(&self) -> u32 {
        self.0.count()
    }

    /// Takes `count` permits out of this. See [`Permit::split`](crate::Permit::split).
    pub fn split(&mut self, count: u32) -> Option<Self> {
        self.0.split(count).map(Self)
    }
}

impl Leadership {
    /// What this leader says of itself.
    pub fn data(&self) -> String {
        self.0.data()
    }

    /// Says something else of itself. Observers see it.
    ///
    /// # Errors
    /// Those of [`Leadership::set_data`](crate::Leadership::set_data).
    pub fn set_data(&self, data: impl Into<String>) -> Result<()> {
        wait(self.0.set_data(data))
    }
}
