-- Fencing tokens in SQLite 3.37 and later: the check of Lockkeeper's FencingGate, in the transaction of the write.
--
-- Bind :token as an integer, read from the decimal string by the program (in Python by parse_token); anything else is an
-- error. Begin with BEGIN IMMEDIATE: then the transactions of several processes do not overlap. No row is returned for a
-- stale token: roll back, the lock is lost, and no second attempt with this token succeeds.

-- name: create
CREATE TABLE fencing (
    lock TEXT NOT NULL PRIMARY KEY,
    -- The newest token of a writer, and of a reader; 0 before the first.
    newest INTEGER NOT NULL DEFAULT 0 CHECK (newest >= 0),
    newest_shared INTEGER NOT NULL DEFAULT 0 CHECK (newest_shared >= 0)
) STRICT;

-- name: admit
INSERT INTO fencing (lock, newest) VALUES (:lock, CASE WHEN typeof(:token) = 'integer' AND :token > 0 THEN :token END)
ON CONFLICT (lock) DO UPDATE SET newest = excluded.newest
WHERE max(fencing.newest, fencing.newest_shared) <= excluded.newest
RETURNING newest;

-- name: admit_shared
INSERT INTO fencing (lock, newest_shared)
VALUES (:lock, CASE WHEN typeof(:token) = 'integer' AND :token > 0 THEN :token END)
ON CONFLICT (lock) DO UPDATE SET newest_shared = max(fencing.newest_shared, excluded.newest_shared)
WHERE fencing.newest <= excluded.newest_shared
RETURNING newest_shared;

-- name: reset
DELETE FROM fencing WHERE lock = :lock;
