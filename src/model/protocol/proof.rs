//! [`Proof`]: a request whose answer may prove that its session is alive (invariant 6).

use std::sync::Arc;

use super::Reply;
use crate::model::error::Result;
use crate::runtime::clock::BootInstant;

#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingProof {
    pub(crate) at: BootInstant,
    /// The connection's number in the session's status.
    pub(crate) connection: u64,
}

/// Rule that decides which answers prove that a session was alive.
pub(crate) trait ProofPolicy: Send + Sync {
    /// Renews the session's lease if the reply proves that the session was alive.
    fn judge(&self, sent: PendingProof, is_write: bool, reply: &Result<Reply>);
}

pub(crate) struct Proof {
    pub(crate) status: Arc<dyn ProofPolicy>,
    pub(crate) sent: PendingProof,
    pub(crate) is_write: bool,
}

impl Proof {
    pub(super) fn judge(&self, reply: &Result<Reply>) {
        self.status.judge(self.sent, self.is_write, reply);
    }
}
