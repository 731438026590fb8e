-- Accounts and deleted accounts. In the SQL that SQLite and PostgreSQL share: ids, versions, times and
-- flags are BIGINT, cards are base64. An account that is in both tables is deleted.

CREATE TABLE accounts (
    account BIGINT NOT NULL PRIMARY KEY,
    partition BIGINT NOT NULL,
    -- The public part, as it is stored in Redis.
    card TEXT NOT NULL,
    email TEXT NOT NULL,
    -- The hash, in PHC form.
    password TEXT NOT NULL,
    -- The id of the request that registered it.
    request TEXT NOT NULL,
    -- The partitions of the claims on its name and address; -1 if these are damaged.
    name_partition BIGINT NOT NULL,
    email_partition BIGINT NOT NULL,
    -- The stamps of the last change of the card and of the password, and of the last end of a session.
    card_version BIGINT NOT NULL,
    password_version BIGINT NOT NULL,
    sessions_ended BIGINT NOT NULL
);
CREATE INDEX accounts_by_partition ON accounts (partition, account);
CREATE INDEX accounts_by_name ON accounts (name_partition, account);
CREATE INDEX accounts_by_email ON accounts (email_partition, account);

-- Kept for ever: an older copy of Redis may have the account.
CREATE TABLE deleted_accounts (
    account BIGINT NOT NULL PRIMARY KEY,
    partition BIGINT NOT NULL,
    -- A card of the name, and the partition of the claim on it; empty and -1 after the hold.
    draft TEXT NOT NULL,
    name_partition BIGINT NOT NULL,
    -- Empty once the deletion is confirmed.
    email TEXT NOT NULL,
    -- The end of the hold of the name in Unix ms; 0 if there is none.
    held_until BIGINT NOT NULL,
    confirmed BIGINT NOT NULL
);
CREATE INDEX deleted_accounts_by_partition ON deleted_accounts (partition, account);
CREATE INDEX deleted_accounts_by_name ON deleted_accounts (name_partition, account);
