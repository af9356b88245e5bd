//! [`Election`]: one leader among many candidates.

use std::time::Duration;

use lockkeeper_store::{Error, ZnodePath};

use super::{Client, Leadership, outside_runtime, wait};
use crate::election::{Leader, LeaderChange};
use crate::error::Result;
use crate::options::LockOptions;
use crate::path::IntoLockPath;

/// An election among all programs that name the same path of the same store. See
/// [`Election`](crate::Election).
///
/// There is no `run`: what blocks its thread cannot be stopped when the leadership is lost. Look at
/// [`Leadership::is_held`] between the steps of the work, and campaign again after a loss.
#[derive(Clone, Debug)]
pub struct Election(crate::Election);

impl Election {
    /// The election at a path. Nothing is sent.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn new(client: &Client, path: impl IntoLockPath) -> Result<Self, Error> {
        crate::Election::new(client.as_async(), path).map(Self)
    }

    /// The znode under which the candidates stand.
    pub fn path(&self) -> &ZnodePath {
        self.0.path()
    }

    /// Stands for election, and waits until it leads.
    ///
    /// # Errors
    /// Those of [`Election::campaign`](crate::Election::campaign).
    pub fn campaign(&self, data: impl Into<String>) -> Result<Leadership> {
        wait(self.0.campaign(data)).map(Leadership)
    }

    /// Stands for election for no longer than `timeout`.
    ///
    /// # Errors
    /// Those of [`Election::campaign_timeout`](crate::Election::campaign_timeout).
    pub fn campaign_timeout(
        &self,
        data: impl Into<String>,
        timeout: Duration,
    ) -> Result<Leadership> {
        wait(self.0.campaign_timeout(data, timeout)).map(Leadership)
    }

    /// Stands for election on terms of one's own.
    ///
    /// # Errors
    /// Those of [`Election::campaign_with`](crate::Election::campaign_with).
    pub fn campaign_with(
        &self,
        data: impl Into<String>,
        options: LockOptions,
    ) -> Result<Leadership> {
        wait(self.0.campaign_with(data, options)).map(Leadership)
    }

    /// Leads if nobody else does or stands.
    ///
    /// # Errors
    /// Those of [`Election::try_campaign`](crate::Election::try_campaign).
    pub fn try_campaign(&self, data: impl Into<String>) -> Result<Option<Leadership>> {
        Ok(wait(self.0.try_campaign(data))?.map(Leadership))
    }

    /// Who leads now.
    ///
    /// # Errors
    /// Those of [`Election::leader`](crate::Election::leader).
    pub fn leader(&self) -> Result<Option<Leader>> {
        wait(self.0.leader())
    }

    /// The leader now, and each change from then on; the iterator blocks for the next. See
    /// [`Election::observe`](crate::Election::observe).
    pub fn observe(&self) -> LeaderChanges {
        LeaderChanges(self.0.observe())
    }
}

/// The changes of [`Election::observe`].
#[derive(Debug)]
pub struct LeaderChanges(crate::LeaderChanges);

impl Iterator for LeaderChanges {
    type Item = Result<LeaderChange>;

    fn next(&mut self) -> Option<Self::Item> {
        match outside_runtime() {
            Ok(()) => pollster::block_on(self.0.next()),
            Err(error) => Some(Err(error)),
        }
    }
}
