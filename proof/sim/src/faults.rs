//! The faults of a run. The seed determines which kinds occur, and how often.

use std::rc::Rc;
use std::time::Duration;

use lockkeeper::{Clock, StoreOptions};
use lockkeeper_store::simulation::{Backup, DiskFaults, Ensemble, ServerHost, Weather};

use crate::client_tasks::ClientTasks;
use crate::history::History;
use crate::resource::Resource;
use crate::world::{Random, SERVER, World, drifting};

/// Kinds of faults caused by operators, power or cables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Kill,
    PowerLoss,
    Restart,
    /// A client and the server are separated, in one direction or both.
    Partition,
    /// All connections of a client are reset.
    Reset,
    DiskFails,
    /// A client's process is killed and replaced.
    ClientKilled,
    /// A client's process is stopped for a while, or its machine suspended.
    ClientStopped,
    /// The server's process is stopped for a while, or its machine suspended.
    ServerStopped,
    /// A backup is made, or the last one is restored.
    Restore,
    /// The server continues on another machine with a copy of the disk.
    Move,
    /// The disk is damaged, and the server continues with the salvaged data.
    Salvage,
    /// A member of an ensemble, usually the leader, is killed and restarted after a while.
    MemberKilled,
    /// All members are killed.
    MembersKilled,
    /// A member is stopped for a while, or its machine suspended.
    MemberStopped,
    /// A member is separated from the others, in one direction or both. Its clients reach it.
    MembersParted,
    /// A member returns only old data for a while.
    MemberLags,
}

const AMONG_MEMBERS: [Fault; 9] = [
    Fault::MemberKilled,
    Fault::MembersKilled,
    Fault::MemberStopped,
    Fault::MembersParted,
    Fault::MemberLags,
    Fault::Partition,
    Fault::Reset,
    Fault::ClientKilled,
    Fault::ClientStopped,
];

const FAULTS: [Fault; 12] = [
    Fault::Kill,
    Fault::PowerLoss,
    Fault::Restart,
    Fault::Partition,
    Fault::Reset,
    Fault::DiskFails,
    Fault::ClientKilled,
    Fault::ClientStopped,
    Fault::ServerStopped,
    Fault::Restore,
    Fault::Move,
    Fault::Salvage,
];

pub(crate) fn calm() -> Weather {
    Weather {
        delay: Duration::from_millis(1)..Duration::from_millis(3),
        loss: 0.0,
        resend: Duration::from_millis(200),
        split: 0.0,
        cut: 0.0,
    }
}

/// Draws the network's behavior while there are faults.
pub(crate) fn weather(random: &mut Random) -> Weather {
    let mut often = |most: f64| match random.once_in(2) {
        true => 0.0,
        false => most * random.within(1..100) as f64 / 100.0,
    };
    let (loss, split, cut) = (often(0.05), often(0.3), often(0.01));
    let longest = [3, 20, 200, 1_000][random.within(0..4) as usize];
    Weather {
        delay: Duration::from_millis(1)..Duration::from_millis(longest),
        loss,
        split,
        cut,
        ..calm()
    }
}

/// Causes faults, and restarts the server whenever it is down.
pub(crate) struct Operator {
    pub(crate) world: World,
    pub(crate) random: Random,
    /// The server, which is never started in a run with an ensemble.
    pub(crate) host: ServerHost,
    pub(crate) ensemble: Option<Ensemble>,
    pub(crate) crews: Vec<Rc<ClientTasks>>,
    pub(crate) resources: Vec<Rc<Resource>>,
    pub(crate) history: Rc<History>,
    pub(crate) backup: Option<Backup>,
    /// The options of the store are drawn again at each start.
    pub(crate) changes_options: bool,
    /// The longest session timeout that was ever allowed, in seconds.
    pub(crate) longest_s: u64,
    /// Minimum of the longest timeout since something was lost. Also applies if the first start after that fails.
    pub(crate) least_longest_s: u64,
}

fn store_options(
    random: &mut Random,
    max_bytes: Option<usize>,
    longest_s: impl FnOnce(u64) -> u64,
) -> StoreOptions {
    let shortest = [1, 2, 4][random.within(0..3) as usize];
    let longest = longest_s([8, 20, 40][random.within(0..3) as usize]);
    let seconds = Duration::from_secs;
    let store = StoreOptions::new().session_timeouts(seconds(shortest), seconds(longest));
    let tick = [100, 500, 900][random.within(0..3) as usize];
    let segment = [1, 1, 1 << 20][random.within(0..3) as usize];
    let store = store.tick(Duration::from_millis(tick));
    let store = store.segment_bytes(segment, segment);
    match max_bytes {
        Some(limit) => store.max_bytes(limit),
        None => store,
    }
}

/// Limit of the time with faults in a run that would be too short.
pub(crate) const LONGER: Duration = Duration::from_secs(300);

/// A full store still admits sessions and identities up to this part of its limit, a sixteenth each.
const BEYOND_PART: usize = 8;

impl Operator {
    /// Starts the server, with retries if the disk fails.
    pub(crate) async fn start(&mut self) {
        if self.ensemble.is_some() || self.world.memory().is_some() {
            return;
        }
        let pace = Duration::from_millis(1)..Duration::from_millis(1 + self.random.within(1..20));
        let max_bytes = self.world.max_bytes();
        // The lost data may have contained the longest allowed timeout, so the operator must remember it.
        let least = self.least_longest_s;
        let allowed = &mut self.longest_s;
        let longest = |drawn: u64| {
            let longest = drawn.max(least);
            *allowed = longest.max(*allowed);
            longest
        };
        let options = match self.changes_options {
            true => store_options(&mut self.random, max_bytes, longest),
            false => store_options(&mut Random(0), max_bytes, longest),
        };
        match self.host.start(&options, pace).await {
            Ok(()) => self.world.count("server starts"),
            Err(error) => {
                self.world.count("server starts that failed");
                self.world
                    .tell(format_args!("the server does not start: {error}"));
            }
        }
    }

    /// Causes faults for this long, or longer in a run that would be too short, and then repairs everything.
    pub(crate) async fn run(mut self, length: Duration) -> Self {
        if let Some(memory) = self.world.memory() {
            memory.run(&self.world, length).await;
            return self;
        }
        let all = match self.ensemble {
            None => &FAULTS[..],
            Some(_) => &AMONG_MEMBERS,
        };
        let kinds: Vec<_> = all
            .iter()
            .filter(|_| self.random.once_in(2))
            .copied()
            .collect();
        let until = self.world.time().elapsed() + length;
        let latest = until + LONGER;
        let weather = weather(&mut self.random);
        self.world
            .tell(format_args!("faults: {kinds:?}, {weather:?}"));
        self.world.network().set_weather(weather);
        while self.world.time().elapsed() < until
            || self.world.is_short() && self.world.time().elapsed() < latest
        {
            tokio::time::sleep(self.random.below_ms(8_000)).await;
            self.world.time().sync();
            self.check_budget();
            if self.is_down() {
                self.start().await;
            } else if !kinds.is_empty() {
                let kind = kinds[self.random.within(0..kinds.len() as u64) as usize];
                self.cause(kind).await;
            }
        }
        self.world.network().set_weather(calm());
        self.world.network().heal();
        self.host.disk().fail(0, DiskFaults::default());
        if self.is_down() {
            self.host.kill();
            self.start().await;
        }
        self.start_members();
        self.world.tell("all faults have ended");
        self
    }

    fn is_down(&self) -> bool {
        self.ensemble.is_none() && self.host.is_down()
    }

    /// Fails the run if the store exceeds its limit.
    fn check_budget(&self) {
        let (Some(limit), Some(kept)) = (self.world.max_bytes(), self.host.kept_bytes()) else {
            return;
        };
        self.world.count("budget: checks");
        if kept > limit + limit / BEYOND_PART {
            self.world.violate(format_args!(
                "budget: the store keeps {kept} bytes, and {limit} is the limit"
            ));
        }
    }

    async fn cause(&mut self, kind: Fault) {
        self.world.tell(format_args!("fault: {kind:?}"));
        match kind {
            Fault::Kill => {
                self.world.count("fault: server killed");
                self.host.kill();
                self.pause().await;
                self.start().await;
            }
            Fault::PowerLoss => {
                self.world.count("fault: power lost");
                if self.random.once_in(2) {
                    self.wait_for_a_write().await;
                }
                self.lose_power().await;
            }
            Fault::Restart => {
                self.world.count("fault: server restarted");
                self.host.shutdown().await;
                self.pause().await;
                self.start().await;
            }
            Fault::Partition => {
                self.world.count("fault: partition");
                let client = self.tasks().host();
                self.part(&client, &self.world.hosts());
                tokio::time::sleep(self.random.below_ms(30_000)).await;
                self.world.network().heal();
            }
            Fault::Reset => {
                self.world.count("fault: connections reset");
                let client = self.tasks().host();
                self.world.network().reset(&client);
            }
            Fault::DiskFails => {
                self.world.count("fault: disk fails");
                let often = 5 + self.random.within(0..100);
                let mut faults = DiskFaults::default();
                match self.random.within(0..4) {
                    0 => faults.write_error_every = often,
                    1 => faults.short_write_every = often,
                    2 => faults.sync_error_every = often,
                    _ => {
                        self.world.count("fault: disk without room");
                        faults.room_bytes = Some(self.random.within(0..20_000));
                    }
                }
                self.host.disk().fail(self.random.next(), faults);
                tokio::time::sleep(self.random.below_ms(10_000)).await;
                self.host.disk().fail(0, DiskFaults::default());
                // Later syncs succeed, but do not restore what an earlier one has failed to write.
                if self.random.once_in(3) {
                    self.world.count("fault: power lost after the disk failed");
                    self.lose_power().await;
                }
            }
            Fault::ClientKilled => {
                self.world.count("fault: client killed");
                self.tasks().kill();
            }
            Fault::ClientStopped => {
                self.world.count("fault: client stopped");
                let tasks = self.tasks();
                if let Some(clock) = tasks.clock() {
                    self.stop(&clock, &tasks.host()).await;
                }
            }
            Fault::ServerStopped => {
                self.world.count("fault: server stopped");
                let clock = self.host.clock().clone();
                self.stop(&clock, SERVER).await;
            }
            Fault::Restore => match self.backup.take() {
                None => self.back_up(),
                Some(backup) => self.restore(&backup).await,
            },
            Fault::Move => {
                self.world.count("fault: server moved");
                self.host.kill();
                self.pause().await;
                let clock = drifting(&self.world, &mut self.random);
                self.host.move_to(&clock);
                self.start().await;
            }
            Fault::Salvage => self.salvage().await,
            Fault::MemberKilled
            | Fault::MembersKilled
            | Fault::MemberStopped
            | Fault::MembersParted
            | Fault::MemberLags => self.cause_among_members(kind).await,
        }
    }

    /// Makes a backup, but not before the first client has given the store its id. To the clients, an earlier backup
    /// would be a different store, which they report.
    fn back_up(&mut self) {
        if !self.world.has_happened("clients connected") {
            return;
        }
        match self.host.backup() {
            Ok(backup) => {
                self.world.count("backups");
                self.backup = Some(backup);
            }
            // Nothing was ever written.
            Err(error) => self.world.tell(format_args!("no backup: {error}")),
        }
    }

    /// Restores a backup. Writes acknowledged since then are lost, but new tokens exceed all earlier ones.
    async fn restore(&mut self, backup: &Backup) {
        self.world.count("fault: backup restored");
        self.least_longest_s = self.longest_s;
        self.host.kill();
        self.pause().await;
        if let Err(error) = self.host.restore(backup) {
            let text = format_args!("error: a backup cannot be restored: {error}");
            return self.world.violate(text);
        }
        self.forget();
        self.start().await;
    }

    /// Damages the disk, and continues with what can be salvaged. If that is too little, the disk is replaced by its
    /// mirror.
    async fn salvage(&mut self) {
        self.host.kill();
        self.pause().await;
        match self.host.salvage() {
            Ok(true) => {
                self.world.count("fault: damaged disk salvaged");
                self.least_longest_s = self.longest_s;
                self.forget();
            }
            Ok(false) => self.world.count("salvages that were too little"),
            Err(error) => {
                let text = format_args!("error: a damaged disk cannot be salvaged: {error}");
                return self.world.violate(text);
            }
        }
        self.start().await;
    }

    /// Forgets acknowledged writes, because the store is back at an earlier state.
    fn forget(&self) {
        self.history.forget();
        for resource in &self.resources {
            resource.forget();
        }
    }

    async fn lose_power(&mut self) {
        self.host.crash();
        self.pause().await;
        self.start().await;
    }

    /// Lets the power fail during one of the next writes, and waits a moment longer. What the server says after a
    /// write must not precede its sync.
    async fn wait_for_a_write(&mut self) {
        self.world.count("fault: power lost within a write");
        self.host.crash_within(1 + self.random.within(0..40));
        for _ in 0..5_000 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            if self.host.is_without_power() {
                break;
            }
        }
        tokio::time::sleep(self.random.below_ms(300)).await;
    }

    /// Separates a host from others, in one direction or both.
    pub(crate) fn part(&mut self, host: &str, others: &[String]) {
        let ways = self.random.within(0..3);
        for other in others {
            if ways != 0 {
                self.world.network().part(host, other);
            }
            if ways != 1 {
                self.world.network().part(other, host);
            }
        }
    }

    /// Stops everything that uses a clock, and its network, for a while.
    async fn stop(&mut self, clock: &Clock, host: &str) {
        self.world.network().isolate(host);
        self.world.time().stop(clock);
        let longest = [2_000, 10_000, 60_000][self.random.within(0..3) as usize];
        tokio::time::sleep(self.random.below_ms(longest)).await;
        let is_suspended = self.random.once_in(2);
        self.world.time().go_on(clock, is_suspended);
        self.world.network().heal();
    }

    fn tasks(&mut self) -> Rc<ClientTasks> {
        let count = self.crews.len() as u64;
        self.crews[self.random.within(0..count) as usize].clone()
    }

    /// Leaves the server down, usually briefly but sometimes for longer than any timeout.
    pub(crate) async fn pause(&mut self) {
        let longest = match self.random.within(0..6) {
            0 => 60_000,
            _ => 3_000,
        };
        tokio::time::sleep(self.random.below_ms(longest)).await;
        self.world.time().sync();
    }
}
