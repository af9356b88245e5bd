//! [`Grant`]: the outcome of a wait, of which a guard is made.

use lockkeeper_store::{Lease, ZnodePath};

use super::order::CurrentMarker;
use crate::token::FencingToken;

/// A znode that holds a lock.
#[derive(Clone)]
pub(crate) struct Grant {
    pub(crate) path: ZnodePath,
    pub(crate) token: FencingToken,
    /// The session's lease when the lock was granted.
    pub(crate) lease: Lease,
    /// The queue's release marker, where the holder has read one while it waited.
    pub(crate) marker: Option<CurrentMarker>,
}

impl Grant {
    /// A grant to a contender that has read no release marker.
    pub(crate) fn new(path: ZnodePath, token: FencingToken, lease: Lease) -> Self {
        Self {
            path,
            token,
            lease,
            marker: None,
        }
    }
}
