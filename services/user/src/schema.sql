-- Accounts, what identifies them, their sessions, and guesses of passwords. Times are in Unix ms.
CREATE TABLE accounts (
    id BIGINT NOT NULL PRIMARY KEY,
    -- The version of the profile: a stamp.
    revision BIGINT NOT NULL,
    sessions_revision BIGINT NOT NULL,
    -- As registered.
    name TEXT NOT NULL,
    display_name TEXT NOT NULL,
    bio TEXT NOT NULL,
    avatar_url TEXT NOT NULL,
    location TEXT NOT NULL,
    -- The e-mail address as registered; or an issuer, a space, and the id that the issuer uses.
    address TEXT NOT NULL,
    -- The hash, in PHC form; empty if no password matches.
    password TEXT NOT NULL,
    -- The id of the request that registered it.
    request TEXT NOT NULL
)
-- postgresql: WITH (fillfactor = 80)
;

-- Names, e-mail addresses and external ids. Each has one row, by its digest: so it is unique.
CREATE TABLE identifiers (
    -- 63 bits of a hash of kind and value.
    digest BIGINT NOT NULL PRIMARY KEY,
    -- The kind, a space, and the value in its unique form.
    value TEXT NOT NULL,
    -- 0 if no account has it.
    account BIGINT NOT NULL,
    -- Until when no other account can get the name of a deleted one.
    held_until BIGINT NOT NULL,
    revision BIGINT NOT NULL
);
CREATE INDEX identifiers_by_hold ON identifiers (held_until) WHERE account = 0 AND held_until > 0;

CREATE TABLE sessions (
    account BIGINT NOT NULL,
    -- The hash of the token, in base64url.
    token TEXT NOT NULL,
    made BIGINT NOT NULL,
    used BIGINT NOT NULL,
    expires BIGINT NOT NULL,
    PRIMARY KEY (account, token)
);
CREATE INDEX sessions_by_expiry ON sessions (expires);

-- Failed guesses of the password of an account, or of an identifier that no account has.
CREATE TABLE guesses (
    -- Of the account, or of the identifier.
    digest BIGINT NOT NULL PRIMARY KEY,
    failures BIGINT NOT NULL,
    -- Until when no other guess is made.
    delayed_until BIGINT NOT NULL,
    expires BIGINT NOT NULL
);
CREATE INDEX guesses_by_expiry ON guesses (expires);

-- Deleted accounts whose data the other services may still have.
CREATE TABLE deletions (
    id BIGINT NOT NULL PRIMARY KEY
);
