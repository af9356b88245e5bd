//! [`LockOptions`]: the terms of a call, and the metadata of its contender.

use std::backtrace::Backtrace;
use std::time::Duration;

use lockkeeper_store::Client;
use serde_json::Value;

use crate::deadline::{CallDeadline, Progress};
use crate::error::{LockError, Result};
use crate::events::EventSink;
use crate::metadata::{EntryData, LockMetadata};
use crate::queue::WaitOptions;
use crate::reporter::{is_always_reported, is_traced};

/// Terms of a call on a lock, and metadata of the contender: the same for every recipe.
///
/// | option | a wait | a try |
/// |---|---|---|
/// | [`timeout`](Self::timeout) | fails when not granted in time | fails when not answered in time |
/// | [`queue_limit`](Self::queue_limit) | fails when too many are ahead | no effect |
/// | [`synced`](Self::synced) | no effect | "held" is no staler than the call |
/// | [`events`](Self::events), and all metadata | yes | yes |
///
/// ```
/// use std::time::Duration;
/// use lockkeeper::LockOptions;
///
/// let options = LockOptions::new()
///     .label("billing")
///     .reason("monthly run")
///     .expected_hold(Duration::from_secs(30))
///     .timeout(Duration::from_secs(5))
///     .queue_limit(100);
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing by themselves"]
pub struct LockOptions {
    metadata: Option<Box<LockMetadata>>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) queue_limit: Option<usize>,
    pub(crate) synced: bool,
    pub(crate) events: Option<EventSink>,
    /// Set by a call with a deadline.
    pub(crate) progress: Option<Progress>,
}

impl LockOptions {
    /// Creates the default options: a wait without limit, and host, process and time as metadata.
    pub fn new() -> Self {
        Self::default()
    }

    /// Limits the call, everything included: opening a session, joining the queue, waiting.
    /// See [`LockError::Timeout`](crate::LockError::Timeout).
    ///
    /// A timeout of zero allows one attempt: a free lock is granted, on every store. The call fails as soon as it would have
    /// to wait for another contender or for a lost connection.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Refuses to wait behind more than `ahead` others, the holder included. See
    /// [`LockError::QueueFull`](crate::LockError::QueueFull).
    pub fn queue_limit(mut self, ahead: usize) -> Self {
        self.queue_limit = Some(ahead);
        self
    }

    /// Has a try look at a server that has first caught up with all that was committed before the call: its "held" is
    /// no staler than that. Without it, a follower of an ensemble may answer from some time ago. One server alone is
    /// always up to date.
    ///
    /// It has no effect on a wait, and none on "free", which the queue itself always confirms.
    pub fn synced(mut self) -> Self {
        self.synced = true;
        self
    }

    /// Sends the events of this contender to a sink. See [`lock_events`](crate::lock_events).
    pub fn events(mut self, sink: EventSink) -> Self {
        self.events = Some(sink);
        self
    }

    /// Names the caller.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.metadata().label = Some(label.into());
        self
    }

    /// Names another process as the contender, for people to see; by default it is this one. For a program that holds a
    /// lock in the name of another: that one is to be signalled.
    pub fn pid(mut self, pid: u32) -> Self {
        self.metadata().pid = Some(pid);
        self
    }

    /// States the purpose of the lock.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.metadata().reason = Some(reason.into());
        self
    }

    /// States the expected duration of the hold, from the grant or the last [`keep_alive`](crate::Guard::keep_alive)
    /// on.
    pub fn expected_hold(mut self, duration: Duration) -> Self {
        self.metadata().expected_hold_ms = Some(millis(duration));
        self
    }

    /// States the duration, from the grant or the last [`keep_alive`](crate::Guard::keep_alive) on, from which the hold
    /// is worth an alarm: a [`Warden`](crate::Warden) reports it.
    pub fn alert_after(mut self, duration: Duration) -> Self {
        self.metadata().alert_at_ms = Some(millis(duration));
        self
    }

    /// States the duration, from the grant or the last [`keep_alive`](crate::Guard::keep_alive) on, from which a
    /// [`Warden`](crate::Warden) may take the lock away. Only for locks with resources that check tokens, see [`FencingEnforced`](crate::FencingEnforced).
    pub fn auto_unlock_after(mut self, duration: Duration) -> Self {
        self.metadata().auto_unlock_at_ms = Some(millis(duration));
        self
    }

    /// Notes the call stack of this call, which takes some milliseconds.
    pub fn backtrace(mut self) -> Self {
        self.metadata().backtrace = Some(Backtrace::force_capture().to_string());
        self
    }

    /// Adds a field to the metadata, beside those that it has itself ([`LockMetadata`]): others read it in
    /// [`LockMetadata::other`]. A call fails with [`LockError::InvalidField`] if they could not.
    pub fn field(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.metadata().other.insert(name.into(), value.into());
        self
    }

    fn metadata(&mut self) -> &mut LockMetadata {
        self.metadata
            .get_or_insert_with(|| Box::new(LockMetadata::of_this_process()))
    }

    /// Renders the data of the entry's znode.
    pub(crate) fn data(&self, queued_at_ms: i64) -> EntryData {
        let Some(metadata) = &self.metadata else {
            return EntryData::Default { queued_at_ms };
        };
        let metadata = LockMetadata {
            queued_at_ms: Some(queued_at_ms),
            ..(**metadata).clone()
        };
        EntryData::Written(metadata.to_bytes())
    }

    /// Checks the options of a call.
    ///
    /// # Errors
    /// [`LockError::InvalidField`].
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        match self.metadata.as_ref().and_then(|it| it.invalid_field()) {
            None => Ok(()),
            Some(name) => Err(LockError::InvalidField {
                name: name.to_owned(),
            }),
        }
    }

    /// Starts the deadline of a call. Its waits note their progress from now on, for the error of a timeout.
    pub(crate) fn start(&mut self, client: &Client) -> CallDeadline {
        let timeout = self.timeout.map(|timeout| {
            let progress = self.progress.get_or_insert_default();
            (timeout, progress.clone())
        });
        CallDeadline::new(client, timeout)
    }

    /// Returns true if somebody wants to know of the contender's grant.
    #[inline]
    pub(crate) fn is_reported(&self) -> bool {
        self.events.is_some() || is_always_reported()
    }

    pub(crate) fn wait_options(&self, data: EntryData, only_if_free: bool) -> WaitOptions {
        WaitOptions {
            data,
            count: self.events.is_some()
                || self.queue_limit.is_some()
                || self.progress.is_some()
                || is_traced(),
            queue_limit: self.queue_limit,
            only_if_free,
            progress: self.progress.clone(),
        }
    }
}

/// Returns the duration in whole milliseconds, rounded up: a stated duration is never shortened.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
