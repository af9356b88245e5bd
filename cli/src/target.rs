//! [`Target`]: the store that a command uses, and the locks in it.

mod profile;
mod settings;
mod url;

use std::ffi::OsString;
use std::process::Command;
use std::sync::{Arc, Once, OnceLock};
use std::time::Duration;

use clap::Args;
use lockkeeper::{Client, ConnectOptions, LockPath};

use crate::exit::Failure;
use crate::local::LocalStore;
use crate::values;

use self::settings::{Settings, Sources};

/// Options of every command that uses a store.
#[derive(Args, Clone, Debug)]
pub(crate) struct Target {
    // This field must be the first, because each parsed field removes its value from the matches.
    #[command(flatten)]
    sources: Sources,
    /// The store: lockkeeper://HOST:PORT, lockkeeper+unix:///PATH, zookeeper://HOST:PORT,HOST:PORT,
    /// etcd://HOST:PORT,HOST:PORT, or file:DIR, which no other process may have open. Schemes with HOST also take +tls
    /// for TLS (lockkeeper+tls://…) [default: the URL of the profile, or else this user's store on this machine, see
    /// `lockkeeper local`]
    #[arg(
        long,
        value_name = "URL",
        env = "LOCKKEEPER_URL",
        help_heading = "Store"
    )]
    url: Option<String>,
    /// Time without contact after which the store ends this command's session and frees its locks
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "15s", help_heading = "Store")]
    pub(crate) session_timeout: Duration,
    /// Time limit for connecting to the store
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "10s", help_heading = "Store")]
    pub(crate) connect_timeout: Duration,
    /// User and password, as user:password. Prefer the variable, because others can read a command's arguments
    #[arg(
        long,
        value_name = "USER:PASSWORD",
        env = "LOCKKEEPER_AUTH",
        hide_env_values = true,
        help_heading = "Store"
    )]
    auth: Option<String>,
    /// Certificate authority of the server, as PEM, for TLS
    #[arg(
        long,
        value_name = "FILE",
        env = "LOCKKEEPER_CA",
        help_heading = "Store"
    )]
    ca: Option<OsString>,
    /// Certificate of this client, as PEM, if the server requires one. Needs --key
    #[arg(
        long,
        value_name = "FILE",
        env = "LOCKKEEPER_CERT",
        help_heading = "Store"
    )]
    cert: Option<OsString>,
    /// Private key of --cert, as PEM
    #[arg(
        long,
        value_name = "FILE",
        env = "LOCKKEEPER_KEY",
        help_heading = "Store"
    )]
    key: Option<OsString>,
    /// Name in the server's certificate, if it differs from the host in the URL
    #[arg(
        long,
        value_name = "HOST",
        env = "LOCKKEEPER_SERVER_NAME",
        help_heading = "Store"
    )]
    server_name: Option<String>,
    /// Profile with URL, password and TLS files [default: the profile `default`, if no URL is given]
    #[arg(
        long,
        value_name = "NAME",
        env = "LOCKKEEPER_PROFILE",
        help_heading = "Store"
    )]
    profile: Option<String>,
    /// Prints the store and the source of each value to stderr, and why `run` skipped the command
    #[arg(short, long, help_heading = "Store")]
    pub(crate) verbose: bool,
    /// Creates the chroot (the path in the URL) if the store does not have it
    #[arg(long, help_heading = "Store")]
    create_chroot: bool,
    /// Resolved only once, so that a file that changes later cannot switch a command to another store.
    #[arg(skip)]
    settings: Arc<OnceLock<Result<Settings, String>>>,
}

impl Target {
    pub(crate) async fn connect(&self) -> Result<Client, Failure> {
        self.explain()?;
        self.connect_with(ConnectOptions::new()).await
    }

    pub(crate) async fn connect_with(&self, options: ConnectOptions) -> Result<Client, Failure> {
        self.connect_within(self.session_timeout, options).await
    }

    pub(crate) async fn connect_within(
        &self,
        session_timeout: Duration,
        options: ConnectOptions,
    ) -> Result<Client, Failure> {
        self.check_shared()?;
        self.open(session_timeout, options).await
    }

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
        let settings = self.settings()?;
        if let Some(secret) = settings.auth() {
            options = options.auth("digest", secret.as_bytes());
        }
        if let Some(tls) = settings.tls()? {
            options = options.tls(tls);
        }
        if self.create_chroot {
            options = options.create_chroot();
        }
        match settings.url() {
            Some(url) => Ok(lockkeeper::connect_with(url::parse(url)?, options).await?),
            None => {
                LocalStore::find()?
                    .connect(options, self.connect_timeout)
                    .await
            }
        }
    }

    /// Checks the options without connecting. Creates the folder of the per-user store if a command would use this
    /// store.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        self.check_shared()?;
        self.shown().map(drop)
    }

    /// Refuses a store in memory, because each process would have its own store, and all processes would get the same
    /// lock.
    fn check_shared(&self) -> Result<(), Failure> {
        match self.settings()?.url() {
            Some(url) if url::is_memory(url) => Err(Failure::Usage(
                "a store in memory cannot exclude other processes, because each process has its own: leave --url and \
                 LOCKKEEPER_URL out to use this user's own store on this machine, or give the URL of a server"
                    .into(),
            )),
            _ => Ok(()),
        }
    }

    pub(crate) fn is_local(&self) -> bool {
        self.settings()
            .is_ok_and(|settings| settings.url().is_none())
    }

    /// Passes the same store to a child process of this program, with another session timeout. Passes secrets only in
    /// the environment.
    pub(crate) fn hand_down(
        &self,
        command: &mut Command,
        session_timeout: Duration,
    ) -> Result<(), Failure> {
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
        self.settings()?.hand_down(command);
        Ok(())
    }

    pub(crate) fn explain(&self) -> Result<(), Failure> {
        static ONCE: Once = Once::new();
        let text = match self.verbose {
            true => self.shown()?,
            false => return Ok(()),
        };
        ONCE.call_once(|| {
            for line in text.lines() {
                crate::output::print_error(Failure::Other(line.into()));
            }
        });
        Ok(())
    }

    pub(crate) fn shown(&self) -> Result<String, Failure> {
        let settings = self.settings()?;
        let local = match settings.url() {
            // Parse the URL first. If it is invalid, it may contain a password, which the parser's error does not show.
            Some(url) => url::parse(url).map(|_| None)?,
            None => Some(LocalStore::find()?.url()),
        };
        Ok(settings.shown(local.as_deref()))
    }

    pub(crate) fn shown_files(&self) -> Result<String, Failure> {
        Ok(self.settings()?.shown_files())
    }

    fn settings(&self) -> Result<&Settings, Failure> {
        let text = |text: &String| OsString::from(text);
        let given = || {
            [
                ("url", self.url.as_ref().map(text)),
                ("auth", self.auth.as_ref().map(text)),
                ("ca", self.ca.clone()),
                ("cert", self.cert.clone()),
                ("key", self.key.clone()),
                ("server-name", self.server_name.as_ref().map(text)),
                ("profile", self.profile.as_ref().map(text)),
            ]
        };
        let resolved = self
            .settings
            .get_or_init(|| Settings::resolve(given(), &self.sources));
        resolved.as_ref().map_err(|why| Failure::Usage(why.clone()))
    }
}

/// Returns the lock with this name. A name with a leading slash is the path of a znode. Any other name is a name below
/// `/locks`, and may contain any character.
pub(crate) fn lock_path(name: &str) -> Result<LockPath, Failure> {
    if name.is_empty() {
        return Err(Failure::Usage("a lock needs a name".into()));
    }
    match name.starts_with('/') {
        true => Ok(LockPath::new(name)?),
        false => Ok(LockPath::new("/locks")?.key(name)),
    }
}
