//! [`Mortal`]: a client that can be cut off from its store, as if its program had died.
//!
//! The store sees the same in both cases. The client falls silent without a closeSession, and the session lasts until
//! its timeout. In the embedded store, requests after the cut are swallowed. A server is reached through a [`Proxy`],
//! which the cut closes.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lockkeeper::{Client, ConnectOptions, Error};
use lockkeeper_store::{Backend, Request, Response};

use crate::{Intercept, Proxy, connect_to, free_address, intercepted};

pub struct Mortal {
    client: Client,
    cut: Cut,
}

enum Cut {
    Swallow(Arc<AtomicBool>),
    Proxy(Proxy),
}

impl Mortal {
    /// Opens another client of `first`'s store.
    pub async fn open(first: &Client, options: ConnectOptions) -> Result<Self, Error> {
        let url = first.target();
        let Some((scheme, target)) = url.split_once("://") else {
            let cut = Arc::<AtomicBool>::default();
            let swallow = cut.clone();
            let connector = first.connector().clone();
            let connector = intercepted(connector, move || Swallow(swallow.clone()));
            return Ok(Self {
                client: Client::open(connector, url.to_owned(), options).await?,
                cut: Cut::Swallow(cut),
            });
        };
        let (hosts, rest) = target.split_at(target.find(['/', '?']).unwrap_or(target.len()));
        let (proxy, rest) = match scheme {
            "lockkeeper+unix" => {
                let (socket, rest) = target.split_at(target.find('?').unwrap_or(target.len()));
                let near = format!("{socket}-{}", crate::unique("near"));
                (Proxy::between_sockets(near.into(), socket.into()), rest)
            }
            "etcd" => {
                let server = answering(hosts)?;
                let proxy = Proxy::of_bytes(free_address(), server);
                (proxy.expect("the free address is free"), rest)
            }
            _ => (Proxy::to(answering(hosts)?), rest),
        };
        let url = format!("{scheme}://{}{rest}", proxy.hosts());
        Ok(Self {
            client: connect_to(&url, options).await?,
            cut: Cut::Proxy(proxy),
        })
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Cuts the client off. Nothing that it sends reaches the store any more.
    pub fn cut(&self) {
        match &self.cut {
            Cut::Proxy(proxy) => proxy.cut(),
            Cut::Swallow(cut) => {
                cut.store(true, Ordering::Release);
                // Dropping it would close the session, which a dead program cannot do.
                std::mem::forget(self.client.current_session().backend().clone());
            }
        }
    }
}

fn answering(hosts: &str) -> Result<SocketAddr, Error> {
    let answers = |host: &&str| TcpStream::connect(host).is_ok();
    let host = hosts.split(',').find(answers).unwrap_or(hosts);
    let address = host.parse();
    address.map_err(|error| Error::Protocol(format!("no way to {host}: {error}")))
}

struct Swallow(Arc<AtomicBool>);

impl Intercept for Swallow {
    fn submit(&self, inner: &Arc<dyn Backend>, request: Request) -> Response {
        match self.0.load(Ordering::Acquire) {
            true => Response::pending(std::future::pending()),
            false => inner.submit(request),
        }
    }
}
