//! [`Pump`]: the messages in flight between the client and a wrapped session. Requests pass through the pump in order.
//! Replies and watch events return through one ordered queue, each when it is due.

mod connection;
mod inward;
mod outward;

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use self::inward::{Delivery, EventSender, Incoming, Watch};
use self::outward::InFlight;
use super::plan::InjectedLoss;
use super::session_link::{Command, SessionLink};
use crate::backend::StateStream;
use crate::model::error::Result;
use crate::model::types::SessionState;
use crate::runtime::clock::{BootInstant, Sleep};
use crate::runtime::future::BoxFuture;
use crate::runtime::splitmix::Random;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Connectivity {
    Up,
    Down(Option<BootInstant>),
}

pub(super) struct Pump {
    session: Arc<SessionLink>,
    random: Random,
    states: Option<StateStream>,
    link: Connectivity,
    /// `Some` while the client is paused. Contains the end of the pause, or `None` if only a command ends the pause.
    paused: Option<Option<BootInstant>>,
    /// Commands that changed the connection during a pause. The client notices them when it resumes.
    unnoticed: Vec<Command>,
    silent_since: Option<BootInstant>,
    expiring: Option<BoxFuture<Result<()>>>,
    orders: Vec<InjectedLoss>,
    delay: Duration,
    in_flight: VecDeque<InFlight>,
    incoming: VecDeque<Incoming>,
    last_due: BootInstant,
    watches: Vec<Watch>,
    /// Senders of watches that ended because the wrapped session has ended.
    orphans: Vec<EventSender>,
    sleep: Option<(BootInstant, Sleep)>,
    over: bool,
}

impl Pump {
    pub(super) fn new(session: Arc<SessionLink>, states: StateStream, random: Random) -> Self {
        Self {
            session,
            random,
            states: Some(states),
            link: Connectivity::Up,
            paused: None,
            unnoticed: Vec::new(),
            silent_since: None,
            expiring: None,
            orders: Vec::new(),
            delay: Duration::ZERO,
            in_flight: VecDeque::new(),
            incoming: VecDeque::new(),
            last_due: BootInstant::default(),
            watches: Vec::new(),
            orphans: Vec::new(),
            sleep: None,
            over: false,
        }
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.session.waker.get_or_init(|| context.waker().clone());
        loop {
            // Carry out commands first, because they apply to every later request.
            self.obey();
            self.pass_time();
            // Collect events before delivering replies and sending requests, to keep the order of events and replies.
            self.collect(context);
            let delivered = self.deliver();
            let forwarded = self.forward();
            self.close_if_dropped();
            if self.over {
                return Poll::Ready(());
            }
            if !delivered && !forwarded && self.wait(context).is_pending() {
                return Poll::Pending;
            }
        }
    }

    fn now(&self) -> BootInstant {
        self.session.status.clock().now()
    }

    fn is_open(&self) -> bool {
        self.link == Connectivity::Up && self.paused.is_none() && !self.over
    }

    fn obey(&mut self) {
        let commands = std::mem::take(&mut self.session.link_state.lock().commands);
        for command in commands {
            self.carry_out(command);
        }
    }

    /// Closes the wrapped session once the client has dropped its session and all requests are sent.
    fn close_if_dropped(&mut self) {
        let (dropped, idle) = {
            let link_state = self.session.link_state.lock();
            (link_state.dropped, link_state.requests.is_empty())
        };
        if !dropped {
            return;
        }
        if let Some(state) = self.inner_end() {
            return self.end(state);
        }
        // While the connection is down, we cannot close the session. The store ends the session after its timeout, as
        // if the client had crashed.
        if idle && self.is_open() {
            self.states = None;
            let inner = self.session.link_state.lock().inner.take();
            drop(inner);
            if !self.awaits_replies() {
                self.end(SessionState::Closed);
            }
        }
    }

    fn inner_end(&self) -> Option<SessionState> {
        let state = self.session.inner()?.status().state();
        state.is_final().then_some(state)
    }

    fn awaits_replies(&self) -> bool {
        let is_reply = |incoming: &Incoming| matches!(incoming.delivery, Delivery::Reply { .. });
        !self.in_flight.is_empty() || self.incoming.iter().any(is_reply)
    }

    fn end(&mut self, state: SessionState) {
        self.over = true;
        // Set the state first, because a task that reads the error must find the state that explains it.
        self.session.status.set_state(state);
        let error = self.session.lost();
        let (inner, waiting) = {
            let mut link_state = self.session.link_state.lock();
            link_state.over = Some(error.clone());
            (
                link_state.inner.take(),
                std::mem::take(&mut link_state.requests),
            )
        };
        let waiting = waiting.into_iter().map(|waiting| waiting.answer);
        for answer in self.take_unanswered().into_iter().chain(waiting) {
            let _ = answer.send(Err(error.clone()));
        }
        self.incoming.clear();
        let watching = self.watches.drain(..).map(|watch| watch.to);
        for events in watching.chain(self.orphans.drain(..)) {
            let _ = events.send(Err(error.clone()));
        }
        self.sleep = None;
        // Drop the wrapped session after the lock is released, because the drop may wake tasks that submit requests
        // here.
        drop(inner);
    }

    fn wait(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(next) = self.next_moment() else {
            self.sleep = None;
            return Poll::Pending;
        };
        if self
            .sleep
            .as_ref()
            .is_none_or(|(moment, _)| *moment != next)
        {
            self.sleep = Some((next, self.session.status.clock().sleep_until(next)));
        }
        let (_, sleep) = self.sleep.as_mut().expect("it was set just now");
        Pin::new(sleep).poll(context)
    }

    fn next_moment(&self) -> Option<BootInstant> {
        let resume = self.paused.flatten();
        let reconnect = match self.link {
            Connectivity::Down(until) if self.paused.is_none() => until,
            _ => None,
        };
        let due = self
            .incoming
            .front()
            .filter(|_| self.is_open())
            .map(|incoming| incoming.due);
        [resume, reconnect, due, self.silence_ends()]
            .into_iter()
            .flatten()
            .min()
    }
}
