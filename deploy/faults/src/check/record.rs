//! What PostgreSQL has, in the form of lines, beside what the gateway shows.

use std::collections::BTreeSet;

use microblog_testkit::PostgresServer;

use super::read_back::World;

/// Everything that has not ended. Entries of accounts that are lost, or of posts, are not listed by
/// the gateway.
const RECORD: &str = "
    WITH accounts AS (SELECT id AS account FROM \"user\".accounts),
         posts AS (SELECT p.id, p.author, p.root, t.text FROM post.posts p
                   JOIN post.texts t ON t.id = p.id
                   WHERE p.author IN (SELECT account FROM accounts)),
         edges AS (SELECT 'follow' AS kind, source, target FROM relation.follows
                   UNION ALL SELECT 'block', source, target FROM relation.blocks
                   UNION ALL SELECT 'mute', source, target FROM relation.mutes)
    SELECT concat_ws(' ', 'account', account) FROM accounts
    UNION ALL SELECT concat_ws(' ', 'edge', kind, source, target) FROM edges
        WHERE source IN (SELECT account FROM accounts) AND target IN (SELECT account FROM accounts)
    UNION ALL SELECT concat_ws(' ', 'post', id, author, root, text) FROM posts
    UNION ALL SELECT concat_ws(' ', 'comment', post, id, text) FROM post.comments
        WHERE post IN (SELECT id FROM posts) AND author IN (SELECT account FROM accounts)
    UNION ALL SELECT concat_ws(' ', 'like', post, account) FROM post.likes
        WHERE post IN (SELECT id FROM posts) AND account IN (SELECT account FROM accounts)";

/// Returns what the database has.
pub(super) fn recorded(postgres: &PostgresServer) -> BTreeSet<String> {
    postgres.sql(RECORD).lines().map(str::to_owned).collect()
}

/// Returns what the gateway shows.
pub(super) fn shown(world: &World) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for account in world.accounts.values() {
        let id = account.id;
        lines.insert(format!("account {id}"));
        for (kind, list) in
            [("follow", &account.following), ("block", &account.blocks), ("mute", &account.mutes)]
        {
            lines.extend(list.iter().map(|target| format!("edge {kind} {id} {target}")));
        }
        for post in &account.posts {
            let number = post.id;
            lines.insert(format!("post {number} {id} {} {}", post.root_id, post.text));
            let comment = |(id, text): &(u64, String)| format!("comment {number} {id} {text}");
            lines.extend(post.comments.iter().map(comment));
            lines.extend(post.likers.iter().map(|liker| format!("like {number} {liker}")));
        }
    }
    lines
}
