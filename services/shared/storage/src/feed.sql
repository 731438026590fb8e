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
