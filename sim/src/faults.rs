//! The faults of a run: each seed draws the kinds that happen in it, and how often.

use std::rc::Rc;
use std::time::Duration;

use lockkeeper::{Clock, StoreOptions};
use lockkeeper_store::simulation::{Backup, DiskFaults, ServerHost, Weather};

use crate::crew::Crew;
use crate::history::History;
use crate::resource::Resource;
use crate::world::{Random, World, drifting};

pub(crate) const SERVER: &str = "server";

/// Kinds of faults that an operator, a power line or a cable causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Kill,
    PowerLoss,
    Restart,
    /// A client and the server are parted, in both directions or in one.
    Partition,
    /// All connections of a client are reset.
    Reset,
    /// The disk fails, for a while.
    DiskFails,
    /// A client's process is killed; another one takes its place.
    ClientKilled,
    /// A client's process is stopped for a while, or its machine suspended.
    ClientStopped,
    /// The same of the server.
    ServerStopped,
    /// A backup is made, or the last one is put back.
    Restore,
    /// The server continues on another machine, with a copy of the disk.
    Move,
}

const FAULTS: [Fault; 11] = [
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
];

/// The network as it is without faults.
pub(crate) fn calm() -> Weather {
    Weather {
        delay: Duration::from_millis(1)..Duration::from_millis(3),
        loss: 0.0,
        resend: Duration::from_millis(200),
        split: 0.0,
        cut: 0.0,
    }
}

/// Draws the network's behaviour while there are faults.
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

/// Causes faults, and starts the server again whenever it is down.
pub(crate) struct Operator {
    pub(crate) world: World,
    pub(crate) random: Random,
    pub(crate) host: ServerHost,
    pub(crate) crews: Vec<Rc<Crew>>,
    pub(crate) resources: Vec<Rc<Resource>>,
    pub(crate) history: Rc<History>,
    pub(crate) backup: Option<Backup>,
    /// The options of the store are drawn anew at each start.
    pub(crate) changes_options: bool,
}

/// Draws the options of a store.
fn store_options(random: &mut Random) -> StoreOptions {
    let shortest = [1, 2, 4][random.within(0..3) as usize];
    let longest = [8, 20, 40][random.within(0..3) as usize];
    let seconds = Duration::from_secs;
    let store = StoreOptions::new().session_timeouts(seconds(shortest), seconds(longest));
    let tick = [100, 500, 900][random.within(0..3) as usize];
    let segment = [1, 1, 1 << 20][random.within(0..3) as usize];
    let store = store.tick(Duration::from_millis(tick));
    store.segment_bytes(segment, segment)
}

impl Operator {
    /// Starts the server; on a disk that fails, again and again.
    pub(crate) async fn start(&mut self) {
        let pace = Duration::from_millis(1)..Duration::from_millis(1 + self.random.within(1..20));
        let options = match self.changes_options {
            true => store_options(&mut self.random),
            false => store_options(&mut Random(0)),
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

    /// Causes faults for so long, and mends everything.
    pub(crate) async fn run(mut self, length: Duration) -> Self {
        let kinds: Vec<_> = FAULTS
            .into_iter()
            .filter(|_| self.random.once_in(2))
            .collect();
        let until = self.world.time().elapsed() + length;
        let weather = weather(&mut self.random);
        self.world
            .tell(format_args!("faults: {kinds:?}, {weather:?}"));
        self.world.network().set_weather(weather);
        while self.world.time().elapsed() < until {
            tokio::time::sleep(self.random.below_ms(8_000)).await;
            self.world.time().sync();
            if self.host.is_down() {
                self.start().await;
            } else if !kinds.is_empty() {
                let kind = kinds[self.random.within(0..kinds.len() as u64) as usize];
                self.cause(kind).await;
            }
        }
        self.world.network().set_weather(calm());
        self.world.network().heal();
        self.host.disk().fail(0, DiskFaults::default());
        if self.host.is_down() {
            self.host.kill();
            self.start().await;
        }
        self.world.tell("all faults have ended");
        self
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
                let client = self.crew().host();
                let ways = self.random.within(0..3);
                if ways != 0 {
                    self.world.network().part(&client, SERVER);
                }
                if ways != 1 {
                    self.world.network().part(SERVER, &client);
                }
                tokio::time::sleep(self.random.below_ms(30_000)).await;
                self.world.network().heal();
            }
            Fault::Reset => {
                self.world.count("fault: connections reset");
                let client = self.crew().host();
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
                    _ => faults.room_bytes = Some(self.random.within(0..20_000)),
                }
                self.host.disk().fail(self.random.next(), faults);
                tokio::time::sleep(self.random.below_ms(10_000)).await;
                self.host.disk().fail(0, DiskFaults::default());
                // Later syncs succeed, and do not bring back what an earlier one has failed to write.
                if self.random.once_in(3) {
                    self.world.count("fault: power lost after the disk failed");
                    self.lose_power().await;
                }
            }
            Fault::ClientKilled => {
                self.world.count("fault: client killed");
                self.crew().kill();
            }
            Fault::ClientStopped => {
                self.world.count("fault: client stopped");
                let crew = self.crew();
                if let Some(clock) = crew.clock() {
                    self.stop(&clock, &[crew.host()]).await;
                }
            }
            Fault::ServerStopped => {
                self.world.count("fault: server stopped");
                let clients: Vec<_> = self.crews.iter().map(|crew| crew.host()).collect();
                let clock = self.host.clock().clone();
                self.stop(&clock, &clients).await;
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
        }
    }

    /// Makes a backup. The first client gives a store the id by which clients know it again: a backup from before it is
    /// one of another store to them, and they say so.
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

    /// Puts a backup back. What was acknowledged since is lost; tokens go on above all that were given out.
    async fn restore(&mut self, backup: &Backup) {
        self.world.count("fault: backup restored");
        self.host.kill();
        self.pause().await;
        if let Err(error) = self.host.restore(backup) {
            let text = format_args!("error: a backup cannot be restored: {error}");
            return self.world.violate(text);
        }
        self.history.forget();
        for resource in &self.resources {
            resource.register.forget();
        }
        self.start().await;
    }

    async fn lose_power(&mut self) {
        self.host.crash();
        self.pause().await;
        self.start().await;
    }

    /// Has the power fail within one of the next writes, and waits a moment longer: what the server says after a write
    /// must not run ahead of its sync.
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

    /// Stops all that runs by a clock, and its network, for a while.
    async fn stop(&mut self, clock: &Clock, clients: &[String]) {
        for client in clients {
            self.world.network().part(client, SERVER);
            self.world.network().part(SERVER, client);
        }
        self.world.time().stop(clock);
        let longest = [2_000, 10_000, 60_000][self.random.within(0..3) as usize];
        tokio::time::sleep(self.random.below_ms(longest)).await;
        let is_suspended = self.random.once_in(2);
        self.world.time().go_on(clock, is_suspended);
        self.world.network().heal();
    }

    fn crew(&mut self) -> Rc<Crew> {
        let count = self.crews.len() as u64;
        self.crews[self.random.within(0..count) as usize].clone()
    }

    /// Leaves the server down for a while: mostly for moments, and now and then for longer than any timeout.
    async fn pause(&mut self) {
        let longest = match self.random.within(0..6) {
            0 => 60_000,
            _ => 3_000,
        };
        tokio::time::sleep(self.random.below_ms(longest)).await;
        self.world.time().sync();
    }
}
