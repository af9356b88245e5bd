//! The test's commands, and the state of the connection: outages, pauses and silence.

use std::time::Duration;

use super::inward::{Delivery, WatchSource};
use super::{Connectivity, Pump};
use crate::model::error::Error;
use crate::model::types::SessionState;
use crate::runtime::clock::BootInstant;
use crate::testing::plan::InjectedLoss;
use crate::testing::session_link::{Command, ReplySender};

impl Pump {
    pub(super) fn carry_out(&mut self, command: Command) {
        match command {
            // A paused client does not notice that its connection breaks. The state changes when the client resumes.
            Command::Disconnect(_) | Command::Reconnect if self.paused.is_some() => {
                self.unnoticed.push(command);
            }
            Command::Disconnect(length) => self.disconnect(length, None),
            Command::Reconnect => self.reconnect(),
            Command::Pause => self.pause(None),
            Command::Resume => self.resume(),
            Command::Delay(delay) => self.delay = delay,
            Command::Lose(on, loss) => self.orders.push(InjectedLoss { on, loss }),
            Command::Heal => {
                self.orders.clear();
                self.delay = Duration::ZERO;
                self.make_all_due();
                self.resume();
                self.reconnect();
            }
        }
    }

    pub(super) fn pass_time(&mut self) {
        let now = self.now();
        let passed = |moment: Option<BootInstant>| moment.is_some_and(|moment| moment <= now);
        if self.paused.is_some_and(passed) {
            self.resume();
        }
        if let Connectivity::Down(until) = self.link
            && self.paused.is_none()
            && passed(until)
        {
            self.reconnect();
        }
        if passed(self.silence_ends()) {
            self.silent_since = None;
            self.expire();
        }
    }

    pub(super) fn pause(&mut self, length: Option<Duration>) {
        self.paused = Some(length.map(|length| self.now().after(length)));
        self.fall_silent();
    }

    fn resume(&mut self) {
        self.paused = None;
        for command in std::mem::take(&mut self.unnoticed) {
            self.carry_out(command);
        }
        self.end_silence();
    }

    fn reconnect(&mut self) {
        if self.link == Connectivity::Up {
            return;
        }
        self.link = Connectivity::Up;
        self.end_silence();
        let inner = self.session.inner().map(|inner| inner.status().state());
        match inner {
            Some(state) if state.is_final() => self.end(state),
            Some(state) if state.is_connected() => {
                self.session.status.set_state(SessionState::Reconnected);
            }
            _ => {}
        }
        self.tell_of_gaps();
    }

    /// Records that the client sends nothing from now on. Client libraries below the wrapper may still send heartbeats
    /// that keep the session alive, so the wrapper makes the store end the session after a while
    /// ([`silence_ends`](Self::silence_ends)).
    fn fall_silent(&mut self) {
        let now = self.now();
        self.silent_since.get_or_insert(now);
    }

    fn end_silence(&mut self) {
        if self.is_open() {
            self.silent_since = None;
        }
    }

    /// Returns the time by which the store must have ended a silent session. Servers may be half a timeout late.
    pub(super) fn silence_ends(&self) -> Option<BootInstant> {
        let timeout = self.session.status.timeout()?;
        Some(self.silent_since?.after(timeout + timeout / 2))
    }

    pub(super) fn expire(&mut self) {
        self.expiring = Some(self.session.expire());
    }

    /// Breaks the connection, and fails all unanswered requests. `last` fails after the others.
    pub(super) fn disconnect(&mut self, length: Option<Duration>, last: Option<ReplySender>) {
        self.link = Connectivity::Down(length.map(|length| self.now().after(length)));
        self.fall_silent();
        // Set the state first, because a caller that sees the error must also see the broken connection.
        self.session.status.set_state(SessionState::Suspended);
        for answer in self.take_unanswered().into_iter().chain(last) {
            let _ = answer.send(Err(Error::ConnectionLoss));
        }
        self.keep_events();
    }

    pub(super) fn take_unanswered(&mut self) -> Vec<ReplySender> {
        let mut answers = Vec::new();
        // Return the requests in the order of submission. A request whose reply has arrived is older than any request
        // in flight.
        for incoming in std::mem::take(&mut self.incoming) {
            match incoming.delivery {
                Delivery::Reply { answer, .. } => answers.push(answer),
                _ => self.incoming.push_back(incoming),
            }
        }
        answers.extend(self.in_flight.drain(..).map(|request| request.answer));
        answers
    }

    /// Drops the events in flight for persistent watches, because a broken connection makes such watches miss events.
    /// The events of one-shot watches are kept and delivered after the reconnection.
    fn keep_events(&mut self) {
        let is_lasting = |delivery: &Delivery| matches!(delivery, Delivery::Event { persistent, .. } if *persistent);
        self.incoming
            .retain(|incoming| !is_lasting(&incoming.delivery));
        self.make_all_due();
        for watch in &mut self.watches {
            watch.gap = true;
        }
    }

    fn make_all_due(&mut self) {
        let now = self.now();
        for incoming in &mut self.incoming {
            incoming.due = now;
        }
        self.last_due = now;
    }

    fn tell_of_gaps(&mut self) {
        for watch in &mut self.watches {
            if std::mem::take(&mut watch.gap) && matches!(watch.source, WatchSource::Lasting(_)) {
                let _ = watch.to.send(Err(Error::ConnectionLoss));
            }
        }
    }
}
