//! [`Reporter`]: what a contender tells of itself: its [events](crate::lock_events), and its spans and events of `tracing`.

use lockkeeper_store::{Deadline, Session, ZnodePath};
use tracing::field::{Empty, display};
use tracing::{Level, Span, debug, debug_span};

use crate::events::{EventSink, LockEvent};
use crate::metadata::{EntryData, LockMetadata};
use crate::names::Kind;
use crate::queue::Queue;
use crate::token::FencingToken;

/// Target of the spans and events of a contender.
const TARGET: &str = "lockkeeper::lock";

/// Reports each [`LockEvent`] of one contender, in its wait or in its hold: to the caller's sink, and to `tracing` in a
/// span of the contender's. Costs nothing where neither is wanted. A clone is the same.
#[derive(Clone)]
pub(crate) struct Reporter {
    sink: Option<EventSink>,
    /// Disabled unless a subscriber wants it.
    span: Span,
}

impl Reporter {
    /// Begins the span of a wait.
    #[inline]
    pub(crate) fn of_wait(queue: Queue<'_>, data: &EntryData, sink: Option<EventSink>) -> Self {
        let span = match is_traced() {
            true => wait_span(queue, data),
            false => Span::none(),
        };
        Self { sink, span }
    }

    /// Begins the span of a hold.
    #[inline]
    pub(crate) fn of_hold(
        session: &Session,
        entry: &ZnodePath,
        kind: Kind,
        token: FencingToken,
        data: &EntryData,
        sink: Option<EventSink>,
    ) -> Self {
        let span = match is_traced() {
            true => hold_span(session, entry, kind, token, data),
            false => Span::none(),
        };
        Self { sink, span }
    }

    /// Reports an event.
    #[inline]
    pub(crate) fn report(&self, event: LockEvent) {
        if !self.span.is_none() {
            self.trace(&event);
        }
        if let Some(sink) = &self.sink {
            sink.put(event);
        }
    }

    /// Returns true if anybody wants the events: then what is in them may cost a request.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        self.sink.is_some() || !self.span.is_none()
    }

    /// Returns the caller's sink.
    pub(crate) fn sink(&self) -> Option<&EventSink> {
        self.sink.as_ref()
    }

    /// Ends the wait or the hold: nothing more is reported.
    pub(crate) fn end(&mut self) {
        self.sink = None;
        self.span = Span::none();
    }

    #[cold]
    fn trace(&self, event: &LockEvent) {
        let parent = &self.span;
        match event {
            LockEvent::Queued { position, ahead } => {
                parent.record("position", position);
                debug!(target: TARGET, parent: parent, position, %ahead, "queued");
            }
            LockEvent::Advanced { position } => {
                parent.record("position", position);
                debug!(target: TARGET, parent: parent, position, "advanced");
            }
            LockEvent::Acquired {
                fencing_token: token,
                waited,
                previous,
            } => {
                parent.record("token", display(token));
                debug!(target: TARGET, parent: parent, %token, ?waited, %previous, "acquired");
            }
            LockEvent::Upgraded {
                fencing_token: token,
            } => {
                parent.record("token", display(token));
                parent.record("kind", Kind::Write.role());
                debug!(target: TARGET, parent: parent, %token, "upgraded");
            }
            LockEvent::Downgraded => {
                parent.record("kind", Kind::Read.role());
                debug!(target: TARGET, parent: parent, "downgraded");
            }
            LockEvent::Suspended { held_until } => {
                let held_for = held_until.as_ref().map(Deadline::remaining);
                debug!(target: TARGET, parent: parent, ?held_for, "suspended");
            }
            LockEvent::Resumed => debug!(target: TARGET, parent: parent, "resumed"),
            LockEvent::RevocationRequested { by } => {
                debug!(target: TARGET, parent: parent, by, "revocation requested");
            }
            // Logged as a warning, whether or not there is a span.
            LockEvent::Lost { .. } => {}
            LockEvent::Released => debug!(target: TARGET, parent: parent, "released"),
            LockEvent::Abandoned => debug!(target: TARGET, parent: parent, "abandoned"),
            // Of a stream alone, for its reader.
            LockEvent::Missed { .. } => {}
        }
    }
}

/// Returns true if a subscriber wants the spans of contenders.
#[inline]
pub(crate) fn is_traced() -> bool {
    tracing::enabled!(target: TARGET, Level::DEBUG)
}

#[cold]
fn wait_span(queue: Queue<'_>, data: &EntryData) -> Span {
    debug_span!(
        target: TARGET,
        "wait",
        path = lock_of(Some(queue.path.clone()), queue.kind).map(display),
        kind = queue.kind.role(),
        label = label(data),
        session = %queue.session.id(),
        position = Empty,
        token = Empty,
    )
}

#[cold]
fn hold_span(
    session: &Session,
    entry: &ZnodePath,
    kind: Kind,
    token: FencingToken,
    data: &EntryData,
) -> Span {
    debug_span!(
        target: TARGET,
        "hold",
        path = lock_of(entry.parent(), kind).map(display),
        kind = kind.role(),
        label = label(data),
        session = %session.id(),
        entry = entry.name(),
        %token,
    )
}

/// Returns the lock to which a queue belongs: a semaphore has its queues below its own znode.
fn lock_of(queue: Option<ZnodePath>, kind: Kind) -> Option<ZnodePath> {
    match kind {
        Kind::Acquirer | Kind::Lease => queue?.parent(),
        _ => queue,
    }
}

/// Returns the name that a contender gives itself.
pub(crate) fn label(data: &EntryData) -> Option<String> {
    match data {
        EntryData::Default { .. } => None,
        EntryData::Written(data) => LockMetadata::parse(data).and_then(|metadata| metadata.label),
    }
}
