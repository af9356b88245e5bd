//! [`MemberProtocol`]: the protocol of one connection of a simulated ZooKeeper server, without Lockkeeper's own
//! operations.

use std::collections::VecDeque;
use std::sync::Arc;

use super::access::Access;
use super::auth::Admission;
use super::protocol::{Agreed, ProtocolState, ProtocolViolation};
use super::request_counters::RequestCounters;
use super::turn::TurnLength;
use super::{Limits, ServerOptions};
use crate::engine::{Message, SessionRequest};
use crate::runtime::clock::BootInstant;
use crate::wire::Frames;

pub(crate) const MAX_FRAME_BYTES: usize = 1 << 20;

pub(crate) struct MemberProtocol(ProtocolState);

impl MemberProtocol {
    /// Starts the protocol after a handshake. `frames` contains the bytes that the client has sent since.
    pub(crate) fn new(frames: Frames) -> Self {
        let options = ServerOptions::new();
        let limits: Limits = options.limits;
        let policy = Access::new(&options, None).policy();
        let agreed = Agreed {
            is_extended: false,
            frames,
        };
        let counters = Arc::<RequestCounters>::default();
        Self(ProtocolState::new(
            limits,
            Admission::new(policy),
            agreed,
            counters,
        ))
    }

    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        self.0.receive(bytes);
    }

    /// Returns the requests that have arrived, or `None` if the bytes are invalid.
    pub(crate) fn requests(&mut self, now: BootInstant) -> Option<VecDeque<SessionRequest>> {
        let mut asked = VecDeque::new();
        loop {
            let parsed = self
                .0
                .parse_requests(now, &mut TurnLength::default().start(0));
            asked.append(self.0.asks());
            match parsed {
                Err(ProtocolViolation::Length | ProtocolViolation::Frame) => return None,
                Ok(()) if !self.0.has_more() => return Some(asked),
                Ok(()) => {}
            }
        }
    }

    pub(crate) fn encode(&mut self, message: Message, now: BootInstant) {
        self.0.encode(message, now);
    }

    pub(crate) fn outgoing(&self) -> &[u8] {
        self.0.outgoing()
    }

    pub(crate) fn advance(&mut self, bytes: usize) {
        self.0.advance(bytes);
    }

    pub(crate) fn is_done(&self) -> bool {
        self.0.is_done()
    }
}
