//! [`LockOptions`]: options of a call on a lock.

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

/// Options of a lock call, and metadata of the contender.
///
/// | option | wait | try |
/// |---|---|---|
/// | [`timeout`](Self::timeout) | fails if not granted in time | fails if not answered in time |
/// | [`queue_limit`](Self::queue_limit) | fails if too many are ahead | no effect |
/// | [`synced`](Self::synced) | no effect | the result "held" reflects a state after the start of the call |
/// | [`events`](Self::events) and all metadata | yes | yes |
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
    pub(crate) progress: Option<Progress>,
}

impl LockOptions {
    /// Creates the default options: no limits, and host, process and time as metadata.
    pub fn new() -> Self {
        Self::default()
    }

    /// Limits the duration of the whole call, including opening a session and joining the queue.
    ///
    /// With a timeout of zero, the call still acquires a free lock, however slow the store is. It fails as soon as it
    /// would have to wait for another contender or for a new connection.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Refuses to wait behind more than `ahead` other contenders, including the holder.
    pub fn queue_limit(mut self, ahead: usize) -> Self {
        self.queue_limit = Some(ahead);
        self
    }

    /// Makes a try read from a server that has caught up. The answer "held" then means that the lock was held at some
    /// time during the call. Without this option, a follower of an ensemble may answer with an old state.
    ///
    /// This option has no effect on waits.
    pub fn synced(mut self) -> Self {
        self.synced = true;
        self
    }

    /// Sends the events of this contender to a sink. See [`lock_events`](crate::lock_events).
    pub fn events(mut self, sink: EventSink) -> Self {
        self.events = Some(sink);
        self
    }

    /// Sets the name of the caller.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.metadata().label = Some(label.into());
        self
    }

    /// Sets the process id in the contender's metadata. Use it in a program that holds a lock for another process,
    /// because operators may signal the process with this id.
    pub fn pid(mut self, pid: u32) -> Self {
        self.metadata().pid = Some(pid);
        self
    }

    /// Sets the purpose of the lock.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.metadata().reason = Some(reason.into());
        self
    }

    /// Sets the expected duration of the hold, counted from the grant or the last
    /// [`keep_alive`](crate::Guard::keep_alive).
    pub fn expected_hold(mut self, duration: Duration) -> Self {
        self.metadata().expected_hold_ms = Some(millis(duration));
        self
    }

    /// Makes a [`Warden`](crate::Warden) report an alert when the lock has been held for `duration` since the grant or
    /// the last [`keep_alive`](crate::Guard::keep_alive).
    pub fn alert_after(mut self, duration: Duration) -> Self {
        self.metadata().alert_at_ms = Some(millis(duration));
        self
    }

    /// Lets a [`Warden`](crate::Warden) remove the holder when the lock has been held for `duration` since the grant or
    /// the last [`keep_alive`](crate::Guard::keep_alive). Only safe if the resource checks tokens (see
    /// [`FencingEnforced`](crate::FencingEnforced)).
    pub fn auto_unlock_after(mut self, duration: Duration) -> Self {
        self.metadata().auto_unlock_at_ms = Some(millis(duration));
        self
    }

    /// Adds the call stack of this call. Capturing it takes some milliseconds.
    pub fn backtrace(mut self) -> Self {
        self.metadata().backtrace = Some(Backtrace::force_capture().to_string());
        self
    }

    /// Adds a field to the metadata, for [`LockMetadata::other`]. If the name is one of Lockkeeper's own or the value
    /// is nested too deeply, the lock call fails with [`LockError::InvalidField`].
    pub fn field(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.metadata().other.insert(name.into(), value.into());
        self
    }

    fn metadata(&mut self) -> &mut LockMetadata {
        self.metadata
            .get_or_insert_with(|| Box::new(LockMetadata::of_this_process()))
    }

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

    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        match self.metadata.as_ref().and_then(|it| it.invalid_field()) {
            None => Ok(()),
            Some(name) => Err(LockError::InvalidField {
                name: name.to_owned(),
            }),
        }
    }

    /// Starts the deadline of a call. With a timeout, the call's waits record their progress for the timeout error.
    pub(crate) fn start(&mut self, client: &Client) -> CallDeadline {
        let timeout = self.timeout.map(|timeout| {
            let progress = self.progress.get_or_insert_default();
            (timeout, progress.clone())
        });
        CallDeadline::new(client, timeout)
    }

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

/// Rounds up, so that a declared duration is never shortened.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
