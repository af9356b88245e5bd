//! [`Reporter`]: reports a contender's [events](crate::lock_events), `tracing` spans and metrics.

use lockkeeper_store::{HumanDuration, Session, ZnodePath};
use tracing::field::{Empty, display};
use tracing::{Level, Span, debug, debug_span};

use crate::events::{EventSink, LockEvent};
use crate::metadata::{EntryData, LockMetadata};
use crate::meter::{Meter, Outcome, is_counted};
use crate::names::Kind;
use crate::queue::{Grant, Queue};

const TARGET: &str = "lockkeeper::lock";

/// The reporter of one contender. `None` if nothing subscribes to its events, so that most contenders stay small.
#[derive(Clone)]
pub(crate) struct Reporter(Option<Box<EventSinks>>);

#[derive(Clone)]
struct EventSinks {
    sink: Option<EventSink>,
    span: Span,
    meter: Meter,
}

impl Reporter {
    #[inline]
    pub(crate) fn of_wait(queue: Queue<'_>, data: &EntryData, sink: Option<EventSink>) -> Self {
        if sink.is_none() && !is_always_reported() {
            return Self(None);
        }
        let span = wait_span(queue, data);
        let meter = Meter::of_wait(queue.kind, queue.session.clock());
        Self(Some(Box::new(EventSinks { sink, span, meter })))
    }

    #[inline]
    pub(crate) fn of_hold(
        session: &Session,
        held: &Grant,
        kind: Kind,
        data: &EntryData,
        sink: Option<EventSink>,
    ) -> Self {
        if sink.is_none() && !is_always_reported() {
            return Self(None);
        }
        let span = hold_span(session, held, kind, data);
        let meter = Meter::of_hold(kind, session.clock());
        Self(Some(Box::new(EventSinks { sink, span, meter })))
    }

    #[inline]
    pub(crate) fn report(&self, event: LockEvent) {
        if let Some(outlets) = &self.0 {
            outlets.report(event);
        }
    }

    #[inline]
    pub(crate) fn abandoned(&self, outcome: Outcome) {
        if let Some(outlets) = &self.0 {
            outlets.meter.gave_up(outcome);
            outlets.report(LockEvent::Abandoned);
        }
    }

    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn sink(&self) -> Option<&EventSink> {
        self.0.as_ref()?.sink.as_ref()
    }

    #[inline]
    pub(crate) fn end(&mut self) {
        self.0 = None;
    }
}

impl EventSinks {
    fn report(&self, event: LockEvent) {
        if !self.span.is_none() {
            self.trace(&event);
        }
        self.meter.see(&event);
        if let Some(sink) = &self.sink {
            sink.put(event);
        }
    }

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
                debug!(target: TARGET, parent: parent, %token, waited = %HumanDuration(*waited), %previous, "acquired");
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
                let held_for = held_until
                    .as_ref()
                    .map(|until| display(HumanDuration(until.remaining())));
                debug!(target: TARGET, parent: parent, held_for, "suspended");
            }
            LockEvent::Resumed => debug!(target: TARGET, parent: parent, "resumed"),
            LockEvent::RevocationRequested { by } => {
                debug!(target: TARGET, parent: parent, by, "revocation requested");
            }
            // The loss was already logged as a warning.
            LockEvent::Lost { .. } => {}
            LockEvent::Released => debug!(target: TARGET, parent: parent, "released"),
            LockEvent::Abandoned => debug!(target: TARGET, parent: parent, "abandoned"),
            LockEvent::Missed { .. } => {}
        }
    }
}

#[inline]
pub(crate) fn is_always_reported() -> bool {
    is_counted() || is_traced()
}

#[inline]
pub(crate) fn is_traced() -> bool {
    tracing::enabled!(target: TARGET, Level::DEBUG)
}

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

fn hold_span(session: &Session, held: &Grant, kind: Kind, data: &EntryData) -> Span {
    debug_span!(
        target: TARGET,
        "hold",
        path = lock_of(held.node.path().parent(), kind).map(display),
        kind = kind.role(),
        label = label(data),
        session = %session.id(),
        entry = held.node.path().name(),
        token = %held.token,
    )
}

/// Returns the lock of a queue. A semaphore's queues are children of its own znode.
fn lock_of(queue: Option<ZnodePath>, kind: Kind) -> Option<ZnodePath> {
    match kind {
        Kind::Acquirer | Kind::Lease => queue?.parent(),
        _ => queue,
    }
}

pub(crate) fn label(data: &EntryData) -> Option<String> {
    match data {
        EntryData::Default { .. } => None,
        EntryData::Written(data) => LockMetadata::parse(data).and_then(|metadata| metadata.label),
    }
}
