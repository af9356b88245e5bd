#!/usr/bin/env python3
"""Makes accounts.csv and transfers.csv, the same bytes every time.

    python3 examples/data/generate.py [DIRECTORY] [TRANSFERS]
"""
import pathlib
import sys

ACCOUNTS = 200
TRANSFERS = 3_000
SEED = 20_240_229


def numbers(seed):
    """A linear congruential generator (Knuth's MMIX constants), so that no library's version matters."""
    while True:
        seed = (seed * 6364136223846793005 + 1442695040888963407) % 2**64
        yield seed >> 33


def main():
    directory = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    transfers = int(sys.argv[2]) if len(sys.argv) > 2 else TRANSFERS
    random = numbers(SEED)
    names = [f"ACC-{n:04}" for n in range(1, ACCOUNTS + 1)]

    with open(directory / "accounts.csv", "w", newline="\n") as out:
        out.write("account,cents\n")
        for name in names:
            out.write(f"{name},{next(random) % 1_000_000}\n")

    with open(directory / "transfers.csv", "w", newline="\n") as out:
        out.write("id,from,to,cents\n")
        for id in range(1, transfers + 1):
            # A tenth of the accounts take part in half of the transfers, as in real books.
            busy = ACCOUNTS // 10 if next(random) % 2 else ACCOUNTS
            payer = next(random) % busy
            payee = (payer + 1 + next(random) % (ACCOUNTS - 1)) % ACCOUNTS
            out.write(f"{id},{names[payer]},{names[payee]},{1 + next(random) % 50_000}\n")


if __name__ == "__main__":
    main()
