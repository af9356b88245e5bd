"""Fencing tokens for a resource in Python: the check of `lockkeeper::FencingGate`, with the same results.

Copy this file; it needs Python 3.8 and nothing else. A token is a whole number from 1 to 2**63 - 1, written as a decimal
string. The resource remembers the newest that it has seen, in the same atomic step as its data:

    fence = Fence()

    def put(header, order, state):
        token = parse_token(header)              # InvalidToken: 400
        with fence.exclusive(token):             # StaleToken: 409, and no second attempt
            order.state = state

Where the data is in a database, the check belongs into its transaction: see ../sql.
"""

import contextlib
import re
import threading

GREATEST = 2**63 - 1

# Greater numbers in JSON may have been rounded by the program that wrote or read them.
GREATEST_IN_JSON = 2**53 - 1

_DECIMAL = re.compile(r"\+?[0-9]+")


class InvalidToken(ValueError):
    """Something that is no fencing token."""


class StaleToken(Exception):
    """A token older than one that the resource has seen: its holder has lost the lock, and must not write."""

    def __init__(self, token, newest):
        super().__init__(f"token {token} is stale: {newest} was seen")
        self.token = token
        self.newest = newest


def parse_token(text):
    """Reads a token from its decimal string."""
    if not isinstance(text, str):
        raise InvalidToken(f"a fencing token is a decimal string, not {type(text).__name__}")
    # Not int() alone: it takes blanks, underscores, and the digits of other scripts.
    if not _DECIMAL.fullmatch(text):
        raise InvalidToken("a fencing token is a decimal number of 64 bits")
    digits = text.lstrip("+").lstrip("0")
    # Before the conversion, whose time grows with the square of the length.
    if len(digits) > len(str(GREATEST)):
        raise InvalidToken("a fencing token is a decimal number of 64 bits")
    return check_token(int(digits or "0"))


def check_token(token):
    """Returns a number that is a token, as that of a column of a database. Floats are refused: they are rounded."""
    if type(token) is not int or not 1 <= token <= GREATEST:
        raise InvalidToken(f"a fencing token is a whole number from 1 to 2^63 - 1, not {token!r}")
    return token


def token_from_json(value):
    """Reads a token from a value that `json.loads` has returned: a string, or a number below 2**53."""
    if isinstance(value, str):
        return parse_token(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidToken("a fencing token in JSON is a decimal string, or a number below 2^53")
    if not 1 <= value <= GREATEST_IN_JSON or value != int(value):
        raise InvalidToken(f"{value!r} may have been rounded, or is no fencing token: it has to be a string")
    return int(value)


class FencingGate:
    """The newest tokens that a resource has seen. Store it with the resource's data; it is not for several threads."""

    def __init__(self, newest=None, newest_shared=None):
        self._exclusive = newest and check_token(newest)
        self._shared = newest_shared and check_token(newest_shared)

    def admit(self, token):
        """Admits the newest token and those that are newer still, and remembers it; raises `StaleToken` otherwise."""
        check_token(token)
        newest = self.newest
        if newest is not None and token < newest:
            raise StaleToken(token, newest)
        self._exclusive = token

    def admit_shared(self, token):
        """Admits a reader, unless a newer writer was seen; remembers it, so that an older writer is refused."""
        check_token(token)
        if self._exclusive is not None and token < self._exclusive:
            raise StaleToken(token, self._exclusive)
        self._shared = max(self._shared or 0, token)

    @property
    def newest(self):
        """The newest token seen, a writer's or a reader's; `None` before the first."""
        return max(self._exclusive or 0, self._shared or 0) or None

    def reset(self):
        """Forgets all tokens, for a move to another store, while no client holds a lock."""
        self._exclusive = self._shared = None

    def to_json(self):
        """Returns the gate as Rust's writes it: a dict of strings."""
        state = {"newest": self._exclusive and str(self._exclusive)}
        if self._shared is not None:
            state["newest_shared"] = str(self._shared)
        return state

    @classmethod
    def from_json(cls, state):
        """Reads what `to_json` or Rust's `FencingGate` has written."""
        tokens = (state.get(name) for name in ("newest", "newest_shared"))
        return cls(*(None if token is None else token_from_json(token) for token in tokens))


class Fence:
    """A gate for the threads of one process: the check and the work are one atomic step."""

    def __init__(self, gate=None):
        self._gate = gate or FencingGate()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def exclusive(self, token):
        """Admits a token, and keeps all others out while the body runs."""
        with self._lock:
            self._gate.admit(token)
            yield self._gate

    @contextlib.contextmanager
    def shared(self, token):
        """The same for the token of a reader."""
        with self._lock:
            self._gate.admit_shared(token)
            yield self._gate
