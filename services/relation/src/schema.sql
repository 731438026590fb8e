-- The follow graph. A list of an account consists of the edges from it, or to it. Its length and its
-- revision are in the account's row, which every transaction that changes one of its edges locks.
-- Times are in Unix ms.
CREATE TABLE accounts (
    id BIGINT NOT NULL PRIMARY KEY,
    -- Of the newest entry of its lists, and of the newest end of an edge from it: those of later ones are
    -- greater.
    newest BIGINT NOT NULL,
    -- 0 if the account is not deleted.
    deleted BIGINT NOT NULL,
    following INTEGER NOT NULL,
    following_revision BIGINT NOT NULL,
    followers INTEGER NOT NULL,
    followers_revision BIGINT NOT NULL,
    mutuals INTEGER NOT NULL,
    mutuals_revision BIGINT NOT NULL,
    blocks INTEGER NOT NULL,
    blocks_revision BIGINT NOT NULL,
    blocked_by INTEGER NOT NULL,
    blocked_by_revision BIGINT NOT NULL,
    mutes INTEGER NOT NULL,
    mutes_revision BIGINT NOT NULL
)
-- postgresql: WITH (fillfactor = 60)
;

CREATE TABLE follows (
    source BIGINT NOT NULL,
    target BIGINT NOT NULL,
    since BIGINT NOT NULL,
    PRIMARY KEY (source, target)
-- postgresql: INCLUDE (since)
)
-- postgresql: WITH (autovacuum_vacuum_insert_scale_factor = 0.02)
;
CREATE INDEX follows_by_target ON follows (target, since, source);

CREATE TABLE blocks (
    source BIGINT NOT NULL,
    target BIGINT NOT NULL,
    since BIGINT NOT NULL,
    PRIMARY KEY (source, target)
-- postgresql: INCLUDE (since)
);
CREATE INDEX blocks_by_target ON blocks (target, since, source);

CREATE TABLE mutes (
    source BIGINT NOT NULL,
    target BIGINT NOT NULL,
    since BIGINT NOT NULL,
    PRIMARY KEY (source, target)
-- postgresql: INCLUDE (since)
);
CREATE INDEX mutes_by_target ON mutes (target, source);

-- Deleted accounts that still have edges.
CREATE TABLE deletions (
    id BIGINT NOT NULL PRIMARY KEY
);
