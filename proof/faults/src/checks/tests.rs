//! Tests that each check notices its mistake, because a check that cannot fail proves nothing.

use testkit::linearizable::{Answer, Call};

use super::*;
use crate::report::Share;

fn worker(number: usize) -> WorkerId {
    WorkerId {
        number,
        life: 0,
        belief: Belief::Promised,
    }
}

fn foreign() -> WorkerId {
    WorkerId {
        belief: Belief::Hoped,
        ..worker(9)
    }
}

/// A grant with some token, and its time.
struct CriticalSection<'a> {
    key: &'a str,
    share: Share,
    token: u64,
    from: u64,
    to: u64,
}

impl CriticalSection<'_> {
    fn of(self, worker: WorkerId, checker: &mut Checker) -> u64 {
        let (grant, token) = (self.token, self.token.to_string());
        checker.hear(
            worker,
            Report::Granted {
                grant,
                key: self.key.to_owned(),
                share: self.share,
                token: token.parse().expect("a token"),
                at: self.from,
            },
        );
        checker.hear(worker, Report::Held { grant, at: self.to });
        grant
    }
}

fn exclusive(token: u64, from: u64, to: u64) -> CriticalSection<'static> {
    CriticalSection {
        key: "mutex-0",
        share: Share::Exclusive,
        token,
        from,
        to,
    }
}

fn checker() -> Checker {
    Checker::new(10)
}

/// Asserts that the first violation is of this kind, or that there is none if it is empty.
fn expect(mut checker: Checker, kind: &str) {
    let wrong = checker.check_all();
    match wrong.first() {
        Some(first) => assert!(!kind.is_empty() && first.starts_with(kind), "{wrong:?}"),
        None => assert!(kind.is_empty(), "nothing is wrong"),
    }
}

#[test]
fn one_holder_after_the_other_is_right() {
    let mut checker = checker();
    exclusive(1, 10, 20).of(worker(0), &mut checker);
    exclusive(2, 20, 30).of(worker(1), &mut checker);
    expect(checker, "");
}

#[test]
fn two_believe_at_the_same_time() {
    let mut checker = checker();
    exclusive(1, 10, 21).of(worker(0), &mut checker);
    exclusive(2, 20, 30).of(worker(1), &mut checker);
    expect(checker, "exclusion:");
}

#[test]
fn a_belief_of_another_client_is_only_counted() {
    let mut checker = checker();
    exclusive(1, 10, 21).of(foreign(), &mut checker);
    exclusive(2, 20, 30).of(worker(1), &mut checker);
    let counts = checker.counts();
    assert_eq!(
        counts["times when another client believed and was not the only one"],
        1
    );
    expect(checker, "");
}

#[test]
fn a_later_grant_has_a_newer_token_of_whatever_client() {
    for (first, second) in [(worker(0), worker(1)), (worker(0), foreign())] {
        let mut checker = checker();
        exclusive(7, 10, 20).of(first, &mut checker);
        exclusive(6, 30, 40).of(second, &mut checker);
        expect(checker, "tokens, order:");
    }
}

#[test]
fn a_token_is_granted_once() {
    let mut checker = checker();
    exclusive(7, 10, 20).of(worker(0), &mut checker);
    exclusive(7, 30, 40).of(worker(1), &mut checker);
    expect(checker, "tokens, order:");
}

#[test]
fn readers_share_and_exclude_writers() {
    let stay = |share, token, from, to| CriticalSection {
        key: "rwlock",
        share,
        token,
        from,
        to,
    };
    let (reads, writes) = (Share::Shared, Share::Exclusive);
    let mut shared = checker();
    stay(writes, 3, 5, 10).of(worker(0), &mut shared);
    // The writer becomes a reader, and keeps its token.
    stay(reads, 3, 10, 30).of(worker(2), &mut shared);
    stay(reads, 4, 10, 30).of(worker(1), &mut shared);
    expect(shared, "");

    let mut beside = checker();
    stay(reads, 3, 10, 30).of(worker(0), &mut beside);
    stay(writes, 4, 20, 30).of(worker(1), &mut beside);
    expect(beside, "exclusion:");

    let mut late = checker();
    stay(writes, 5, 10, 20).of(worker(0), &mut late);
    stay(reads, 4, 30, 40).of(worker(1), &mut late);
    expect(late, "tokens, order:");
}

#[test]
fn permits_are_counted() {
    let stay = |count, token| CriticalSection {
        key: "semaphore",
        share: Share::Permits(count),
        token,
        from: 10,
        to: 20,
    };
    for (second, kind) in [(1, ""), (2, "exclusion:")] {
        let mut checker = checker();
        stay(2, 5).of(worker(0), &mut checker);
        stay(second, 4).of(worker(1), &mut checker);
        expect(checker, kind);
    }
}

#[test]
fn a_holder_is_not_refused() {
    for (is_held, kind) in [(true, "exclusion:"), (false, "")] {
        let mut checker = checker();
        let old = exclusive(1, 10, 10).of(worker(0), &mut checker);
        let new = exclusive(2, 20, 20).of(worker(1), &mut checker);
        let mut write = |worker, grant| checker.hear(worker, Report::Use { grant });
        assert_eq!(write(worker(1), new), Some(true));
        assert_eq!(write(worker(0), old), Some(false));
        checker.hear(
            worker(0),
            Report::Refused {
                grant: old,
                is_held,
            },
        );
        expect(checker, kind);
    }
}

#[test]
fn a_lease_is_lost_by_a_fault_alone() {
    let fault = |victim| Fault {
        kind: "server killed",
        from: 100,
        to: 200,
        victim,
    };
    let cases = [
        (150, None, ""),
        (210, None, ""),
        (211, None, "leases:"),
        (99, None, "leases:"),
        (150, Some(0), ""),
        (150, Some(1), "leases:"),
    ];
    for (at, victim, kind) in cases {
        let mut checker = checker();
        let grant = exclusive(1, 10, 20).of(worker(0), &mut checker);
        checker.fault(fault(victim));
        checker.hear(
            worker(0),
            Report::Lost {
                grant,
                at,
                reason: "expired".to_owned(),
            },
        );
        let is_without = u64::from(!kind.is_empty());
        assert_eq!(checker.lost_without_cause(), is_without);
        assert_eq!(checker.lost_by(&fault(victim)), 1 - is_without);
        expect(checker, kind);
    }
}

/// A call on a register and its time, and the answer with its time.
type Called = (Call, u64, Option<(u64, Answer)>);

fn history(calls: &[Called]) -> Checker {
    let mut checker = checker();
    for (call, (what, at, answered)) in calls.iter().enumerate() {
        let (call, at, what) = (call as u64, *at, *what);
        let key = "register".to_owned();
        checker.hear(
            worker(0),
            Report::Called {
                call,
                key,
                at,
                what,
            },
        );
        if let Some((at, answer)) = *answered {
            checker.hear(worker(0), Report::Answered { call, at, answer });
        }
    }
    checker
}

#[test]
fn an_acknowledged_write_survives() {
    let create = Call::Create { value: 1 };
    let read = |answer| (Call::Get, 30, Some((40, answer)));
    let acknowledged = (create, 10, Some((20, Answer::Done)));
    expect(history(&[acknowledged, read(Answer::Found(0, 1))]), "");
    expect(
        history(&[acknowledged, read(Answer::Missing)]),
        "linearizability:",
    );
    // If a write has no answer, both results are right.
    for answer in [Answer::Found(0, 1), Answer::Missing] {
        expect(history(&[(create, 10, None), read(answer)]), "");
    }
}

#[test]
fn a_read_is_not_of_the_past() {
    let create = (Call::Create { value: 1 }, 10, Some((20, Answer::Done)));
    let set = Call::Set {
        value: 2,
        version: None,
    };
    let set = (set, 30, Some((40, Answer::Version(1))));
    let read = (Call::Get, 50, Some((60, Answer::Found(0, 1))));
    expect(history(&[create, set, read]), "linearizability:");
}

#[test]
fn an_error_that_no_fault_explains_is_told() {
    let mut checker = checker();
    let text = "an error".to_owned();
    checker.hear(worker(0), Report::Failed { text });
    expect(checker, "error:");
}

#[test]
fn the_longest_time_without_progress() {
    let mut checker = checker();
    for (token, at) in [(1, 10), (2, 40), (3, 45)] {
        exclusive(token, at, at).of(worker(0), &mut checker);
    }
    let gap = |from, to| checker.progress.longest_without_grant(from, to);
    assert_eq!((gap(10, 50), gap(41, 60), gap(0, 20)), (30, 15, 10));
}
