//! The workloads. Every measured system runs the same code.
//!
//! The first failed request ends a workload, so that no client waits for a client that has given up.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::task::Poll;
use std::time::{Duration, Instant};

use lockkeeper::LockError;
use tokio::task::JoinSet;

use super::lock::Lock;
use super::recipes::WHOLE;
use super::times::Times;

pub async fn uncontended<L: Lock>(lock: &L, time: Duration) -> Result<(Times, Times), LockError> {
    let (mut acquires, mut releases) = (Times::default(), Times::default());
    let start = Instant::now();
    while start.elapsed() < time {
        let asked = Instant::now();
        let guard = lock.lock().await?;
        let granted = Instant::now();
        L::unlock(guard).await?;
        acquires.push(granted - asked);
        releases.push(granted.elapsed());
        tokio::task::consume_budget().await;
    }
    Ok((acquires, releases))
}

/// The check that holders exclude each other and that tokens grow.
#[derive(Default)]
struct Arena {
    stop: AtomicBool,
    /// Sum of the shares of all current holders, in units of 1 / [`WHOLE`].
    taken: AtomicU32,
    last_holder: AtomicUsize,
    /// Highest token so far. `last_whole` is the token of the last holder of the whole lock.
    last_token: AtomicI64,
    last_whole: AtomicI64,
    handovers: AtomicUsize,
    exclusion_violations: AtomicUsize,
    order_violations: AtomicUsize,
}

// Relaxed ordering is sufficient, because each check concerns only one variable. A stronger ordering would distort the
// measured times.
impl Arena {
    /// Counts violations of exclusion and of order.
    ///
    /// The token of a whole lock must exceed all earlier tokens. The token of a share must exceed only the last token
    /// of a whole lock, because clients that share the lock run concurrently.
    fn enter(&self, client: usize, share: u32, token: Option<i64>) {
        if self.taken.fetch_add(share, Relaxed) + share > WHOLE {
            self.exclusion_violations.fetch_add(1, Relaxed);
        }
        if self.last_holder.swap(client, Relaxed) != client {
            self.handovers.fetch_add(1, Relaxed);
        }
        let Some(token) = token else {
            return;
        };
        let last = self.last_token.fetch_max(token, Relaxed);
        let is_in_order = match share {
            WHOLE => {
                self.last_whole.store(token, Relaxed);
                last < token
            }
            _ => self.last_whole.load(Relaxed) < token,
        };
        if !is_in_order {
            self.order_violations.fetch_add(1, Relaxed);
        }
    }

    fn leave(&self, share: u32) {
        self.taken.fetch_sub(share, Relaxed);
    }
}

pub struct Contended {
    pub elapsed: Duration,
    /// Number of grants whose client differs from the client of the preceding grant.
    pub handovers: usize,
    pub grants: Vec<usize>,
    /// Times from each call to its grant. Excludes each client's first call, which is made before the clock starts.
    pub waits: Times,
    pub exclusion_violations: usize,
    pub order_violations: Option<usize>,
}

/// Makes each client lock and unlock the same lock again and again. `hold` runs between a grant and its release.
///
/// Before the clock starts, the first handle holds the whole lock until all clients are queued. Otherwise the first
/// client would find the lock free again and again.
pub async fn contended<L: Lock, H: Future<Output = ()> + Send>(
    locks: &[L],
    time: Duration,
    hold: impl Fn() -> H + Clone + Send + 'static,
) -> Result<Contended, LockError> {
    let arena = Arc::new(Arena::default());
    let asked = Arc::new(AtomicUsize::new(0));
    let mut first = Vec::new();
    for _ in 0..WHOLE / locks[0].share() {
        first.push(locks[0].lock().await?);
    }
    let mut clients = Clients::default();
    for (client, lock) in locks.iter().enumerate() {
        let (lock, arena, asked) = (lock.clone(), arena.clone(), asked.clone());
        let hold = hold.clone();
        clients.spawn(async move {
            let (mut waits, share) = (Times::default(), lock.share());
            let (mut has_tokens, mut grants) = (false, 0);
            while !arena.stop.load(Relaxed) {
                let begun = Instant::now();
                let guard = count_first_poll(lock.lock(), &asked).await?;
                if grants > 0 {
                    waits.push(begun.elapsed());
                }
                grants += 1;
                let token = L::token(&guard);
                has_tokens = token.is_some();
                arena.enter(client, share, token);
                hold().await;
                arena.leave(share);
                L::unlock(guard).await?;
            }
            Ok((waits, grants, has_tokens))
        });
    }
    let measured = async {
        all_asked(&asked, locks.len()).await;
        locks[0].settled(first.len() + locks.len()).await?;
        let start = Instant::now();
        for guard in first {
            L::unlock(guard).await?;
        }
        tokio::time::sleep(time).await;
        Ok((start.elapsed(), arena.handovers.load(Relaxed)))
    };
    let (elapsed, handovers) = clients.beside(measured).await?;
    arena.stop.store(true, Relaxed);
    let mut waits = Times::default();
    let mut grants = Vec::new();
    let mut ordered = false;
    for (of_client, granted, has_tokens) in clients.ended().await? {
        grants.push(granted);
        waits.append(of_client);
        ordered |= has_tokens;
    }
    Ok(Contended {
        elapsed,
        handovers,
        grants,
        waits,
        exclusion_violations: arena.exclusion_violations.load(Relaxed),
        order_violations: ordered.then(|| arena.order_violations.load(Relaxed)),
    })
}

const IN_FLIGHT: usize = 256;

/// Locks and unlocks the keys in turn until `time` has passed, or each key once if `time` is `None`.
pub async fn many_keys<L: Lock>(
    locks: Arc<[L]>,
    time: Option<Duration>,
) -> Result<(Times, Duration), LockError> {
    let next = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let mut tasks = Clients::default();
    // Start no more tasks than there are keys, so that no task waits for another task.
    for _ in 0..IN_FLIGHT.min(locks.len()) {
        let (locks, next) = (locks.clone(), next.clone());
        tasks.spawn(async move {
            let mut acquires = Times::default();
            loop {
                let number = next.fetch_add(1, Relaxed);
                let is_over = match time {
                    Some(time) => start.elapsed() >= time,
                    None => number >= locks.len(),
                };
                if is_over {
                    return Ok(acquires);
                }
                let asked = Instant::now();
                let guard = locks[number % locks.len()].lock().await?;
                acquires.push(asked.elapsed());
                L::unlock(guard).await?;
            }
        });
    }
    let mut acquires = Times::default();
    for task in tasks.ended().await? {
        acquires.append(task);
    }
    Ok((acquires, start.elapsed()))
}

pub struct Clients<T> {
    tasks: JoinSet<Result<T, LockError>>,
    ended: Vec<T>,
}

impl<T> Default for Clients<T> {
    fn default() -> Self {
        let (tasks, ended) = Default::default();
        Self { tasks, ended }
    }
}

impl<T: Send + 'static> Clients<T> {
    pub fn spawn(&mut self, client: impl Future<Output = Result<T, LockError>> + Send + 'static) {
        self.tasks.spawn(client);
    }

    /// Runs `work` concurrently with the clients, and fails as soon as a client fails.
    pub async fn beside<R>(
        &mut self,
        work: impl Future<Output = Result<R, LockError>>,
    ) -> Result<R, LockError> {
        let failure = async {
            match self.join_all().await {
                Ok(()) => std::future::pending().await,
                Err(failure) => failure,
            }
        };
        tokio::select! {
            done = work => done,
            failure = failure => Err(failure),
        }
    }

    pub async fn ended(mut self) -> Result<Vec<T>, LockError> {
        self.join_all().await?;
        Ok(self.ended)
    }

    async fn join_all(&mut self) -> Result<(), LockError> {
        while let Some(client) = self.tasks.join_next().await {
            self.ended.push(client.expect("a client does not panic")?);
        }
        Ok(())
    }
}

pub async fn all_asked(asked: &AtomicUsize, count: usize) {
    while asked.load(Relaxed) < count {
        tokio::task::yield_now().await;
    }
}

/// Awaits a future, and counts its first poll. After the first poll, the future has sent its request, or waits to send
/// it.
pub async fn count_first_poll<F: Future>(future: F, polled: &AtomicUsize) -> F::Output {
    let mut future = std::pin::pin!(future);
    let mut is_first = true;
    std::future::poll_fn(|context| {
        let output: Poll<F::Output> = future.as_mut().poll(context);
        if std::mem::take(&mut is_first) {
            polled.fetch_add(1, Relaxed);
        }
        output
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A faulty lock that grants every request immediately, with arbitrary tokens.
    #[derive(Clone)]
    struct Broken {
        share: u32,
        tokens: Arc<dyn Fn() -> Option<i64> + Send + Sync>,
        lasts: Arc<AtomicUsize>,
    }

    impl Broken {
        fn new(share: u32, tokens: impl Fn() -> Option<i64> + Send + Sync + 'static) -> Self {
            Self {
                share,
                tokens: Arc::new(tokens),
                lasts: Arc::new(AtomicUsize::new(usize::MAX)),
            }
        }
    }

    impl Lock for Broken {
        type Guard = Option<i64>;

        async fn lock(&self) -> Result<Option<i64>, LockError> {
            tokio::task::yield_now().await;
            match self.lasts.fetch_sub(1, Relaxed) {
                0 => Err(lockkeeper::Error::ConnectionLoss.into()),
                _ => Ok((self.tokens)()),
            }
        }

        async fn unlock(_guard: Option<i64>) -> Result<(), LockError> {
            tokio::task::yield_now().await;
            Ok(())
        }

        fn token(guard: &Option<i64>) -> Option<i64> {
            *guard
        }

        fn share(&self) -> u32 {
            self.share
        }

        async fn settled(&self, _queued: usize) -> Result<(), LockError> {
            Ok(())
        }
    }

    fn measured(locks: &[Broken]) -> Result<Contended, LockError> {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        let time = Duration::from_millis(20);
        runtime.block_on(contended(locks, time, tokio::task::yield_now))
    }

    fn growing() -> impl Fn() -> Option<i64> {
        let last = AtomicI64::new(0);
        move || Some(1 + last.fetch_add(1, Relaxed))
    }

    #[test]
    fn a_lock_that_is_granted_twice_is_a_violation() {
        let twice = vec![Broken::new(WHOLE, || None); 2];
        let found = measured(&twice).unwrap();
        assert!(found.exclusion_violations > 0);
        assert_eq!(found.order_violations, None);

        let alone = measured(&twice[..1]).unwrap();
        assert_eq!(alone.exclusion_violations, 0);
        assert!(alone.grants[0] > 1 && alone.waits.count() == alone.grants[0] - 1);
    }

    #[test]
    fn a_semaphore_may_be_held_by_as_many_as_it_has_permits() {
        let of = |clients| vec![Broken::new(WHOLE / 3, growing()); clients];
        assert_eq!(measured(&of(3)).unwrap().exclusion_violations, 0);
        assert!(measured(&of(4)).unwrap().exclusion_violations > 0);
    }

    #[test]
    fn a_reader_beside_a_writer_is_a_violation() {
        let reader = Broken::new(1, growing());
        let writer = Broken {
            share: WHOLE,
            ..reader.clone()
        };
        let readers = [reader.clone(), reader.clone()];
        let together = [&[writer][..], &readers].concat();
        assert!(measured(&together).unwrap().exclusion_violations > 0);
    }

    #[test]
    fn a_token_that_does_not_grow_is_a_violation() {
        let in_order = measured(&[Broken::new(WHOLE, growing())]).unwrap();
        assert_eq!(in_order.order_violations, Some(0));
        let the_same = measured(&[Broken::new(WHOLE, || Some(7))]).unwrap();
        assert!(the_same.order_violations.unwrap() > 0);
        let backwards = growing();
        let backwards = measured(&[Broken::new(WHOLE, move || backwards().map(|token| -token))]);
        assert!(backwards.unwrap().order_violations.unwrap() > 0);
    }

    #[test]
    fn a_readers_token_is_above_those_of_writers() {
        let arena = Arena::default();
        let violations = || arena.order_violations.load(Relaxed);
        for (share, token) in [(WHOLE, 5), (1, 8), (1, 7), (WHOLE, 9), (1, 10)] {
            arena.enter(0, share, Some(token));
            arena.leave(share);
        }
        assert_eq!(violations(), 0);
        arena.enter(0, 1, Some(8));
        assert_eq!(violations(), 1, "a reader of before the writer");
        arena.enter(0, WHOLE, Some(10));
        assert_eq!(violations(), 2, "a writer of before the reader");
    }

    #[test]
    fn a_client_that_fails_ends_the_others() {
        let lock = Broken::new(WHOLE, growing());
        for lasts in [0, 1, 2, 5, 100] {
            lock.lasts.store(lasts, Relaxed);
            assert!(measured(&vec![lock.clone(); 3]).is_err(), "{lasts}");
        }
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        lock.lasts.store(3, Relaxed);
        let locks: Arc<[_]> = vec![lock; 5].into();
        assert!(runtime.block_on(many_keys(locks, None)).is_err());
    }

    #[test]
    fn each_key_is_locked_once_or_for_a_time() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        let locks: Arc<[_]> = vec![Broken::new(WHOLE, growing()); 1_000].into();
        let (once, _) = runtime.block_on(many_keys(locks.clone(), None)).unwrap();
        assert_eq!(once.count(), 1_000);
        let time = Duration::from_millis(20);
        let (again, took) = runtime
            .block_on(many_keys(locks[..3].into(), Some(time)))
            .unwrap();
        assert!(again.count() > 3 && took >= time);
    }
}
