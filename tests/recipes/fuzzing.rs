//! The recipes' fuzz target without libFuzzer.

use lockkeeper::testing::fuzz_entries;
use testkit::{Fuzzer, run_mutations};

fn fuzzer() -> Fuzzer {
    Fuzzer {
        name: "entries",
        run: fuzz_entries::entries,
        made: fuzz_entries::corpus(),
    }
}

#[test]
fn the_corpus_matches_the_encoder() {
    fuzzer().assert_matches_encoder();
}

#[test]
fn the_corpus_is_accepted_and_refused_as_its_names_say() {
    fuzzer().assert_accepts_and_refuses();
}

#[test]
fn no_mutation_of_the_corpus_breaks_the_target() {
    run_mutations(&[fuzzer()], 200);
}
