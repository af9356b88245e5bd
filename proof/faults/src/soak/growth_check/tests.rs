//! Tests that each check can fail.

use super::*;

/// Returns samples every five seconds for ten minutes. The figure is a function of the elapsed share of the time.
fn series(name: &str, value: impl Fn(f64) -> f64) -> Vec<Sample> {
    let sample = |number: i32| {
        let share = f64::from(number) / 120.0;
        let mut sample = Sample {
            at: 600.0 * share,
            ..Sample::default()
        };
        sample.figures.insert(name.to_owned(), value(share));
        sample
    };
    (0..=120).map(sample).collect()
}

#[test]
fn memory_that_grows_is_a_leak_and_peaks_and_a_warm_up_are_none() {
    let steady = series("server.rss", |share| (50.0 + 40.0 * share.min(0.1)) * MIB);
    assert_eq!(leaks(&steady), [""; 0]);
    let peaks = series("server.rss", |share| {
        let is_peak = ((share * 120.0) as u32).is_multiple_of(5);
        if is_peak { 900.0 * MIB } else { 50.0 * MIB }
    });
    assert_eq!(leaks(&peaks), [""; 0]);
    // 100 KiB per second.
    let leaking = series("server.rss", |share| (50.0 + 60.0 * share) * MIB);
    assert_eq!(leaks(&leaking).len(), 1);
}

#[test]
fn descriptors_threads_and_tasks_that_are_not_given_back_are_leaks() {
    for (figure, growth) in [
        ("fds", 40.0),
        ("threads", 8.0),
        ("tasks", 200.0),
        ("sessions", 200.0),
        ("connections", 200.0),
        ("ephemerals", 200.0),
        ("cleanups", 200.0),
        ("znodes", 5_000.0),
        ("watches", 5_000.0),
        ("store_bytes", 8.0 * MIB),
        ("metrics", 8.0),
    ] {
        let name = format!("server.{figure}");
        let leaking = series(&name, |share| (20.0 + growth * share).floor());
        assert_eq!(leaks(&leaking).len(), 1, "{figure}");
        assert_eq!(leaks(&series(&name, |_| 20.0)), [""; 0], "{figure}");
    }
}

#[test]
fn znodes_that_wait_for_the_reaper_go_with_the_load() {
    // The rate doubles after half of the time.
    let is_late = |share| if share < 0.5 { 0.0 } else { 1.0 };
    let requests = |share| 3e6 * (share + (share - 0.5) * is_late(share));
    let samples = |waiting: f64| {
        let mut samples = series("server.requests", requests);
        for (number, sample) in samples.iter_mut().enumerate() {
            let more = 1.0 + waiting * is_late(sample.at / 600.0);
            // The reaper has just run before every third sample.
            let znodes = 300.0 + more * if number % 3 == 0 { 500.0 } else { 2_500.0 };
            sample.add("server", "znodes", znodes);
        }
        samples
    };
    assert_eq!(leaks(&samples(1.0)), [""; 0]);
    assert_eq!(leaks(&samples(3.0)).len(), 1);
}

#[test]
fn a_counter_may_grow_and_must_not_stand_still() {
    let growing = series("client-0.grants", |share| (1e6 * share).floor());
    assert_eq!(leaks(&growing), [""; 0]);
    assert_eq!(standstills(&growing, &["grants"]), [""; 0]);
    let stuck = series("client-0.grants", |share| (1e6 * share.min(0.7)).floor());
    assert_eq!(standstills(&stuck, &["grants"]).len(), 1);
    assert_eq!(standstills(&[], &["grants"]).len(), 1);
}

#[test]
fn a_log_that_is_never_deleted_exceeds_the_bound() {
    let bound = DiskBound {
        snapshot: 8.0 * MIB,
        between: 30.0 * MIB,
    };
    assert_eq!(bound.bytes(), (24.0 + 60.0 + 30.0 + 384.0) * MIB);
    let large = DiskBound {
        snapshot: 100.0 * MIB,
        between: 0.0,
    };
    assert_eq!(large.bytes(), (300.0 + 200.0 + 384.0) * MIB);
    let bounded = series("server.disk", |share| {
        (200.0 + 100.0 * (share * 60.0).sin()) * MIB
    });
    assert_eq!(beyond_the_disk(&bounded, "server.disk", bound), None);
    let growing = series("server.disk", |share| 8_000.0 * share * MIB);
    assert!(beyond_the_disk(&growing, "server.disk", bound).is_some());
}

#[test]
fn a_second_holder_is_a_violation_unless_a_lease_was_lost() {
    let with = |conflicts: f64, refused: f64, losses: f64| {
        let mut sample = Sample::default();
        sample.add("client-0", "conflicts", conflicts);
        sample.add("client-1", "refused", refused);
        sample.add("client-1", "losses", losses);
        broken(&[sample])
    };
    assert_eq!(with(0.0, 0.0, 0.0), [""; 0]);
    assert_eq!(with(1.0, 0.0, 0.0).len(), 1);
    assert_eq!(with(0.0, 1.0, 0.0).len(), 1);
    assert_eq!(with(1.0, 1.0, 2.0), [""; 0]);
}

#[test]
fn the_table_shows_what_is_checked() {
    let table = table(&series("server.rss", |_| 50.0 * MIB));
    assert!(
        table.contains("| server.rss | 50.0 MiB | 50.0 MiB | 50.0 MiB | 68.0 MiB |"),
        "{table}"
    );
}

/// Parses a line that a soak has written.
fn parsed(line: &str) -> Sample {
    let mut sample = Sample::default();
    let line = line.trim_start_matches('{').trim_end_matches('}');
    for field in line.split(',') {
        let (name, value) = field.split_once(':').expect("a name and a value");
        let value = value.parse().expect("a number");
        match name.trim_matches('"') {
            "at" => sample.at = value,
            name => drop(sample.figures.insert(name.to_owned(), value)),
        }
    }
    sample
}

#[test]
fn the_hour_in_the_docs_is_flat() {
    let lines = include_str!("../../../../../docs/proof/soak.jsonl").lines();
    let samples: Vec<_> = lines.map(parsed).collect();
    assert!(samples.last().is_some_and(|last| last.at >= 3_600.0));
    assert_eq!(leaks(&samples), [""; 0]);
    assert_eq!(broken(&samples), [""; 0]);
    assert_eq!(
        standstills(&samples, &["grants", "ops", "visits", "events"]),
        [""; 0]
    );
}
