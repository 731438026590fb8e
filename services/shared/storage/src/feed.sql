-- The feed: committed changes in the order of their commits. The newest row is never deleted: the next
-- position follows from it.
CREATE TABLE feed (
    position BIGINT NOT NULL PRIMARY KEY,
    -- Of the transaction, in Unix ms.
    time_ms BIGINT NOT NULL,
    -- The items that changed, each as kind, id and new revision.
    items TEXT NOT NULL,
    -- What changed, in the words of the service.
    change TEXT NOT NULL
);

-- Appends rows under the lock on the feed (its number is "feed" in ASCII), if the history is still the one
-- with a random number. A function, so that this is one message together with the commit, and is parsed and
-- planned once for a connection. Volatile: each of its statements sees what was committed before it.
-- postgresql: CREATE FUNCTION append_to_feed(
-- postgresql:     expected BIGINT, appended_ms BIGINT, appended_items TEXT[], appended_changes TEXT[]
-- postgresql: ) RETURNS void LANGUAGE plpgsql VOLATILE AS '
-- postgresql: BEGIN
-- postgresql:     PERFORM pg_advisory_xact_lock(1717921124);
-- postgresql:     IF (SELECT random FROM history WHERE one = 1) <> expected THEN
-- postgresql:         RAISE EXCEPTION ''the history was renewed'' USING ERRCODE = ''40001'';
-- postgresql:     END IF;
-- postgresql:     INSERT INTO feed (position, time_ms, items, change)
-- postgresql:         SELECT (SELECT COALESCE(MAX(position), 0) FROM feed) + at, appended_ms, row_items, row_change
-- postgresql:         FROM unnest(appended_items, appended_changes) WITH ORDINALITY
-- postgresql:             AS appended (row_items, row_change, at);
-- postgresql: END ';

-- The history of the database: what its operator cannot copy. One row.
CREATE TABLE history (
    one BIGINT NOT NULL PRIMARY KEY,
    random BIGINT NOT NULL,
    -- The newest position of the feed when it began: entries of this history are not older.
    position BIGINT NOT NULL
);

-- Jobs that one process of the service at a time does. Times are in Unix ms.
CREATE TABLE leases (
    name TEXT NOT NULL PRIMARY KEY,
    holder BIGINT NOT NULL,
    expires BIGINT NOT NULL
);
