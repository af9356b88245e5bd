//! [`Mutex`]: the fair lock.

use std::backtrace::Backtrace;
use std::fmt;
use std::time::Duration;

use lockkeeper_store::{Client, Error, Session, Skip, ZnodePath, sequence_of};
use serde_json::Value;

use crate::error::{LockError, Result};
use crate::events::EventSink;
use crate::guard::Guard;
use crate::metadata::{EntryData, LockMetadata};
use crate::names::Kind;
use crate::path::LockPath;
use crate::queue::{Entry, Form, Terms, check_kind};
use crate::race::{First, race};

/// A mutex among all programs that name the same path of the same store.
///
/// It is fair: the lock is granted in the order in which the contenders' znodes were made. Each
/// contender watches only the one before it, so that a release wakes one. It outlives its client's
/// sessions: after an expiry the next `lock` opens a new one. A clone is the same mutex. It is not
/// re-entrant: who locks twice waits for himself.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use lockkeeper::{FencingGate, Mutex};
///
/// # let mut ledger = FencingGate::default();
/// let client = lockkeeper::connect("memory:").await?;
/// let mutex = Mutex::new(&client, "/lock/orders")?;
/// let guard = mutex.lock().await?;
/// ledger.admit(guard.fencing_token())?; // the resource refuses older tokens
/// guard.release().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Mutex {
    client: Client,
    path: LockPath,
}

impl Mutex {
    /// The mutex at a path. Nothing is sent.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn new<P>(client: &Client, path: P) -> Result<Self, Error>
    where
        P: TryInto<LockPath>,
        P::Error: Into<Error>,
    {
        Ok(Self {
            client: client.clone(),
            path: path.try_into().map_err(Into::into)?,
        })
    }

    /// The znode under which the queue stands.
    pub fn path(&self) -> &ZnodePath {
        self.path.as_znode()
    }

    /// The client that the mutex speaks through.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Waits for the lock, in the order of arrival.
    ///
    /// A free lock of a store in this process is granted without giving way to other tasks: a loop
    /// that does nothing but lock should yield now and then.
    ///
    /// Cancel safe: a dropped wait leaves the queue, at whatever moment it is dropped. It loses its
    /// place.
    ///
    /// # Errors
    /// [`LockError::Store`] with the session's end or a refusal, [`LockError::Removed`],
    /// [`LockError::WrongKind`].
    pub async fn lock(&self) -> Result<Guard> {
        let session = self.client.session().await?;
        let queued_at_ms = session.clock().date_ms();
        let data = EntryData::Default { queued_at_ms };
        let terms = Terms {
            form: Form {
                data: data.clone(),
                skip: Skip::None,
                count: false,
            },
            queue_limit: None,
            only_if_free: false,
        };
        let held = self.entry(&session, None).acquire(&terms).await?;
        let held = held.expect("only a try comes back without the lock");
        Ok(Guard::new(session, held, Kind::Mutex, data, None))
    }

    /// Waits for the lock for no longer than `timeout`: one deadline for everything, the joining of
    /// the queue included.
    ///
    /// Cancel safe, as [`lock`](Self::lock).
    ///
    /// # Errors
    /// [`LockError::Timeout`], and those of [`lock`](Self::lock).
    pub async fn lock_timeout(&self, timeout: Duration) -> Result<Guard> {
        self.lock_with(LockOptions::new().timeout(timeout)).await
    }

    /// Waits for the lock on terms of one's own.
    ///
    /// Cancel safe, as [`lock`](Self::lock).
    ///
    /// # Errors
    /// [`LockError::Timeout`], [`LockError::QueueFull`], and those of [`lock`](Self::lock).
    pub async fn lock_with(&self, options: LockOptions) -> Result<Guard> {
        let Some(timeout) = options.timeout else {
            return self.wait(options).await;
        };
        let deadline = self.client.clock().sleep(timeout);
        match race(self.wait(options), deadline).await {
            First::Left(guard) => guard,
            First::Right(()) => Err(LockError::Timeout {
                path: self.path().clone(),
                after: timeout,
            }),
        }
    }

    async fn wait(&self, options: LockOptions) -> Result<Guard> {
        let guard = self.contend(options, false).await?;
        Ok(guard.expect("only a try comes back without the lock"))
    }

    async fn contend(&self, options: LockOptions, only_if_free: bool) -> Result<Option<Guard>> {
        let session = self.client.session().await?;
        let events = options.events.clone();
        let data = options.data(session.clock().date_ms());
        let terms = Terms {
            form: Form {
                data: data.clone(),
                skip: Skip::None,
                count: events.is_some() || options.queue_limit.is_some(),
            },
            queue_limit: options.queue_limit,
            only_if_free,
        };
        let held = self.entry(&session, events.clone()).acquire(&terms).await?;
        Ok(held.map(|held| Guard::new(session, held, Kind::Mutex, data, events)))
    }

    fn entry<'a>(&'a self, session: &'a Session, events: Option<EventSink>) -> Entry<'a> {
        Entry::new(session, self.path(), Kind::Mutex, events)
    }

    /// Takes the lock if it is free now; `None` if it is held or waited for.
    ///
    /// A held lock costs one read and no write. "Held" may be as stale as the server that answers
    /// (a follower's view); "free" is confirmed by the queue itself.
    ///
    /// # Errors
    /// Those of [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Option<Guard>> {
        self.try_lock_with(LockOptions::new()).await
    }

    /// [`try_lock`](Self::try_lock), with metadata and events. A timeout and a queue limit mean nothing here.
    ///
    /// # Errors
    /// Those of [`lock`](Self::lock).
    pub async fn try_lock_with(&self, options: LockOptions) -> Result<Option<Guard>> {
        if self.looks_taken(false).await? {
            return Ok(None);
        }
        self.contend(options, true).await
    }

    /// [`try_lock`](Self::try_lock), on a server that has first caught up with all that was
    /// committed before: its "held" is no staler than this call.
    ///
    /// # Errors
    /// Those of [`lock`](Self::lock).
    pub async fn try_lock_synced(&self) -> Result<Option<Guard>> {
        if self.looks_taken(true).await? {
            return Ok(None);
        }
        self.contend(LockOptions::new(), true).await
    }

    /// Whether a list of the queue shows any contender.
    async fn looks_taken(&self, synced: bool) -> Result<bool> {
        let session = self.client.session().await?;
        loop {
            let barrier = synced.then(|| session.sync(self.path()));
            let queue = session.get_queue(self.path(), 1);
            let caught_up = match barrier {
                Some(barrier) => barrier.await,
                None => Ok(()),
            };
            match (caught_up, queue.await) {
                (Err(Error::ConnectionLoss), _) | (_, Err(Error::ConnectionLoss)) => {}
                (_, Err(Error::NoNode { .. })) => return Ok(false),
                (Ok(()) | Err(Error::NoNode { .. }), Ok((names, _))) => {
                    check_kind(self.path(), Kind::Mutex, &names)?;
                    return Ok(names.iter().any(|name| sequence_of(name).is_some()));
                }
                (Err(error), _) | (_, Err(error)) => return Err(error.into()),
            }
        }
    }
}

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex")
            .field("path", &self.path)
            .field("client", &self.client)
            .finish()
    }
}

/// How to wait for a lock, and what to say of oneself.
///
/// ```
/// use std::time::Duration;
/// use lockkeeper::LockOptions;
///
/// let options = LockOptions::new()
///     .label("billing")
///     .reason("monthly run")
///     .expected_hold(Duration::from_secs(30))
///     .timeout(Duration::from_secs(5))
///     .queue_limit(100);
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing by themselves"]
pub struct LockOptions {
    metadata: Option<Box<LockMetadata>>,
    timeout: Option<Duration>,
    queue_limit: Option<usize>,
    events: Option<EventSink>,
}

impl LockOptions {
    /// Waits for as long as it takes, and says host, process and time.
    pub fn new() -> Self {
        Self::default()
    }

    /// How long to wait at the most, everything included.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Fails at once when more than this many are ahead, the holder included.
    pub fn queue_limit(mut self, ahead: usize) -> Self {
        self.queue_limit = Some(ahead);
        self
    }

    /// Where to put the events of this contender.
    pub fn events(mut self, sink: EventSink) -> Self {
        self.events = Some(sink);
        self
    }

    /// What the caller calls itself.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.metadata().label = Some(label.into());
        self
    }

    /// What the lock is wanted for.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.metadata().reason = Some(reason.into());
        self
    }

    /// How long the lock will be held, as far as the caller knows.
    pub fn expected_hold(mut self, duration: Duration) -> Self {
        self.metadata().expected_hold_ms =
            Some(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// Notes where in the code the lock is asked for: the call stack at this call.
    pub fn backtrace(mut self) -> Self {
        self.metadata().backtrace = Some(Backtrace::force_capture().to_string());
        self
    }

    /// A field of one's own.
    pub fn field(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.metadata().other.insert(name.into(), value.into());
        self
    }

    fn metadata(&mut self) -> &mut LockMetadata {
        self.metadata
            .get_or_insert_with(|| Box::new(LockMetadata::of_this_process()))
    }

    /// What to write into the entry's znode.
    fn data(&self, queued_at_ms: i64) -> EntryData {
        let Some(metadata) = &self.metadata else {
            return EntryData::Default { queued_at_ms };
        };
        let metadata = LockMetadata {
            queued_at_ms: Some(queued_at_ms),
            ..(**metadata).clone()
        };
        EntryData::Written(metadata.to_bytes())
    }
}
