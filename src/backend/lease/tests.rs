use std::time::Duration;

#[cfg(feature = "etcd")]
use super::KeepAlive;
use super::{Beat, LeaseState, MAX_TOUCHES};
use crate::model::protocol::PendingProof;
use crate::runtime::clock::BootInstant;

/// A lease lasts 18 s (nine tenths of the timeout), and a grant needs 4 s (a fifth). A quarter of the timeout is 5 s.
/// Writes within 0.25 s (an eighth of the tick) are merged.
const TIMEOUT: Duration = Duration::from_secs(20);
const TICK: Duration = Duration::from_secs(2);
const INSTANT: Duration = Duration::from_nanos(1);

fn at(ms: u64) -> BootInstant {
    BootInstant::default().after(Duration::from_millis(ms))
}

fn before(ms: u64) -> BootInstant {
    BootInstant::from_nanos(at(ms).as_nanos() - 1)
}

fn server() -> LeaseState {
    LeaseState::new(TIMEOUT, None, at(1_000))
}

fn ensemble() -> LeaseState {
    LeaseState::new(TIMEOUT, Some(TICK), at(1_000))
}

fn proved(lease: &LeaseState) -> BootInstant {
    let belief = lease.timeout() * 9 / 10;
    BootInstant::from_nanos(lease.end().as_nanos() - u64::try_from(belief.as_nanos()).unwrap())
}

fn write(lease: &mut LeaseState, sent: BootInstant, answered: BootInstant) -> bool {
    let request = lease.sending(sent);
    lease.answered(request, true, answered)
}

#[test]
fn a_lease_ends_a_tenth_of_the_timeout_before_the_session() {
    let lease = server();
    assert_eq!(lease.end(), at(19_000));
    assert!(!lease.has_ended(before(19_000)));
    assert!(
        lease.has_ended(at(19_000)),
        "another may hold at that moment"
    );
}

#[test]
fn a_grant_needs_a_fifth_of_the_timeout() {
    let lease = server();
    assert!(lease.is_fresh(at(15_000)));
    assert!(!lease.is_fresh(at(15_000).after(INSTANT)));
}

#[cfg(feature = "etcd")]
#[test]
fn at_etcd_only_a_keep_alive_proves_that_a_read_confirms_in_the_same_term() {
    let mut lease = server();
    lease.set_keep_alive();
    assert!(!write(&mut lease, at(2_000), at(2_001)));
    assert_eq!(proved(&lease), at(1_000));
    let keep_alive = KeepAlive {
        sent: at(3_000),
        term: 7,
    };
    assert_eq!(keep_alive.confirmed_by(8, true), None, "another leader");
    assert_eq!(
        keep_alive.confirmed_by(7, false),
        None,
        "revoked in the log"
    );
    let sent = keep_alive.confirmed_by(7, true).unwrap();
    assert!(lease.prove(sent, at(3_010)));
    assert_eq!(proved(&lease), at(3_000));
}

/// A leader checks whether the lease has expired, and renews it in a later step. In between it may decide to revoke it.
#[cfg(feature = "etcd")]
#[test]
fn at_etcd_the_first_keep_alive_after_the_end_proves_nothing() {
    let mut lease = server();
    lease.set_keep_alive();
    assert!(!lease.prove(at(18_000), at(19_000)));
    assert!(lease.has_ended(at(19_000)));
    assert!(lease.prove(at(20_000), at(20_500)));
    assert_eq!(proved(&lease), at(20_000));
    assert!(!lease.prove(at(38_000), at(38_500)));
    assert!(!lease.prove(at(56_000), at(56_500)), "18 s after the first");
    assert!(lease.prove(at(57_000), at(57_500)));
}

#[test]
fn any_answer_of_a_server_proves_the_moment_of_its_request() {
    let mut lease = server();
    let request = lease.sending(at(2_000));
    assert!(lease.answered(request, false, at(5_000)));
    assert_eq!(proved(&lease), at(2_000), "not that of the answer");
    let request = lease.sending(at(6_000));
    lease.disconnected();
    assert!(
        lease.answered(request, false, at(7_000)),
        "one server judges all its connections"
    );
    assert_eq!(proved(&lease), at(6_000));
}

#[test]
fn an_older_answer_shortens_nothing() {
    let mut lease = server();
    assert!(write(&mut lease, at(5_000), at(6_000)));
    for older in [2_000, 5_000] {
        assert!(!write(&mut lease, at(older), at(7_000)), "{older}");
        assert_eq!(proved(&lease), at(5_000));
    }
    assert!(lease.prove(at(5_001), at(7_000)));
}

#[test]
fn a_lapse_is_an_end_that_is_followed_by_a_proof() {
    let mut lease = server();
    assert!(write(&mut lease, at(2_000), before(19_000)));
    assert_eq!(lease.lapses(), 0, "in time");
    assert!(write(&mut lease, at(3_000), at(30_000)));
    assert_eq!(lease.lapses(), 0, "it had ended, and has: 21 s are over");
    assert!(write(&mut lease, at(29_000), at(30_000)));
    assert_eq!(lease.lapses(), 1);
    assert!(write(&mut lease, at(30_000), at(30_000)));
    assert_eq!(lease.lapses(), 1, "each counts once");
    assert!(write(&mut lease, at(60_000), at(60_000)));
    assert_eq!(lease.lapses(), 2);
}

#[cfg(feature = "client")]
mod renegotiated {
    use super::*;

    #[test]
    fn nothing_extends_a_lease_whose_timeout_is_unknown() {
        let mut lease = server();
        lease.unsettle();
        assert!(!write(&mut lease, at(9_000), at(9_000)));
        assert_eq!(proved(&lease), at(1_000));
        lease.settle(TIMEOUT, at(10_000));
        assert_eq!(
            proved(&lease),
            at(9_000),
            "the newest proof of the meantime"
        );
        assert!(write(&mut lease, at(11_000), at(11_000)), "known again");
    }

    #[test]
    fn the_newest_proof_outlasts_a_second_loss() {
        let mut lease = server();
        lease.unsettle();
        write(&mut lease, at(9_000), at(9_000));
        write(&mut lease, at(8_000), at(9_000));
        lease.unsettle();
        lease.settle(TIMEOUT, at(10_000));
        assert_eq!(proved(&lease), at(9_000));
    }

    #[test]
    fn a_shorter_timeout_holds_for_earlier_proofs() {
        let mut lease = server();
        lease.settle(TIMEOUT / 2, at(2_000));
        assert_eq!(lease.timeout(), TIMEOUT / 2);
        assert_eq!(lease.end(), at(10_000));
        assert!(lease.is_fresh(at(8_000)));
        assert!(!lease.is_fresh(at(8_000).after(INSTANT)));
        assert_eq!(lease.lapses(), 0);
    }

    #[test]
    fn a_longer_timeout_does_not_hide_a_lapse() {
        let mut lease = server();
        lease.settle(10 * TIMEOUT, at(19_000));
        assert!(!lease.has_ended(at(19_000)));
        assert_eq!(lease.lapses(), 1, "it had ended: others may have held");
    }

    #[test]
    fn a_heartbeat_is_due_by_the_newest_proof_though_the_timeout_is_unknown() {
        let mut lease = server();
        lease.unsettle();
        write(&mut lease, at(9_000), at(9_000));
        let beat = Beat {
            sent: at(9_000),
            is_proof: true,
        };
        let third = TIMEOUT / 3;
        assert_eq!(
            lease.next_beat(Some(beat), at(9_000)),
            at(9_000).after(third)
        );
    }
}

#[test]
fn the_opening_of_a_session_proves_it_at_an_ensemble() {
    assert_eq!(ensemble().end(), at(19_000));
}

#[test]
fn a_write_is_proved_by_one_that_is_sent_a_tick_after_its_answer() {
    for (second, is_proof) in [(before(4_000), false), (at(4_000), true)] {
        let mut lease = ensemble();
        assert!(!write(&mut lease, at(1_500), at(2_000)), "not by itself");
        assert_eq!(write(&mut lease, second, at(9_000)), is_proof, "{second:?}");
        let expected = if is_proof { 1_500 } else { 1_000 };
        assert_eq!(proved(&lease), at(expected));
    }
}

#[test]
fn the_newest_of_several_proved_writes_counts() {
    let mut lease = ensemble();
    for sent in [1_500, 2_000, 2_500] {
        write(&mut lease, at(sent), at(sent + 100));
    }
    assert!(write(&mut lease, at(4_100), at(4_200)));
    assert_eq!(proved(&lease), at(2_000), "2,500 was answered too late");
    assert!(write(&mut lease, at(4_600), at(4_700)));
    assert_eq!(proved(&lease), at(2_500));
}

#[test]
fn a_quarter_of_a_short_timeout_stands_for_the_tick() {
    let timeout = Duration::from_secs(4);
    for (second, is_proof) in [(before(2_100), false), (at(2_100), true)] {
        let mut lease = LeaseState::new(timeout, Some(TICK), at(0));
        write(&mut lease, at(1_000), at(1_100));
        assert_eq!(write(&mut lease, second, second), is_proof, "{second:?}");
    }
}

#[test]
fn the_tick_of_an_ensemble_can_be_set_and_a_server_has_none() {
    let mut lease = ensemble();
    lease.set_tick(TICK / 2);
    write(&mut lease, at(1_500), at(2_000));
    assert!(write(&mut lease, at(3_000), at(3_000)));
    let mut lease = server();
    lease.set_tick(TICK);
    assert!(write(&mut lease, at(2_000), at(2_000)), "still a server");
}

#[test]
fn a_read_neither_proves_a_write_nor_is_proved() {
    let mut lease = ensemble();
    let read = lease.sending(at(1_500));
    assert!(!lease.answered(read, false, at(1_600)));
    assert!(!write(&mut lease, at(4_000), at(4_100)), "of a read");
    let read = lease.sending(at(7_000));
    assert!(!lease.answered(read, false, at(7_000)));
    assert_eq!(proved(&lease), at(1_000));
}

#[test]
fn writes_of_different_connections_do_not_prove_each_other() {
    let mut lease = ensemble();
    let first = lease.sending(at(1_500));
    lease.answered(first, true, at(1_600));
    let late = lease.sending(at(4_000));
    lease.disconnected();
    assert!(!lease.answered(late, true, at(4_100)), "of the last one");
    assert!(!write(&mut lease, at(5_000), at(5_100)), "its own first");
    assert!(write(&mut lease, at(7_100), at(7_200)));
    assert_eq!(proved(&lease), at(5_000));
    assert_eq!(lease.sending(at(8_000)).connection, 1);
}

#[test]
fn writes_answered_within_a_grain_are_kept_as_their_last() {
    let mut lease = ensemble();
    write(&mut lease, at(1_100), at(1_200));
    write(&mut lease, at(1_300), at(1_449));
    assert!(!write(&mut lease, before(3_449), at(3_449)), "both at once");
    assert!(write(&mut lease, at(3_449), at(3_450)));
    assert_eq!(proved(&lease), at(1_300));
}

#[test]
fn a_grain_begins_with_its_first_answer_and_ends() {
    let mut lease = ensemble();
    write(&mut lease, at(1_100), at(1_200));
    write(&mut lease, at(1_300), at(1_400));
    write(&mut lease, at(1_350), at(1_450));
    assert!(write(&mut lease, at(3_400), at(3_401)));
    assert_eq!(proved(&lease), at(1_300), "the third is apart");
    assert!(write(&mut lease, at(3_450), at(3_451)));
    assert_eq!(proved(&lease), at(1_350));
}

#[test]
fn an_answer_that_is_processed_after_that_of_a_later_write_is_not_kept() {
    let mut lease = ensemble();
    write(&mut lease, at(1_300), at(1_400));
    write(&mut lease, at(1_200), at(1_500));
    assert!(write(&mut lease, at(3_400), at(3_400)), "not put off");
    assert_eq!(proved(&lease), at(1_300));
    let mut lease = ensemble();
    write(&mut lease, at(1_300), at(1_400));
    write(&mut lease, at(1_300), at(1_500));
    assert!(
        !write(&mut lease, before(3_500), at(3_500)),
        "the same moment"
    );
}

#[test]
fn no_more_writes_are_kept_than_fit() {
    let mut lease = ensemble();
    let count = MAX_TOUCHES as u64;
    for number in 0..=count {
        let answered = at(2_000 + number * 1_000);
        assert!(!write(&mut lease, at(1_001 + number), answered));
    }
    assert!(write(&mut lease, at(60_000), at(60_000)));
    assert_eq!(proved(&lease), at(1_000 + count), "the last has no room");
}

#[test]
fn heartbeats_come_every_third_of_the_timeout() {
    let timeout = Duration::from_secs(18);
    let mut lease = LeaseState::new(timeout, None, at(0));
    assert_eq!(lease.next_beat(None, at(5_000)), at(5_000), "the first");
    let beat = |sent, is_proof| {
        Some(Beat {
            sent: at(sent),
            is_proof,
        })
    };
    assert_eq!(lease.next_beat(beat(3_000, true), at(3_500)), at(9_000));
    assert_eq!(
        lease.next_beat(beat(9_000, true), at(9_500)),
        at(12_000),
        "the last proof would be older than two thirds"
    );
    assert_eq!(
        lease.next_beat(beat(9_000, false), at(9_500)),
        at(15_000),
        "an answer is missing"
    );
    write(&mut lease, at(8_000), at(8_100));
    assert_eq!(lease.next_beat(beat(9_000, true), at(9_500)), at(15_000));
}

#[test]
fn a_heartbeat_to_an_ensemble_waits_until_it_can_prove_something() {
    let timeout = Duration::from_secs(18);
    let mut lease = LeaseState::new(timeout, Some(TICK), at(0));
    let beat = Some(Beat {
        sent: at(11_000),
        is_proof: true,
    });
    assert_eq!(
        lease.next_beat(beat, at(11_500)),
        at(17_000),
        "there is no write to prove"
    );
    write(&mut lease, at(11_000), at(11_500));
    assert_eq!(
        lease.next_beat(beat, at(11_500)),
        at(13_500),
        "a tick after the answer, though the proof is 11 s old"
    );
}

#[test]
fn a_session_is_kept_fresh_for_ten_timeouts() {
    assert_eq!(server().idle_after(), Duration::from_secs(200));
}

#[derive(Default)]
struct Naive {
    writes: Vec<(BootInstant, BootInstant)>,
}

impl Naive {
    fn may_prove(&self, proof: BootInstant, sent: BootInstant) -> bool {
        let known = |answered: BootInstant| answered.after(TICK) <= sent;
        self.writes
            .iter()
            .any(|&(first, answered)| first >= proof && known(answered))
    }
}

proptest::proptest! {
    #[test]
    fn a_proof_is_never_newer_than_the_rule_allows(
        steps in proptest::collection::vec((0u64..4, 0u64..1_500, 0u64..1_500), 1..80)
    ) {
        let mut lease = ensemble();
        let (mut naive, mut now, mut open) = (Naive::default(), 1_000, Vec::<PendingProof>::new());
        for (kind, pause, which) in steps {
            now += pause;
            match kind {
                0 => {
                    lease.disconnected();
                    naive.writes.clear();
                }
                1 => open.push(lease.sending(at(now))),
                _ if open.is_empty() => {}
                _ => {
                    let request = open.remove(which as usize % open.len());
                    let former = proved(&lease);
                    let is_current = request.connection == lease.sending(at(now)).connection;
                    if lease.answered(request, true, at(now)) {
                        let newest = proved(&lease);
                        proptest::prop_assert!(is_current && newest > former);
                        proptest::prop_assert!(naive.may_prove(newest, request.at));
                    }
                    if is_current {
                        naive.writes.push((request.at, at(now)));
                    }
                }
            }
        }
    }
}
