//! [`Backups`]: the scheduled backups of `--backup-every`, on a separate thread.
//!
//! The thread reads the store's directory as `lockkeeper backup` does, so no client waits for a backup. A failed backup
//! does not end the server, but is logged, counted and tried again later.

mod folder;
mod metrics;
mod name;

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, SystemTime};

use lockkeeper_store::Clock;
use prometheus::Registry;
use tracing::{info, warn};

use self::folder::{BackupFolder, Failure, Made};
use self::metrics::BackupMetrics;

#[derive(Clone, Debug)]
pub(crate) struct BackupPlan {
    pub(crate) every: Duration,
    pub(crate) folder: PathBuf,
    pub(crate) keep: usize,
}

/// Shortest interval between backups, because their file names contain the time in seconds.
pub(crate) const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);

const RETRY_DELAY: Duration = Duration::from_secs(60);

/// The thread that makes backups. Dropping it does not wait for an unfinished backup, which the next start removes.
#[derive(Debug)]
pub(super) struct Backups {
    _stop: Sender<()>,
}

impl Backups {
    pub(super) fn start(
        plan: &BackupPlan,
        data: PathBuf,
        store: String,
        registry: Option<&Registry>,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let metrics = BackupMetrics::new(plan.every)?;
        if let Some(registry) = registry {
            metrics.register(registry)?;
        }
        let (stop, stopped) = channel();
        let schedule = Schedule {
            every: plan.every,
            folder: BackupFolder::new(plan.folder.clone(), store, plan.keep),
            data,
            metrics,
            stopped,
        };
        let thread = std::thread::Builder::new().name("lockkeeper-backup".into());
        thread.spawn(move || schedule.run())?;
        Ok(Self { _stop: stop })
    }
}

struct Schedule {
    every: Duration,
    folder: BackupFolder,
    data: PathBuf,
    metrics: BackupMetrics,
    stopped: Receiver<()>,
}

impl Schedule {
    fn run(mut self) {
        let now = SystemTime::now();
        let mut pause = match self.folder.newest(now) {
            Ok(newest) => {
                self.metrics.found(newest);
                let pause = until_first(newest, now, self.every);
                info!(seconds = pause.as_secs(), "the next backup");
                pause
            }
            Err(failure) => self.failed(&failure),
        };
        while self.sleep(pause) {
            pause = match self.folder.make(&self.data) {
                Ok(made) => self.made(&made),
                Err(failure) => self.failed(&failure),
            };
        }
    }

    fn made(&self, made: &Made) -> Duration {
        let Made { file, summary, .. } = made;
        // Count the backup before logging it, because an alert on the log line may read the metrics immediately.
        self.metrics.made(made);
        info!(
            file = %file.display(),
            zxid = %summary.zxid,
            znodes = summary.znodes,
            bytes = summary.bytes,
            "backup made"
        );
        if let Err(failure) = &made.kept {
            warn!(reason = failure.text, "old backups stay");
        }
        // The interval starts at the end of a backup, so that slow backups do not follow each other without a pause.
        self.every
    }

    fn failed(&self, failure: &Failure) -> Duration {
        let pause = self.every.min(RETRY_DELAY);
        self.metrics.failed(failure.reason);
        warn!(
            reason = failure.text,
            retry_seconds = pause.as_secs(),
            "no backup was made, the store is not affected"
        );
        pause
    }

    /// Sleeps for this time, including time while the machine is suspended. Returns `false` if the server ends.
    fn sleep(&self, pause: Duration) -> bool {
        let clock = Clock::system();
        let start = clock.now();
        loop {
            let rest = pause.saturating_sub(clock.now().since(start));
            match self.stopped.recv_timeout(rest.min(LONGEST_SLEEP)) {
                Err(RecvTimeoutError::Timeout) if rest <= LONGEST_SLEEP => return true,
                Err(RecvTimeoutError::Timeout) => {}
                _ => return false,
            }
        }
    }
}

/// Longest single sleep. The timer does not advance while the machine is suspended, so we look at the clock after each
/// sleep.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);

fn until_first(newest: Option<SystemTime>, now: SystemTime, every: Duration) -> Duration {
    let age = newest.map(|newest| now.duration_since(newest).unwrap_or_default());
    age.map_or(Duration::ZERO, |age| every.saturating_sub(age))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_missed_is_caught_up_once() {
        let hour = Duration::from_secs(3_600);
        let now = SystemTime::now();
        for (age, pause) in [
            (Duration::ZERO, hour),
            (hour / 4, hour * 3 / 4),
            (hour, Duration::ZERO),
            (100 * hour, Duration::ZERO),
        ] {
            assert_eq!(until_first(Some(now - age), now, hour), pause, "{age:?}");
        }
        assert_eq!(until_first(None, now, hour), Duration::ZERO);
    }
}
