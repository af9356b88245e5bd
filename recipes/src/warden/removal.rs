//! [`Removal`]: the delete of an overdue holder.

use lockkeeper_store::{Error, Op, Session, ZnodePath};

use crate::observe::QueueEntry;

#[derive(Clone, Debug)]
pub(super) struct Removal {
    /// The warden's entry at the lock for which the wardens compete. Holders are only removed while this entry exists.
    pub(super) only_while: Option<ZnodePath>,
}

#[derive(Debug, PartialEq)]
pub(super) enum Removed {
    Done,
    Refused,
    /// The reply was lost.
    Unanswered,
    /// The warden's own entry is gone, so this warden must remove nothing more.
    Forbidden,
}

impl Removal {
    /// Deletes a holder at the version that was read, so that a sign of life makes the delete fail.
    pub(super) async fn remove(
        &self,
        session: &Session,
        holder: &QueueEntry,
    ) -> Result<Removed, Error> {
        let (path, version) = (holder.path.clone(), Some(holder.version));
        let deleted = match &self.only_while {
            None => session.delete(&path, version).await,
            // Check our own entry in the same transaction. A warden that was paused and has lost its lock must not
            // remove holders at the same time as its successor.
            Some(own) => {
                let check = Op::Check {
                    path: own.clone(),
                    version: None,
                };
                let delete = Op::Delete { path, version };
                match session.multi([check, delete]).await {
                    Ok(_) => Ok(()),
                    Err(Error::MultiFailed { index: 0, source })
                        if matches!(*source, Error::NoNode { .. }) =>
                    {
                        return Ok(Removed::Forbidden);
                    }
                    Err(Error::MultiFailed { source, .. }) => Err(*source),
                    Err(error) => Err(error),
                }
            }
        };
        match deleted {
            Ok(()) => {
                tracing::warn!(path = %holder.path, "an overdue lock was taken away");
                Ok(Removed::Done)
            }
            Err(Error::BadVersion { .. } | Error::NoNode { .. }) => Ok(Removed::Refused),
            Err(Error::ConnectionLoss) => Ok(Removed::Unanswered),
            Err(error) => Err(error),
        }
    }
}
