//! [`Election::run`]: the loop of a service that leads whenever it can.
//!
//! [`Campaigns`] are its attempts, [`Term`] its leaderships; the blocking form is another loop over both. A loss is no
//! failure: only attempts that fail are followed by a pause.

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
    /// Leads whenever it can, until the work is done: campaigns, runs the future that `work` returns under
    /// [`protect`](crate::Guard::protect), and campaigns again when the leadership is lost, in a new session where the
    /// old one has ended. When a future completes, `run` resigns, waits until the store has confirmed that, and returns
    /// the future's output.
    ///
    /// Fair: each campaign joins the end of the queue. A loss drops the future and is followed by the next campaign at
    /// once. Tasks that the future spawned and requests that it sent continue; only a resource that checks the
    /// [`epoch`](Leadership::epoch) stops them. An output counts only if the leadership was held when it came: a future
    /// that returns because its own requests failed after a loss is run again. Attempts that fail are repeated after
    /// pauses that grow from 0.1 s to 30 s and vary by up to a half, so that many candidates do not return in step.
    ///
    /// The leadership is shared with the work and its tasks. Once `run` has ended, or has gone on to another campaign,
    /// all shares of it are lost.
    ///
    /// # Cancel safety and shutdown
    ///
    /// Dropping `run` leaves the queue, or resigns as the drop of a guard does. For a confirmed resignation let the
    /// work complete at the shutdown. A candidate that waits has no work, so await the signal beside `run`, too, and
    /// [`Client::close`](crate::Client::close) after it:
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
    /// Those that no repetition mends: [`Error::SessionClosed`] after the client was closed, [`LockError::WrongKind`],
    /// refused credentials, another store in place of the first, and the like.
    pub async fn run<W, F>(&self, data: impl Into<String>, work: W) -> Result<F::Output>
    where
        W: FnMut(Arc<Leadership>) -> F,
        F: Future,
    {
        self.run_with(data, LockOptions::new(), work).await
    }

    /// Leads whenever it can, as [`run`](Self::run), with the given options for each campaign. The timeout is that of
    /// one campaign, not of the work.
    ///
    /// Cancel safe, as [`run`](Self::run).
    ///
    /// # Errors
    /// Those of [`run`](Self::run); [`LockError::Timeout`] and [`LockError::QueueFull`], if the
    /// options have such limits. Neither is repeated.
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
            // Dropped at the end of each round: a share that the work has kept must not hold up the next campaign.
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

/// The campaigns of one run, one after the other, with a pause after each that failed.
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

    /// Campaigns until it leads.
    ///
    /// # Errors
    /// Those that no repetition mends.
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

/// A term of a run: a leadership that is shared with the work, as async or blocking code sees it. It ends when this is
/// dropped, although the work may have kept a share of it.
pub(crate) struct Term<G: Borrow<Leadership>>(Arc<G>);

impl<G: Borrow<Leadership>> Term<G> {
    pub(crate) fn new(guard: G) -> Self {
        Self(Arc::new(guard))
    }

    /// Returns a share of the leadership, for the work.
    pub(crate) fn share(&self) -> Arc<G> {
        self.0.clone()
    }

    fn leadership(&self) -> &Leadership {
        (*self.0).borrow()
    }

    /// Ends the term after its work. Returns true if the leadership was held until now, and so counts the work's
    /// output; the resignation has been confirmed then.
    pub(crate) async fn finish(self) -> bool {
        let leadership = self.leadership();
        // Before the resignation, after which no leadership is held. Work whose own request failed after a loss has
        // returned that error, which is no output of a leader.
        if !leadership.is_held() {
            return false;
        }
        if let Err(error) = leadership.resign_shared().await {
            // The output counts nevertheless: it came while the leadership was held.
            tracing::debug!(path = %leadership.path(), %error, "a leadership ended before it was resigned");
        }
        true
    }
}

impl<G: Borrow<Leadership>> Drop for Term<G> {
    fn drop(&mut self) {
        let leadership = self.leadership();
        // Sent by the call, and flushed before this returns, as when a guard is dropped. Explicit, because a share that
        // the work has kept would keep the guard alive, and the next candidate waiting.
        drop(leadership.resign_shared());
        leadership.session().flush();
    }
}

/// The pauses between attempts that fail one after the other.
pub(super) struct Backoff {
    client: Client,
    failures: u32,
    /// Beginning of the current attempt.
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

    /// Resets the pauses.
    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Waits before the next attempt.
    ///
    /// # Errors
    /// The error itself, if no repetition mends it.
    pub(super) async fn failed_with(&mut self, error: LockError) -> Result<()> {
        if !is_transient(&error) || self.is_closed(&error).await {
            return Err(error);
        }
        let clock = self.client.clock().clone();
        // A failure after a long wait in the queue begins a new series.
        if clock.now().since(self.began) > Self::MAX_PAUSE {
            self.failures = 0;
        }
        // The first end of a session is no failure of the store. Only the first: sessions that end in a row would make
        // a busy loop.
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

    /// Returns true if the session was closed with its client, which opens no other.
    async fn is_closed(&self, error: &LockError) -> bool {
        let closed = |error: &Error| matches!(error, Error::SessionClosed { .. });
        matches!(error, LockError::Store(error) if closed(error))
            && self
                .client
                .session()
                .await
                .is_err_and(|error| closed(&error))
    }

    /// Returns the pause after so many failures. It doubles up to the maximum and is shortened by up to a half, by the
    /// time instead of by chance: a run under a virtual clock replays from its seed.
    fn pause(failures: u32, now: BootInstant) -> Duration {
        let grown = Self::INITIAL_PAUSE.saturating_mul(2_u32.saturating_pow(failures));
        let full = grown.min(Self::MAX_PAUSE);
        let half = full.as_nanos() as u64 / 2;
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(now.as_nanos());
        full - Duration::from_nanos(hasher.finish() % half)
    }
}

/// Returns true if another attempt may succeed.
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
