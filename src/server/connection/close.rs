//! [`CloseReason`]: the reasons why a connection ends, and their log lines.

use crate::engine::Ending;
use crate::model::types::SessionId;
use crate::server::Shared;
use crate::server::connection_table::{ConnectionGuard, Count};
use crate::server::handshake::HandshakeError;
use crate::server::peer::PeerAddress;
use crate::server::protocol::ProtocolViolation;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::server) enum CloseReason {
    #[error("the client has left")]
    Client,
    #[error("{0}")]
    ProtocolViolation(ProtocolViolation),
    /// The session has ended or moved to another connection, or its client does not read.
    #[error("{0}")]
    Session(Ending),
    #[error("the server shuts down")]
    Shutdown,
    #[error("the memory of its incomplete request is needed")]
    Unfinished,
    #[error("an operator has disconnected it")]
    Disconnected,
    #[error("an identity of the client was removed")]
    IdentityRemoved,
    /// The client has not proved an identity in time, or a newer connection has evicted this connection before the
    /// client did so.
    #[error("the client has proved no identity in time")]
    Unproven,
}

pub(super) fn log_handshake_error(error: HandshakeError, address: PeerAddress, shared: &Shared) {
    let now = shared.clock().now();
    match error {
        HandshakeError::Disconnected => {}
        HandshakeError::Http => {
            if let Some(suppressed) = shared.table.log_throttle.http.allow(now) {
                let hint = "this port speaks ZooKeeper's protocol; ask for the server's state with a four-letter word";
                tracing::info!(%address, suppressed, hint, "HTTP request refused");
            }
        }
        _ => {
            if let Some(suppressed) = shared.table.log_throttle.handshake_refused.allow(now) {
                tracing::info!(%address, reason = %error, suppressed, "handshake refused");
            }
        }
    }
}

pub(super) fn log_close(
    reason: CloseReason,
    guard: &ConnectionGuard,
    session: SessionId,
    shared: &Shared,
) {
    let (address, now) = (guard.address(), shared.clock().now());
    let throttle = &shared.table.log_throttle;
    match reason {
        CloseReason::Session(Ending::Overflow) => {
            if let Some(suppressed) = throttle.client_not_reading.allow(now) {
                let reason = "the client does not read its replies";
                tracing::warn!(%address, %session, reason, suppressed, "connection closed");
            }
        }
        CloseReason::ProtocolViolation(ProtocolViolation::Length) => {
            guard.table().count(Count::FrameTooLong);
            if let Some(suppressed) = throttle.frame_too_long.allow(now) {
                let reason = "a frame's length is negative or above the limit";
                tracing::warn!(%address, %session, reason, suppressed, "connection closed");
            }
        }
        CloseReason::Unfinished => {
            if let Some(suppressed) = throttle.unfinished_request.allow(now) {
                let reason = "the memory of its incomplete request is needed by others";
                tracing::warn!(%address, %session, reason, suppressed, "connection closed");
            }
        }
        CloseReason::Disconnected | CloseReason::IdentityRemoved => {
            tracing::info!(%address, %session, %reason, "connection closed");
        }
        reason => tracing::debug!(%address, %session, %reason, "connection closed"),
    }
}
