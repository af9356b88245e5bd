//! Fencing tokens from outside: numbers and JSON.

use lockkeeper::{FencingToken, InvalidToken};

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
