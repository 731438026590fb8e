-- All posts of all time with their comments, and the snapshots of evicted posts. In the SQL that
-- SQLite and PostgreSQL share: ids, stamps and counts are BIGINT, and 0 stands for NULL. For SQLite,
-- a primary key of one BIGINT becomes an INTEGER, the alias of the rowid.

CREATE TABLE posts (
    id BIGINT NOT NULL PRIMARY KEY,
    author BIGINT NOT NULL,
    text TEXT NOT NULL,
    -- The root and the reposted post, if it is a repost.
    root BIGINT NOT NULL,
    reposted BIGINT NOT NULL,
    -- The counts of the snapshot, and its eviction mark. Meaningless while the post is in Redis.
    likes BIGINT NOT NULL DEFAULT 0,
    comments BIGINT NOT NULL DEFAULT 0,
    reposts BIGINT NOT NULL DEFAULT 0,
    snapshot_mark BIGINT NOT NULL DEFAULT 0,
    -- The stamp of the deletion. A row with it is a tombstone: it keeps a late writer from inserting
    -- the post again.
    deleted BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX posts_by_author ON posts (author, id);
CREATE INDEX posts_by_deletion ON posts (deleted) WHERE deleted <> 0;

CREATE TABLE comments (
    post BIGINT NOT NULL,
    id BIGINT NOT NULL,
    author BIGINT NOT NULL,
    text TEXT NOT NULL,
    -- The comment that it replies to, and the author of that.
    in_reply_to BIGINT NOT NULL,
    in_reply_to_author BIGINT NOT NULL,
    deleted BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (post, id)
);
CREATE INDEX comments_by_author ON comments (author, id);
CREATE INDEX comments_by_deletion ON comments (deleted) WHERE deleted <> 0;

-- The likes and reposts of snapshots.
CREATE TABLE likes (
    post BIGINT NOT NULL,
    account BIGINT NOT NULL,
    since BIGINT NOT NULL,
    PRIMARY KEY (post, account)
);
CREATE INDEX likes_by_time ON likes (post, since);
-- For the erasure of deleted accounts.
CREATE INDEX likes_by_account ON likes (account, post);

CREATE TABLE reposts (
    post BIGINT NOT NULL,
    repost BIGINT NOT NULL,
    PRIMARY KEY (post, repost)
);
