-- The newest recorded entry of the change journal of each partition. A partition without a row has
-- not been filled from Redis. Each writer of a partition's rows locks its row here.
CREATE TABLE journal_positions (
    partition BIGINT NOT NULL PRIMARY KEY,
    version BIGINT NOT NULL,
    entry TEXT NOT NULL
);
