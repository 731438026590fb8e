-- Until when the backup of this database is complete, in seconds since 1970. Who backs it up sets it;
-- with `--evict-after-backup`, posts leave Redis only then.
CREATE TABLE backup_watermark (backed_up_until BIGINT NOT NULL);
INSERT INTO backup_watermark (backed_up_until) VALUES (0);

-- Posts that are lost: they left Redis after the copy was made from which this database was restored.
-- `found` is the stamp of the moment, and `posts` the number of lost posts of the author.
CREATE TABLE missing_posts (
    author BIGINT NOT NULL,
    found BIGINT NOT NULL,
    posts BIGINT NOT NULL,
    PRIMARY KEY (author, found)
);
