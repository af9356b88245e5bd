//! A server whose connections arrive from a simulated network.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::sync::mpsc::UnboundedReceiver;

use super::admin::ListenAddresses;
use super::connection::serve;
use super::listener::enter;
use super::{Server, ServerError, ServerOptions, Shared, shared_state};
use crate::engine::Store;
use crate::runtime::simnet::SimSocket;

impl Server {
    pub(crate) fn simulated(
        store: &Store,
        options: ServerOptions,
        accepting: UnboundedReceiver<SimSocket>,
    ) -> Result<Self, ServerError> {
        let addresses = ListenAddresses {
            plain: None,
            tls: None,
        };
        let shared = Arc::new(shared_state(store, options, addresses)?);
        let accepting = tokio::spawn(accept(accepting, shared.clone()));
        Ok(Self {
            plain: None,
            shared,
            tasks: vec![accepting],
            unix: None,
            #[cfg(feature = "tls")]
            tls: None,
        })
    }
}

async fn accept(mut accepting: UnboundedReceiver<SimSocket>, shared: Arc<Shared>) {
    while let Some(socket) = accepting.recv().await {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        if let Some((guard, deadline)) = enter(address.into(), &shared) {
            tokio::spawn(serve(socket, guard, shared.clone(), deadline, None));
        }
    }
}
