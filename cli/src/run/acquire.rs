//! [`Goal`]: the lock that is asked for, and [`Held`]: the guard of any kind that comes of it.

use std::fmt::Write;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;

use lockkeeper::{
    Client, Deadline, Election, FencingToken, LockError, LockEvent, LockEvents, LockGuard,
    LockOptions, LockPath, LostReason, Mutex, QueueEntry, RwLock, Semaphore, lock_all_with,
    lock_events, try_lock_all_with,
};
use tokio::sync::watch;

use super::Run;
use super::channel::{Report, Waiting};

/// The locks of one call.
#[derive(Debug)]
pub(super) enum Goal {
    Mutex(LockPath),
    Shared(LockPath),
    Exclusive(LockPath),
    Permits { path: LockPath, take: u32, of: u32 },
    All(Vec<LockPath>),
    Election(LockPath),
}

/// A guard of any kind.
pub(super) trait Held {
    fn token(&self) -> FencingToken;
    fn is_held(&self) -> bool;
    fn held_until(&self) -> Option<Deadline>;
    fn session(&self) -> &lockkeeper::Session;
    fn lost(&self) -> Pin<Box<dyn Future<Output = LostReason> + '_>>;
    fn release(self: Box<Self>) -> Pin<Box<dyn Future<Output = Result<(), LockError>>>>;
}

impl<G: LockGuard> Held for G {
    fn token(&self) -> FencingToken {
        self.fencing_token()
    }

    fn is_held(&self) -> bool {
        LockGuard::is_held(self)
    }

    fn held_until(&self) -> Option<Deadline> {
        LockGuard::held_until(self)
    }

    fn session(&self) -> &lockkeeper::Session {
        LockGuard::session(self)
    }

    fn lost(&self) -> Pin<Box<dyn Future<Output = LostReason> + '_>> {
        Box::pin(LockGuard::lost(self))
    }

    fn release(self: Box<Self>) -> Pin<Box<dyn Future<Output = Result<(), LockError>>>> {
        Box::pin(LockGuard::release(*self))
    }
}

/// Parses `N/M`.
pub(super) fn permits(text: &str) -> Result<(u32, u32), String> {
    let numbers = text.split_once('/').and_then(|(take, of)| {
        let (take, of) = (take.parse().ok()?, of.parse().ok()?);
        (1 <= take && take <= of).then_some((take, of))
    });
    numbers.ok_or_else(|| "expected N/M, N of M permits, with N from 1 to M: 1/4".into())
}

impl Goal {
    /// Returns the paths of the locks.
    pub(super) fn paths(&self) -> String {
        let paths = match self {
            Self::Mutex(path) | Self::Shared(path) | Self::Exclusive(path) => vec![path],
            Self::Permits { path, .. } | Self::Election(path) => vec![path],
            Self::All(paths) => paths.iter().collect(),
        };
        let paths: Vec<_> = paths.iter().map(|path| path.to_string()).collect();
        paths.join(",")
    }

    async fn lock(
        &self,
        client: &Client,
        label: String,
        options: LockOptions,
    ) -> Result<Box<dyn Held>, LockError> {
        Ok(match self {
            Self::Mutex(path) => Box::new(Mutex::new(client, path)?.lock_with(options).await?),
            Self::Shared(path) => Box::new(RwLock::new(client, path)?.read_with(options).await?),
            Self::Exclusive(path) => {
                Box::new(RwLock::new(client, path)?.write_with(options).await?)
            }
            Self::Permits { path, take, of } => {
                let semaphore = Semaphore::new(client, path, *of)?;
                Box::new(semaphore.acquire_with(*take, options).await?)
            }
            Self::All(paths) => Box::new(lock_all_with(client, paths, options).await?),
            Self::Election(path) => {
                let election = Election::new(client, path)?;
                Box::new(election.campaign_with(label, options).await?)
            }
        })
    }

    async fn try_lock(
        &self,
        client: &Client,
        options: LockOptions,
    ) -> Result<Option<Box<dyn Held>>, LockError> {
        fn boxed<G: LockGuard>(guard: Option<G>) -> Option<Box<dyn Held>> {
            guard.map(|guard| Box::new(guard) as Box<dyn Held>)
        }
        let options = options.synced();
        Ok(match self {
            Self::Mutex(path) => boxed(Mutex::new(client, path)?.try_lock_with(options).await?),
            Self::Shared(path) => boxed(RwLock::new(client, path)?.try_read_with(options).await?),
            Self::Exclusive(path) => {
                boxed(RwLock::new(client, path)?.try_write_with(options).await?)
            }
            Self::Permits { path, take, of } => {
                let semaphore = Semaphore::new(client, path, *of)?;
                boxed(semaphore.try_acquire_with(*take, options).await?)
            }
            Self::All(paths) => boxed(try_lock_all_with(client, paths, options).await?),
            Self::Election(_) => unreachable!("a candidate waits"),
        })
    }

    /// Returns the first of the present holders, where there is one queue to look at.
    async fn holder(&self, client: &Client) -> Option<QueueEntry> {
        let path = match self {
            Self::Mutex(path) | Self::Shared(path) | Self::Exclusive(path) => path,
            Self::Permits { path, of, .. } => {
                let holders = Semaphore::new(client, path, *of).ok()?.holders().await;
                return holders.ok()?.into_iter().next();
            }
            Self::Election(path) => path,
            Self::All(paths) => paths.first()?,
        };
        let queue = lockkeeper::queue(client, path).await.ok()?;
        queue.into_iter().next()
    }
}

impl Run {
    /// Waits for the lock; `None` if it was to be free, and is not. `reports` tells the position if anybody is to see it.
    pub(super) async fn acquire(
        &self,
        goal: &Goal,
        client: &Client,
        reports: Option<&watch::Sender<Report>>,
    ) -> Result<Option<Box<dyn Held>>, LockError> {
        let mut options = LockOptions::new().label(self.label());
        if let Some(expected) = self.expect {
            options = options.expected_hold(expected);
        }
        if self.only_if_free {
            return goal.try_lock(client, options).await;
        }
        if let Some(timeout) = self.timeout {
            options = options.timeout(timeout);
        }
        let Some(reports) = reports else {
            return goal.lock(client, self.label(), options).await.map(Some);
        };
        let (sink, events) = lock_events();
        let locked = tokio::select! {
            biased;
            locked = goal.lock(client, self.label(), options.events(sink)) => locked,
            () = tell_position(goal, client, events, reports) => unreachable!("it goes on telling"),
        };
        reports.send_modify(|report| report.waiting = None);
        locked.map(Some)
    }

    fn label(&self) -> String {
        let name = || Path::new(self.command.first()?).file_name();
        self.label.clone().unwrap_or_else(|| {
            let name = name().unwrap_or_default();
            name.to_string_lossy().into_owned()
        })
    }
}

async fn tell_position(
    goal: &Goal,
    client: &Client,
    mut events: LockEvents,
    reports: &watch::Sender<Report>,
) {
    while let Some(event) = events.next().await {
        let (LockEvent::Queued { position, .. } | LockEvent::Advanced { position }) = event else {
            continue;
        };
        let holder = goal.holder(client).await.map(|entry| description(&entry));
        let waiting = Some(Waiting {
            ahead: position,
            holder,
        });
        reports.send_modify(|report| report.waiting = waiting);
    }
    std::future::pending().await
}

/// Describes a holder: `backup.sh (host3, pid 4711)`.
fn description(holder: &QueueEntry) -> String {
    let Some(metadata) = &holder.metadata else {
        return format!("session {}", holder.owner);
    };
    let mut text = match &metadata.label {
        Some(label) => plain(label),
        None => format!("session {}", holder.owner),
    };
    let host = metadata.host.as_deref().map(plain);
    let pid = metadata.pid.map(|pid| format!("pid {pid}"));
    let place: Vec<_> = host.into_iter().chain(pid).collect();
    if !place.is_empty() {
        let _ = write!(text, " ({})", place.join(", "));
    }
    text
}

/// Another client chose the text: it must not move the cursor, or do worse.
fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .take(80)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_some_of_all() {
        assert_eq!(permits("1/4"), Ok((1, 4)));
        assert_eq!(permits("4/4"), Ok((4, 4)));
        for wrong in ["", "4", "0/4", "5/4", "a/4", "-1/4", "1/4/4", "1/"] {
            assert!(permits(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_name_of_another_client_moves_no_cursor() {
        assert_eq!(plain("a\x1b[2J\nß"), "a?[2J?ß");
    }
}
