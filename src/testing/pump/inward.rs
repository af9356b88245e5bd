//! Messages to the client. The pump takes replies, events and states from the wrapped session, delays them and delivers
//! them.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use tokio::sync::mpsc;

use super::Pump;
use super::outward::InFlight;
use crate::model::error::{Error, Result};
use crate::model::protocol::{Predecessor, Reply};
use crate::model::types::SessionState;
use crate::model::watch::{PersistentWatcher, WatchedEvent, Watcher};
use crate::runtime::clock::BootInstant;
use crate::testing::Traffic;
use crate::testing::session_link::{ReplySender, SessionLink};

pub(super) struct Incoming {
    pub(super) due: BootInstant,
    pub(super) delivery: Delivery,
}

pub(super) enum Delivery {
    Reply {
        reply: Result<Reply>,
        answer: ReplySender,
        lost: bool,
    },
    Event {
        event: Result<WatchedEvent>,
        to: EventSender,
        persistent: bool,
    },
    State(SessionState),
}

pub(super) type EventSender = mpsc::UnboundedSender<Result<WatchedEvent>>;

pub(super) struct Watch {
    pub(super) source: WatchSource,
    pub(super) to: EventSender,
    pub(super) gap: bool,
}

pub(super) enum WatchSource {
    Once(Watcher),
    Lasting(PersistentWatcher),
}

impl Pump {
    pub(super) fn collect(&mut self, context: &mut Context<'_>) {
        if let Some(expiring) = &mut self.expiring
            && expiring.as_mut().poll(context).is_ready()
        {
            self.expiring = None;
        }
        while let Some(first) = self.in_flight.front_mut()
            && let Poll::Ready(reply) = Pin::new(&mut first.response).poll(context)
        {
            let InFlight {
                answer,
                delay,
                lost,
                ..
            } = self.in_flight.pop_front().expect("the first was looked at");
            // By now, all events that this reply must not overtake are available.
            self.collect_events(context);
            let reply = reply.map(|reply| self.adopt(reply));
            self.push(
                delay,
                Delivery::Reply {
                    reply,
                    answer,
                    lost,
                },
            );
        }
        self.collect_events(context);
        self.collect_states(context);
    }

    fn push(&mut self, delay: Duration, delivery: Delivery) {
        // A message is never due before an earlier one, because replies and events keep their order under every delay.
        let due = self.now().after(delay + self.delay).max(self.last_due);
        self.last_due = due;
        self.incoming.push_back(Incoming { due, delivery });
    }

    fn collect_events(&mut self, context: &mut Context<'_>) {
        let mut watches = std::mem::take(&mut self.watches);
        watches.retain_mut(|watch| !watch.to.is_closed() && self.collect_from(watch, context));
        self.watches = watches;
    }

    fn collect_from(&mut self, watch: &mut Watch, context: &mut Context<'_>) -> bool {
        loop {
            let (event, persistent) = match &mut watch.source {
                WatchSource::Once(watcher) => match Pin::new(watcher).poll(context) {
                    Poll::Ready(event) => (event, false),
                    Poll::Pending => return true,
                },
                WatchSource::Lasting(watcher) => match Pin::new(watcher).poll_next(context) {
                    Poll::Ready(Some(event)) => (event, true),
                    Poll::Ready(None) => return false,
                    Poll::Pending => return true,
                },
            };
            if event.as_ref().is_err_and(Error::is_session_end) {
                // Keep the sender, because the watcher gets the error only when the client learns that the session has
                // ended.
                self.orphans.push(watch.to.clone());
                return false;
            }
            if !(persistent && watch.gap) {
                let to = watch.to.clone();
                self.push(
                    Duration::ZERO,
                    Delivery::Event {
                        event,
                        to,
                        persistent,
                    },
                );
            }
            if !persistent {
                return false;
            }
        }
    }

    fn collect_states(&mut self, context: &mut Context<'_>) {
        while let Some(states) = &mut self.states
            && let Poll::Ready(state) = Pin::new(states).poll_next(context)
        {
            if state.is_none_or(SessionState::is_final) {
                self.states = None;
            }
            let state = state.or_else(|| Some(self.session.inner()?.status().state()));
            self.push(
                Duration::ZERO,
                Delivery::State(state.unwrap_or(SessionState::Closed)),
            );
        }
    }

    /// Replaces the watchers in a reply with the wrapper's own watchers, so that the wrapper can delay their events.
    fn adopt(&mut self, reply: Reply) -> Reply {
        match reply {
            Reply::Exists { stat, watcher } => Reply::Exists {
                stat,
                watcher: watcher.map(|watcher| self.watch_once(watcher)),
            },
            Reply::Data {
                data,
                stat,
                watcher,
            } => Reply::Data {
                data,
                stat,
                watcher: watcher.map(|watcher| self.watch_once(watcher)),
            },
            Reply::Children {
                names,
                stat,
                watcher,
            } => Reply::Children {
                names,
                stat,
                watcher: watcher.map(|watcher| self.watch_once(watcher)),
            },
            Reply::Watching(watcher) => {
                let inbox = self.watch(WatchSource::Lasting(watcher));
                Reply::Watching(PersistentWatcher::from_stream(inbox))
            }
            Reply::Enqueued { path, czxid, ahead } => Reply::Enqueued {
                path,
                czxid,
                ahead: self.adopt_ahead(ahead),
            },
            Reply::Predecessor(ahead) => Reply::Predecessor(self.adopt_ahead(ahead)),
            reply => reply,
        }
    }

    fn adopt_ahead(&mut self, ahead: Predecessor) -> Predecessor {
        match ahead {
            Predecessor::Blocked { by, watcher, count } => Predecessor::Blocked {
                by,
                watcher: self.watch_once(watcher),
                count,
            },
            ahead => ahead,
        }
    }

    fn watch_once(&mut self, watcher: Watcher) -> Watcher {
        let mut inbox = self.watch(WatchSource::Once(watcher));
        Watcher::from_future(async move {
            let event = std::future::poll_fn(|context| inbox.events.poll_recv(context)).await;
            event.unwrap_or_else(|| Err(inbox.session.lost()))
        })
    }

    fn watch(&mut self, source: WatchSource) -> Inbox {
        let (to, events) = mpsc::unbounded_channel();
        self.watches.push(Watch {
            source,
            to,
            gap: false,
        });
        Inbox {
            events,
            session: self.session.clone(),
        }
    }

    pub(super) fn deliver(&mut self) -> bool {
        let mut any = false;
        while let Some(delivery) = self.next_due() {
            any = true;
            self.hand_over(delivery);
        }
        any
    }

    fn next_due(&mut self) -> Option<Delivery> {
        let now = self.now();
        let first = self
            .incoming
            .front()
            .filter(|first| self.is_open() && first.due <= now);
        first
            .is_some()
            .then(|| self.incoming.pop_front())?
            .map(|first| first.delivery)
    }

    fn hand_over(&mut self, delivery: Delivery) {
        match delivery {
            Delivery::Reply {
                answer, lost: true, ..
            } => {
                let outage = self.outage();
                self.disconnect(Some(outage), Some(answer));
            }
            Delivery::Reply { reply, answer, .. } => {
                if reply.as_ref().is_err_and(Error::is_session_end) {
                    // Set the state first, because a task that reads this error must find the state that explains it.
                    self.inner_end()
                        .inspect(|state| self.session.status.set_state(*state));
                }
                self.session.count(Traffic::of_reply(&reply));
                let _ = answer.send(reply);
            }
            Delivery::Event { event, to, .. } => {
                if let Ok(event) = &event {
                    self.session.count(Traffic::of_event(event));
                }
                let _ = to.send(event);
            }
            Delivery::State(state) if state.is_final() => self.end(state),
            Delivery::State(state) => self.session.status.set_state(state),
        }
    }
}

struct Inbox {
    events: mpsc::UnboundedReceiver<Result<WatchedEvent>>,
    session: Arc<SessionLink>,
}

impl Stream for Inbox {
    type Item = Result<WatchedEvent>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.events.poll_recv(context)
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.events.close();
        self.session.wake();
    }
}
