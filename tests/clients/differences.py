"""Where ZooKeeper 3.8, the reference of the scripts, and our server may differ.

Ours behaves like 3.9. Each row has the name that the scripts ask for (EXPECT_NAME in the environment), what 3.8 does,
and what ours does.
"""

DIFFERENCES = {
    # The version reported by the four-letter words.
    "VERSION": ("3.8", "3.9"),
    # Since 3.9, `exists` checks the right to read.
    "EXISTS_NEEDS_READ": ("no", "yes"),
    # Since 3.9, create2 within a multi returns the Stat.
    "MULTI_CREATE2_TELLS_STAT": ("no", "yes"),
    # Since 3.9, a watch event contains its transaction.
    "EVENTS_TELL_ZXID": ("no", "yes"),
    # Our server refuses quotas, because it would not enforce them.
    "SETS_QUOTAS": ("yes", "no"),
    # A session may watch one path in both persistent modes. Before 3.9 the later one replaces the earlier.
    "MODES_SHARE_A_PATH": ("no", "yes"),
}


def expectations(version):
    at = {"3.8": 0, "3.9": 1}[version]
    return {f"EXPECT_{name}": row[at] for name, row in DIFFERENCES.items()}
