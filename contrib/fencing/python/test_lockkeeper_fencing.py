"""Tests of lockkeeper_fencing: python3 -m unittest"""

import json
import pathlib
import random
import threading
import unittest

from lockkeeper_fencing import Fence, FencingGate, InvalidToken, StaleToken, check_token, parse_token, token_from_json

VECTORS = json.loads((pathlib.Path(__file__).parents[1] / "vectors.json").read_text())


def read(function, value):
    """The token as a string, or None where there is none."""
    try:
        return str(function(value))
    except InvalidToken:
        return None


class Tokens(unittest.TestCase):
    def test_texts(self):
        for case in VECTORS["texts"]:
            self.assertEqual(read(parse_token, case["text"]), case["token"], case)

    def test_json(self):
        for case in VECTORS["json"]:
            self.assertEqual(read(token_from_json, json.loads(case["json"])), case["token"], case)

    def test_what_is_no_text_is_no_token(self):
        for value in [None, 7, 7.0, True, b"7", ["7"], object()]:
            self.assertIsNone(read(parse_token, value), value)

    def test_numbers_are_whole_and_in_range(self):
        for number in [1, 2**53 + 1, 2**63 - 1]:
            self.assertEqual(check_token(number), number)
        for number in [0, -1, 2**63, 7.0, float("nan"), float("inf"), True, "7", None]:
            self.assertIsNone(read(check_token, number), number)
        for number in [float("nan"), float("inf"), -0.0]:
            self.assertIsNone(read(token_from_json, number), number)

    def test_a_long_text_is_refused_at_once(self):
        for text in ["9" * 10_000_000, "1" + "0" * 5_000, "0" * 1_000_000]:
            self.assertIsNone(read(parse_token, text))

    def test_random_texts_are_read_as_integers_or_not_at_all(self):
        choose = random.Random(7)
        for _ in range(20_000):
            text = "".join(choose.choice("0123456789+- ._e\n٣") for _ in range(choose.randrange(1, 22)))
            plain = text[1:] if text[0] == "+" else text
            is_token = plain.isascii() and plain.isdigit() and 1 <= int(plain) < 2**63
            self.assertEqual(read(parse_token, text), str(int(plain)) if is_token else None, repr(text))


def carry_out(gate, step):
    """The newest token as the refusal has it, or None where there is none."""
    if step["call"] == "reset":
        gate.reset()
        return None
    try:
        getattr(gate, step["call"])(parse_token(step["token"]))
    except StaleToken as stale:
        assert str(stale) == f"token {step['token']} is stale: {stale.newest} was seen"
        return str(stale.newest)
    return None


class Gates(unittest.TestCase):
    def test_vectors(self):
        for case in VECTORS["gates"]:
            gate = FencingGate()
            for step in case["steps"]:
                self.assertEqual(carry_out(gate, step), step.get("newest"), (case["name"], step))
                # As it is stored and read between two requests.
                gate = FencingGate.from_json(json.loads(json.dumps(gate.to_json())))
            self.assertEqual(gate.to_json(), case["state"], case["name"])

    def test_random_calls_follow_the_rule(self):
        choose = random.Random(8)
        for _ in range(300):
            gate, exclusive, shared = FencingGate(), [], []
            for _ in range(30):
                token = choose.randrange(1, 15)
                is_shared = choose.random() < 0.5
                seen = exclusive if is_shared else exclusive + shared
                is_stale = any(other > token for other in seen)
                try:
                    (gate.admit_shared if is_shared else gate.admit)(token)
                    self.assertFalse(is_stale)
                    (shared if is_shared else exclusive).append(token)
                except StaleToken as stale:
                    self.assertTrue(is_stale)
                    self.assertEqual(stale.newest, max(seen))
                self.assertEqual(gate.newest, max(exclusive + shared, default=None))

    def test_what_is_no_token_changes_nothing(self):
        gate = FencingGate(9)
        for value in [None, "10", 10.0, True, 0, -1, 2**63]:
            for call in (gate.admit, gate.admit_shared):
                self.assertRaises(InvalidToken, call, value)
        self.assertEqual(gate.to_json(), {"newest": "9"})


class Threads(unittest.TestCase):
    def test_the_check_and_the_write_are_one_step(self):
        fence, written, active = Fence(), [], []

        def write(seed):
            choose = random.Random(seed)
            for token in sorted(choose.randrange(1, 1_000) for _ in range(300)):
                try:
                    with fence.exclusive(token):
                        active.append(token)
                        assert len(active) == 1
                        written.append(token)
                        active.pop()
                except StaleToken:
                    pass

        threads = [threading.Thread(target=write, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(written, sorted(written))
        self.assertFalse(active)

    def test_a_failed_write_has_shown_its_token(self):
        fence = Fence()
        with self.assertRaises(ZeroDivisionError):
            with fence.exclusive(9):
                raise ZeroDivisionError
        with self.assertRaises(StaleToken):
            with fence.exclusive(8):
                self.fail("it is stale")
        with fence.shared(9) as gate:
            self.assertEqual(gate.newest, 9)


if __name__ == "__main__":
    unittest.main()
