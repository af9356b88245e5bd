-- Fencing tokens in Postgres 12 and later: the check of Lockkeeper's FencingGate, in the transaction of the write.
--
--     BEGIN;
--     SELECT fencing_admit('orders', '1882551730844991497');  -- first; for a reader fencing_admit_shared
--     UPDATE orders SET …;
--     COMMIT;
--
-- A stale token is the error LK001: roll back, the lock is lost, and no second attempt with this token succeeds. What is
-- no token, NULL included, is the error 22023. The lock's row stays locked until the transaction ends, so the transactions
-- of one lock do not overlap; in REPEATABLE READ and SERIALIZABLE one that had to wait gets 40001, and begins anew.

CREATE TABLE fencing (
    lock text PRIMARY KEY,
    -- The newest token of a writer, and of a reader; 0 before the first.
    newest bigint NOT NULL DEFAULT 0 CHECK (newest >= 0),
    newest_shared bigint NOT NULL DEFAULT 0 CHECK (newest_shared >= 0)
);

-- Reads a token from its decimal string. A cast to bigint alone would take blanks, and hex in later versions.
CREATE FUNCTION fencing_token(token text) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    digits text := ltrim(ltrim(token, '+'), '0');
BEGIN
    -- Not STRICT: NULL would be answered by NULL, which no caller notices.
    IF token IS NULL OR token !~ '^[+]?[0123456789]+$' OR length(digits) NOT BETWEEN 1 AND 19
        OR digits::numeric > 9223372036854775807 THEN
        RAISE EXCEPTION 'a fencing token is a positive decimal number of 64 bits' USING ERRCODE = '22023';
    END IF;
    RETURN digits::bigint;
END $$;

-- Admits the newest token and those that are newer still.
CREATE FUNCTION fencing_admit(lock_name text, token bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    seen bigint;
BEGIN
    PERFORM fencing_token(token::text);
    INSERT INTO fencing AS known (lock, newest) VALUES (lock_name, token)
    ON CONFLICT (lock) DO UPDATE SET newest = excluded.newest
    WHERE greatest(known.newest, known.newest_shared) <= excluded.newest;
    IF NOT FOUND THEN
        SELECT greatest(newest, newest_shared) INTO seen FROM fencing WHERE lock = lock_name;
        RAISE EXCEPTION 'token % is stale: % was seen', token, seen USING ERRCODE = 'LK001';
    END IF;
END $$;

-- Admits a reader, unless a newer writer was seen; an older writer is refused from then on.
CREATE FUNCTION fencing_admit_shared(lock_name text, token bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    seen bigint;
BEGIN
    PERFORM fencing_token(token::text);
    INSERT INTO fencing AS known (lock, newest_shared) VALUES (lock_name, token)
    ON CONFLICT (lock) DO UPDATE SET newest_shared = greatest(known.newest_shared, excluded.newest_shared)
    WHERE known.newest <= excluded.newest_shared;
    IF NOT FOUND THEN
        SELECT newest INTO seen FROM fencing WHERE lock = lock_name;
        RAISE EXCEPTION 'token % is stale: % was seen', token, seen USING ERRCODE = 'LK001';
    END IF;
END $$;

-- The same with the decimal string, as clients send it.
CREATE FUNCTION fencing_admit(lock_name text, token text) RETURNS void LANGUAGE sql AS
    'SELECT fencing_admit(lock_name, fencing_token(token))';
CREATE FUNCTION fencing_admit_shared(lock_name text, token text) RETURNS void LANGUAGE sql AS
    'SELECT fencing_admit_shared(lock_name, fencing_token(token))';

-- Forgets a lock's tokens, for a move to another store, while no client holds the lock.
CREATE FUNCTION fencing_reset(lock_name text) RETURNS void LANGUAGE sql AS
    'DELETE FROM fencing WHERE lock = lock_name';
