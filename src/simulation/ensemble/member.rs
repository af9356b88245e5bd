//! [`Member`]: a server of an ensemble, with its log and its replica of the store.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;

use super::client::Connection;
use super::leader::{Answer, Entry, Leader};
use super::{EnsembleOptions, Message, State, core_options};
use crate::core::{Core, Effects, Now};
use crate::model::types::SessionId;
use crate::runtime::clock::{BootInstant, Clock};

pub(super) struct Member {
    pub(super) name: String,
    pub(super) config: Bytes,
    pub(super) clock: Clock,
    pub(super) is_up: bool,
    /// Accepted proposals. They survive a kill.
    pub(super) log: Vec<Entry>,
    /// Epoch of the last leader whose proposals the member accepts. Survives a kill.
    pub(super) epoch: u32,
    pub(super) role: Role,
    pub(super) committed: usize,
    pub(super) applied: usize,
    pub(super) replica: Core,
    /// Simulated time until which the member applies nothing.
    pub(super) lags_until: Duration,
    /// Sessions that the member has heard from since the leader's last ping.
    pub(super) touched: BTreeSet<SessionId>,
    pub(super) connections: BTreeMap<u64, Connection>,
}

pub(super) enum Role {
    Looking {
        since: BootInstant,
    },
    Following {
        leader: usize,
        link: u64,
        heard: BootInstant,
    },
    Leading(Box<Leader>),
}

/// Constant time of a replica. Only the leader needs the real time, because only the leader expires sessions.
pub(super) const STILL: Now = Now {
    unix_ms: 0,
    moment: BootInstant::from_nanos(0),
};

impl Member {
    pub(super) fn new(
        name: String,
        clock: Clock,
        config: Bytes,
        options: &EnsembleOptions,
    ) -> Self {
        Self {
            role: Role::Looking { since: clock.now() },
            name,
            config,
            clock,
            is_up: true,
            log: Vec::new(),
            epoch: 0,
            committed: 0,
            applied: 0,
            replica: Core::new(core_options(options)),
            lags_until: Duration::ZERO,
            touched: BTreeSet::new(),
            connections: BTreeMap::new(),
        }
    }

    pub(super) fn is_looking(&self) -> bool {
        matches!(self.role, Role::Looking { .. })
    }

    pub(super) fn now(&self) -> Now {
        Now {
            unix_ms: self.clock.unix_ms(),
            moment: self.clock.now(),
        }
    }
}

impl State {
    pub(super) fn kill(&mut self, member: usize) {
        let options = core_options(&self.options);
        let member = &mut self.members[member];
        member.is_up = false;
        member.connections.clear();
        member.touched.clear();
        (member.committed, member.applied) = (0, 0);
        member.replica = Core::new(options);
        member.role = Role::Looking {
            since: member.clock.now(),
        };
    }

    pub(super) fn take_proposal(&mut self, member: usize, leader: usize, entry: Entry) {
        let log = &mut self.members[member].log;
        log.push(entry);
        let length = log.len();
        self.hear(member);
        self.send(member, leader, Message::Accepted { length });
    }

    pub(super) fn take_commit(&mut self, member: usize, length: usize) {
        self.hear(member);
        let this = &mut self.members[member];
        this.committed = this.committed.max(length.min(this.log.len()));
        self.apply(member);
    }

    pub(super) fn answer_ping(&mut self, member: usize, leader: usize) {
        self.hear(member);
        let touched = std::mem::take(&mut self.members[member].touched);
        let touched = touched.into_iter().collect();
        self.send(member, leader, Message::Pong { touched });
    }

    fn hear(&mut self, member: usize) {
        let this = &mut self.members[member];
        let now = this.clock.now();
        if let Role::Following { heard, .. } = &mut this.role {
            *heard = now;
        }
    }

    /// Applies committed entries to a member's replica, and sends the answers and events to its clients.
    pub(super) fn apply(&mut self, member: usize) {
        let elapsed = self.time.elapsed();
        let this = &mut self.members[member];
        if elapsed < this.lags_until {
            return;
        }
        while this.applied < this.committed {
            let entry = this.log[this.applied].clone();
            this.applied += 1;
            let mut effects = Effects::default();
            if let Some(txn) = entry.txn {
                let followed = this.replica.follow(txn, &mut effects);
                followed.expect("each log continues the one before");
            }
            this.tell(&mut effects);
            let origin = entry.origin.filter(|(origin, _)| *origin == member);
            if let Some((_, connection)) = origin {
                let answer = entry.answer.lock().take();
                this.complete(connection, answer);
            }
            this.end_sessions(&effects, origin.map(|(_, connection)| connection));
        }
        self.pump_all(member);
    }
}

impl Member {
    fn complete(&mut self, connection: u64, answer: Option<Answer>) {
        let (Some(connection), Some(answer)) = (self.connections.get_mut(&connection), answer)
        else {
            return;
        };
        match answer {
            Answer::Opened(session, timeout) => {
                let of = self.replica.session_ref(session);
                connection.open(of, timeout);
            }
            Answer::Reply(reply) => connection.complete(reply),
        }
    }
}
