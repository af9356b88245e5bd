//! The dashboard of a server: `--dashboard`.
//!
//! It is a client in the server's process that has proved no identity, so it sees, and revokes, what everybody may.

use std::error::Error;
use std::net::SocketAddr;

use lockkeeper_store::{Server, Store};
use prometheus::Registry;
use tracing::{info, warn};

use super::flags::Flags;
use crate::dashboard::{Access, serve_own};
use crate::http::token::Token;
use crate::http::{HttpPort, HttpServer};

/// Everything that is needed to serve the dashboard.
#[derive(Clone, Debug)]
pub(crate) struct DashboardPlan {
    pub(crate) address: SocketAddr,
    access: Access,
    max_bytes: usize,
}

impl DashboardPlan {
    /// Checks its options together.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub(super) fn of(flags: &Flags, max_bytes: usize) -> Result<Option<Self>, String> {
        let Some(address) = flags.dashboard else {
            let given = [
                ("--dashboard-host", !flags.dashboard_host.is_empty()),
                ("--dashboard-allow-revoke", flags.dashboard_allow_revoke),
                (
                    "--dashboard-token-file",
                    flags.dashboard_token_file.is_some(),
                ),
            ];
            let given = given.into_iter().find(|(_, is_given)| *is_given);
            return given.map_or(Ok(None), |(option, _)| {
                Err(format!("{option} needs --dashboard"))
            });
        };
        let is_private = !address.ip().is_loopback();
        let needed_for = match (is_private, flags.dashboard_allow_revoke) {
            (true, _) => Some(format!("{address} can be reached from other machines")),
            (false, true) => Some("--dashboard-allow-revoke lets its users act".to_owned()),
            (false, false) => None,
        };
        if let Some(reason) = needed_for.filter(|_| flags.dashboard_token_file.is_none()) {
            // A random one would stand in the server's output, which others read.
            return Err(format!(
                "{reason}: set --dashboard-token-file to a file with the token that they need"
            ));
        }
        if flags.idle_exit.is_some() {
            return Err(
                "--idle-exit and --dashboard exclude each other: the dashboard uses the store all the time".into(),
            );
        }
        if flags.metrics_listen == Some(address) && address.port() != 0 {
            return Err(format!(
                "--dashboard and --metrics-listen are both {address}: each needs an address of its own"
            ));
        }
        let token = flags.dashboard_token_file.as_deref().map(Token::read);
        let token = token.transpose();
        Ok(Some(Self {
            address,
            access: Access {
                token: token.map_err(|why| format!("--dashboard-token-file: {why}"))?,
                is_private,
                allows_revoke: flags.dashboard_allow_revoke,
                hosts: flags.dashboard_host.clone(),
            },
            max_bytes,
        }))
    }

    /// Opens the port, on which connections wait.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub(super) fn open(&self) -> Result<HttpPort, String> {
        let port = HttpPort::open(self.address, "--dashboard")?;
        info!(address = %port.address(), "dashboard");
        if self.access.is_private {
            warn!(
                "--dashboard {} receives its token in plain text over a network, where it can be read, unless a proxy \
                 adds TLS or the network is encrypted otherwise",
                self.address
            );
        }
        Ok(port)
    }

    /// Serves the locks of a store on the port, until the result is dropped, and adds figures of them to the registry.
    ///
    /// # Errors
    /// The store gives no session, or the system no thread.
    pub(super) async fn serve(
        &self,
        port: HttpPort,
        store: &Store,
        server: &Server,
        registry: Option<&Registry>,
    ) -> Result<HttpServer, Box<dyn Error>> {
        let client = store.connect().await?;
        let name = match (server.local_addr(), server.unix_path(), server.tls_addr()) {
            (Some(address), _, _) => format!("lockkeeper://{address}"),
            (None, Some(path), _) => format!("lockkeeper+unix://{}", path.display()),
            (None, None, Some(address)) => format!("lockkeeper://{address} (TLS)"),
            (None, None, None) => client.target().to_owned(),
        };
        let access = self.access.clone();
        serve_own(port, client, access, name, self.max_bytes, registry)
    }
}
