//! Connects a simulated client to its servers over a [`Network`].

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::Interest;

use super::{Network, Servers};
use crate::client::served::socket::{Dial, Dialer, Endpoint, RegisteredSocket, Socket};
use crate::runtime::future::BoxFuture;
use crate::runtime::simnet::SimSocket;

pub(super) fn endpoint(network: &Network, client: &str, servers: &Servers) -> Endpoint {
    Endpoint {
        names: servers.hosts.clone(),
        dialer: Arc::new(SimDialer {
            network: network.clone(),
            client: client.to_owned(),
            servers: servers.hosts.clone(),
        }),
        requires_tls: false,
        is_plain: servers.is_plain,
        ends_with_process: false,
        is_network: true,
        longest_pause: Duration::from_secs(1),
    }
}

#[derive(Debug)]
struct SimDialer {
    network: Network,
    client: String,
    servers: Vec<String>,
}

impl Dialer for SimDialer {
    fn connect(&self, to: Dial) -> BoxFuture<io::Result<Arc<dyn Socket>>> {
        let (network, client) = (self.network.clone(), self.client.clone());
        let server = self.servers[to.server].clone();
        Box::pin(async move {
            let socket = network.connect(&client, &server).await?;
            Ok(Arc::new(socket) as Arc<dyn Socket>)
        })
    }

    fn seed(&self) -> u64 {
        self.network.draw()
    }

    fn is_simulated(&self) -> bool {
        true
    }
}

impl Socket for SimSocket {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read(buffer)
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.write(bytes)
    }

    fn shutdown(&self) -> io::Result<()> {
        self.shutdown();
        Ok(())
    }

    fn wait_writable(&self, _: Duration) -> bool {
        // Never blocks, because everything runs on this thread.
        false
    }

    fn register(&self) -> io::Result<Box<dyn RegisteredSocket>> {
        Ok(Box::new(self.clone()))
    }
}

impl RegisteredSocket for SimSocket {
    fn poll_ready(&self, interest: Interest, context: &mut Context<'_>) -> Poll<()> {
        let (for_reading, for_writing) = (interest.is_readable(), interest.is_writable());
        self.poll_ready(for_reading, for_writing, context)
    }

    fn try_io(&self, _: Interest, io: &mut dyn FnMut() -> io::Result<()>) -> io::Result<()> {
        io()
    }
}
