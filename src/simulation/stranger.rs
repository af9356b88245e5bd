//! A client that knows another client's session id but not its password.

use std::io::{self, ErrorKind};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::model::types::SessionId;
use crate::runtime::simnet::Network;
use crate::wire::{ConnectRequest, ConnectResponse, Jute, PASSWORD_BYTES, Reader, put_frame};

const MAX_ANSWER_BYTES: usize = 1_024;

/// Tries to take over a session with a wrong password. Returns true if the server accepts it.
///
/// # Errors
/// Connection errors, for example if the server closes the connection without an answer.
pub async fn intrude(
    network: &Network,
    (client, server): (&str, &str),
    session: SessionId,
) -> io::Result<bool> {
    let mut socket = network.connect(client, server).await?;
    let handshake = ConnectRequest {
        protocol_version: 0,
        last_zxid_seen: 0,
        timeout_ms: 10_000,
        session: session.0,
        password: &[0x5a; PASSWORD_BYTES],
        read_only: Some(false),
    };
    let mut request = Vec::new();
    put_frame(&mut request, |to| handshake.put(to));
    socket.write_all(&request).await?;
    let length = socket.read_u32().await? as usize;
    if length > MAX_ANSWER_BYTES {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut answer = vec![0; length];
    socket.read_exact(&mut answer).await?;
    let response = Reader::new(&answer).next::<ConnectResponse<'_>>();
    let response = response.map_err(|_| io::Error::from(ErrorKind::InvalidData))?;
    Ok(response.session != 0)
}
