//! Crashes that keep any subset of the unsynced sectors.

use super::*;

#[test]
fn any_subset_of_the_last_batchs_sectors_is_all_or_nothing() {
    let mut whole = 0;
    let sectors = 7;
    for subset in 0..1_u64 << sectors {
        let disk = fresh(subset % 2 == 0);
        let mut log = Writing::open(&disk).unwrap();
        log.commit(&[350]);
        log.mark();
        log.write(&[300, 900, 100]);
        let mut asked = 0;
        disk.crash_keeping(|| {
            asked += 1;
            subset >> (asked - 1) & 1 == 1
        });
        assert!(
            (5..=sectors).contains(&asked),
            "{asked}: the mark's and the batch's"
        );
        let context = format!("subset {subset:#b}");
        let (txns, _) = recovered(&disk).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert!([1, 4].contains(&txns.len()), "{context}: {}", txns.len());
        assert_eq!(txns, log.txns[..txns.len()], "{context}");
        whole += usize::from(txns.len() == 4);
        goes_on(&disk, &context);
    }
    assert!(whole > 0 && whole < 1 << sectors, "{whole}");
}

/// Not every frame is synced. Each crash hits a disk that still has the remains of the previous crash.
#[test]
fn crash_after_crash_loses_nothing_acknowledged_and_brings_nothing_back() {
    let (mut cuts, mut stale_frames) = (0, 0);
    for seed in 0..200_u64 {
        let disk = fresh(seed % 2 == 0);
        let mut random = seed;
        let mut below = |end: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % end
        };
        let mut known: Vec<Txn> = Vec::new();
        for life in 0..4 {
            let context = format!("seed {seed}, life {life}");
            let found = recovered(&disk).unwrap_or_else(|error| panic!("{context}: {error}"));
            stale_frames += found.1.stale_frames.len();
            let mut log = Writing::open(&disk).unwrap();
            assert_eq!(log.txns, known, "{context}: a repair changes nothing");
            for _ in 0..below(12) {
                let sizes: Vec<_> = (0..below(4) + 1).map(|_| below(200) as usize).collect();
                log.write(&sizes);
                match below(4) {
                    0 => log.sync(),
                    1 => {
                        log.sync();
                        log.mark();
                    }
                    _ => {}
                }
            }
            disk.crash(seed * 7 + life);
            let (txns, _) = recovered(&disk).unwrap_or_else(|error| panic!("{context}: {error}"));
            assert!(txns.len() >= log.acknowledged, "{context}");
            assert_eq!(txns, log.txns[..txns.len()], "{context}");
            cuts += usize::from(txns.len() < log.txns.len());
            known = txns;
        }
    }
    assert!(
        cuts > 100 && stale_frames > 100,
        "{cuts} cuts, {stale_frames} stale_frames"
    );
}

#[test]
fn a_crash_while_mending_is_repaired_by_the_next() {
    let mut repaired = 0;
    for seed in 0..150 {
        let disk = fresh(true);
        let mut log = Writing::open(&disk).unwrap();
        log.commit(&[150]);
        for _ in 0..6 {
            log.write(&[250]);
        }
        disk.crash(seed);
        let (txns, first) = recovered(&disk).unwrap();
        repaired += usize::from(!first.stale_frames.is_empty());
        let faults = crate::log::sim::Faults {
            sync_error_every: 2,
            ..Default::default()
        };
        disk.fail(seed, faults);
        let is_repaired = first.repair(&disk).is_ok();
        disk.crash(seed + 1);
        let (again, second) = recovered(&disk).unwrap();
        assert_eq!(again, txns, "seed {seed}");
        if is_repaired {
            assert_eq!(second.stale_frames, [], "seed {seed}");
        }
        goes_on(&disk, &format!("seed {seed}"));
    }
    assert!(repaired > 50, "{repaired}");
}

#[test]
fn what_only_the_machines_memory_held_is_durable_before_it_is_shown() {
    let disk = fresh(false);
    let mut log = Writing::open(&disk).unwrap();
    log.write(&[10]);
    let shown = Writing::open(&disk).unwrap();
    assert_eq!(shown.txns.len(), 1);
    disk.crash_keeping(|| false);
    assert_eq!(recovered(&disk).unwrap().0, shown.txns);
}

#[test]
fn a_frame_that_was_cut_off_does_not_come_back_behind_what_takes_its_place() {
    let disk = fresh(false);
    let mut log = Writing::open(&disk).unwrap();
    log.commit(&[20]);
    log.write(&[600]);
    log.write(&[300]);
    let lost = &log.places[1];
    let sectors = (lost.to - 1) / 512 - lost.from / 512 + 1;
    let mut asked = 0;
    disk.crash_keeping(|| {
        asked += 1;
        asked > sectors
    });
    let (_, found) = recovered(&disk).unwrap();
    assert!(
        found.stale_frames.iter().any(|stale| stale.is_whole),
        "{found:?}"
    );
    // If the old frame after this position were not erased, it would follow the new frame exactly.
    let mut again = Writing::open(&disk).unwrap();
    again.commit(&[600]);
    assert_eq!(recovered(&disk).unwrap().0, log.txns[..2]);
}
