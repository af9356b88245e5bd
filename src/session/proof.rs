//! [`Proof`]: a request whose answer may prove that its session is alive (invariant 6).

use std::sync::Arc;

use crate::backend::{Sent, SessionStatus};
use crate::error::{Error, Result};
use crate::protocol::Reply;

/// A request under way, and the lease that its answer renews.
pub(crate) struct Proof {
    pub(super) status: Arc<SessionStatus>,
    pub(super) sent: Sent,
    pub(super) is_write: bool,
}

impl Proof {
    /// Renews the lease if the reply proves that the session was alive.
    pub(crate) fn judge(&self, reply: &Result<Reply>) {
        judge(&self.status, self.sent, self.is_write, reply);
    }
}

pub(super) fn judge(status: &SessionStatus, sent: Sent, is_write: bool, reply: &Result<Reply>) {
    if proves(reply) {
        status.answered(sent, is_write && is_commit(reply));
    }
}

/// Returns true if the store itself has answered, with success or an error: then the session was alive.
pub(super) fn proves(reply: &Result<Reply>) -> bool {
    reply.as_ref().map_or_else(Error::is_answer, |_| true)
}

/// Returns true if the answer to a write shows that the ensemble has committed it, as a refusal or not. A follower may
/// refuse by itself a request without the right to it (ZooKeeper's `enableEagerACLCheck`), and one that it does not
/// know: such answers prove nothing about the session.
pub(super) fn is_commit(reply: &Result<Reply>) -> bool {
    use Error::{InvalidAcl, NoAuth, Unimplemented};
    !matches!(
        reply,
        Err(NoAuth { .. } | InvalidAcl { .. } | Unimplemented { .. })
    )
}
