"""Where ZooKeeper 3.8, which the scripts run against as a reference, and our server may differ.

Ours behaves as 3.9. Each row: the name that the scripts ask for (EXPECT_NAME in the environment),
what 3.8 does, what ours does.
"""

DIFFERENCES = {
    # The version that the four-letter words tell.
    "VERSION": ("3.8", "3.9"),
    # `exists` asks for the right to read, since 3.9.
    "EXISTS_NEEDS_READ": ("no", "yes"),
    # create2 within a multi is answered with the Stat, since 3.9.
    "MULTI_CREATE2_TELLS_STAT": ("no", "yes"),
    # The event of a watch says which transaction caused it, since 3.9.
    "EVENTS_TELL_ZXID": ("no", "yes"),
    # Quotas can be set; ours refuses what it would not enforce.
    "SETS_QUOTAS": ("yes", "no"),
    # A session may watch one path in both persistent modes; before 3.9 the later one takes over.
    "MODES_SHARE_A_PATH": ("no", "yes"),
}


def expectations(version):
    at = {"3.8": 0, "3.9": 1}[version]
    return {f"EXPECT_{name}": row[at] for name, row in DIFFERENCES.items()}
