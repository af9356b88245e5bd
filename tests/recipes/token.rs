//! Fencing tokens as numbers and JSON.

use lockkeeper::{FencingGate, FencingToken, InvalidToken};
use serde_json::Value;

fn read(json: &str) -> Option<i64> {
    let token = serde_json::from_str::<FencingToken>(json);
    token.ok().map(FencingToken::as_i64)
}

#[test]
fn a_json_number_is_a_token_only_where_it_is_exact() {
    for (json, token) in [
        ("17", 17),
        ("17.0", 17),
        ("9007199254740991", (1 << 53) - 1),
        ("\"9007199254740993\"", (1 << 53) + 1),
    ] {
        assert_eq!(read(json), Some(token), "{json}");
    }
    for json in [
        "9007199254740992",
        "9007199254740992.0",
        "9223372036854775807",
        "18446744073709551615",
        "1e18",
        "17.5",
        "0",
        "0.0",
        "-17",
        "\"0\"",
        "\"-17\"",
        "\"17.0\"",
        "null",
        "[17]",
    ] {
        assert_eq!(read(json), None, "{json}");
    }
}

#[test]
fn only_a_positive_number_is_a_token() {
    let greatest = FencingToken::from_i64(i64::MAX);
    assert_eq!(greatest.map(FencingToken::as_i64), Ok(i64::MAX));
    for number in [0, -1, i64::MIN] {
        let refused = Err(InvalidToken::NotPositive(number));
        assert_eq!(FencingToken::from_i64(number), refused);
        assert_eq!(number.to_string().parse::<FencingToken>(), refused);
    }
}

/// The cases that also test the checks in other languages in `contrib/fencing`.
fn vectors(list: &str) -> Vec<Value> {
    let vectors = include_str!("../../contrib/fencing/vectors.json");
    let mut vectors: Value = serde_json::from_str(vectors).unwrap();
    let Value::Array(cases) = vectors[list].take() else {
        panic!("no list {list}")
    };
    assert!(cases.len() > 20, "{list}: {}", cases.len());
    cases
}

#[test]
fn texts_and_json_are_read_as_by_the_checks_in_other_languages() {
    for case in vectors("texts") {
        let token = case["text"].as_str().unwrap().parse::<FencingToken>();
        let token = token.ok().map(|token| token.to_string());
        assert_eq!(token.as_deref(), case["token"].as_str(), "{case}");
    }
    for case in vectors("json") {
        let token = read(case["json"].as_str().unwrap()).map(|token| token.to_string());
        assert_eq!(token.as_deref(), case["token"].as_str(), "{case}");
    }
}

#[test]
fn a_gate_admits_what_the_checks_in_other_languages_admit() {
    for case in vectors("gates") {
        let mut gate = FencingGate::default();
        for step in case["steps"].as_array().unwrap() {
            let token = || step["token"].as_str().unwrap().parse().unwrap();
            let admitted = match step["call"].as_str().unwrap() {
                "admit" => gate.admit(token()),
                "admit_shared" => gate.admit_shared(token()),
                "reset" => {
                    gate.reset();
                    Ok(())
                }
                call => panic!("{call}"),
            };
            let newest = admitted.err().map(|stale| stale.newest.to_string());
            assert_eq!(
                newest.as_deref(),
                step["newest"].as_str(),
                "{step} of {case}"
            );
        }
        assert_eq!(serde_json::to_value(gate).unwrap(), case["state"], "{case}");
    }
}
