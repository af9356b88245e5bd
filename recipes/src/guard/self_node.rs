//! Writes of a holder to its own znode.
//!
//! Other clients write their revocation requests into the same znode. So the holder makes each write conditional on the
//! version that it read last, and never overwrites an unread request.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use lockkeeper_store::Error;
use tokio::sync::Mutex;

use super::Guard;
use crate::error::{LockError, LostReason, Result};
use crate::metadata::{EntryData, LockMetadata};
use crate::retry::retry;
use crate::revocation::{Listener, RevocationInbox};

#[derive(Default)]
pub(super) struct SelfNode {
    hearing: Arc<RevocationInbox>,
    /// Version of the znode's data. It starts at 0, which is correct until another client writes.
    version: AtomicI32,
    /// Serializes the writes, because each one is conditional on the version that the previous one returned.
    turn: Mutex<()>,
}

impl SelfNode {
    /// Resets the version for a new znode. Keeps the inbox, so that no revocation request is delivered twice.
    pub(super) fn renewed(self) -> Self {
        Self {
            hearing: self.hearing,
            ..Self::default()
        }
    }
}

impl Guard {
    /// Reports that the holder is still working. The expected hold, alert and unlock durations start again.
    ///
    /// A revocation request in the znode is kept and delivered. If the call is dropped, the write may or may not have
    /// happened. You can repeat the call.
    ///
    /// # Errors
    /// [`LockError::Lost`] if the lock is lost, and store errors.
    pub async fn keep_alive(&self) -> Result<()> {
        self.rewrite(|metadata| {
            metadata.kept_alive = Some(metadata.kept_alive.unwrap_or(0) + 1);
        })
        .await
    }

    /// Changes the holder's metadata. A retry writes the current metadata, so the later of two concurrent changes wins.
    pub(crate) async fn rewrite(&self, change: impl FnOnce(&mut LockMetadata)) -> Result<()> {
        let (before, after) = {
            let mut data = self.0.data.lock();
            let before = data.to_bytes();
            let mut metadata = LockMetadata::parse(&before).unwrap_or_default();
            change(&mut metadata);
            let after = metadata.to_bytes();
            *data = EntryData::Written(after.clone());
            (before, after)
        };
        let written = self.write_data().await;
        if written.is_err() {
            // Undo the change, unless another change is based on it.
            let mut data = self.0.data.lock();
            if data.to_bytes() == after {
                *data = EntryData::Written(before);
            }
        }
        written
    }

    async fn write_data(&self) -> Result<()> {
        let own = self.own();
        let _turn = own.turn.lock().await;
        loop {
            if let Some(reason) = self.reason() {
                return Err(reason.into());
            }
            // Read the data in each round, because `read_own` or a concurrent call may have changed them.
            let data = self.0.data.lock().to_bytes();
            let version = own.version.load(Ordering::Relaxed);
            let writing =
                self.0
                    .session
                    .set_data(self.0.held.node.path(), data.clone(), Some(version));
            let ambiguous = match writing.await {
                Ok(stat) => {
                    own.version.store(stat.version, Ordering::Relaxed);
                    break;
                }
                // Our version is old, because another client has written, or an earlier call was dropped before its
                // reply arrived.
                Err(Error::BadVersion { .. }) => None,
                Err(error) if error.is_ambiguous() => Some(error),
                Err(error) => return Err(self.end_of(error)),
            };
            let there = self.read_own(own).await?;
            let is_written = there.is_some_and(|there| says(&there, &data));
            match ambiguous {
                Some(_) if is_written => break,
                // The server answered with an error code that we cannot decode. A retry would return the same code.
                Some(error) if error != Error::ConnectionLoss => return Err(self.end_of(error)),
                _ => {}
            }
        }
        // While the write waited for a connection, the lease may have lapsed.
        self.reason().map_or(Ok(()), |reason| Err(reason.into()))
    }

    /// Reads our znode, delivers a revocation request, and merges other clients' writes into our metadata.
    async fn read_own(&self, own: &SelfNode) -> Result<Option<LockMetadata>> {
        let reading = retry(|| self.0.session.get_data(self.0.held.node.path())).await;
        let (there, stat) = reading.map_err(|error| self.end_of(error))?;
        own.version.store(stat.version, Ordering::Relaxed);
        self.listener().hear(&there, &stat);
        let there = LockMetadata::parse(&there);
        let mut data = self.0.data.lock();
        let mut metadata = LockMetadata::parse(&data.to_bytes()).unwrap_or_default();
        match &there {
            Some(there) => {
                metadata.revocation.clone_from(&there.revocation);
                for (name, value) in &there.other {
                    let mine = metadata.other.entry(name.clone());
                    mine.or_insert_with(|| value.clone());
                }
            }
            // A request by Curator has overwritten all data. We write our own metadata again, with this request in it.
            None => metadata.revocation = own.hearing.last(),
        }
        *data = EntryData::Written(metadata.to_bytes());
        Ok(there)
    }

    fn end_of(&self, error: Error) -> LockError {
        match (self.reason(), error) {
            (Some(reason), _) => reason.into(),
            (None, Error::NoNode { .. }) => self.note(LostReason::Revoked).into(),
            (None, error) => self.note_end(error),
        }
    }

    fn own(&self) -> &SelfNode {
        self.0.own.get_or_init(Box::default)
    }

    pub(super) fn listener(&self) -> Listener {
        Listener {
            hearing: self.own().hearing.clone(),
            reporter: self.0.reporter.clone(),
        }
    }
}

fn says(there: &LockMetadata, sent: &[u8]) -> bool {
    let plain = |metadata: &LockMetadata| LockMetadata {
        revocation: None,
        ..metadata.clone()
    };
    LockMetadata::parse(sent).is_some_and(|sent| plain(&sent) == plain(there))
}
