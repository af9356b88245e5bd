//! Ends a session as its server would, for tests: connects with its id and password, and closes it.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use zookeeper_client as zk;

use super::io::{blocking, spawn};
use super::tls::Tls;
use super::{Opened, session};
use crate::backend::SessionStatus;
use crate::error::{Error, Result};

/// For the server to answer on a connection of ours.
const PATIENCE: Duration = Duration::from_secs(5);

/// Ends the session, and waits until its client knows.
///
/// The session's own client reconnects at once, and would take the session back from who connects
/// with its password. So the closing blocks the thread that this client lives on.
pub(super) async fn expire(hosts: String, opened: Opened, status: &SessionStatus) -> Result<()> {
    let handshake = handshake(opened.info).await?;
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
async fn handshake(info: zk::SessionInfo) -> Result<Vec<u8>> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?.to_string();
    let connector = zk::Client::connector()
        .with_session(info)
        .with_fail_eagerly();
    drop(spawn(Box::pin(
        async move { connector.connect(&address).await },
    )));
    let frame = blocking(move || read_frame(&mut listener.accept()?.0)).await?;
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
        None => say(server, handshake),
        Some(tls) => say(tls.over(server, host)?, handshake),
    }
}

fn say(mut server: impl Read + Write, handshake: &[u8]) -> io::Result<()> {
    // Its length, a number, and ZooKeeper's closeSession.
    let close_session = [8i32, 1, -11].map(i32::to_be_bytes).concat();
    server.write_all(&[handshake, &close_session].concat())?;
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

/// A frame with its length.
fn read_frame(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    from.read_exact(&mut frame)?;
    let length = u32::from_be_bytes([frame[0], frame[1], frame[2], frame[3]]);
    from.take(length.into()).read_to_end(&mut frame)?;
    Ok(frame)
}

fn failed(error: io::Error) -> Error {
    Error::Protocol(format!("to end a session: {error}"))
}
