-- The follow graph: the newest change of each source edge. In the SQL that SQLite and PostgreSQL
-- share: ids, versions and flags are BIGINT.

CREATE TABLE edges (
    -- That of the source.
    partition BIGINT NOT NULL,
    -- The list: 0 follows, 3 blocks, 5 mutes.
    kind BIGINT NOT NULL,
    source BIGINT NOT NULL,
    target BIGINT NOT NULL,
    target_partition BIGINT NOT NULL,
    version BIGINT NOT NULL,
    -- 1 if the edge has ended: the end is kept.
    ended BIGINT NOT NULL,
    PRIMARY KEY (partition, kind, source, target)
);
CREATE INDEX edges_by_target ON edges (target_partition, kind, target, source);

CREATE TABLE deleted_accounts (
    account BIGINT NOT NULL PRIMARY KEY,
    partition BIGINT NOT NULL,
    since BIGINT NOT NULL,
    -- 1 once the edges of the account have ended.
    complete BIGINT NOT NULL
);
CREATE INDEX deleted_accounts_by_partition ON deleted_accounts (partition, account);
