//! [`Client`]: the connection that creates the blocking recipes.

use lockkeeper_store::{ConnectOptions, Error, Target, TargetError};

use super::wait;
use crate::error::Result;

/// Connects to the store at a URL, with the default options.
///
/// # Errors
/// Same as [`connect`](fn@crate::connect).
#[track_caller]
pub fn connect<T>(target: T) -> Result<Client>
where
    T: TryInto<Target>,
    T::Error: Into<TargetError>,
{
    connect_with(target, ConnectOptions::new())
}

/// Connects to the store at a URL.
///
/// # Errors
/// Same as [`connect`].
///
/// ```
/// use std::time::Duration;
/// use lockkeeper::{ConnectOptions, blocking};
///
/// let options = ConnectOptions::new().session_timeout(Duration::from_secs(10));
/// let client = blocking::connect_with("memory:example-options", options)?;
/// client.close()?;
/// # Ok::<(), lockkeeper::LockError>(())
/// ```
#[track_caller]
pub fn connect_with<T>(target: T, options: ConnectOptions) -> Result<Client>
where
    T: TryInto<Target>,
    T::Error: Into<TargetError>,
{
    let target = target
        .try_into()
        .map_err(|error| Error::Target(error.into()))?;
    wait(crate::connect_with(target, options)).map(Client)
}

/// The client of a store, with a session that all clones share.
#[derive(Clone, Debug)]
pub struct Client(crate::Client);

impl Client {
    /// Closes the session for good. This releases all its locks immediately. Calls that wait in other threads return
    /// [`SessionClosed`](Error::SessionClosed).
    ///
    /// # Errors
    /// Same as [`Client::close`](crate::Client::close).
    #[track_caller]
    pub fn close(&self) -> Result<()> {
        wait(self.0.close())
    }

    /// Returns the async client.
    pub fn as_async(&self) -> &crate::Client {
        &self.0
    }
}

impl From<crate::Client> for Client {
    fn from(client: crate::Client) -> Self {
        Self(client)
    }
}
