//! Writes of a holder into its own znode, beside those of others.
//!
//! Each write is at the version that was read last, so that no request is overwritten unread.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use lockkeeper_store::Error;
use tokio::sync::Mutex;

use super::Guard;
use crate::error::{LockError, LostReason, Result};
use crate::metadata::{EntryData, LockMetadata};
use crate::retry::retry;
use crate::revocation::{Listener, RevocationInbox};

/// State of the holder's own znode, as far as it is known.
#[derive(Default)]
pub(super) struct SelfNode {
    hearing: Arc<RevocationInbox>,
    /// Its version, as far as is known.
    version: AtomicI32,
    /// One write at a time: the next builds on the version of the last.
    turn: Mutex<()>,
}

impl SelfNode {
    /// Of the same holder's new znode: what was heard before is no news there.
    pub(super) fn renewed(self) -> Self {
        Self {
            hearing: self.hearing,
            ..Self::default()
        }
    }
}

impl Guard {
    /// Says that the holder is still at work: what it said of how long it holds counts anew from now.
    ///
    /// A request for revocation that stands in the znode stays there, and is heard. When the future
    /// is dropped, it may have been said or not; either way it can be said again.
    ///
    /// # Errors
    /// [`LockError::Lost`] when the lock is lost, and those of the store.
    pub async fn keep_alive(&self) -> Result<()> {
        self.rewrite(|metadata| {
            metadata.kept_alive = Some(metadata.kept_alive.unwrap_or(0) + 1);
        })
        .await
    }

    /// Changes what the holder says of itself. A lost answer is asked for again, with what is to be
    /// said by then, so that of two changes under way the later one stays.
    pub(crate) async fn rewrite(&self, change: impl FnOnce(&mut LockMetadata)) -> Result<()> {
        let (before, after) = {
            let mut data = self.data.lock();
            let before = data.to_bytes();
            let mut metadata = LockMetadata::parse(&before).unwrap_or_default();
            change(&mut metadata);
            let after = metadata.to_bytes();
            *data = EntryData::Written(after.clone());
            (before, after)
        };
        let written = self.write_data().await;
        if written.is_err() {
            let mut data = self.data.lock();
            if data.to_bytes() == after {
                *data = EntryData::Written(before);
            }
        }
        written
    }

    /// Writes at the version that is known, so that nothing that others wrote is lost; reads when it
    /// is another.
    async fn write_data(&self) -> Result<()> {
        let own = self.own();
        let _turn = own.turn.lock().await;
        loop {
            if let Some(reason) = self.reason() {
                return Err(reason.into());
            }
            let data = self.data.lock().to_bytes();
            let version = own.version.load(Ordering::Relaxed);
            let writing = self
                .session
                .set_data(&self.held.path, data.clone(), Some(version));
            let ambiguous = match writing.await {
                Ok(stat) => {
                    own.version.store(stat.version, Ordering::Relaxed);
                    break;
                }
                // Somebody else has written, or a call before this was dropped.
                Err(Error::BadVersion { .. }) => None,
                Err(error) if error.is_ambiguous() => Some(error),
                Err(error) => return Err(self.end_of(error)),
            };
            let there = self.read_own(own).await?;
            let is_written = there.is_some_and(|there| says(&there, &data));
            match ambiguous {
                Some(_) if is_written => break,
                // A refusal that cannot be read would come again.
                Some(error) if error != Error::ConnectionLoss => return Err(self.end_of(error)),
                _ => {}
            }
        }
        // It may have waited for a connection for longer than the lock can be believed to be held.
        self.reason().map_or(Ok(()), |reason| Err(reason.into()))
    }

    /// Reads the holder's own znode, hears what is asked there, and takes over what others wrote.
    async fn read_own(&self, own: &SelfNode) -> Result<Option<LockMetadata>> {
        let reading = retry(|| self.session.get_data(&self.held.path)).await;
        let (there, stat) = reading.map_err(|error| self.end_of(error))?;
        own.version.store(stat.version, Ordering::Relaxed);
        self.listener().hear(&there, &stat);
        let there = LockMetadata::parse(&there);
        let mut data = self.data.lock();
        let mut metadata = LockMetadata::parse(&data.to_bytes()).unwrap_or_default();
        match &there {
            Some(there) => {
                metadata.revocation.clone_from(&there.revocation);
                for (name, value) in &there.other {
                    let mine = metadata.other.entry(name.clone());
                    mine.or_insert_with(|| value.clone());
                }
            }
            // Curator's request is written over all that stood there.
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
        self.own.get_or_init(Box::default)
    }

    pub(super) fn listener(&self) -> Listener {
        Listener {
            hearing: self.own().hearing.clone(),
            events: self.events.clone(),
        }
    }
}

/// Returns true if the data that were sent stand there, whatever has been requested since.
fn says(there: &LockMetadata, sent: &[u8]) -> bool {
    let plain = |metadata: &LockMetadata| LockMetadata {
        revocation: None,
        ..metadata.clone()
    };
    LockMetadata::parse(sent).is_some_and(|sent| plain(&sent) == plain(there))
}
