-- The newest recorded entry of the change journal of each partition. A partition without a row has
-- not been filled from Redis. Each writer of a partition's rows locks its row here.
CREATE TABLE journal_positions (
    partition BIGINT NOT NULL PRIMARY KEY,
    version BIGINT NOT NULL,
    entry TEXT NOT NULL
);

-- The identity of the record, which each recorded partition has in Redis too. One row.
CREATE TABLE record_identity (
    one BIGINT NOT NULL PRIMARY KEY,
    id TEXT NOT NULL
);

-- The damaged rows that the last recovery of each partition has left out.
CREATE TABLE damaged_rows (
    partition BIGINT NOT NULL,
    table_name TEXT NOT NULL,
    row_key TEXT NOT NULL,
    problem TEXT NOT NULL
);
CREATE INDEX damaged_rows_by_partition ON damaged_rows (partition);
