//! Stand-in for [`Tls`] without the feature `tls`. Its constructor fails with an error that names the feature.

use std::io;

use super::socket::Socket;
use crate::model::error::{Error, Result, TargetError};
use crate::tls::{ClientTls, TlsError};

#[derive(Clone, Debug)]
pub(super) enum Tls {}

impl Tls {
    pub(super) fn new(_: &ClientTls, _hosts: &[String], url: &str) -> Result<Self> {
        Err(Error::Target(TargetError::FeatureMissing {
            url: url.to_owned(),
            feature: "tls",
        }))
    }

    pub(super) fn start(&self, _server: usize) -> Result<TlsStream> {
        match *self {}
    }
}

#[derive(Debug)]
pub(super) enum TlsStream {}

impl TlsStream {
    pub(super) fn is_handshaking(&self) -> bool {
        match *self {}
    }

    pub(super) fn read(&mut self, _: &dyn Socket, _: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }

    pub(super) fn write(&mut self, _: &dyn Socket, _: &[u8]) -> io::Result<usize> {
        match *self {}
    }

    pub(super) fn flush(&mut self, _: &dyn Socket) -> io::Result<()> {
        match *self {}
    }
}

pub(super) fn refused(_host: &str, _: &io::Error) -> Option<TlsError> {
    None
}
