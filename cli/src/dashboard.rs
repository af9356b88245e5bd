//! `lockkeeper dashboard`: a live view of a store's locks in the browser.
//!
//! One [feed](crate::live::Feed) updates a [`board::Board`]. Each viewer receives an event stream with the part of the
//! board that the viewer's page shows. The dashboard writes to the store only when a user revokes a lock. Revocation
//! must be enabled and needs a [token](crate::http::token::Token).

mod access;
mod board;
mod handovers;
mod metrics;
mod pages;
mod query;
mod revoke;
mod shared;
mod streams;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use lockkeeper::{Client, LockPrefix};
use prometheus::Registry;

use self::metrics::LockMetrics;
use self::pages::DashboardPages;
use self::shared::Shared;
use crate::exit::Failure;
use crate::http::token::Token;
use crate::http::{Background, HttpPort, HttpServer};
use crate::live::Feed;
use crate::locks::names::lock_prefix;
use crate::serve::{logs, signals::Signals};
use crate::target::Target;
use crate::values;

pub(crate) use self::access::Access;
pub(crate) use self::shared::MAX_VIEWERS;

/// The arguments of `dashboard`.
#[derive(Args, Debug)]
pub(crate) struct Dashboard {
    /// Selects locks. /a/path selects the locks at and below that path. Any other text selects the locks whose names
    /// start with this text
    prefix: Option<String>,
    /// Address at which to serve the page
    #[arg(long, value_name = "ADDRESS", value_parser = values::address, default_value = "127.0.0.1:2180")]
    listen: SocketAddr,
    /// Host name allowed in the page's URL, in addition to IP addresses and localhost. Can be repeated
    #[arg(long = "dashboard-host", value_name = "NAME", value_parser = values::host)]
    hosts: Vec<String>,
    /// Lets users with the token ask holders for locks and take locks away
    #[arg(long)]
    allow_revoke: bool,
    /// File with the token in its first line, readable only by its owner [default: a random token]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    target: Target,
}

const LOG: &str = "warn,lockkeeper_dashboard=info";

const MAX_BYTES: usize = 256 << 20;

impl Dashboard {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let prefix = lock_prefix(self.prefix.as_deref())?;
        let level = std::env::var("LOCKKEEPER_LOG").unwrap_or_else(|_| LOG.into());
        logs::start(
            logs::Format::Text,
            &logs::level(&level).map_err(Failure::Usage)?,
        );
        let access = self.access()?;
        let mut signals = Signals::listen()?;
        // Open the port before connecting, so that a bad address is reported immediately.
        let port = HttpPort::open(self.listen, "--listen").map_err(Failure::Other)?;
        let client = tokio::select! {
            client = self.target.connect() => client?,
            _ = signals.next() => return Ok(()),
        };
        let url = self.url(&port, &access);
        let store = client.target().to_owned();
        let shown = self.prefix.as_deref().unwrap_or("/");
        let feed = Feed::new(Some(self.target.clone()), client, prefix);
        let shared = Arc::new(Shared::new(feed, MAX_BYTES));
        let _http = serve(port, shared, access, store, shown).map_err(Failure::Other)?;
        crate::output::announce(&format!("lockkeeper dashboard {url}\n"));
        signals.next().await;
        Ok(())
    }

    fn access(&self) -> Result<Access, Failure> {
        let is_private = !self.listen.ip().is_loopback();
        let token = match &self.token_file {
            Some(file) => {
                let token = Token::read(file);
                Some(token.map_err(|why| Failure::Usage(format!("--token-file: {why}")))?)
            }
            None if is_private || self.allow_revoke => Some(Token::random()?),
            None => None,
        };
        Ok(Access {
            token,
            is_private,
            allows_revoke: self.allow_revoke,
            hosts: self.hosts.clone(),
        })
    }

    /// Returns the URL for the user. A generated token is in the fragment, which browsers do not send. A token from a
    /// file is left out, because the user already has it.
    fn url(&self, port: &HttpPort, access: &Access) -> String {
        let address = port.address();
        let host = match (self.hosts.first(), address.ip().is_unspecified()) {
            (Some(name), true) => format!("{name}:{}", address.port()),
            (None, true) => format!("localhost:{}", address.port()),
            (_, false) => address.to_string(),
        };
        let token = access.token.as_ref().filter(|_| self.token_file.is_none());
        let token = token.map(|it| format!("#token={}", it.reveal()));
        format!("http://{host}/{}", token.unwrap_or_default())
    }
}

fn serve(
    port: HttpPort,
    shared: Arc<Shared>,
    access: Access,
    store: String,
    prefix: &str,
) -> Result<HttpServer, String> {
    port.serve(DashboardPages {
        shared,
        access,
        store,
        prefix: prefix.to_owned(),
    })
}

/// The locks in this process's store that an unauthenticated client may read.
pub(crate) struct OwnLocks(Arc<Shared>);

impl OwnLocks {
    pub(crate) fn new(
        client: Client,
        max_bytes: usize,
        registry: Option<&Registry>,
    ) -> prometheus::Result<Self> {
        let prefix: LockPrefix = lockkeeper::ZnodePath::root().into();
        let feed = Feed::new(None, client, prefix);
        let shared = Arc::new(Shared::new(feed, max_bytes));
        if let Some(registry) = registry {
            LockMetrics::register(&shared, registry)?;
        }
        Ok(Self(shared))
    }

    pub(crate) fn serve(
        self,
        port: HttpPort,
        access: Access,
        store: String,
    ) -> Result<Background, String> {
        Ok(serve(port, self.0, access, store, "/")?.into_thread())
    }

    pub(crate) fn follow(self) -> std::io::Result<Background> {
        Background::start("lockkeeper-locks", move || async move {
            self.0.run().await;
        })
    }
}
