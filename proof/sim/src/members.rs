//! The faults of an ensemble: members that are killed, stopped, separated from each other, or lag.

use std::time::Duration;

use lockkeeper_store::simulation::{Ensemble, EnsembleOptions};

use crate::faults::{Fault, Operator};
use crate::world::{Random, World};

/// Draws the options of an ensemble, in a run that has one.
pub(crate) fn ensemble_options(world: &World, random: &mut Random) -> Option<EnsembleOptions> {
    let tick = world.ensemble_tick()?;
    // Keep messages between members well below a tick. A leader's ping, which is sent every half tick, is then
    // answered within the tick for which a proof waits.
    let longest = tick / 8;
    let seconds = Duration::from_secs;
    Some(EnsembleOptions {
        tick,
        sync_limit: 2 + random.within(0..4) as u32,
        session_timeouts: (
            4 * tick,
            [seconds(8), seconds(20), seconds(40)][random.within(0..3) as usize],
        ),
        delay: Duration::from_millis(1)..longest,
    })
}

impl Operator {
    pub(crate) fn start_members(&self) {
        if let Some(ensemble) = &self.ensemble {
            for member in 0..self.world.hosts().len() {
                ensemble.restart(member);
            }
        }
    }

    /// Returns a member, in half of the cases the leader.
    fn member(&mut self, ensemble: &Ensemble) -> usize {
        let count = self.world.hosts().len() as u64;
        let drawn = self.random.within(0..count) as usize;
        match ensemble.leader() {
            Some(leader) if self.random.once_in(2) => leader,
            _ => drawn,
        }
    }

    pub(crate) async fn cause_among_members(&mut self, kind: Fault) {
        let Some(ensemble) = self.ensemble.clone() else {
            return;
        };
        let member = self.member(&ensemble);
        let hosts = self.world.hosts();
        let role = match ensemble.leader() == Some(member) {
            true => "leads",
            false => "follows",
        };
        self.world
            .tell(format_args!("{} is met, and {role}", hosts[member]));
        match kind {
            Fault::MemberKilled => {
                self.world.count("fault: member killed");
                ensemble.kill(member);
                self.pause().await;
                ensemble.restart(member);
            }
            Fault::MembersKilled => {
                self.world.count("fault: members all killed");
                for member in 0..hosts.len() {
                    ensemble.kill(member);
                }
                self.pause().await;
                self.start_members();
            }
            Fault::MemberStopped => {
                self.world.count("fault: member stopped");
                self.stop_member(&ensemble, member, &hosts[member]).await;
            }
            Fault::MembersParted => {
                self.world.count("fault: members parted");
                let others = hosts.iter().filter(|host| **host != hosts[member]);
                let others: Vec<_> = others.cloned().collect();
                self.part(&hosts[member], &others);
                tokio::time::sleep(self.random.below_ms(30_000)).await;
                self.world.network().heal();
            }
            Fault::MemberLags => {
                self.world.count("fault: member lags");
                ensemble.lag(member, self.random.below_ms(10_000));
            }
            other => unreachable!("{other:?} is no fault of members"),
        }
    }

    /// Stops a member for longer than the others wait for it. A leader is deposed in the meantime, and learns of that
    /// before it acts on anything received since.
    async fn stop_member(&mut self, ensemble: &Ensemble, member: usize, host: &str) {
        let clock = ensemble.clock(member);
        self.world.network().isolate(host);
        self.world.time().stop(&clock);
        let longest = [2_000, 10_000, 60_000][self.random.within(0..3) as usize];
        tokio::time::sleep(Duration::from_secs(6) + self.random.below_ms(longest)).await;
        let is_suspended = self.random.once_in(2);
        self.world.time().go_on(&clock, is_suspended);
        tokio::time::sleep(Duration::from_millis(200)).await;
        self.world.network().heal();
    }
}
