-- Posts, what belongs to them, and the accounts that write them. Ids are stamps, other times are in Unix
-- ms. In PostgreSQL, the tables whose rows belong to a post are partitioned by its id, hence by its time;
-- `partitions.rs` makes the partitions, with their fill factors.
CREATE TABLE accounts (
    id BIGINT NOT NULL PRIMARY KEY,
    posts BIGINT NOT NULL,
    posts_revision BIGINT NOT NULL,
    liked_revision BIGINT NOT NULL,
    -- The newest post, also one that was deleted.
    newest BIGINT NOT NULL,
    -- When the limits of posts and comments are whole again, in Unix µs.
    post_rate BIGINT NOT NULL,
    comment_rate BIGINT NOT NULL,
    -- 0 if the account is not deleted.
    deleted BIGINT NOT NULL
)
-- postgresql: WITH (fillfactor = 60)
;

-- What changes of posts, and what decides who may change it.
CREATE TABLE posts (
    id BIGINT NOT NULL PRIMARY KEY,
    author BIGINT NOT NULL,
    -- 0 if it is no repost.
    root BIGINT NOT NULL,
    reposted BIGINT NOT NULL,
    revision BIGINT NOT NULL,
    -- No like begins earlier.
    newest BIGINT NOT NULL,
    -- The newest comment, also one that was deleted.
    last_comment BIGINT NOT NULL,
    likes BIGINT NOT NULL,
    comments BIGINT NOT NULL,
    reposts BIGINT NOT NULL
)
-- postgresql: PARTITION BY RANGE (id)
;

CREATE TABLE texts (
    id BIGINT NOT NULL PRIMARY KEY,
    author BIGINT NOT NULL,
    text TEXT NOT NULL
)
-- postgresql: PARTITION BY RANGE (id)
;
CREATE INDEX texts_by_author ON texts (author, id);

CREATE TABLE likes (
    account BIGINT NOT NULL,
    post BIGINT NOT NULL,
    since BIGINT NOT NULL,
    PRIMARY KEY (account, post)
    -- Else PostgreSQL looks a like up in the index of its post, and reads all likes of that.
    -- postgresql: INCLUDE (since)
)
-- postgresql: PARTITION BY RANGE (post)
;
CREATE INDEX likes_by_post ON likes (post, since, account);

CREATE TABLE comments (
    post BIGINT NOT NULL,
    id BIGINT NOT NULL,
    author BIGINT NOT NULL,
    -- 0 if it is no reply.
    reply_to BIGINT NOT NULL,
    reply_author BIGINT NOT NULL,
    text TEXT NOT NULL,
    PRIMARY KEY (post, id)
)
-- postgresql: PARTITION BY RANGE (post)
;
CREATE INDEX comments_by_author ON comments (author, id, post);

-- The reposts that a post counts.
CREATE TABLE reposts (
    target BIGINT NOT NULL,
    repost BIGINT NOT NULL,
    PRIMARY KEY (target, repost)
)
-- postgresql: PARTITION BY RANGE (target)
;

-- What requests have made: a post, or a comment on it.
CREATE TABLE requests (
    author BIGINT NOT NULL,
    -- 63 bits of a hash of its id.
    request BIGINT NOT NULL,
    post BIGINT NOT NULL,
    -- 0 for a post.
    comment BIGINT NOT NULL,
    made BIGINT NOT NULL,
    PRIMARY KEY (author, request)
);
CREATE INDEX requests_by_time ON requests (made);

-- New posts that may not have been delivered to the timelines.
CREATE TABLE undelivered (
    id BIGINT NOT NULL PRIMARY KEY
);

-- Deleted posts of which likes, comments and reposts are still there.
CREATE TABLE deleted_posts (
    id BIGINT NOT NULL PRIMARY KEY
);

-- Deleted accounts that still have something.
CREATE TABLE deletions (
    id BIGINT NOT NULL PRIMARY KEY
);
-- postgresql: CREATE FUNCTION remove_likes(accounts BIGINT[], posts BIGINT[]) RETURNS INTEGER LANGUAGE plpgsql AS $$ BEGIN FOR at IN 1..cardinality(accounts) LOOP DELETE FROM likes WHERE account = accounts[at] AND post = posts[at]; END LOOP; RETURN cardinality(accounts); END $$;
-- postgresql: CREATE FUNCTION remove_comments(posts BIGINT[], ids BIGINT[]) RETURNS INTEGER LANGUAGE plpgsql AS $$ BEGIN FOR at IN 1..cardinality(posts) LOOP DELETE FROM comments WHERE post = posts[at] AND id = ids[at]; END LOOP; RETURN cardinality(posts); END $$;
-- postgresql: CREATE FUNCTION remove_reposts(targets BIGINT[], ids BIGINT[]) RETURNS INTEGER LANGUAGE plpgsql AS $$ BEGIN FOR at IN 1..cardinality(targets) LOOP DELETE FROM reposts WHERE target = targets[at] AND repost = ids[at]; END LOOP; RETURN cardinality(targets); END $$;

-- Posts that were delivered to the timelines more than a minute after they were made, with the time.
CREATE TABLE late_deliveries (
    id BIGINT NOT NULL PRIMARY KEY,
    delivered BIGINT NOT NULL
);
CREATE INDEX late_deliveries_by_time ON late_deliveries (delivered);

-- The posts that were delivered since a time are to be delivered again: those behind an id.
CREATE TABLE redeliveries (
    since BIGINT NOT NULL PRIMARY KEY,
    after BIGINT NOT NULL
);
