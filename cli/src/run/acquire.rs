//! [`Goal`]: the requested lock, and the wait for it.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use lockkeeper::{
    Attempt, Client, Election, FencingToken, LockError, LockEvent, LockEvents, LockGuard,
    LockOptions, LockPath, Mutex, OncePer, QueueEntry, RwLock, Semaphore, lock_all_with,
    lock_events, try_lock_all_with,
};
use tokio::sync::watch;

use super::Run;
use super::channel::{Report, Waiting};
use super::held::Held;
use crate::exit::Failure;
use crate::locks::table::fitted;

/// Environment variable that lists the exclusive locks held by all outer `lockkeeper run` commands. Each line contains
/// a store id and a fencing token.
pub(super) const HELD: &str = "LOCKKEEPER_HELD";

/// Returns the value of [`HELD`] for a command under this lock, or `None` if the lock is not exclusive or the store has
/// no id.
pub(super) fn held_with(goal: &Goal, store: Option<&str>, token: FencingToken) -> Option<String> {
    let store = store.filter(|_| goal.is_exclusive())?;
    let outer = std::env::var(HELD).unwrap_or_default();
    Some(format!("{outer}\n{store} {token}"))
}

#[derive(Debug)]
pub(super) enum Goal {
    Lock(Lock),
    /// A job that runs once per period.
    Job {
        path: LockPath,
        period: Duration,
    },
    Election(LockPath),
}

#[derive(Debug)]
pub(super) enum Lock {
    Mutex(LockPath),
    Shared(LockPath),
    Exclusive(LockPath),
    Permits { path: LockPath, take: u32, of: u32 },
    All(Vec<LockPath>),
}

pub(super) enum Acquired {
    Held(Held),
    NotFree,
    NotDue {
        since_end: Duration,
        due_in: Duration,
    },
}

impl From<Attempt> for Acquired {
    fn from(turn: Attempt) -> Self {
        match turn {
            Attempt::Due(run) => Self::Held(Held::Job(run)),
            Attempt::NotDue { since_end, due_in } => Self::NotDue { since_end, due_in },
            _ => Self::NotFree,
        }
    }
}

pub(super) fn permits(text: &str) -> Result<(u32, u32), String> {
    let numbers = text.split_once('/').and_then(|(take, of)| {
        let (take, of) = (take.parse().ok()?, of.parse().ok()?);
        (1 <= take && take <= of).then_some((take, of))
    });
    numbers.ok_or_else(|| "expected N/M, N of M permits, with N from 1 to M: 1/4".into())
}

impl Goal {
    pub(super) fn paths(&self) -> String {
        let paths: Vec<_> = self.all_paths().iter().map(LockPath::to_string).collect();
        paths.join(",")
    }

    fn all_paths(&self) -> &[LockPath] {
        match self {
            Self::Lock(Lock::All(paths)) => paths,
            Self::Lock(Lock::Mutex(path) | Lock::Shared(path) | Lock::Exclusive(path))
            | Self::Lock(Lock::Permits { path, .. })
            | Self::Job { path, .. }
            | Self::Election(path) => std::slice::from_ref(path),
        }
    }

    fn is_exclusive(&self) -> bool {
        !matches!(self, Self::Lock(Lock::Shared(_) | Lock::Permits { .. }))
    }

    /// Fails if an outer `run` holds one of these locks, because we and the outer `run` would wait for each other. A
    /// lock whose queue does not contain the outer token does not count, because the outer `run` has already released
    /// it.
    async fn check_nesting(&self, client: &Client) -> Result<(), Failure> {
        let Ok(held) = std::env::var(HELD) else {
            return Ok(());
        };
        let session = client.session().await?;
        let Some(store) = session.store_id() else {
            return Ok(());
        };
        let outer = held.lines().filter_map(|line| line.split_once(' '));
        let outer = outer.filter(|(id, _)| *id == store);
        let outer: Vec<FencingToken> = outer.filter_map(|(_, token)| token.parse().ok()).collect();
        if outer.is_empty() {
            return Ok(());
        }
        for path in self.all_paths() {
            let queue = lockkeeper::queue(client, path).await?;
            if queue.iter().any(|it| outer.contains(&it.fencing_token)) {
                return Err(Failure::Usage(format!(
                    "{path} is already held by an outer `lockkeeper run` of this command, which would wait for this one: \
                     remove the inner `run`"
                )));
            }
        }
        Ok(())
    }

    fn has_kinds(&self) -> bool {
        !matches!(
            self,
            Self::Lock(Lock::All(_)) | Self::Job { .. } | Self::Election(_)
        )
    }

    async fn holder(&self, client: &Client) -> Option<QueueEntry> {
        let queue = match self {
            Self::Lock(Lock::Permits { path, of, .. }) => {
                Semaphore::new(client, path, *of).ok()?.holders().await
            }
            _ => lockkeeper::queue(client, self.all_paths().first()?).await,
        };
        queue.ok()?.into_iter().next()
    }
}

impl Lock {
    async fn lock(&self, client: &Client, options: LockOptions) -> Result<Held, LockError> {
        Ok(match self {
            Self::Mutex(path) => Held::of(Mutex::new(client, path)?.lock_with(options).await?),
            Self::Shared(path) => Held::of(RwLock::new(client, path)?.read_with(options).await?),
            Self::Exclusive(path) => {
                Held::of(RwLock::new(client, path)?.write_with(options).await?)
            }
            Self::Permits { path, take, of } => {
                let semaphore = Semaphore::new(client, path, *of)?;
                Held::of(semaphore.acquire_with(*take, options).await?)
            }
            Self::All(paths) => Held::of(lock_all_with(client, paths, options).await?),
        })
    }

    async fn try_lock(&self, client: &Client, options: LockOptions) -> Result<Acquired, LockError> {
        fn acquired(guard: Option<impl LockGuard>) -> Acquired {
            guard.map_or(Acquired::NotFree, |guard| Acquired::Held(Held::of(guard)))
        }
        Ok(match self {
            Self::Mutex(path) => acquired(Mutex::new(client, path)?.try_lock_with(options).await?),
            Self::Shared(path) => {
                acquired(RwLock::new(client, path)?.try_read_with(options).await?)
            }
            Self::Exclusive(path) => {
                acquired(RwLock::new(client, path)?.try_write_with(options).await?)
            }
            Self::Permits { path, take, of } => {
                let semaphore = Semaphore::new(client, path, *of)?;
                acquired(semaphore.try_acquire_with(*take, options).await?)
            }
            Self::All(paths) => acquired(try_lock_all_with(client, paths, options).await?),
        })
    }
}

impl Run {
    /// Waits for the lock, or only tries to take it.
    ///
    /// `reports` receives the position in the queue. Other clients see `front` as the process id of the holder, because
    /// a user who wants to end the command must signal the front. This process ignores such signals.
    pub(super) async fn acquire(
        &self,
        goal: &Goal,
        client: &Client,
        reports: Option<&watch::Sender<Report>>,
        front: u32,
    ) -> Result<Acquired, Failure> {
        if !self.is_try() {
            goal.check_nesting(client).await?;
        }
        let mut options = LockOptions::new().label(self.label()).pid(front);
        if let Some(expected) = self.expect {
            options = options.expected_hold(expected);
        }
        if let Some(timeout) = self.timeout.filter(|_| !self.is_try()) {
            options = options.timeout(timeout);
        }
        let acquired = match reports {
            None => self.acquire_with(goal, client, options).await,
            Some(reports) => {
                let (sink, events) = lock_events();
                let acquired = tokio::select! {
                    biased;
                    acquired = self.acquire_with(goal, client, options.events(sink)) => acquired,
                    () = tell_position(goal, client, events, reports) => unreachable!("it goes on telling"),
                };
                reports.send_modify(|report| report.waiting = None);
                acquired
            }
        };
        acquired.map_err(|error| failure(error, goal))
    }

    async fn acquire_with(
        &self,
        goal: &Goal,
        client: &Client,
        options: LockOptions,
    ) -> Result<Acquired, LockError> {
        Ok(match goal {
            Goal::Lock(lock) if self.is_try() => lock.try_lock(client, options.synced()).await?,
            Goal::Lock(lock) => Acquired::Held(lock.lock(client, options).await?),
            Goal::Job { path, period } => {
                let job = OncePer::new(client, path, *period)?;
                match self.is_try() {
                    true => job.try_begin_with(options.synced()).await?.into(),
                    // Wait while another caller runs the job. If that caller fails or its machine dies, we run the job.
                    false => job.begin_with(options).await?.into(),
                }
            }
            Goal::Election(path) => {
                let election = Election::new(client, path)?;
                Acquired::Held(Held::of(
                    election.campaign_with(self.label(), options).await?,
                ))
            }
        })
    }

    fn label(&self) -> String {
        let name = || Path::new(self.command.first()?).file_name();
        self.label.clone().unwrap_or_else(|| {
            let name = name().unwrap_or_default();
            name.to_string_lossy().into_owned()
        })
    }
}

fn failure(error: LockError, goal: &Goal) -> Failure {
    let (path, kind) = match &error {
        LockError::WrongKind { path, kind, .. } => (path, kind),
        LockError::EntryDeleted { .. } => return Failure::NotAcquired(error.to_string()),
        _ => return error.into(),
    };
    let hint = match *kind {
        _ if !goal.has_kinds() => "choose another name",
        "a mutex" => {
            "take it without --shared, --exclusive and --permits. To share a lock, every caller must use --shared or --exclusive"
        }
        "a read-write lock" => "take it with --exclusive, or with --shared",
        "a semaphore" => "take it with --permits N/M, with the same M",
        _ => "choose another name, or `lockkeeper elect`",
    };
    Failure::Other(format!("{path} is in use as {kind}: {hint}"))
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

fn description(holder: &QueueEntry) -> String {
    let Some(metadata) = &holder.metadata else {
        return format!("session {}", holder.owner);
    };
    let mut text = match &metadata.label {
        Some(label) => fitted(label, MAX_NAME),
        None => format!("session {}", holder.owner),
    };
    let host = metadata.host.as_deref();
    let host = host.map(|host| fitted(host, MAX_NAME));
    let pid = metadata.pid.map(|pid| format!("pid {pid}"));
    let place: Vec<_> = host.into_iter().chain(pid).collect();
    if !place.is_empty() {
        let _ = write!(text, " ({})", place.join(", "));
    }
    text
}

/// Maximum width of a label or host name, in columns. Other clients choose these texts.
const MAX_NAME: usize = 80;

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
}
