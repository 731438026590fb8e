-- The change feed: what transactions of the recorder have changed, in the order of their commits.
CREATE TABLE change_feed (
    sequence BIGINT NOT NULL PRIMARY KEY,
    -- Random. A reader's position has it too: in an older copy of the database, it differs.
    token BIGINT NOT NULL,
    -- In Unix ms.
    recorded_at BIGINT NOT NULL,
    -- Entries of journals, in lines.
    entries TEXT NOT NULL
);

-- The newest sequence number, and the oldest one from which readers may continue. One row. A writer of
-- the feed locks it until it commits, so that no smaller number becomes visible later.
CREATE TABLE change_feed_state (
    one BIGINT NOT NULL PRIMARY KEY,
    newest BIGINT NOT NULL,
    oldest BIGINT NOT NULL
);
INSERT INTO change_feed_state (one, newest, oldest) VALUES (1, 0, 0);
INSERT INTO change_feed (sequence, token, recorded_at, entries) VALUES (0, 0, 0, '');
