//! [`Grant`]: the outcome of a wait, from which a guard is created.

use lockkeeper_store::{Lease, ZnodePath};

use super::order::CurrentMarker;
use crate::token::FencingToken;

/// A znode that holds a lock.
#[derive(Clone)]
pub(crate) struct Grant {
    pub(crate) path: ZnodePath,
    pub(crate) token: FencingToken,
    /// The session's lease at the time of the grant. Once it has lapsed the guard is lost for good, even if the session
    /// recovers (invariant 6).
    pub(crate) lease: Lease,
    /// The queue's release marker, to be moved on at the release. `None` unless the holder has waited behind a list and
    /// read it there.
    pub(crate) marker: Option<CurrentMarker>,
}

impl Grant {
    /// Creates the grant of a contender that has read no release marker.
    pub(crate) fn new(path: ZnodePath, token: FencingToken, lease: Lease) -> Self {
        Self {
            path,
            token,
            lease,
            marker: None,
        }
    }
}
