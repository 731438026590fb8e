-- Notices, mentions, and how far the change feeds are applied. Ids are stamps.
CREATE TABLE accounts (
    id BIGINT NOT NULL PRIMARY KEY,
    revision BIGINT NOT NULL,
    mentions_revision BIGINT NOT NULL,
    -- The position of the newest act of all notices, also of those that are gone.
    top BIGINT NOT NULL,
    -- The numbers of rows.
    notices BIGINT NOT NULL,
    mentions BIGINT NOT NULL,
    -- The day of the last act, in days since 1970; 0 if there is nothing that expires.
    changed_day BIGINT NOT NULL,
    -- In Unix ms; 0 if the account is not deleted.
    deleted BIGINT NOT NULL,
    -- Up to which positions the notices of each kind are marked as seen.
    seen_follow BIGINT NOT NULL,
    seen_mutual BIGINT NOT NULL,
    seen_mention BIGINT NOT NULL,
    seen_comment BIGINT NOT NULL,
    seen_reply BIGINT NOT NULL,
    seen_repost BIGINT NOT NULL,
    seen_like BIGINT NOT NULL
)
-- postgresql: WITH (fillfactor = 60)
;
CREATE INDEX accounts_by_day ON accounts (changed_day, id) WHERE changed_day > 0;

-- The newest notices of each account. Positions are of the account's own sequence: the order of arrival.
CREATE TABLE notices (
    account BIGINT NOT NULL,
    -- The number of the kind in the protocol.
    kind BIGINT NOT NULL,
    -- The post; of follows, the day.
    subject BIGINT NOT NULL,
    -- 0 if there is none.
    comment BIGINT NOT NULL,
    -- Of the newest act that counts, or else of the newest one.
    position BIGINT NOT NULL,
    -- How many acts count. Without any, the notice is not shown.
    counting BIGINT NOT NULL,
    -- How many acts that counted were removed for newer ones.
    earlier BIGINT NOT NULL,
    -- The acts, packed, in base64url.
    acts TEXT NOT NULL,
    PRIMARY KEY (account, kind, subject, comment)
);
CREATE INDEX notices_by_position ON notices (account, position);

-- The newest posts that mention each account.
CREATE TABLE mentions (
    account BIGINT NOT NULL,
    post BIGINT NOT NULL,
    PRIMARY KEY (account, post)
);

-- How far the change feeds of the services are applied. The transaction that applies a part of a feed
-- writes this, too.
CREATE TABLE positions (
    feed TEXT NOT NULL PRIMARY KEY,
    -- The position in the feed, behind a row of it; 0 at its start.
    sequence BIGINT NOT NULL,
    token BIGINT NOT NULL,
    -- The number of the last change that was applied, which may be behind the position.
    applied BIGINT NOT NULL,
    -- Until when all changes are applied, in Unix ms; 0 if it is not known.
    read_until BIGINT NOT NULL
);
INSERT INTO positions (feed, sequence, token, applied, read_until)
VALUES ('user', 0, 0, 0, 0), ('relation', 0, 0, 0, 0), ('post', 0, 0, 0, 0);
