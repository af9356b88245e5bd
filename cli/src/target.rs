//! [`Target`]: the store that a command uses, and the locks in it.

mod url;

use std::process::Command;
use std::time::Duration;

use clap::Args;
use lockkeeper::{Client, ConnectOptions, LockPath};

use crate::exit::Failure;
use crate::local::LocalStore;
use crate::values;

/// Options of every command that uses a store.
#[derive(Args, Clone, Debug)]
pub(crate) struct Target {
    /// The store: lockkeeper://HOST:PORT, lockkeeper+unix:///PATH, zookeeper://HOST:PORT,HOST:PORT, or file:DIR, which no
    /// other process may have open [default: this user's own store on this machine, see `lockkeeper local`]
    #[arg(
        long,
        value_name = "URL",
        env = "LOCKKEEPER_URL",
        help_heading = "Store"
    )]
    url: Option<String>,
    /// Time without a sign of life after which the store ends the session of this command and frees its locks
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "15s", help_heading = "Store")]
    pub(crate) session_timeout: Duration,
    /// Time to try to reach the store
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "10s", help_heading = "Store")]
    pub(crate) connect_timeout: Duration,
    /// User and password, as user:password; better in the environment, since others can read the arguments of a process
    #[arg(
        long,
        value_name = "USER:PASSWORD",
        env = "LOCKKEEPER_AUTH",
        hide_env_values = true,
        help_heading = "Store"
    )]
    auth: Option<String>,
    /// Create the path of the URL, the chroot, where the store has none
    #[arg(long, help_heading = "Store")]
    create_chroot: bool,
}

impl Target {
    /// Connects to the store, with the options of the command line.
    pub(crate) async fn connect(&self) -> Result<Client, Failure> {
        self.connect_with(ConnectOptions::new()).await
    }

    /// Connects with further options.
    pub(crate) async fn connect_with(&self, options: ConnectOptions) -> Result<Client, Failure> {
        self.connect_within(self.session_timeout, options).await
    }

    /// Connects with another session timeout.
    pub(crate) async fn connect_within(
        &self,
        session_timeout: Duration,
        options: ConnectOptions,
    ) -> Result<Client, Failure> {
        self.check_shared()?;
        self.open(session_timeout, options).await
    }

    /// Connects to any store, also to one that no other process can use: for measurements.
    pub(crate) async fn connect_to_any(&self) -> Result<Client, Failure> {
        self.open(self.session_timeout, ConnectOptions::new()).await
    }

    async fn open(
        &self,
        session_timeout: Duration,
        options: ConnectOptions,
    ) -> Result<Client, Failure> {
        let mut options = options
            .session_timeout(session_timeout)
            .connect_timeout(self.connect_timeout);
        if let Some(secret) = self.auth()? {
            options = options.auth("digest", secret);
        }
        if self.create_chroot {
            options = options.create_chroot();
        }
        match self.url() {
            Some(url) => Ok(lockkeeper::connect_with(url::parse(url)?, options).await?),
            None => {
                LocalStore::find()?
                    .connect(options, self.connect_timeout)
                    .await
            }
        }
    }

    /// Checks the options without connecting, and creates the folder of the user's own store if that is the one.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        self.check_shared()?;
        self.auth()?;
        match self.url() {
            Some(url) => url::parse(url).map(drop),
            None => LocalStore::find().map(drop),
        }
    }

    /// Returns true if the store is this user's own, on this machine.
    pub(crate) fn is_local(&self) -> bool {
        self.url().is_none()
    }

    /// Refuses a store that only this process can use: every process would get the same lock.
    fn check_shared(&self) -> Result<(), Failure> {
        match self.url() {
            Some(url) if url::is_memory(url) => Err(Failure::Usage(
                "a store in memory excludes no other process, because each has its own: leave --url and LOCKKEEPER_URL out \
                 to use this user's own store on this machine, or give the URL of a server"
                    .into(),
            )),
            _ => Ok(()),
        }
    }

    /// Returns the user and the password. An error does not repeat them.
    fn auth(&self) -> Result<Option<&str>, Failure> {
        let auth = self.auth.as_deref().filter(|auth| !auth.is_empty());
        match auth.map(|auth| auth.split_once(':').unwrap_or_default()) {
            Some(("", _) | (_, "")) => Err(Failure::Usage(
                "--auth and LOCKKEEPER_AUTH expect USER:PASSWORD, and neither may be empty".into(),
            )),
            _ => Ok(auth),
        }
    }

    /// Gives a command of this program the same store, with another session timeout. Secrets are in the environment only.
    pub(crate) fn hand_down(&self, command: &mut Command, session_timeout: Duration) {
        let options = [
            ("--session-timeout", session_timeout),
            ("--connect-timeout", self.connect_timeout),
        ];
        for (option, duration) in options {
            command.arg(option).arg(values::shown(duration));
        }
        if self.create_chroot {
            command.arg("--create-chroot");
        }
        let variables = [
            ("LOCKKEEPER_URL", &self.url),
            ("LOCKKEEPER_AUTH", &self.auth),
        ];
        for (name, value) in variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
    }

    fn url(&self) -> Option<&str> {
        self.url.as_deref().filter(|url| !url.is_empty())
    }
}

/// Returns the lock of this name: a path of a znode if it begins with a slash, otherwise a name below `/locks`, in which
/// any character may stand.
pub(crate) fn lock_path(name: &str) -> Result<LockPath, Failure> {
    if name.is_empty() {
        return Err(Failure::Usage("a lock needs a name".into()));
    }
    match name.starts_with('/') {
        true => Ok(LockPath::new(name)?),
        false => Ok(LockPath::new("/locks")?.key(name)),
    }
}
