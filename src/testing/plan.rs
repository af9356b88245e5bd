//! [`Plan`]: probabilities of faults, and the seed that decides when they happen.

use std::ops::Range;
use std::time::Duration;

use super::RequestKind;
use crate::model::error::Error;
use crate::model::protocol::Request;
use crate::runtime::splitmix::{GOLDEN, Random};

/// The kinds and probabilities of the faults that a [`Faults`](super::Faults) wrapper injects automatically, and the
/// seed of their random generators.
///
/// Each probability applies to every request separately. Each session has its own random generator, whose seed combines
/// the plan's seed with the number of earlier sessions. So a seed always causes the same faults in a session, no matter
/// what other sessions do.
///
/// # Panics
/// The methods that take a probability panic if it is not between 0 and 1.
///
/// ```
/// use std::time::Duration;
/// use lockkeeper_store::testing::Plan;
///
/// let plan = Plan::new(17)
///     .lose_replies(0.05)
///     .outages(Duration::from_millis(1)..Duration::from_millis(50));
/// assert_eq!(plan.seed(), 17);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    seed: u64,
    lose_request: f64,
    lose_reply: f64,
    disconnect: f64,
    expire: f64,
    refuse: f64,
    pause: f64,
    delay: f64,
    outages: Range<Duration>,
    pauses: Range<Duration>,
    delays: Range<Duration>,
}

impl Plan {
    /// Returns a plan without faults. A broken connection is restored immediately.
    pub fn new(seed: u64) -> Self {
        let none = Duration::ZERO..Duration::ZERO;
        Self {
            seed,
            lose_request: 0.0,
            lose_reply: 0.0,
            disconnect: 0.0,
            expire: 0.0,
            refuse: 0.0,
            pause: 0.0,
            delay: 0.0,
            outages: none.clone(),
            pauses: none.clone(),
            delays: none,
        }
    }

    /// Returns a plan without faults, for tests that inject faults only on command.
    pub fn calm() -> Self {
        Self::new(0)
    }

    /// Returns a plan with faults that do not cost a client its locks. On average, 2 of 100 requests are lost, 3 lose
    /// their reply, 1 finds the connection broken for up to 200 ms, and 30 get their reply up to 20 ms late.
    pub fn lossy(seed: u64) -> Self {
        let ms = Duration::from_millis;
        Self::new(seed)
            .lose_requests(0.02)
            .lose_replies(0.03)
            .disconnects(0.01)
            .outages(ms(0)..ms(200))
            .delays(0.3, ms(0)..ms(20))
    }

    /// Returns the [`lossy`](Self::lossy) plan with expiries and pauses added. On average, 5 of 1,000 requests find
    /// that their session has ended, and 5 find the client paused for up to 30 s.
    pub fn rough(seed: u64) -> Self {
        let ms = Duration::from_millis;
        Self::lossy(seed)
            .expiries(0.005)
            .pauses(0.005, ms(1)..ms(30_000))
    }

    /// Sets the probability that a request is lost before it reaches the store.
    #[must_use]
    pub fn lose_requests(mut self, probability: f64) -> Self {
        self.lose_request = checked(probability);
        self
    }

    /// Sets the probability that a reply is lost after the store has carried out the request.
    #[must_use]
    pub fn lose_replies(mut self, probability: f64) -> Self {
        self.lose_reply = checked(probability);
        self
    }

    /// Sets the probability that the connection breaks just before a request is sent. The request waits for the next
    /// connection.
    #[must_use]
    pub fn disconnects(mut self, probability: f64) -> Self {
        self.disconnect = checked(probability);
        self
    }

    /// Sets the probability that the session ends just before a request is sent. The connection is then broken for
    /// twice the session's timeout. If the session has no timeout, the store ends it immediately.
    #[must_use]
    pub fn expiries(mut self, probability: f64) -> Self {
        self.expire = checked(probability);
        self
    }

    /// Sets the probability that a delete without a version check is refused with
    /// [`LimitReached`](crate::Error::LimitReached) and changes nothing.
    #[must_use]
    pub fn refusals(mut self, probability: f64) -> Self {
        self.refuse = checked(probability);
        self
    }

    /// Sets the probability that the client is paused just before a request is sent, and how long the pause may last.
    #[must_use]
    pub fn pauses(mut self, probability: f64, length: Range<Duration>) -> Self {
        self.pause = checked(probability);
        self.pauses = length;
        self
    }

    /// Sets the probability that a reply is delayed, and the range of the delay. Later replies and events wait for the
    /// delayed reply.
    #[must_use]
    pub fn delays(mut self, probability: f64, length: Range<Duration>) -> Self {
        self.delay = checked(probability);
        self.delays = length;
        self
    }

    /// Sets the range of times for which a connection stays broken.
    #[must_use]
    pub fn outages(mut self, length: Range<Duration>) -> Self {
        self.outages = length;
        self
    }

    /// Returns the seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    pub(super) fn random(&self, number: u64) -> Random {
        let mut random = Random(self.seed);
        Random(random.next() ^ number.wrapping_mul(GOLDEN))
    }

    pub(super) fn outage(&self, random: &mut Random) -> Duration {
        random.time_within(&self.outages)
    }

    /// Draws the faults of the next request. Each call draws the same number of random numbers, so that changing one
    /// probability does not change the other faults of a seed.
    pub(super) fn draw(&self, random: &mut Random) -> RequestFaults {
        let lose_request = random.chance(self.lose_request);
        let lose_reply = random.chance(self.lose_reply);
        let disconnect = random.chance(self.disconnect);
        let expire = random.chance(self.expire);
        let (pause, paused) = (random.chance(self.pause), random.time_within(&self.pauses));
        let (delay, delayed) = (random.chance(self.delay), random.time_within(&self.delays));
        let refuse = random.chance(self.refuse);
        RequestFaults {
            disconnect,
            expire,
            refuse,
            pause: pause.then_some(paused),
            loss: match (lose_request, lose_reply) {
                (true, _) => Some(Loss::Request),
                (false, true) => Some(Loss::Reply),
                (false, false) => None,
            },
            delay: if delay { delayed } else { Duration::ZERO },
        }
    }
}

fn checked(probability: f64) -> f64 {
    assert!(
        (0.0..=1.0).contains(&probability),
        "a probability lies between 0 and 1, {probability} does not"
    );
    probability
}

#[derive(Debug, Default)]
pub(super) struct RequestFaults {
    pub(super) disconnect: bool,
    pub(super) expire: bool,
    /// True if the request is refused. Applies only to a delete without a version check.
    pub(super) refuse: bool,
    pub(super) pause: Option<Duration>,
    pub(super) loss: Option<Loss>,
    pub(super) delay: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    Request,
    Reply,
    /// The store carries out the request, but the client cannot decode the reply.
    Garbled,
    Refused(Error),
}

#[derive(Clone, Debug)]
pub(super) struct InjectedLoss {
    pub(super) on: RequestKind,
    pub(super) loss: Loss,
}

impl InjectedLoss {
    pub(super) fn take(orders: &mut Vec<Self>, request: &Request) -> Option<Loss> {
        let found = orders.iter().position(|order| order.on.matches(request))?;
        Some(orders.remove(found).loss)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_draw_from_streams_of_their_own() {
        let plan = Plan::rough(3);
        let draws = |number| -> Vec<u64> {
            let mut random = plan.random(number);
            (0..8).map(|_| random.next()).collect()
        };
        assert_eq!(draws(0), draws(0));
        assert_ne!(draws(0), draws(1));
    }

    #[test]
    fn probabilities_are_what_they_say() {
        let plan = Plan::new(5).lose_requests(0.25);
        let mut random = plan.random(0);
        let lost = (0..10_000)
            .filter(|_| plan.draw(&mut random).loss.is_some())
            .count();
        assert!((2_300..2_700).contains(&lost), "{lost}");
    }

    #[test]
    #[should_panic(expected = "a probability lies between 0 and 1")]
    fn a_probability_over_one_is_refused() {
        let _ = Plan::new(0).lose_replies(1.5);
    }
}
