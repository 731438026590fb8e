-- What a deleted account liked is looked for by the account.
CREATE INDEX likes_by_account ON likes (account, post);
