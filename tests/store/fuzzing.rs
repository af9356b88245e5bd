//! The store's fuzz targets without libFuzzer.
//!
//! `LOCKKEEPER_WRITE_CORPUS=1 cargo test --workspace --all-features --test store -- fuzzing::` rewrites the corpus
//! after a change of the formats.

use lockkeeper_store::testing::fuzz;
use lockkeeper_store::testing::fuzz_wire;
use testkit::{Fuzzer, mutated, report, rounds, run_mutations};

type Target = fn(&[u8]) -> bool;

const TARGETS: &[(&str, Target)] = &[
    ("frame", fuzz::frame),
    ("recovery", fuzz::recovery),
    ("snapshot", fuzz::snapshot),
    ("backup", fuzz::backup),
    ("opening", fuzz::opening),
    ("url", fuzz::url),
    ("request", fuzz_wire::request),
    ("handshake", fuzz_wire::handshake),
    ("stream", fuzz_wire::stream),
    ("connection", fuzz_wire::connection),
    ("conversation", fuzz_wire::conversation),
    ("client", fuzz_wire::client),
];

fn made(target: &str) -> Vec<(&'static str, Vec<u8>)> {
    let mut made = fuzz::corpus(target);
    made.extend(fuzz_wire::corpus(target));
    made
}

fn fuzzers() -> Vec<Fuzzer> {
    let fuzzers = TARGETS.iter().map(|(name, run)| Fuzzer {
        name,
        run: *run,
        made: made(name),
    });
    fuzzers.collect()
}

#[test]
fn the_corpus_matches_the_encoder() {
    fuzzers().iter().for_each(Fuzzer::assert_matches_encoder);
}

#[test]
fn the_corpus_is_accepted_and_refused_as_its_names_say() {
    fuzzers()
        .iter()
        .for_each(Fuzzer::assert_accepts_and_refuses);
}

#[test]
fn no_mutation_of_the_corpus_breaks_a_target() {
    run_mutations(&fuzzers(), 1_000);
}

#[test]
fn no_mutation_of_a_request_breaks_the_reader_of_its_record() {
    let (mut count, mut accepted) = (0, 0);
    for round in rounds(300) {
        for (index, (record, run)) in fuzz_wire::RECORDS.iter().enumerate() {
            let [(_, bytes)] = &fuzz_wire::corpus(record)[..] else {
                panic!("{record} has one record to begin with");
            };
            assert!(run(bytes), "{record}");
            let (other, _) = fuzz_wire::RECORDS[(index + 1) % fuzz_wire::RECORDS.len()];
            let (_, other) = &fuzz_wire::corpus(other)[0];
            accepted += u64::from(run(&mutated(bytes, other, round * 100 + index as u64)));
            count += 1;
        }
    }
    report(format_args!(
        "fuzzing: {count} mutations of records, {accepted} accepted"
    ));
    assert!(accepted > 0 && accepted < count, "{accepted} of {count}");
}
