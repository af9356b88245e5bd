//! [`Tls`] in a build without the feature `tls`: it cannot be created, with an error that names the feature.

use std::net::TcpStream;
use std::time::Duration;

use zookeeper_client as zk;

use super::Refusal;
use crate::error::{Error, Result, TargetError};
use crate::tls::ClientTls;

#[derive(Clone, Debug)]
pub(super) enum Tls {}

impl Tls {
    pub(super) fn new(_: &ClientTls, _hosts: &str, url: &str) -> Result<Self> {
        Err(Error::Target(TargetError::FeatureMissing {
            url: url.to_owned(),
            feature: "tls",
        }))
    }

    pub(super) async fn connect(
        self,
        _: zk::Connector,
        _hosts: &str,
    ) -> Result<zk::Client, zk::Error> {
        match self {}
    }

    pub(super) fn over(&self, _: TcpStream, _host: &str) -> std::io::Result<TcpStream> {
        match *self {}
    }

    pub(super) fn refusal(&self, _: TcpStream, _host: &str, _: Duration) -> Option<Refusal> {
        match *self {}
    }
}
