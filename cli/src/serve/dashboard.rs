//! The dashboard of a server: `--dashboard`.
//!
//! The dashboard is an unauthenticated client in the server's process, so it can show and revoke only locks that any
//! client may see and revoke.

use std::net::SocketAddr;

use lockkeeper_store::{Client, Server};
use tracing::{info, warn};

use super::flags::Flags;
use crate::dashboard::{Access, OwnLocks};
use crate::http::token::Token;
use crate::http::{Background, HttpPort};

#[derive(Clone, Debug)]
pub(crate) struct DashboardPlan {
    pub(crate) address: SocketAddr,
    access: Access,
}

impl DashboardPlan {
    pub(super) fn of(flags: &Flags) -> Result<Option<Self>, String> {
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
            (false, true) => Some("--dashboard-allow-revoke lets users take locks away".to_owned()),
            (false, false) => None,
        };
        if let Some(reason) = needed_for.filter(|_| flags.dashboard_token_file.is_none()) {
            // Do not generate a token, because it would be in the server's output, which others can read.
            return Err(format!(
                "{reason}: set --dashboard-token-file to a file with the token that users need"
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
        }))
    }

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

    pub(super) fn serve(
        &self,
        port: HttpPort,
        locks: OwnLocks,
        client: &Client,
        server: &Server,
    ) -> Result<Background, String> {
        let name = match (server.local_addr(), server.unix_path(), server.tls_addr()) {
            (Some(address), _, _) => format!("lockkeeper://{address}"),
            (None, Some(path), _) => format!("lockkeeper+unix://{}", path.display()),
            (None, None, Some(address)) => format!("lockkeeper://{address} (TLS)"),
            (None, None, None) => client.target().to_owned(),
        };
        locks.serve(port, self.access.clone(), name)
    }
}
