//! Runs the fuzz targets without libFuzzer, over the corpus in `fuzz/corpus` and mutations of it.
//!
//! With `LOCKKEEPER_WRITE_CORPUS=1`, the tests `fuzzing::` rewrite the corpus after a format change. Inputs named
//! `found-…` were found by libFuzzer (`fuzz/run --keep`) and reach code that the others do not.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Random, report, rounds};

pub struct Fuzzer {
    pub name: &'static str,
    /// Returns `true` if the input is accepted.
    pub run: fn(&[u8]) -> bool,
    /// The inputs that our encoders generate.
    pub made: Vec<(&'static str, Vec<u8>)>,
}

/// Name prefix of inputs that no encoder generates.
const FOUND: &str = "found-";

/// Names of inputs that must be refused.
const BAD: [&str; 4] = ["cut", "damaged", "truncated", "swapped"];

impl Fuzzer {
    fn folder(&self) -> PathBuf {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut corpora = package.ancestors().map(|root| root.join("fuzz/corpus"));
        let corpus = corpora.find(|corpus| corpus.is_dir());
        corpus.expect("the corpus is checked in").join(self.name)
    }

    fn checked_in(&self) -> Vec<(String, Vec<u8>)> {
        let entries = fs::read_dir(self.folder()).expect("the corpus is checked in");
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

    /// Fails unless the corpus contains exactly the generated inputs, apart from those found by libFuzzer.
    pub fn assert_matches_encoder(&self) {
        let mut made: Vec<_> = self.made.clone();
        made.sort();
        if std::env::var_os("LOCKKEEPER_WRITE_CORPUS").is_some() {
            fs::create_dir_all(self.folder()).unwrap();
            for (name, bytes) in &made {
                fs::write(self.folder().join(name), bytes).unwrap();
            }
        }
        let mut there = self.checked_in();
        there.retain(|(name, _)| !name.starts_with(FOUND));
        let names = |inputs: &[(String, Vec<u8>)]| {
            let names = inputs.iter().map(|(name, _)| name.clone());
            names.collect::<Vec<_>>()
        };
        let made: Vec<_> = made
            .into_iter()
            .map(|(name, bytes)| (name.to_owned(), bytes))
            .collect();
        assert_eq!(names(&there), names(&made), "{}", self.name);
        let differs = there.iter().zip(&made).find(|(one, other)| one != other);
        let differs = differs.map(|((name, _), _)| name);
        assert_eq!(
            differs, None,
            "of {}: not what the encoder makes now",
            self.name
        );
    }

    /// Fails unless the inputs are accepted or refused as their names say. Those found by libFuzzer may be
    /// either.
    pub fn assert_accepts_and_refuses(&self) {
        for (name, bytes) in self.checked_in() {
            let is_accepted = (self.run)(&bytes);
            let expected = !BAD.contains(&name.as_str());
            let is_made = !name.starts_with(FOUND);
            assert!(!is_made || is_accepted == expected, "{}/{name}", self.name);
        }
    }
}

/// Runs the targets on mutations of their corpora, for at most `most` rounds, and reports the number of mutations.
pub fn run_mutations(fuzzers: &[Fuzzer], most: u64) {
    let (mut count, mut accepted) = (0, 0);
    for round in rounds(most) {
        for fuzzer in fuzzers {
            let inputs = fuzzer.checked_in();
            for (index, (_, bytes)) in inputs.iter().enumerate() {
                let (_, other) = &inputs[(index + 1) % inputs.len()];
                let mutated = mutated(bytes, other, round * 1_000 + index as u64);
                accepted += u64::from((fuzzer.run)(&mutated));
                count += 1;
            }
        }
    }
    report(format_args!(
        "fuzzing: {count} mutations, {accepted} accepted"
    ));
    assert!(accepted > 0 && accepted < count, "{accepted} of {count}");
}

/// Changes, moves, drops or replaces some bytes, as a fuzzer does.
pub fn mutated(bytes: &[u8], other: &[u8], seed: u64) -> Vec<u8> {
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
