//! [`Leader`]: the member that decides writes and sessions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::member::Role;
use super::{Message, State};
use crate::core::{Core, CoreReply, Effects, Now, Txn};
use crate::model::error::{Error, Result};
use crate::model::protocol::Request;
use crate::model::types::SessionId;
use crate::runtime::clock::BootInstant;

pub(super) struct Leader {
    /// The store after all proposals, committed or not. The leader decides new writes on this state.
    pub(super) core: Core,
    pub(super) followers: BTreeMap<usize, Follower>,
    pub(super) owners: BTreeMap<SessionId, usize>,
    pub(super) pinged: BootInstant,
}

pub(super) struct Follower {
    pub(super) link: u64,
    pub(super) accepted: usize,
    pub(super) heard: BootInstant,
}

#[derive(Clone)]
pub(super) struct Entry {
    pub(super) epoch: u32,
    /// `None` for a refused write, which the leader also proposes.
    pub(super) txn: Option<Txn>,
    pub(super) origin: Option<(usize, u64)>,
    /// The answer. The member that serves the waiting client takes the answer when it applies the entry.
    pub(super) answer: Arc<Mutex<Option<Answer>>>,
}

pub(super) enum Answer {
    Opened(SessionId, Duration),
    Reply(Result<CoreReply>),
}

pub(super) struct Write {
    pub(super) origin: (usize, u64),
    pub(super) session: SessionId,
    pub(super) kind: WriteKind,
}

pub(super) enum WriteKind {
    Open {
        password: [u8; 16],
        timeout: Duration,
    },
    Request(Request),
    /// A sync. It writes nothing, but its answer follows the answers to all earlier writes.
    Sync,
}

impl State {
    fn leading(&mut self, member: usize) -> Option<&mut Leader> {
        match &mut self.members[member].role {
            Role::Leading(leader) => Some(leader),
            _ => None,
        }
    }

    pub(super) fn forward(&mut self, member: usize, write: Write) {
        match self.members[member].role {
            Role::Leading(_) => self.lead_write(member, write),
            Role::Following { leader, .. } => self.send(member, leader, Message::Write(write)),
            Role::Looking { .. } => {}
        }
    }

    pub(super) fn lead_write(&mut self, member: usize, write: Write) {
        let Write {
            origin,
            session,
            kind,
        } = write;
        let now = self.members[member].now();
        let length = self.members[member].log.len();
        let Some(leader) = self.leading(member) else {
            return;
        };
        let (answer, is_moved) = match kind {
            WriteKind::Sync => return self.lead_sync(member, origin, length),
            WriteKind::Open { password, timeout } => {
                let opened = leader.open(session, password, timeout, now);
                leader.owners.insert(session, origin.0);
                match opened {
                    Ok(timeout) => (Answer::Opened(session, timeout), false),
                    Err(error) => (Answer::Reply(Err(error)), false),
                }
            }
            WriteKind::Request(request) => {
                let reply = leader.decide(origin.0, session, request, now);
                let is_moved = matches!(reply, Err(Error::SessionMoved { .. }));
                (Answer::Reply(reply), is_moved)
            }
        };
        let mut txns = std::mem::take(leader.core.kept());
        self.counts.writes_of_moved_sessions += u64::from(is_moved);
        let txn = txns.pop();
        for txn in txns {
            self.propose(member, Some(txn), None, None);
        }
        self.propose(member, txn, Some(origin), Some(answer));
    }

    fn lead_sync(&mut self, member: usize, (origin, connection): (usize, u64), length: usize) {
        match origin == member {
            true => self.synced(member, connection, length),
            false => self.send(member, origin, Message::Synced { connection, length }),
        }
    }

    pub(super) fn propose(
        &mut self,
        member: usize,
        txn: Option<Txn>,
        origin: Option<(usize, u64)>,
        answer: Option<Answer>,
    ) {
        let entry = Entry {
            epoch: self.members[member].epoch,
            txn,
            origin,
            answer: Arc::new(Mutex::new(answer)),
        };
        self.members[member].log.push(entry.clone());
        for follower in self.followers(member) {
            self.send(member, follower, Message::Proposal(entry.clone()));
        }
        self.advance(member);
    }

    fn followers(&mut self, member: usize) -> Vec<usize> {
        let leader = self.leading(member);
        leader.map_or_else(Vec::new, |leader| {
            leader.followers.keys().copied().collect()
        })
    }

    pub(super) fn note_accepted(&mut self, member: usize, from: usize, length: usize) {
        if let Some(follower) = self.heard_of(member, from) {
            follower.accepted = follower.accepted.max(length);
        }
        self.advance(member);
    }

    fn heard_of(&mut self, member: usize, from: usize) -> Option<&mut Follower> {
        let now = self.members[member].clock.now();
        let follower = self.leading(member)?.followers.get_mut(&from)?;
        follower.heard = now;
        Some(follower)
    }

    pub(super) fn advance(&mut self, member: usize) {
        let majority = self.majority();
        let own = self.members[member].log.len();
        let Some(leader) = self.leading(member) else {
            return;
        };
        let accepted = leader.followers.values().map(|follower| follower.accepted);
        let mut accepted: Vec<_> = accepted.chain([own]).collect();
        accepted.sort_unstable_by(|one, other| other.cmp(one));
        let Some(length) = accepted.get(majority - 1).copied() else {
            return;
        };
        if length <= self.members[member].committed {
            return;
        }
        self.members[member].committed = length;
        for follower in self.followers(member) {
            self.send(member, follower, Message::Commit { length });
        }
        self.apply(member);
    }

    pub(super) fn touch_all(&mut self, member: usize, from: usize, touched: Vec<SessionId>) {
        if self.heard_of(member, from).is_some() {
            for session in touched {
                self.touch(member, session);
            }
        }
    }

    pub(super) fn touch(&mut self, member: usize, session: SessionId) {
        let now = self.members[member].now();
        if let Some(leader) = self.leading(member)
            && let Some(of) = leader.core.session_ref(session)
        {
            // A ping fails only if the session has ended.
            let _ = leader.core.ping(of, now, &mut Effects::default());
        }
    }

    /// Moves a session to a connection of member `from`. Returns the timeout, or `None` if the session is over.
    pub(super) fn revalidate(
        &mut self,
        member: usize,
        from: usize,
        session: SessionId,
        password: [u8; 16],
        timeout: Duration,
    ) -> Option<Duration> {
        let now = self.members[member].now();
        let leader = self.leading(member)?;
        let effects = &mut Effects::default();
        let (of, timeout) = leader
            .core
            .reattach(session, &password, timeout, now, effects)
            .ok()?;
        // The leader does not know when the previous server last heard from the client, so the session gets a full
        // timeout from now.
        leader.core.detach(of, now, effects);
        let former = leader.owners.insert(session, from);
        let has_moved = former.is_some_and(|former| former != from);
        self.counts.sessions_moved += u64::from(has_moved);
        Some(timeout)
    }

    pub(super) fn lead(&mut self, member: usize) {
        let (now, tick) = (self.members[member].now(), self.options.tick);
        let Some(leader) = self.leading(member) else {
            return;
        };
        let mut effects = Effects::default();
        leader.core.tick(now, &mut effects);
        let txns = std::mem::take(leader.core.kept());
        let is_ping_due = now.moment.since(leader.pinged) >= tick / 2;
        if is_ping_due {
            leader.pinged = now.moment;
        }
        self.counts.sessions_expired += effects.ended.len() as u64;
        for txn in txns {
            self.propose(member, Some(txn), None, None);
        }
        if is_ping_due {
            for follower in self.followers(member) {
                self.send(member, follower, Message::Ping);
            }
        }
    }
}

impl Leader {
    fn open(
        &mut self,
        session: SessionId,
        password: [u8; 16],
        timeout: Duration,
        now: Now,
    ) -> Result<Duration> {
        let opened = self
            .core
            .open_session(session, password, Some(timeout), false, now);
        let (of, granted) = opened?;
        self.core.detach(of, now, &mut Effects::default());
        Ok(granted.unwrap_or(timeout))
    }

    /// Decides a request. Does not mark the session as alive, because the followers report live sessions.
    fn decide(
        &mut self,
        from: usize,
        session: SessionId,
        request: Request,
        now: Now,
    ) -> Result<CoreReply> {
        let of = self.core.session_ref(session);
        let of = of.ok_or(Error::SessionExpired { session })?;
        // A new leader does not know which member serves a session, so the member that forwards the session's first
        // request becomes the owner.
        if *self.owners.entry(session).or_insert(from) != from {
            return Err(Error::SessionMoved { session });
        }
        let without_touch = Now {
            moment: BootInstant::from_nanos(0),
            ..now
        };
        self.core
            .submit(of, request, without_touch, &mut Effects::default())
    }
}
