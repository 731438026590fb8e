-- All posts of all time with their comments, likes and reposts. In the SQL that SQLite and PostgreSQL
-- share: ids, stamps and counts are BIGINT, and 0 stands for NULL. For SQLite, a primary key of one
-- BIGINT becomes an INTEGER, the alias of the rowid. `id / 4 % 1024` is the partition of an id.
--
-- What has ended keeps its row for some weeks: a copy of Redis may still have it.

CREATE TABLE posts (
    id BIGINT NOT NULL PRIMARY KEY,
    author BIGINT NOT NULL,
    text TEXT NOT NULL,
    -- The root and the reposted post, if it is a repost.
    root BIGINT NOT NULL,
    reposted BIGINT NOT NULL,
    -- The numbers of its rows that have not ended.
    likes BIGINT NOT NULL DEFAULT 0,
    comments BIGINT NOT NULL DEFAULT 0,
    reposts BIGINT NOT NULL DEFAULT 0,
    -- The stamp of the deletion. A row with it has no content.
    deleted BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX posts_by_author ON posts (author, id);
CREATE INDEX posts_by_partition ON posts ((id / 4 % 1024), id);
CREATE INDEX posts_by_root ON posts (root) WHERE root <> 0;
CREATE INDEX posts_by_reposted ON posts (reposted) WHERE reposted <> 0;
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

-- `member` is the account that likes the post, and `since` a stamp, of the end if it has ended.
CREATE TABLE likes (
    post BIGINT NOT NULL,
    member BIGINT NOT NULL,
    since BIGINT NOT NULL,
    ended BIGINT NOT NULL,
    PRIMARY KEY (post, member)
);
CREATE INDEX likes_by_time ON likes (post, since);
-- For the erasure of deleted accounts.
CREATE INDEX likes_by_account ON likes (member, post) WHERE ended = 0;
CREATE INDEX likes_by_end ON likes (since) WHERE ended = 1;

-- `member` is the repost, and `since` its id, or the stamp of the end.
CREATE TABLE reposts (
    post BIGINT NOT NULL,
    member BIGINT NOT NULL,
    since BIGINT NOT NULL,
    ended BIGINT NOT NULL,
    PRIMARY KEY (post, member)
);
CREATE INDEX reposts_by_partition ON reposts ((member / 4 % 1024)) WHERE ended = 0;
CREATE INDEX reposts_by_end ON reposts (since) WHERE ended = 1;

-- The requests of the last day: the ids of what they made, a post, or a comment on `post`.
CREATE TABLE requests (
    id BIGINT NOT NULL PRIMARY KEY,
    author BIGINT NOT NULL,
    request TEXT NOT NULL,
    post BIGINT NOT NULL
);
CREATE INDEX requests_by_partition ON requests ((id / 4 % 1024), id);

CREATE TABLE deleted_accounts (
    account BIGINT NOT NULL PRIMARY KEY,
    since BIGINT NOT NULL,
    -- 1 once the data of the account is erased.
    complete BIGINT NOT NULL
);
CREATE INDEX deleted_accounts_by_partition ON deleted_accounts ((account / 4 % 1024));
