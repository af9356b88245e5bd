#!/usr/bin/env python3
"""Writes vectors.json: cases by which every implementation of the token check is tested, Rust's among them.

The expectations come from the rule itself, on the list of all tokens that were admitted, and from no implementation: an
exclusive token is refused if any greater one was admitted, a shared token if any greater exclusive one was.
"""

import json
import pathlib
import random

GREATEST = 2**63 - 1
TEXTS = {
    "1": 1, "17": 17, "9007199254740993": 2**53 + 1, "1882551730844991497": 1882551730844991497,
    "9223372036854775807": GREATEST,
    # As Rust's parser of integers, and most others, read them.
    "+7": 7, "007": 7, "+007": 7, "0" * 300 + "7": 7,
}
NO_TOKENS = [
    "", "0", "+0", "-0", "00", "-1", "-9223372036854775808", "9223372036854775808", "18446744073709551617",
    "1" + "0" * 400, " 7", "7 ", "7\n", "\t7", "+ 7", "++7", "+-7", "+", "-", "7.0", "7.", ".7", "1e3", "0x7", "1_000",
    "1,000", "7;8", "7a", "null", "NaN", "Infinity", "true", "'7'", "\u0667", "\uff17", "\u00b2", "7\u200b",
]
JSON = {'"17"': 17, "17": 17, "17.0": 17, "1e2": 100, "9007199254740991": 2**53 - 1,
        '"9007199254740993"': 2**53 + 1, '"9223372036854775807"': GREATEST}
NO_JSON = ["9007199254740992", "9007199254740992.0", "9007199254740993", "9223372036854775807", "9223372036854775808",
           "1e18", "1e400", "17.5", "0", "0.0", "-0", "-17", '"0"', '"-17"', '"17.0"', '" 17"', '""', "null", "true",
           "false", "[17]", '{"token": 17}']


def result(call, token, exclusive, shared):
    """Carries out one call. Returns the newest token that was seen, where it is refused."""
    seen = exclusive + shared if call == "admit" else exclusive
    greater = [other for other in seen if other > token]
    if greater:
        return max(greater)
    (exclusive if call == "admit" else shared).append(token)
    return None


def gate(name, calls):
    exclusive, shared, steps = [], [], []
    for call, token in calls:
        if call == "reset":
            exclusive, shared = [], []
            steps.append({"call": call})
            continue
        stale = result(call, token, exclusive, shared)
        steps.append({"call": call, "token": str(token), "newest": stale and str(stale)})
    state = {"newest": str(max(exclusive)) if exclusive else None}
    if shared:
        state["newest_shared"] = str(max(shared))
    return {"name": name, "steps": steps, "state": state}


def gates():
    admit, reader = "admit", "admit_shared"
    yield gate("a late writer", [(admit, 17), (admit, 19), (admit, 17), (admit, 19), (admit, 20), (admit, 19)])
    yield gate("readers do not shut each other out", [(admit, 17), (reader, 19), (reader, 18), (reader, 19)])
    yield gate("a writer from before a reader", [(admit, 17), (reader, 19), (admit, 17), (admit, 18), (admit, 20)])
    yield gate("a reader from before a writer", [(reader, 18), (admit, 19), (reader, 18), (reader, 20)])
    yield gate("a reader that was a writer, and the reverse", [(admit, 5), (reader, 5), (admit, 5), (reader, 5)])
    yield gate("a refusal changes nothing", [(admit, 9), (admit, 3), (reader, 3), (admit, 9), (reader, 9)])
    yield gate("the greatest", [(admit, GREATEST), (reader, GREATEST), (admit, GREATEST - 1), (reader, GREATEST - 1)])
    yield gate("neighbours that are one double", [(admit, 2**53 + 1), (admit, 2**53), (reader, 2**53 + 1)])
    yield gate("a reset", [(admit, 9), (reader, 12), ("reset", None), (admit, 1), (reader, 1), (admit, 2)])
    yield gate("nothing", [])
    choose = random.Random(20)
    for number in range(25):
        base = choose.choice([1, 2**31, 2**53, GREATEST - 12])
        calls = [
            ("reset", None) if choose.random() < 0.03 else (choose.choice([admit, reader]), base + choose.randrange(12))
            for _ in range(20)
        ]
        yield gate(f"random {number}", calls)


def main():
    texts = [{"text": text, "token": str(token)} for text, token in TEXTS.items()]
    texts += [{"text": text, "token": None} for text in NO_TOKENS]
    values = [{"json": text, "token": str(token)} for text, token in JSON.items()]
    values += [{"json": text, "token": None} for text in NO_JSON]
    lists = {"texts": texts, "json": values, "gates": list(gates())}
    # A case a line.
    parts = [f'"{name}": [\n  ' + ",\n  ".join(map(json.dumps, cases)) + "\n]" for name, cases in lists.items()]
    pathlib.Path(__file__).with_name("vectors.json").write_text("{\n" + ",\n".join(parts) + "\n}\n")


if __name__ == "__main__":
    main()
