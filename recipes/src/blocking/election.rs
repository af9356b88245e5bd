//! [`Election`]: one leader among many candidates.

use std::time::Duration;

use lockkeeper_store::{Error, ZnodePath};

use super::{BlockingGuard, Client, Iter, Leadership, block_on, iter, wait};
use crate::election::{Leader, Role};
use crate::error::Result;
use crate::options::LockOptions;
use crate::path::IntoLockPath;

/// An election among all programs that name the same path of the same store. See
/// [`Election`](crate::Election).
///
/// There is no `run`: what blocks its thread cannot be stopped when the leadership is lost. Look at
/// [`is_held`](super::BlockingGuard::is_held) between the steps of the work, and campaign again after a loss.
#[derive(Clone, Debug)]
pub struct Election(crate::Election);

impl Election {
    /// Creates the election at a path. Nothing is sent.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn new(client: &Client, path: impl IntoLockPath) -> Result<Self, Error> {
        crate::Election::new(client.as_async(), path).map(Self)
    }

    /// Returns the znode under which the candidates stand.
    pub fn path(&self) -> &ZnodePath {
        self.0.path()
    }

    /// Stands for election, and waits until it leads.
    ///
    /// # Errors
    /// Those of [`Election::campaign`](crate::Election::campaign).
    #[track_caller]
    pub fn campaign(&self, data: impl Into<String>) -> Result<Leadership> {
        wait(self.0.campaign(data)).map(BlockingGuard)
    }

    /// Stands for election, and leads within `timeout`.
    ///
    /// # Errors
    /// Those of [`Election::campaign_timeout`](crate::Election::campaign_timeout).
    #[track_caller]
    pub fn campaign_timeout(
        &self,
        data: impl Into<String>,
        timeout: Duration,
    ) -> Result<Leadership> {
        wait(self.0.campaign_timeout(data, timeout)).map(BlockingGuard)
    }

    /// Stands for election with the given options, and waits until it leads.
    ///
    /// # Errors
    /// Those of [`Election::campaign_with`](crate::Election::campaign_with).
    #[track_caller]
    pub fn campaign_with(
        &self,
        data: impl Into<String>,
        options: LockOptions,
    ) -> Result<Leadership> {
        wait(self.0.campaign_with(data, options)).map(BlockingGuard)
    }

    /// Leads if nobody else does or stands; else `None`.
    ///
    /// # Errors
    /// Those of [`Election::try_campaign`](crate::Election::try_campaign).
    #[track_caller]
    pub fn try_campaign(&self, data: impl Into<String>) -> Result<Option<Leadership>> {
        Ok(wait(self.0.try_campaign(data))?.map(BlockingGuard))
    }

    /// Leads if nobody else does or stands, with the given options.
    ///
    /// # Errors
    /// Those of [`Election::try_campaign_with`](crate::Election::try_campaign_with).
    #[track_caller]
    pub fn try_campaign_with(
        &self,
        data: impl Into<String>,
        options: LockOptions,
    ) -> Result<Option<Leadership>> {
        Ok(wait(self.0.try_campaign_with(data, options))?.map(BlockingGuard))
    }

    /// Returns the leader; `None` if nobody stands.
    ///
    /// # Errors
    /// Those of [`Election::leader`](crate::Election::leader).
    #[track_caller]
    pub fn leader(&self) -> Result<Option<Leader>> {
        wait(self.0.leader())
    }

    /// Yields the leader now, and each change from then on; the iterator blocks for the next. See
    /// [`Election::observe`](crate::Election::observe).
    pub fn observe(&self) -> LeaderChanges {
        iter(self.0.observe())
    }

    /// Returns the part that this election and its clones play themselves, to look at and to wait on.
    pub fn state(&self) -> ElectionState {
        ElectionState(self.0.state())
    }
}

/// The iterator of [`Election::observe`]: blocks until the next change.
pub type LeaderChanges = Iter<crate::LeaderChanges>;

/// The part that one election object plays itself. See [`ElectionState`](crate::ElectionState).
#[derive(Clone, Debug)]
pub struct ElectionState(crate::ElectionState);

impl ElectionState {
    /// Returns the role now.
    pub fn current(&self) -> Role {
        self.0.current()
    }

    /// Blocks until the role differs from the one that this handle has seen last; `None` when no change can come.
    #[track_caller]
    pub fn changed(&mut self) -> Option<Role> {
        block_on(self.0.changed())
    }

    /// Blocks until the role is as wanted; `None` when it can no longer become so.
    #[track_caller]
    pub fn wait_for(&mut self, wanted: impl FnMut(Role) -> bool) -> Option<Role> {
        block_on(self.0.wait_for(wanted))
    }
}
