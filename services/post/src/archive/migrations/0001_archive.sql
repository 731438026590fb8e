-- All posts of all time, the comments on them, and what those gathered that are not in Redis any
-- more. In the SQL that SQLite and PostgreSQL have in common: ids, stamps and counts are BIGINT, and
-- 0 is what elsewhere would be NULL. For SQLite, a key of one BIGINT becomes an INTEGER: the place of
-- its row.

CREATE TABLE posts (
    id BIGINT NOT NULL PRIMARY KEY,
    author BIGINT NOT NULL,
    text TEXT NOT NULL,
    -- Of a repost, the post at the beginning and the one that was reposted.
    root BIGINT NOT NULL,
    reposted BIGINT NOT NULL,
    -- What the post had gathered when it left Redis, and the stamp of that; meaningless while it is
    -- there.
    likes BIGINT NOT NULL DEFAULT 0,
    comments BIGINT NOT NULL DEFAULT 0,
    reposts BIGINT NOT NULL DEFAULT 0,
    frozen BIGINT NOT NULL DEFAULT 0,
    -- The stamp of its end. A row without content stays for a while, so that whoever is late with
    -- the post does not bring it back.
    deleted BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX posts_by_author ON posts (author, id);
CREATE INDEX posts_by_end ON posts (deleted) WHERE deleted <> 0;

CREATE TABLE comments (
    post BIGINT NOT NULL,
    id BIGINT NOT NULL,
    author BIGINT NOT NULL,
    text TEXT NOT NULL,
    -- The comment that it answers, and who wrote that.
    in_reply_to BIGINT NOT NULL,
    in_reply_to_author BIGINT NOT NULL,
    deleted BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (post, id)
);
CREATE INDEX comments_by_author ON comments (author, id);
CREATE INDEX comments_by_end ON comments (deleted) WHERE deleted <> 0;

-- Of posts that are not in Redis: who likes them since when, and what repeats them.
CREATE TABLE likes (
    post BIGINT NOT NULL,
    account BIGINT NOT NULL,
    since BIGINT NOT NULL,
    PRIMARY KEY (post, account)
);
CREATE INDEX likes_by_time ON likes (post, since);

CREATE TABLE reposts (
    post BIGINT NOT NULL,
    repost BIGINT NOT NULL,
    PRIMARY KEY (post, repost)
);
