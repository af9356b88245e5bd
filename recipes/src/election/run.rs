//! [`Election::run`]: the loop of a service that leads whenever it can.
//!
//! The async and the blocking loop share [`Campaigns`] and [`Term`].

use std::borrow::Borrow;
use std::future::Future;
use std::hash::{DefaultHasher, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_store::{BootInstant, Client, Error, HumanDuration};

use super::{Election, Leadership};
use crate::error::{LockError, Result};
use crate::options::LockOptions;

impl Election {
    /// Campaigns and leads until the work is done. In each term, `run` runs the future returned by `work` under
    /// [`protect`](crate::Guard::protect). If the leadership is lost, `run` campaigns again, in a new session if
    /// necessary. When a future completes, `run` resigns, waits for the confirmation, and returns the future's output.
    ///
    /// Fair: each campaign joins the end of the queue. A loss drops the future. Tasks that the future spawned and
    /// requests that it sent continue, and only a resource that checks the [`epoch`](Leadership::epoch) rejects their
    /// writes. An output only counts if the leadership is still held when the future completes. Otherwise `run` drops
    /// the output and calls `work` again in the next term. Failed campaigns are retried after pauses that grow from 0.1
    /// s to 30 s.
    ///
    /// All clones of the `Arc<Leadership>` count as lost when `run` returns or starts the next campaign.
    ///
    /// # Cancel safety and shutdown
    ///
    /// If `run` is dropped, it leaves the queue, or resigns like a dropped guard. For a confirmed resignation at
    /// shutdown, let the work complete. While `run` waits to lead, no work can complete. So also await the shutdown
    /// signal next to `run`, and then call [`Client::close`](crate::Client::close):
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # use lockkeeper::Election;
    /// # let client = lockkeeper::connect("memory:election-run").await?;
    /// # let shutdown = std::future::ready(());
    /// let election = Election::new(&client, "/election/scheduler")?;
    /// let serving = election.run("10.0.0.1:8080", |leadership| async move {
    ///     println!("leading, epoch {}", leadership.epoch());
    ///     std::future::pending::<()>().await // the work of a leader
    /// });
    /// tokio::select! {
    ///     outcome = serving => outcome?, // dropped when the signal comes: resigns
    ///     () = shutdown => {}
    /// }
    /// client.close().await?; // confirmed: the next one leads
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// Errors that a retry cannot fix, for example [`Error::SessionClosed`] after the client was closed,
    /// [`LockError::WrongKind`], refused credentials, or a different store than at the first connection.
    pub async fn run<W, F>(&self, data: impl Into<String>, work: W) -> Result<F::Output>
    where
        W: FnMut(Arc<Leadership>) -> F,
        F: Future,
    {
        self.run_with(data, LockOptions::new(), work).await
    }

    /// Like [`run`](Self::run), with the given options for each campaign. The timeout limits one campaign, not the
    /// work.
    ///
    /// Cancel safe, like [`run`](Self::run).
    ///
    /// # Errors
    /// The errors of [`run`](Self::run). Also [`LockError::Timeout`] and [`LockError::QueueFull`], which are not
    /// retried.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let client = lockkeeper::connect("memory:example-election-run-run-with").await?;
    /// use std::time::Duration;
    /// use lockkeeper::{Election, LockOptions};
    ///
    /// let election = Election::new(&client, "/election/scheduler")?;
    /// let options = LockOptions::new().label("scheduler").timeout(Duration::from_secs(60));
    /// let epoch = election.run_with("10.0.0.1:8080", options, |leadership| async move {
    ///     leadership.epoch() // the work of a leader
    /// }).await?;
    /// println!("led in epoch {epoch}");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn run_with<W, F>(
        &self,
        data: impl Into<String>,
        options: LockOptions,
        mut work: W,
    ) -> Result<F::Output>
    where
        W: FnMut(Arc<Leadership>) -> F,
        F: Future,
    {
        let mut campaigns = Campaigns::new(self, data, options);
        loop {
            // Dropping the term at the end of each round resigns.
            let term = Term::new(campaigns.win().await?);
            let done = term.leadership().protect(work(term.share())).await;
            if let Ok(output) = done
                && term.finish().await
            {
                return Ok(output);
            }
        }
    }
}

pub(crate) struct Campaigns<'a> {
    election: &'a Election,
    data: String,
    options: LockOptions,
    backoff: Backoff,
}

impl<'a> Campaigns<'a> {
    pub(crate) fn new(
        election: &'a Election,
        data: impl Into<String>,
        options: LockOptions,
    ) -> Self {
        Self {
            election,
            data: data.into(),
            options,
            backoff: Backoff::new(election.client()),
        }
    }

    pub(crate) async fn win(&mut self) -> Result<Leadership> {
        loop {
            let (data, options) = (self.data.as_str(), self.options.clone());
            match self.election.campaign_with(data, options).await {
                Ok(leadership) => {
                    self.backoff.succeeded();
                    return Ok(leadership);
                }
                Err(error) => self.backoff.failed_with(error).await?,
            }
        }
    }
}

/// A leadership that is shared with the work. Dropping the term ends the leadership, even if the work has kept a clone
/// of the `Arc`.
pub(crate) struct Term<G: Borrow<Leadership>>(Arc<G>);

impl<G: Borrow<Leadership>> Term<G> {
    pub(crate) fn new(guard: G) -> Self {
        Self(Arc::new(guard))
    }

    pub(crate) fn share(&self) -> Arc<G> {
        self.0.clone()
    }

    fn leadership(&self) -> &Leadership {
        (*self.0).borrow()
    }

    /// Resigns after the work. Returns true if the leadership was still held, so that the output counts.
    pub(crate) async fn finish(self) -> bool {
        let leadership = self.leadership();
        if !leadership.is_held() {
            return false;
        }
        if let Err(error) = leadership.resign_shared().await {
            tracing::debug!(path = %leadership.path(), %error, "a leadership ended before it was resigned");
        }
        true
    }
}

impl<G: Borrow<Leadership>> Drop for Term<G> {
    fn drop(&mut self) {
        let leadership = self.leadership();
        // Resign explicitly, because the guard stays alive if the work has kept a clone of the `Arc`. Then flush, as
        // the drop of a guard does.
        drop(leadership.resign_shared());
        leadership.session().flush();
    }
}

pub(super) struct Backoff {
    client: Client,
    failures: u32,
    began: BootInstant,
}

impl Backoff {
    const INITIAL_PAUSE: Duration = Duration::from_millis(100);
    const MAX_PAUSE: Duration = Duration::from_secs(30);

    pub(super) fn new(client: &Client) -> Self {
        Self {
            client: client.clone(),
            failures: 0,
            began: client.clock().now(),
        }
    }

    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Waits before the next attempt, or returns the error if a retry cannot fix it.
    pub(super) async fn failed_with(&mut self, error: LockError) -> Result<()> {
        if !is_transient(&error) || self.is_closed(&error).await {
            return Err(error);
        }
        let clock = self.client.clock().clone();
        // If this attempt lasted long before it failed, start again with the shortest pause.
        if clock.now().since(self.began) > Self::MAX_PAUSE {
            self.failures = 0;
        }
        // Retry without a pause after a session has ended, but pause if the next session ends too, to avoid a busy
        // loop.
        let at_once = self.failures == 0 && error.is_session_end();
        if !at_once {
            let pause = Self::pause(self.failures, clock.now());
            tracing::info!(%error, pause = %HumanDuration(pause), "an attempt has failed, and is repeated");
            clock.sleep(pause).await;
        }
        self.failures = self.failures.saturating_add(1);
        self.began = clock.now();
        Ok(())
    }

    async fn is_closed(&self, error: &LockError) -> bool {
        let closed = |error: &Error| matches!(error, Error::SessionClosed { .. });
        matches!(error, LockError::Store(error) if closed(error))
            && self
                .client
                .session()
                .await
                .is_err_and(|error| closed(&error))
    }

    /// Returns the pause before the next attempt. The pause doubles with each failure up to the maximum, and is then
    /// shortened by up to a half. The amount depends on the current time and not on a random number, so that a
    /// simulated run can be replayed.
    fn pause(failures: u32, now: BootInstant) -> Duration {
        let grown = Self::INITIAL_PAUSE.saturating_mul(2_u32.saturating_pow(failures));
        let full = grown.min(Self::MAX_PAUSE);
        let half = full.as_nanos() as u64 / 2;
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(now.as_nanos());
        full - Duration::from_nanos(hasher.finish() % half)
    }
}

fn is_transient(error: &LockError) -> bool {
    match error {
        LockError::EntryDeleted { .. } | LockError::Lost(_) => true,
        LockError::Store(error) => matches!(
            error,
            Error::ConnectionLoss
                | Error::ConnectFailed { .. }
                | Error::ThreadRefused { .. }
                | Error::SessionExpired { .. }
                | Error::SessionClosed { .. }
                | Error::SessionMoved { .. }
                | Error::LimitReached { .. }
                | Error::NoNode { .. }
                | Error::Protocol(_)
        ),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_limit_and_vary() {
        let at = |nanos| BootInstant::from_nanos(nanos);
        for failures in 0..40 {
            let full = Duration::from_millis(100 << failures.min(20)).min(Backoff::MAX_PAUSE);
            let pauses: Vec<_> = (0..100).map(|n| Backoff::pause(failures, at(n))).collect();
            assert!(pauses.iter().all(|pause| (full / 2..=full).contains(pause)));
            assert!(pauses.iter().any(|pause| *pause != pauses[0]));
        }
        assert_eq!(
            Backoff::pause(3, at(7)),
            Backoff::pause(3, at(7)),
            "a seed replays"
        );
    }
}
