//! A bounded slice of the check: what holds in all states, and which property notices each mistake.

use lockkeeper_model::{
    Budgets, Config, EXCLUSION, FIFO, LEASE, LEFT_BEHIND, LeaseMistake, Mistake, PROGRESS,
    StoreKind, TOKENS, VERIFIED, WATCHES, check, check_lease, shortest_violation,
};

const STORES: [StoreKind; 3] = [StoreKind::Index, StoreKind::List, StoreKind::Ensemble];

/// Checks a configuration, and fails with the story of a violation.
fn assert_holds(config: Config) {
    let outcome = check(config, 1);
    assert!(outcome.failed.is_empty(), "{config}: {:#?}", outcome);
}

#[test]
fn two_clients_keep_every_invariant_and_every_wait_ends() {
    for config in Config::standard(2) {
        assert_holds(config);
    }
}

#[test]
fn three_clients_keep_every_invariant_under_one_fault_of_each_kind() {
    let faults = [
        Budgets {
            disconnects: 1,
            ..Budgets::default()
        },
        Budgets {
            lapses: 1,
            expiries: 1,
            ..Budgets::default()
        },
        Budgets {
            cancellations: 1,
            removals: 1,
            ..Budgets::default()
        },
    ];
    for store in STORES {
        for faults in faults {
            assert_holds(Config::new(store, 3, 1).with(faults));
        }
    }
}

/// Checks a mistake where it is to show, and asserts the property that the shortest path to a violation violates.
fn assert_caught(mistake: Mistake, by: &str) {
    let violation = shortest_violation(mistake.demonstration()).expect("a mistake shows");
    assert_eq!(violation.property, by, "{mistake:?}: {violation:#?}");
    let config = Config {
        mistake: None,
        ..mistake.demonstration()
    };
    assert_holds(config);
}

#[test]
fn each_mistake_is_caught() {
    for (mistake, by) in [
        (Mistake::GrantWithoutConfirming, VERIFIED),
        (Mistake::SleepOnAfterReconnection, PROGRESS),
        (Mistake::IgnoreMissingPredecessor, PROGRESS),
        (Mistake::CreateAgain, PROGRESS),
        (Mistake::ListWithoutBarrier, PROGRESS),
        (Mistake::ReenterAfterLostReply, FIFO),
        (Mistake::WatchHead, WATCHES),
        (Mistake::TrustForeignMarker, VERIFIED),
        (Mistake::IgnoreOwner, VERIFIED),
        (Mistake::RecheckByName, VERIFIED),
        (Mistake::ForgetCreateUnderWay, LEFT_BEHIND),
        (Mistake::LeaseOutlivesSession, VERIFIED),
        (Mistake::GrantWithoutLease, VERIFIED),
        (Mistake::TokenFromNumber, TOKENS),
    ] {
        assert_caught(mistake, by);
    }
}

/// Their shortest paths are long: these are found depth first.
#[test]
fn mistakes_that_need_more_steps_are_caught() {
    for mistake in [Mistake::MarkAbandonedWait, Mistake::ReadAheadOnly] {
        let outcome = check(mistake.demonstration(), 1);
        assert!(
            outcome.failed.contains(&VERIFIED),
            "{mistake:?}: {outcome:#?}"
        );
    }
}

#[test]
fn two_hold_at_once_where_the_lease_is_ignored_or_too_long() {
    for mistake in [Mistake::LeaseOutlivesSession, Mistake::GrantWithoutLease] {
        let outcome = check(mistake.demonstration(), 1);
        assert!(
            outcome.failed.contains(&EXCLUSION),
            "{mistake:?}: {outcome:#?}"
        );
    }
}

#[test]
fn a_proved_etcd_lease_is_alive() {
    let outcome = check_lease(None);
    assert!(outcome.failed.is_empty(), "{outcome:#?}");
}

#[test]
fn each_etcd_mistake_is_caught() {
    for mistake in [
        LeaseMistake::TrustAnswer,
        LeaseMistake::IgnoreTerm,
        LeaseMistake::IgnoreKey,
        LeaseMistake::CountFromAnswer,
        LeaseMistake::TrustFirst,
    ] {
        let outcome = check_lease(Some(mistake));
        let caught = outcome.violation.as_ref().map(|one| one.property);
        assert_eq!(caught, Some(LEASE), "{mistake:?}: {outcome:#?}");
    }
}
