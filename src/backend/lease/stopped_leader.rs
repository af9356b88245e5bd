//! Tests the rule of [`KeepAlive`] in 1,000 simulated etcd clusters whose leaders are stopped, in virtual time.
//!
//! A stopped member answers requests when it resumes, and notices only some time later that it is no longer the leader.
//! A new leader restarts the lease with its full TTL, and its log may contain a revoke by its predecessor. In some
//! rounds, a client that trusted each answer would hold the lock at the same time as the next holder.

use super::{KeepAlive, MARGIN};
use crate::runtime::clock::BootInstant;

const TTL: u64 = 5_000;
const PATIENCE: u64 = TTL / 4;
const STEP: u64 = 10;
const ROUND: u64 = 60_000;

#[derive(Clone, Copy, PartialEq)]
enum Rule {
    Confirmed,
    /// Each answer proves the lease.
    Naive,
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low)
    }
}

#[derive(Clone, Default)]
struct Member {
    stopped_until: u64,
    /// Term in which the member believes that it leads, until `leads_until`.
    leads: Option<u64>,
    leads_until: u64,
    /// End of the lease, as computed by this member when it leads.
    lease_ends: u64,
    /// Number of log entries that the member has applied, and the time at which it applies the others.
    applied: usize,
    applies_at: u64,
}

#[derive(Clone, Copy)]
struct Entry {
    term: u64,
    revokes: bool,
}

/// A request of the client. A stopped member handles it when it resumes.
#[derive(Clone, Copy)]
enum Call {
    KeepAlive { sent: u64 },
    Range(KeepAlive),
}

struct Cluster {
    random: Random,
    now: u64,
    members: [Member; 3],
    term: u64,
    leader: usize,
    log: Vec<Entry>,
    /// Time at which the leader's revoke is committed.
    revoked_at: Option<u64>,
    revoked: bool,
}

impl Cluster {
    fn new(seed: u64) -> Self {
        let mut cluster = Self {
            random: Random(seed),
            now: 0,
            members: Default::default(),
            term: 0,
            leader: 0,
            log: Vec::new(),
            revoked_at: None,
            revoked: false,
        };
        cluster.elect(0);
        cluster
    }

    /// Makes a member the leader. The new leader applies its predecessor's log, which may contain a revoke.
    fn elect(&mut self, leader: usize) {
        let old = self.leader;
        self.members[old].leads_until =
            self.members[old].stopped_until + self.random.between(STEP, 500);
        if self.revoked_at.take().is_some() && self.random.below(2) == 0 {
            self.revoke();
        }
        self.term += 1;
        self.leader = leader;
        self.log.push(Entry {
            term: self.term,
            revokes: false,
        });
        let (term, end, applied) = (self.term, self.now + TTL, self.log.len());
        let member = &mut self.members[leader];
        (member.leads, member.leads_until, member.lease_ends) = (Some(term), u64::MAX, end);
        member.applied = applied;
    }

    fn revoke(&mut self) {
        self.log.push(Entry {
            term: self.term,
            revokes: true,
        });
        self.revoked = true;
    }

    fn step(&mut self) {
        self.now += STEP;
        let (now, end) = (self.now, self.log.len());
        let lag = self.random.between(0, 200);
        for (index, member) in self.members.iter_mut().enumerate() {
            if now < member.stopped_until {
                continue;
            }
            if now >= member.leads_until {
                member.leads = None;
            }
            // A former leader receives new entries only after it has learned of its successor.
            if member.applied < end && (member.leads.is_none() || index == self.leader) {
                if member.applies_at == 0 {
                    member.applies_at = now + lag;
                }
                if now >= member.applies_at || index == self.leader {
                    (member.applied, member.applies_at) = (end, 0);
                }
            }
        }
        let leader = &self.members[self.leader];
        let stopped_for = leader.stopped_until.saturating_sub(now);
        if stopped_for > 0 {
            // The others elect a leader after 1 to 2 s.
            if self.random.below(1_500 / STEP) == 0 {
                let next = (self.leader + 1 + self.random.below(2) as usize) % 3;
                if now >= self.members[next].stopped_until {
                    self.elect(next);
                }
            }
        } else if self.random.below(8_000 / STEP) == 0 {
            let stopped_until = now + self.random.between(500, 9_000);
            self.members[self.leader].stopped_until = stopped_until;
        } else if let Some(at) = self.revoked_at {
            if now >= at {
                self.revoked_at = None;
                self.revoke();
            }
        } else if now >= leader.lease_ends {
            self.revoked_at = Some(now + self.random.between(STEP, 300));
        }
    }

    /// Returns the term that a member knows from its log, and whether the key exists there.
    fn state(&self, member: usize) -> (u64, bool) {
        let applied = &self.log[..self.members[member].applied];
        let term = applied.last().map_or(0, |entry| entry.term);
        (term, !applied.iter().any(|entry| entry.revokes))
    }

    /// Renews the lease at the member, or at the current leader if the member does not lead. Returns the term in the
    /// answer's header, which the member fills in before the renewal. `None` if there is no answer now.
    fn keep_alive(&mut self, member: usize) -> Option<u64> {
        let (term, _) = self.state(member);
        let at = match self.members[member].leads {
            Some(_) => member,
            None => self.leader,
        };
        let (_, exists) = self.state(at);
        let (now, leader) = (self.now, &mut self.members[at]);
        // A leader answers a keep-alive of an expired lease only once the lease is revoked.
        let can_renew = exists && now >= leader.stopped_until && now < leader.lease_ends;
        can_renew.then(|| {
            leader.lease_ends = now + TTL;
            term
        })
    }

    /// Reads the key linearizably. The member asks the leader for the end of the log, and applies the log up to there.
    fn range(&self, member: usize) -> Option<(u64, bool)> {
        let is_current = self.members[member].applied == self.log.len();
        let has_leader = self.now >= self.members[self.leader].stopped_until;
        (is_current && has_leader).then(|| self.state(member))
    }
}

/// Returns true if the client still considers its session alive when the session's key is deleted.
fn believes_too_long(seed: u64, rule: Rule) -> bool {
    let mut cluster = Cluster::new(seed);
    let (mut proved, mut member) = (0, cluster.random.below(3) as usize);
    let mut call: Option<(Call, u64, u64)> = None;
    let mut next = 0;
    while cluster.now < ROUND {
        cluster.step();
        let now = cluster.now;
        if cluster.revoked {
            return now < proved + TTL - TTL / u64::from(MARGIN);
        }
        let Some((pending, arrives, begun)) = call else {
            if now >= next {
                let arrives = now + cluster.random.between(0, 100);
                call = Some((Call::KeepAlive { sent: now }, arrives, now));
            }
            continue;
        };
        if now > begun + PATIENCE {
            (call, member, next) = (None, cluster.random.below(3) as usize, now);
            continue;
        }
        if now < arrives || now < cluster.members[member].stopped_until {
            continue;
        }
        let nanos = |millis: u64| BootInstant::from_nanos(millis * 1_000_000);
        match pending {
            Call::KeepAlive { sent } => {
                if let Some(term) = cluster.keep_alive(member) {
                    let answered = now + cluster.random.between(0, 100);
                    let keep_alive = KeepAlive {
                        sent: nanos(sent),
                        term,
                    };
                    call = Some((Call::Range(keep_alive), answered, answered));
                    if rule == Rule::Naive {
                        (proved, call, next) = (sent, None, now + TTL / 3);
                    }
                }
            }
            Call::Range(keep_alive) => {
                if let Some((term, exists)) = cluster.range(member) {
                    call = None;
                    next = now + TTL / 20;
                    if let Some(sent) = keep_alive.confirmed_by(term, exists) {
                        proved = sent.since(nanos(0)).as_millis() as u64;
                        next = now + TTL / 3;
                    }
                }
            }
        }
    }
    false
}

#[test]
fn a_stopped_leader_proves_nothing() {
    let doubles = |rule| -> Vec<u64> {
        (0..1_000)
            .filter(|seed| believes_too_long(*seed, rule))
            .collect()
    };
    assert_eq!(doubles(Rule::Confirmed), [0; 0], "seeds with two holders");
    assert!(
        !doubles(Rule::Naive).is_empty(),
        "the scene finds the naive rule"
    );
}
