//! Ends a session as its server would, for tests: connects with its id and password, and closes it.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use zookeeper_client as zk;

use super::io::{blocking, spawn};
use super::tls::Tls;
use super::{Opened, handshake, session};
use crate::backend::SessionStatus;
use crate::error::{Error, Result};

/// Time limit for the server to answer on this connection.
const MAX_RESPONSE_TIME: Duration = Duration::from_secs(5);

/// Ends the session, and waits until its client knows of it.
///
/// The session's client would reconnect at once, and take the session back from this connection. So the closing
/// blocks the thread that the client runs on.
pub(super) async fn expire(hosts: String, opened: Opened, status: &SessionStatus) -> Result<()> {
    let handshake = captured_handshake(opened.info).await?;
    let tls = opened.tls;
    let closed = spawn(Box::pin(
        async move { close(&hosts, tls.as_ref(), &handshake) },
    ));
    closed.await?.map_err(failed)?;
    session::final_state(status).await;
    Ok(())
}

/// Returns the frame that connects with a session's id and password. The crate does not give out the password, so it
/// is made to send the frame to a local listener.
async fn captured_handshake(info: zk::SessionInfo) -> Result<Vec<u8>> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?.to_string();
    let connector = zk::Client::connector()
        .with_session(info)
        .with_fail_eagerly();
    drop(spawn(Box::pin(
        async move { connector.connect(&address).await },
    )));
    let frame = blocking(move || handshake::read_frame(&mut listener.accept()?.0)).await?;
    frame.map_err(failed)
}

/// Connects to the session, and closes it.
fn close(hosts: &str, tls: Option<&Tls>, handshake: &[u8]) -> io::Result<()> {
    let connected = hosts
        .split(',')
        .find_map(|host| Some((host, TcpStream::connect(host).ok()?)));
    let (host, server) = connected.ok_or(io::ErrorKind::NotConnected)?;
    server.set_read_timeout(Some(MAX_RESPONSE_TIME))?;
    match tls {
        None => send(server, handshake),
        Some(tls) => send(tls.over(server, host)?, handshake),
    }
}

fn send(mut server: impl Read + Write, connect: &[u8]) -> io::Result<()> {
    server.write_all(&[connect, &handshake::close_session()].concat())?;
    // The server closes the connection once it has closed the session, or if the session does not exist.
    match server.read_to_end(&mut Vec::new()) {
        Err(error) if !is_broken(&error) => Err(error),
        _ => Ok(()),
    }
}

/// A TLS connection that is closed without a farewell counts as broken, too.
fn is_broken(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionReset, UnexpectedEof};
    matches!(error.kind(), ConnectionReset | UnexpectedEof)
}

fn failed(error: io::Error) -> Error {
    Error::Protocol(format!("to end a session: {error}"))
}
