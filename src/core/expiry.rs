//! Expiry: the decision whether an overdue session ends, especially if the store itself was late.
//!
//! A store that was stopped or overloaded cannot distinguish a silent client from a client whose signs of life are
//! still unread. No session may expire because the *store* was slow. So the core receives the time during which the
//! store could not work ([`Core::count_stall`](super::Core::count_stall)), and [`Grace::decide`] moves deadlines by
//! this time. The total grace is limited, because even a slow store must free the lock of a dead holder.
//!
//! Postponing a deadline is always safe, because the client uses its own clock to stop relying on its session before
//! the store's first deadline (invariant 6).

use std::time::Duration;

use crate::runtime::clock::BootInstant;

#[derive(Clone, Copy, Debug)]
pub(super) struct Overdue {
    pub(super) deadline: BootInstant,
    pub(super) now: BootInstant,
    pub(super) timeout: Duration,
    pub(super) tick: Duration,
    pub(super) stalled: Duration,
    pub(super) is_attached: bool,
    /// True if no unread sign of life can save the session, because the session is local or the store has already
    /// decided to end it.
    pub(super) is_final: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Expire,
    /// The deadline moves by the duration of the stall.
    Postpone {
        until: BootInstant,
    },
    /// The deadline moves, and the caller checks the session's connection for unread signs of life. If there are none,
    /// the caller ends the session before the new deadline.
    Probe {
        until: BootInstant,
    },
}

/// Extra time granted to a session since its last sign of life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Grace {
    /// Total of the stalls up to the last sign of life or verdict. Only later stalls can postpone the deadline further.
    accounted: Duration,
    granted: Duration,
    is_probed: bool,
}

impl Grace {
    pub(super) fn renewed(stalled: Duration) -> Self {
        Self {
            accounted: stalled,
            ..Self::default()
        }
    }

    #[cfg(any(test, feature = "server"))]
    pub(super) fn is_probed(self) -> bool {
        self.is_probed
    }

    /// Decides whether an overdue session expires. The grace for stalls and the probe together is at most the timeout
    /// plus a tick.
    pub(super) fn decide(self, facts: Overdue) -> (Verdict, Self) {
        if facts.is_final {
            return (Verdict::Expire, self);
        }
        // Each stall since the last sign of life counts once, and together they count for at most the timeout.
        let left = facts.timeout.saturating_sub(self.granted);
        let stall = facts.stalled.saturating_sub(self.accounted).min(left);
        let mut grace = Self {
            accounted: facts.stalled,
            granted: self.granted + stall,
            ..self
        };
        let until = facts.deadline.after(stall);
        if until > facts.now {
            return (Verdict::Postpone { until }, grace);
        }
        // After a stall, even a session without a connection may be alive. The stall may have broken its connection,
        // and the client may be about to reconnect.
        let may_be_unread = facts.is_attached || stall > Duration::ZERO;
        if grace.is_probed || !may_be_unread {
            return (Verdict::Expire, grace);
        }
        grace.is_probed = true;
        // Use all remaining grace for the probe, because a busy store may delay the task that reads the connection. So
        // a session is probed only once.
        let rest = match facts.is_attached {
            true => left - stall,
            false => Duration::ZERO,
        };
        grace.granted += rest;
        let until = facts.now.after(rest.max(facts.tick));
        (Verdict::Probe { until }, grace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const TIMEOUT: Duration = Duration::from_secs(10);
    const TICK: Duration = Duration::from_secs(2);

    fn at(second: u32) -> BootInstant {
        BootInstant::from_nanos(0).after(second * SECOND)
    }

    fn left() -> Overdue {
        Overdue {
            deadline: at(12),
            now: at(12),
            timeout: TIMEOUT,
            tick: TICK,
            stalled: Duration::ZERO,
            is_attached: false,
            is_final: false,
        }
    }

    fn attached() -> Overdue {
        Overdue {
            is_attached: true,
            ..left()
        }
    }

    fn later(second: u32, facts: Overdue) -> Overdue {
        let (deadline, now) = (at(second), at(second));
        Overdue {
            deadline,
            now,
            ..facts
        }
    }

    #[test]
    fn a_session_that_was_left_expires_on_a_punctual_store() {
        let (verdict, _) = Grace::default().decide(left());
        assert_eq!(verdict, Verdict::Expire);
    }

    #[test]
    fn a_stall_moves_the_deadline_by_as_much_and_once() {
        let stalled = 5 * SECOND;
        let facts = Overdue { stalled, ..left() };
        let (verdict, grace) = Grace::default().decide(facts);
        assert_eq!(verdict, Verdict::Postpone { until: at(17) });
        let (verdict, _) = grace.decide(later(17, facts));
        assert_eq!(verdict, Verdict::Expire);
    }

    #[test]
    fn a_stall_before_the_last_sign_of_life_does_not_count() {
        let stalled = 5 * SECOND;
        let (verdict, _) = Grace::renewed(stalled).decide(Overdue { stalled, ..left() });
        assert_eq!(verdict, Verdict::Expire);
    }

    #[test]
    fn after_a_stall_that_was_too_long_a_client_without_a_connection_has_a_tick() {
        let facts = Overdue {
            now: at(100),
            stalled: 90 * SECOND,
            ..left()
        };
        let (verdict, grace) = Grace::default().decide(facts);
        assert_eq!(verdict, Verdict::Probe { until: at(102) });
        let (verdict, _) = grace.decide(later(102, facts));
        assert_eq!(verdict, Verdict::Expire);
    }

    #[test]
    fn a_connection_is_probed_once_and_its_time_is_not_extended_by_later_stalls() {
        let (verdict, grace) = Grace::default().decide(attached());
        assert_eq!(verdict, Verdict::Probe { until: at(22) });
        assert!(grace.is_probed());
        let stalled = 50 * SECOND;
        let facts = Overdue {
            stalled,
            ..attached()
        };
        let (verdict, _) = grace.decide(later(22, facts));
        assert_eq!(verdict, Verdict::Expire);
    }

    #[test]
    fn nothing_spares_a_session_without_unread_signs() {
        let facts = Overdue {
            stalled: 5 * SECOND,
            is_final: true,
            ..attached()
        };
        assert_eq!(Grace::default().decide(facts).0, Verdict::Expire);
    }

    #[test]
    fn all_grace_together_is_the_timeout_and_a_tick_at_the_most() {
        for mut facts in [left(), attached()] {
            let mut grace = Grace::default();
            loop {
                let (verdict, after) = grace.decide(facts);
                let (Verdict::Postpone { until } | Verdict::Probe { until }) = verdict else {
                    break;
                };
                assert!(until <= facts.now.after(TIMEOUT + TICK));
                assert!(facts.now <= at(12).after(TIMEOUT + TICK), "{facts:?}");
                facts.stalled += until.since(facts.now) * 4 / 5;
                (facts.deadline, facts.now, grace) = (until, until, after);
            }
        }
    }

    #[test]
    fn all_stalls_together_postpone_by_no_more_than_the_timeout() {
        let mut grace = Grace::default();
        let verdicts = [
            (12, 6, Verdict::Postpone { until: at(18) }),
            (18, 12, Verdict::Postpone { until: at(22) }),
            (22, 18, Verdict::Expire),
        ];
        for (second, stalled, expected) in verdicts {
            let stalled = stalled * SECOND;
            let facts = later(second, Overdue { stalled, ..left() });
            let (verdict, after) = grace.decide(facts);
            assert_eq!(verdict, expected, "at {second} s");
            grace = after;
        }
    }

    #[test]
    fn a_probe_is_remembered_until_a_sign_of_life() {
        assert!(!Grace::default().is_probed());
        let (verdict, grace) = Grace::default().decide(attached());
        assert!(matches!(verdict, Verdict::Probe { .. }), "{verdict:?}");
        assert!(grace.is_probed());
        assert!(!Grace::renewed(SECOND).is_probed());
    }

    #[test]
    fn a_probe_takes_what_the_stalls_have_left() {
        let facts = Overdue {
            now: at(20),
            stalled: 3 * SECOND,
            ..attached()
        };
        let (verdict, grace) = Grace::default().decide(facts);
        assert_eq!(verdict, Verdict::Probe { until: at(27) });
        assert_eq!(grace.granted, TIMEOUT);
    }
}
