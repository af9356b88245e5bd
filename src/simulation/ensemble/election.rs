//! Elections: which member leads and which follow it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::leader::{Follower, Leader};
use super::member::Role;
use super::{State, core_options};
use crate::core::Core;
use crate::model::types::Zxid;

/// Time for which a member looks for a leader before it follows a leader or is elected.
const ELECTION: Duration = Duration::from_millis(200);

impl State {
    pub(super) fn majority(&self) -> usize {
        self.members.len() / 2 + 1
    }

    /// Returns the number of the link between two members, as `member` sees it.
    pub(super) fn link(&self, member: usize, other: usize) -> Option<u64> {
        match &self.members[member].role {
            Role::Following { leader, link, .. } if *leader == other => Some(*link),
            Role::Leading(leading) => leading.followers.get(&other).map(|known| known.link),
            _ => None,
        }
    }

    pub(super) fn leader(&self) -> Option<usize> {
        let leaders = (0..self.members.len())
            .filter(|member| matches!(self.members[*member].role, Role::Leading(_)));
        leaders.max_by_key(|member| self.members[*member].epoch)
    }

    pub(super) fn step(&mut self) {
        for member in 0..self.members.len() {
            if !self.runs(member) {
                continue;
            }
            // Check for a lost role first, because a paused member may have lost its role in the meantime.
            if self.has_lost_the_others(member) {
                self.look(member);
            }
            self.lead(member);
            self.apply(member);
        }
        for member in 0..self.members.len() {
            if self.runs(member) && self.looks_for_long(member) {
                self.find_a_leader(member);
            }
        }
    }

    fn runs(&self, member: usize) -> bool {
        let this = &self.members[member];
        this.is_up && !self.time.is_stopped(&this.clock)
    }

    fn reach_each_other(&self, one: usize, other: usize) -> bool {
        let [one, other] = [one, other].map(|member| &self.members[member].name);
        self.network.is_open(one, other) && self.network.is_open(other, one)
    }

    fn looks_for_long(&self, member: usize) -> bool {
        let this = &self.members[member];
        match this.role {
            Role::Looking { since } => this.clock.now().since(since) >= ELECTION,
            _ => false,
        }
    }

    fn has_lost_the_others(&self, member: usize) -> bool {
        let this = &self.members[member];
        let (now, limit) = (
            this.clock.now(),
            self.options.tick * self.options.sync_limit,
        );
        match &this.role {
            Role::Looking { .. } => false,
            Role::Following { heard, .. } => now.since(*heard) > limit,
            Role::Leading(leader) => {
                let followers = leader.followers.values();
                let near = followers.filter(|follower| now.since(follower.heard) <= limit);
                near.count() + 1 < self.majority()
            }
        }
    }

    fn look(&mut self, member: usize) {
        let this = &mut self.members[member];
        this.role = Role::Looking {
            since: this.clock.now(),
        };
        this.touched.clear();
        self.close_all(member);
    }

    /// Follows a reachable leader. If there is none, elects this member if it ranks highest in a majority of members
    /// that also look for a leader.
    fn find_a_leader(&mut self, member: usize) {
        let epoch = self.members[member].epoch;
        let leader = self.leader().filter(|leader| {
            self.members[*leader].epoch >= epoch
                && self.runs(*leader)
                && self.reach_each_other(member, *leader)
        });
        if let Some(leader) = leader {
            return self.join(member, leader);
        }
        let others = (0..self.members.len()).filter(|other| *other != member);
        let voters: Vec<_> = others
            .filter(|other| {
                self.runs(*other)
                    && self.looks_for_long(*other)
                    && self.reach_each_other(member, *other)
            })
            .collect();
        let is_best = voters
            .iter()
            .all(|voter| self.rank(*voter) < self.rank(member));
        if voters.len() + 1 >= self.majority() && is_best {
            self.elect(member, voters);
        }
    }

    /// Returns the rank of a member in an election. The most complete log has the highest rank.
    fn rank(&self, member: usize) -> (u32, usize, usize) {
        let log = &self.members[member].log;
        let last = log.last().map_or(0, |entry| entry.epoch);
        (last, log.len(), member)
    }

    fn elect(&mut self, member: usize, voters: Vec<usize>) {
        self.counts.elections += 1;
        let epochs = voters.iter().chain([&member]);
        let epoch = epochs.map(|voter| self.members[*voter].epoch).max();
        let epoch = 1 + epoch.unwrap_or(0);
        let mut core = Core::new(core_options(&self.options));
        let this = &mut self.members[member];
        for txn in this.log.iter().filter_map(|entry| entry.txn.clone()) {
            core.replay(txn).expect("each log continues the one before");
        }
        let now = this.now();
        core.leave_behind(Zxid(i64::from(epoch) << 32), now.unix_ms);
        core.restart_timeouts(now.moment);
        this.epoch = epoch;
        // All entries count as committed, because the voters copy them below, so that a majority has them.
        this.committed = this.log.len();
        this.role = Role::Leading(Box::new(Leader {
            core,
            followers: BTreeMap::new(),
            owners: BTreeMap::new(),
            pinged: now.moment,
        }));
        for voter in voters {
            self.join(voter, member);
        }
        self.apply(member);
    }

    fn join(&mut self, member: usize, leader: usize) {
        self.next_link += 1;
        let link = self.next_link;
        let leading = &self.members[leader];
        let (epoch, committed, heard) = (leading.epoch, leading.committed, leading.clock.now());
        let shared = shared_prefix(&self.members[member].log, &leading.log);
        let news = leading.log[shared..].to_vec();
        let this = &mut self.members[member];
        let lost = this.log.len() - shared;
        assert!(this.applied <= shared, "what was committed stays");
        this.log.truncate(shared);
        this.log.extend(news);
        (this.epoch, this.committed) = (epoch, committed);
        this.role = Role::Following {
            leader,
            link,
            heard: this.clock.now(),
        };
        let accepted = this.log.len();
        self.counts.proposals_lost += lost as u64;
        if let Role::Leading(leading) = &mut self.members[leader].role {
            let follower = Follower {
                link,
                accepted,
                heard,
            };
            leading.followers.insert(member, follower);
        }
        self.apply(member);
        self.advance(leader);
    }
}

/// Returns the length of the common prefix of two logs. Only one leader appends entries in an epoch, so entries with
/// the same epoch and position are equal.
fn shared_prefix(one: &[super::leader::Entry], other: &[super::leader::Entry]) -> usize {
    let mut length = one.len().min(other.len());
    while length > 0 && one[length - 1].epoch != other[length - 1].epoch {
        length -= 1;
    }
    length
}
