//! Decides which answers renew a session's lease (invariant 6).

use crate::backend::SessionStatus;
use crate::model::error::{Error, Result};
use crate::model::protocol::{PendingProof, ProofPolicy, Reply};

impl ProofPolicy for SessionStatus {
    fn judge(&self, sent: PendingProof, is_write: bool, reply: &Result<Reply>) {
        if proves(reply) {
            self.answered(sent, is_write && is_commit(reply));
        }
    }
}

/// Returns true if the store itself has answered. Even an error from the store shows that the session was alive.
pub(super) fn proves(reply: &Result<Reply>) -> bool {
    reply.as_ref().map_or_else(Error::is_answer, |_| true)
}

/// Returns true if the answer to a write shows that the ensemble has committed the write. A follower can refuse a
/// request without the leader, for a missing permission (ZooKeeper's `enableEagerACLCheck`) or an unknown operation.
/// Such a refusal proves nothing.
pub(super) fn is_commit(reply: &Result<Reply>) -> bool {
    use Error::{InvalidAcl, NoAuth, Unimplemented};
    !matches!(
        reply,
        Err(NoAuth { .. } | InvalidAcl { .. } | Unimplemented { .. })
    )
}
