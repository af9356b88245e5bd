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

/// For the server to answer on a connection of ours.
const PATIENCE: Duration = Duration::from_secs(5);

/// Ends the session, and waits until its client knows.
///
/// The session's own client reconnects at once, and would take the session back from who connects
/// with its password. So the closing blocks the thread that this client lives on.
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

/// The frame that connects with a session's id and password. The crate keeps the password to
/// itself, so it is made to send it to a listener of ours.
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
    server.set_read_timeout(Some(PATIENCE))?;
    match tls {
        None => send(server, handshake),
        Some(tls) => send(tls.over(server, host)?, handshake),
    }
}

fn send(mut server: impl Read + Write, connect: &[u8]) -> io::Result<()> {
    server.write_all(&[connect, &handshake::close_session()].concat())?;
    // The server breaks the connection when it has closed the session, or knows no such session.
    match server.read_to_end(&mut Vec::new()) {
        Err(error) if !is_broken(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Over TLS a server that goes without a word breaks the connection, too.
fn is_broken(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionReset, UnexpectedEof};
    matches!(error.kind(), ConnectionReset | UnexpectedEof)
}

fn failed(error: io::Error) -> Error {
    Error::Protocol(format!("to end a session: {error}"))
}
