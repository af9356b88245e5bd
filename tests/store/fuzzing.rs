//! The fuzzers' targets, over the corpus in `fuzz/corpus` and mutations of it.
//!
//! `LOCKKEEPER_WRITE_CORPUS=1 cargo test --workspace --all-features --test store -- fuzzing::`
//! writes the corpus again, after a change of the formats. Inputs named `found-…` are those that libFuzzer has found
//! (`fuzz/run --keep`): they reach code that the others do not.

use std::fs;
use std::path::PathBuf;

use lockkeeper_store::testing::fuzz;
#[cfg(feature = "server")]
use lockkeeper_store::testing::fuzz_wire;

use crate::support::{Random, report, rounds};

type Target = fn(&[u8]) -> bool;

const TARGETS: &[(&str, Target)] = &[
    ("frame", fuzz::frame),
    ("recovery", fuzz::recovery),
    ("snapshot", fuzz::snapshot),
    ("backup", fuzz::backup),
    #[cfg(feature = "simulation")]
    ("opening", fuzz::opening),
    ("url", fuzz::url),
    #[cfg(feature = "server")]
    ("request", fuzz_wire::request),
    #[cfg(feature = "server")]
    ("handshake", fuzz_wire::handshake),
    #[cfg(feature = "server")]
    ("stream", fuzz_wire::stream),
    #[cfg(feature = "server")]
    ("connection", fuzz_wire::connection),
    #[cfg(feature = "server")]
    ("conversation", fuzz_wire::conversation),
    #[cfg(all(feature = "client", feature = "server"))]
    ("client", fuzz_wire::client),
];

fn made(target: &str) -> Vec<(&'static str, Vec<u8>)> {
    #[cfg_attr(not(feature = "server"), expect(unused_mut))]
    let mut made = fuzz::corpus(target);
    #[cfg(feature = "server")]
    made.extend(fuzz_wire::corpus(target));
    made
}

fn folder(target: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.join("fuzz/corpus").join(target)
}

/// Beginning of the names of inputs that no encoder makes.
const FOUND: &str = "found-";

fn checked_in(target: &str) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(folder(target)).expect("the corpus is checked in");
    let mut inputs: Vec<_> = entries
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, fs::read(entry.path()).unwrap())
        })
        .collect();
    inputs.sort();
    inputs
}

#[test]
fn the_corpus_matches_the_encoder() {
    let writes = std::env::var_os("LOCKKEEPER_WRITE_CORPUS").is_some();
    for (target, _) in TARGETS {
        let mut made: Vec<_> = made(target)
            .into_iter()
            .map(|(name, bytes)| (name.to_owned(), bytes))
            .collect();
        made.sort();
        if writes {
            fs::create_dir_all(folder(target)).unwrap();
            for (name, bytes) in &made {
                fs::write(folder(target).join(name), bytes).unwrap();
            }
        }
        let names = |inputs: &[(String, Vec<u8>)]| {
            let names = inputs.iter().map(|(name, _)| name.clone());
            names.collect::<Vec<_>>()
        };
        let mut there = checked_in(target);
        there.retain(|(name, _)| !name.starts_with(FOUND));
        assert_eq!(names(&there), names(&made), "{target}");
        let differs = there.iter().zip(&made).find(|(one, other)| one != other);
        let differs = differs.map(|((name, _), _)| name);
        assert_eq!(differs, None, "of {target}: not what the encoder makes now");
    }
}

#[test]
fn the_corpus_is_accepted_and_refused_as_its_names_say() {
    let bad = ["cut", "damaged", "truncated", "swapped"];
    for (target, run) in TARGETS {
        for (name, bytes) in checked_in(target) {
            let is_accepted = run(&bytes);
            let expected = !bad.contains(&name.as_str());
            let is_made = !name.starts_with(FOUND);
            assert!(!is_made || is_accepted == expected, "{target}/{name}");
        }
    }
}

#[test]
fn no_mutation_of_the_corpus_breaks_a_target() {
    let (mut count, mut accepted) = (0, 0);
    for round in rounds(1_000) {
        for (target, run) in TARGETS {
            let inputs = checked_in(target);
            for (index, (_, bytes)) in inputs.iter().enumerate() {
                let (_, other) = &inputs[(index + 1) % inputs.len()];
                let mutated = mutated(bytes, other, round * 1_000 + index as u64);
                accepted += u64::from(run(&mutated));
                count += 1;
            }
        }
    }
    report(format_args!(
        "fuzzing: {count} mutations, {accepted} accepted"
    ));
    assert!(accepted > 0 && accepted < count, "{accepted} of {count}");
}

#[cfg(feature = "server")]
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

/// As a fuzzer does: some bytes are changed, moved, left out or taken from another input.
fn mutated(bytes: &[u8], other: &[u8], seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut bytes = bytes.to_vec();
    for _ in 0..random.index(4) + 1 {
        let end = bytes.len() + 1;
        let (at, to) = (random.index(end), random.index(end));
        let range = at.min(to)..at.max(to).min(at.min(to) + 64);
        match random.index(7) {
            0 | 1 if at < bytes.len() => bytes[at] ^= 1 << random.index(8),
            2 if at < bytes.len() => {
                bytes[at] = [0, 1, 0x7f, 0x80, 0xfe, 0xff][random.index(6)];
            }
            3 => drop(bytes.drain(range)),
            4 => {
                let copied = bytes[range].to_vec();
                bytes.splice(to..to, copied);
            }
            5 => bytes[range].fill(random.index(256) as u8),
            _ => {
                let from = random.index(other.len() + 1);
                let taken = &other[from..other.len().min(from + random.index(200))];
                bytes.truncate(at);
                bytes.extend_from_slice(taken);
            }
        }
    }
    bytes
}
