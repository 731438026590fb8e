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
    random BIGINT NOT NULL
);
