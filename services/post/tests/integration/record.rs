//! The record in SQL has what Redis has: changes and what was there before. A Redis that has lost
//! changes is recovered from it, and a database from an older copy is written anew.

use std::{collections::BTreeSet, time::Duration};

use futures::{StreamExt as _, future, stream};
use microblog_domain::{Partition, PostId, RequestId};
use microblog_post::{
    Content, Delivery, Eraser, ListLengths, Origin, Published, Store, Sweeper, forget_marked,
    recorder,
};
use microblog_proto::{common::ErrorReason, post as pb};
use microblog_record::Source;
use microblog_testkit::{Topology, redis};
use tonic::Code;

use crate::{
    aging::{self, Aging},
    support::{
        self, System,
        archives::{ArchiveServer, Kind, connect, execute, numbers},
        assert_rejected, id,
        lists::List,
        request_id, user,
    },
};

const AUTHOR: u64 = id(1);
const OTHER: u64 = id(2);
const FAN: u64 = id(3);
const GONE: u64 = id(4);

/// The partitions of the accounts.
fn partitions() -> impl Iterator<Item = Partition> {
    (1..=9).map(|n| user(n).partition())
}

/// Returns the ids that a query selects, sorted.
async fn ids(aging: &Aging, query: &str) -> Vec<u64> {
    let rows = numbers(&mut connect(&aging.url).await, query).await;
    let mut ids: Vec<_> = rows.into_iter().map(|row| row[0].cast_unsigned()).collect();
    ids.sort_unstable();
    ids
}

/// The posts that the record has, as their ids, counts and the lengths of their lists.
async fn recorded(aging: &Aging) -> Vec<Vec<i64>> {
    const POSTS: &str = "SELECT id, likes, comments, reposts, \
        (SELECT COUNT(*) FROM likes WHERE post = posts.id AND ended = 0), \
        (SELECT COUNT(*) FROM comments WHERE post = posts.id AND comments.deleted = 0), \
        (SELECT COUNT(*) FROM reposts WHERE post = posts.id AND ended = 0) \
        FROM posts WHERE deleted = 0 ORDER BY id";
    numbers(&mut connect(&aging.url).await, POSTS).await
}

/// Completes what jobs would.
async fn sweep(aging: &Aging) {
    let delivery = Delivery::new(aging.system.store.clone(), None);
    let mut sweeper = Sweeper::new(aging.tiered(), delivery);
    for _ in 0..2 {
        sweeper.notify_targets(Duration::ZERO).await.unwrap();
        sweeper.deliver(Duration::ZERO).await.unwrap();
    }
}

async fn forget(aging: &Aging, user_id: u64) {
    let request = pb::ForgetUserRequest { user_id };
    aging.system.client.clone().forget_user(request).await.unwrap();
    forget_marked(&aging.tiered(), &aging.posts()).await.unwrap();
    Eraser::new(aging.tiered(), Duration::ZERO).run_once().await.unwrap();
}

async fn on_all(test: impl AsyncFn(&ArchiveServer, Topology)) {
    test(&ArchiveServer::start(Kind::Sqlite).await, Topology::Cluster).await;
    test(&ArchiveServer::start(Kind::Postgres).await, Topology::Single).await;
}

#[tokio::test]
async fn every_change_reaches_the_database() {
    on_all(async |archives, topology| {
        let aging = Aging::start_in(topology, archives, 10, &[]).await;
        let system = &aging.system;
        let post = system.create(AUTHOR, "post").await.unwrap().id;
        let deleted = system.create(AUTHOR, "deleted").await.unwrap().id;
        let repost = system.quote(OTHER, post, "repost").await.unwrap().id;
        let again = system.repost(FAN, repost).await.unwrap().id;
        for fan in [OTHER, FAN, GONE] {
            system.like(fan, post).await.unwrap();
        }
        system.unlike(OTHER, post).await.unwrap();
        let comment = system.comment(FAN, post, "comment", 0).await.unwrap().id;
        let reply = system.comment(OTHER, post, "reply", comment).await.unwrap().id;
        let uncommented = system.comment(GONE, post, "uncommented", 0).await.unwrap().id;
        system.uncomment(GONE, post, uncommented).await.unwrap();
        system.delete(AUTHOR, deleted).await.unwrap();
        aging.archive().await;
        let [n, r, a] = [post, repost, again].map(u64::cast_signed);
        let expected =
            [vec![n, 2, 2, 2, 2, 2, 2], vec![r, 0, 0, 1, 0, 0, 1], vec![a, 0, 0, 0, 0, 0, 0]];
        assert_eq!(recorded(&aging).await, expected);
        assert_eq!(ids(&aging, "SELECT id FROM posts WHERE deleted <> 0").await, [deleted]);
        let comments = "SELECT id FROM comments WHERE deleted = 0";
        assert_eq!(ids(&aging, comments).await, [comment, reply]);
        let unliked = "SELECT member FROM likes WHERE ended = 1";
        assert_eq!(ids(&aging, unliked).await, [OTHER]);
        assert_eq!(ids(&aging, "SELECT id FROM requests").await.len(), 7);

        system.delete(FAN, again).await.unwrap();
        system.like(OTHER, post).await.unwrap();
        forget(&aging, GONE).await;
        aging.archive().await;
        let expected = [vec![n, 2, 2, 1, 2, 2, 1], vec![r, 0, 0, 0, 0, 0, 0]];
        assert_eq!(recorded(&aging).await, expected);
        let gone = "SELECT account FROM deleted_accounts WHERE complete = 1";
        assert_eq!(ids(&aging, gone).await, [GONE]);
        aging.is_sound().await;
    })
    .await;
}

#[tokio::test]
async fn a_new_database_is_filled_with_what_there_is() {
    on_all(async |archives, topology| {
        let before = System::start_as(support::WITHOUT_JOBS, topology, &[]).await;
        let post = before.create(AUTHOR, "post").await.unwrap().id;
        let repost = before.repost(OTHER, post).await.unwrap().id;
        for n in 10..30 {
            before.like(id(n), post).await.unwrap();
        }
        before.comment(FAN, post, "comment", 0).await.unwrap();
        let aging = Aging::start_after(before, archives, 10).await;
        let [n, r] = [post, repost].map(u64::cast_signed);
        let mut expected = [vec![n, 20, 1, 1, 20, 1, 1], vec![r, 0, 0, 0, 0, 0, 0]];
        assert_eq!(recorded(&aging).await, expected);
        aging.system.unlike(id(10), post).await.unwrap();
        aging.archive().await;
        expected[0] = vec![n, 19, 1, 1, 19, 1, 1];
        assert_eq!(recorded(&aging).await, expected);
    })
    .await;
}

#[tokio::test]
async fn two_recorders_record_each_change_once() {
    for kind in [Kind::Sqlite, Kind::Postgres] {
        let archives = ArchiveServer::start(kind).await;
        let aging = Aging::start(&archives, 100).await;
        let system = &aging.system;
        let other = recorder(&system.store, &aging.archive, &aging.config.archive);
        let mut expected = Vec::new();
        for n in 0..40 {
            let post = system.create(id(1 + n % 4), "post").await.unwrap().id;
            system.like(FAN, post).await.unwrap();
            if n % 3 == 0 {
                system.unlike(FAN, post).await.unwrap();
            }
            let likes = i64::from(n % 3 > 0);
            expected.push(vec![post.cast_signed(), likes, 0, 0, likes, 0, 0]);
            if n % 8 == 0 {
                let (one, two) = future::join(aging.recorder.run(), other.run()).await;
                one.and(two).unwrap();
            }
        }
        aging.archive().await;
        expected.sort_unstable();
        assert_eq!(recorded(&aging).await, expected);
    }
}

/// Recovers partitions, and returns how many needed it.
async fn recover(aging: &Aging, partitions: impl Iterator<Item = Partition>) -> usize {
    let begun = aging.recorder.begin_restore(Source::Database, true).await.unwrap();
    let recover = |partition| aging.recorder.restore(&begun, partition);
    let recovered = stream::iter(partitions).map(recover).buffer_unordered(8);
    recovered.filter(|recovered| future::ready(*recovered.as_ref().unwrap())).count().await
}

/// All that callers see of some authors and posts.
async fn seen(aging: &Aging, posts: &[u64]) -> Vec<(u64, Vec<Vec<u64>>)> {
    let client = &aging.system.client;
    let mut seen = Vec::new();
    for author in (1..=5).map(id) {
        seen.push((author, vec![List::UserPosts(author).whole(client, 3).await]));
    }
    for &post in posts {
        let Ok(found) = aging.system.get(post, FAN).await else {
            seen.push((post, Vec::new()));
            continue;
        };
        let mut lists = vec![vec![found.likes, found.comments, found.reposts, found.liked.into()]];
        for list in [List::Likers(post), List::oldest(post), List::Reposts(post)] {
            lists.push(list.whole(client, 3).await);
        }
        seen.push((post, lists));
    }
    seen
}

/// Publishes and changes posts, of which all but the newest are evicted. Returns them.
async fn world(aging: &Aging) -> Vec<u64> {
    let system = &aging.system;
    let mut posts = Vec::new();
    for n in 0..12 {
        let author = id(1 + n % 3);
        let post = system.create(author, &format!("number {n}")).await.unwrap().id;
        for fan in 0..n {
            system.like(id(20 + fan), post).await.unwrap();
        }
        system.like(FAN, post).await.unwrap();
        let comment = system.comment(OTHER, post, "comment", 0).await.unwrap().id;
        system.comment(FAN, post, "reply", comment).await.unwrap();
        posts.push(post);
    }
    for n in [0, 5, 11] {
        posts.push(system.repost(id(5), posts[n]).await.unwrap().id);
    }
    posts.push(system.create(GONE, "gone").await.unwrap().id);
    system.like(GONE, posts[0]).await.unwrap();
    system.delete(id(2), posts[4]).await.unwrap();
    system.delete(id(3), posts[11]).await.unwrap();
    forget(aging, GONE).await;
    aging.age(&(1..=5).map(id).collect::<Vec<_>>()).await;
    // One is back among the evictable.
    system.unlike(FAN, posts[1]).await.unwrap();
    aging.archive().await;
    posts
}

async fn flush(system: &System) {
    for node in system.redis.nodes() {
        // Replicas reject it.
        let _: Result<(), _> = redis::cmd("FLUSHALL").query_async(&mut node.admin().await).await;
    }
}

#[tokio::test]
async fn damaged_rows_are_named_and_left_out() {
    on_all(async |archives, topology| {
        let aging = Aging::start_in(topology, archives, 10, &[]).await;
        let system = &aging.system;
        let mut made = Vec::new();
        for text in ["intact", "text", "author", "root"] {
            made.push(system.create(AUTHOR, text).await.unwrap().id);
        }
        let [intact, text, author, other] = made[..] else { panic!("four posts") };
        let repost = system.repost(OTHER, intact).await.unwrap().id;
        for fan in [OTHER, FAN] {
            system.like(fan, intact).await.unwrap();
        }
        let comment = system.comment(FAN, intact, "comment", 0).await.unwrap().id;
        let bad_comment = system.comment(FAN, intact, "bad", 0).await.unwrap().id;
        forget(&aging, GONE).await;
        aging.archive().await;
        let mut connection = connect(&aging.url).await;
        // PostgreSQL rejects what is not UTF-8, or no number.
        let (bad_text, bad_number) = match connection.backend_name() {
            "SQLite" => ("text = CAST(x'ff' AS TEXT)", "'x'"),
            _ => ("likes = -1", "-2"),
        };
        for change in [
            format!("UPDATE posts SET {bad_text} WHERE id = {text}"),
            format!("UPDATE posts SET author = -5 WHERE id = {author}"),
            format!("UPDATE posts SET root = {bad_number} WHERE id = {other}"),
            format!("UPDATE likes SET since = {bad_number} WHERE member = {FAN}"),
            format!("UPDATE comments SET author = 0 WHERE id = {bad_comment}"),
            format!("UPDATE reposts SET member = -4 WHERE member = {repost}"),
            format!("UPDATE requests SET request = 'x' WHERE id = {intact}"),
            format!("UPDATE deleted_accounts SET since = -1 WHERE account = {GONE}"),
        ] {
            assert_eq!(execute(&mut connection, &change).await, 1, "{change}");
        }
        flush(system).await;
        let begun = aging.recorder.begin_restore(Source::Database, false).await.unwrap();
        let mut damaged = BTreeSet::new();
        let restore = |partition| aging.recorder.restore(&begun, partition);
        let mut restored = stream::iter(Partition::all()).map(restore).buffer_unordered(8);
        while let Some(restored) = restored.next().await {
            assert!(restored.unwrap());
        }
        for partition in Partition::all() {
            let rows = aging.recorder.damaged_rows(partition).await.unwrap();
            damaged.extend(rows.into_iter().map(|row| (row.table, row.key)));
        }
        let expected = [
            ("posts", format!("id={text}")),
            ("posts", "author=-5".to_owned()),
            ("posts", format!("id={other}")),
            ("likes", format!("post={intact} member={FAN}")),
            ("comments", format!("id={bad_comment} post={intact}")),
            ("reposts", format!("post={intact} member=-4")),
            ("requests", format!("id={intact}")),
            ("deleted_accounts", format!("account={GONE}")),
        ];
        let expected = expected.map(|(table, key)| (table.to_owned(), key));
        assert_eq!(damaged, expected.into());
        sweep(&aging).await;
        // What is intact is there, and damaged posts hide no others.
        let whole = async |list: List| list.whole(&system.client, 3).await;
        assert_eq!(whole(List::UserPosts(AUTHOR)).await, [intact]);
        assert_eq!(whole(List::Likers(intact)).await, [OTHER]);
        assert_eq!(whole(List::oldest(intact)).await, [comment]);
        assert_eq!(whole(List::Reposts(intact)).await, [repost]);
        let new = system.create(AUTHOR, "new").await.unwrap().id;
        system.like(FAN, intact).await.unwrap();
        aging.archive().await;
        assert_eq!(whole(List::UserPosts(AUTHOR)).await, [new, intact]);
        assert_eq!(whole(List::Likers(intact)).await, [FAN, OTHER]);
    })
    .await;
}

#[tokio::test]
async fn an_empty_redis_is_restored() {
    on_all(async |archives, topology| {
        let aging = Aging::start_in(topology, archives, 2, &[]).await;
        let system = &aging.system;
        let posts = world(&aging).await;
        let request = pb::CreatePostRequest {
            author_id: AUTHOR,
            request_id: request_id(),
            text: "once".to_owned(),
        };
        let create = async || system.client.clone().create_post(request.clone()).await;
        let once = create().await.unwrap().into_inner().post.unwrap();
        aging.archive().await;
        let before = seen(&aging, &posts).await;
        flush(system).await;
        assert_rejected(
            system.create(AUTHOR, "x").await,
            Code::Unavailable,
            ErrorReason::Recovering,
        );

        assert_eq!(recover(&aging, Partition::all()).await, usize::from(Partition::COUNT));
        sweep(&aging).await;
        assert_eq!(seen(&aging, &posts).await, before);
        aging.is_sound().await;
        assert_eq!(create().await.unwrap().into_inner().post.unwrap(), once, "repeated");
        let gone = system.create(GONE, "x").await;
        assert_rejected(gone, Code::NotFound, ErrorReason::UserNotFound);
        // As many as the evictor would keep are back.
        for author in 1..=3 {
            let counts = system.store.post_counts(&[user(author)]).await.unwrap();
            assert_eq!(counts[0].listed, 2, "{counts:?}");
        }
        // Recording and evicting go on.
        let newest = system.create(AUTHOR, "newest").await.unwrap().id;
        assert!(newest > once.id);
        system.like(FAN, posts[0]).await.unwrap();
        let before = seen(&aging, &posts).await;
        assert!(aging.age(&[AUTHOR]).await.evicted > 0);
        assert_eq!(seen(&aging, &posts).await, before);
        aging.is_sound().await;
        assert_eq!(recover(&aging, partitions()).await, 0, "nothing is left to recover");
    })
    .await;
}

#[tokio::test]
async fn long_lists_are_restored_over_several_connections() {
    const LIKES: u64 = 1_200_000;
    let archives = ArchiveServer::start(Kind::Sqlite).await;
    let aging = Aging::start(&archives, 10).await;
    let post = aging.system.create(AUTHOR, "liked").await.unwrap().id;
    aging.archive().await;
    let mut archive = connect(&aging.url).await;
    let like = format!(
        "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {LIKES}) \
         INSERT INTO likes (post, member, since, ended) SELECT {post}, 4096 * n, {post}, 0 FROM n"
    );
    execute(&mut archive, &like).await;
    execute(&mut archive, &format!("UPDATE posts SET likes = {LIKES} WHERE id = {post}")).await;
    flush(&aging.system).await;
    let more = ["--redis-connections=4", &format!("--database-url={}", aging.url)];
    let config = support::config(&aging.system.redis.url("post"), &more);
    let store = Store::open(&config).unwrap();
    let recorder = recorder(&store, &aging.archive, &config.archive);
    let begun = recorder.begin_restore(Source::Database, true).await.unwrap();
    assert!(recorder.restore(&begun, user(1).partition()).await.unwrap());
    let list = format!("post:{{{}}}:likes:{post}", user(1).partition());
    let mut admin = aging.system.redis.nodes()[0].admin().await;
    let likes: u64 = redis::cmd("ZCARD").arg(list).query_async(&mut admin).await.unwrap();
    assert_eq!(likes, LIKES);
}

#[tokio::test]
async fn lists_of_several_pages_are_restored_whole() {
    // Short ones are restored together. A page has 10,000 entries.
    const LENGTHS: [[u64; 3]; 3] = [[200, 0, 100], [3_000, 1_000, 0], [30_000, 25_000, 10_000]];
    on_all(async |archives, topology| {
        let aging = Aging::start_in(topology, archives, 10, &[]).await;
        let mut posts = Vec::new();
        for text in ["first", "second", "third"] {
            posts.push(aging.system.create(AUTHOR, text).await.unwrap().id);
        }
        aging.archive().await;
        let mut archive = connect(&aging.url).await;
        for (post, [likes, comments, reposts]) in posts.iter().zip(LENGTHS) {
            let comment = "author, text, in_reply_to, in_reply_to_author, deleted";
            for (table, rows, columns, values) in [
                ("likes", likes, "member, since, ended", format!("4096 * n, {post}")),
                (
                    "comments",
                    comments,
                    &format!("id, {comment}"),
                    format!("{post} + 4096 * n, 4, 'comment', 0, 0"),
                ),
                ("reposts", reposts, "member, since, ended", format!("{post} + 4096 * n, {post}")),
            ] {
                // Every second row has ended.
                let insert = format!(
                    "WITH RECURSIVE n (n) AS (SELECT CAST(1 AS BIGINT) \
                     UNION ALL SELECT n + 1 FROM n WHERE n < 2 * {rows}) \
                     INSERT INTO {table} (post, {columns}) SELECT {post}, {values}, n % 2 FROM n"
                );
                execute(&mut archive, &insert).await;
            }
            let counts = format!("likes = {likes}, comments = {comments}, reposts = {reposts}");
            execute(&mut archive, &format!("UPDATE posts SET {counts} WHERE id = {post}")).await;
        }
        flush(&aging.system).await;
        assert_eq!(recover(&aging, std::iter::once(user(1).partition())).await, 1);
        let ids: Vec<_> = posts.iter().map(|&id| PostId::new(id).unwrap()).collect();
        let lengths = aging.system.store.list_lengths(&ids).await.unwrap();
        let lengths = lengths.iter().map(|ListLengths { counts, comment_bodies }| {
            assert_eq!(*comment_bodies, counts.comments);
            [counts.likes, counts.comments, counts.reposts]
        });
        assert_eq!(lengths.collect::<Vec<_>>(), LENGTHS);
    })
    .await;
}

/// Returns all keys of a Redis with their contents.
async fn copy(system: &System) -> Vec<(String, Vec<u8>)> {
    let mut admin = system.redis.nodes()[0].admin().await;
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut admin).await.unwrap();
    let mut copy = Vec::new();
    for key in keys {
        let dump: Option<Vec<u8>> =
            redis::cmd("DUMP").arg(&key).query_async(&mut admin).await.unwrap();
        copy.extend(dump.map(|dump| (key, dump)));
    }
    copy
}

async fn put_back(system: &System, copy: &[(String, Vec<u8>)]) {
    flush(system).await;
    write(system, copy).await;
}

async fn write(system: &System, copy: &[(String, Vec<u8>)]) {
    let mut admin = system.redis.nodes()[0].admin().await;
    for (key, dump) in copy {
        let restore = redis::cmd("RESTORE").arg(key).arg(0).arg(dump).take();
        let () = restore.query_async(&mut admin).await.unwrap();
    }
}

#[tokio::test]
async fn an_older_copy_of_redis_is_recovered() {
    for kind in [Kind::Sqlite, Kind::Postgres] {
        let archives = ArchiveServer::start(kind).await;
        let aging = Aging::start(&archives, 2).await;
        let system = &aging.system;
        let mut posts = world(&aging).await;
        // The copy lacks that a post was delivered, which is deleted later.
        let outbox = format!("post:{{{}}}:outbox", support::post(posts[9]).partition());
        let mut add = redis::cmd("ZADD");
        add.arg(outbox).arg(posts[9]).arg(posts[9]);
        let mut admin = system.redis.nodes()[0].admin().await;
        add.exec_async(&mut admin).await.unwrap();
        let copied = copy(system).await;
        // What follows is lost: a hot post is deleted, one is published, reposted and liked, an
        // evicted one is liked and commented on, likes and comments end, another one is evicted.
        let [hot, old] = [posts[9], posts[2]];
        system.delete(AUTHOR, hot).await.unwrap();
        let made = system.create(AUTHOR, "made").await.unwrap().id;
        system.like(FAN, made).await.unwrap();
        posts.extend([made, system.repost(id(5), made).await.unwrap().id]);
        system.like(id(6), old).await.unwrap();
        system.comment(id(6), old, "late", 0).await.unwrap();
        system.unlike(id(21), posts[10]).await.unwrap();
        let comments = List::oldest(posts[10]).whole(&system.client, 5).await;
        system.uncomment(FAN, posts[10], comments[1]).await.unwrap();
        system.delete(id(5), posts[13]).await.unwrap();
        aging.archive().await;
        let mut before = seen(&aging, &posts).await;
        put_back(system, &copied).await;
        let rejected = system.create(AUTHOR, "x").await;
        assert_rejected(rejected, Code::Unavailable, ErrorReason::Recovering);

        // A process that knows nothing of the loss makes a change, which is kept.
        let unaware = Store::open(&aging.config).unwrap();
        unaware.like(user(7), support::post(posts[10])).await.unwrap().unwrap();
        assert!(recover(&aging, Partition::all()).await > 0);
        sweep(&aging).await;
        for (post, lists) in &mut before {
            if *post == posts[10] {
                lists[0][0] += 1;
                lists[1].insert(0, id(7));
            }
        }
        assert_eq!(seen(&aging, &posts).await, before);
        assert_rejected(system.get(hot, 0).await, Code::NotFound, ErrorReason::PostNotFound);
        let of_author = List::UserPosts(AUTHOR).whole(&system.client, 2).await;
        assert_eq!(of_author[0], made);
        assert!(!of_author.contains(&hot));
        let backlogs = system.store.backlogs(support::post(hot).partition()).await.unwrap();
        assert_eq!(backlogs, [0; 3]);
        aging.is_sound().await;
        let everyone: Vec<_> = (1..=9).map(id).collect();
        aging.age(&everyone).await;
        assert_eq!(seen(&aging, &posts).await, before);
        aging.is_sound().await;
    }
}

#[tokio::test]
async fn an_interrupted_recovery_is_repeated() {
    let archives = ArchiveServer::start(Kind::Sqlite).await;
    let aging = Aging::start(&archives, 2).await;
    let system = &aging.system;
    let posts = world(&aging).await;
    let before = seen(&aging, &posts).await;
    flush(system).await;
    let mut admin = system.redis.nodes()[0].admin().await;
    let begun = aging.recorder.begin_restore(Source::Database, true).await.unwrap();
    // Partitions are recovered up to any step.
    for milliseconds in 1..30 {
        // Their leases would last for some seconds.
        for partition in partitions() {
            let release =
                redis::cmd("DEL").arg(format!("post:{{{partition}}}:journal:lease")).take();
            let () = release.query_async(&mut admin).await.unwrap();
        }
        let recover = |partition| aging.recorder.restore(&begun, partition);
        let recover = stream::iter(partitions()).map(recover);
        let recover = recover.buffer_unordered(8).for_each(|_| future::ready(()));
        let _ = tokio::time::timeout(Duration::from_millis(5 * milliseconds), recover).await;
    }
    recover(&aging, partitions()).await;
    sweep(&aging).await;
    assert_eq!(seen(&aging, &posts).await, before);
    recover(&aging, Partition::all()).await;
    aging.is_sound().await;
}

#[tokio::test]
async fn a_repost_whose_deletion_was_lost_is_listed_again() {
    let archives = ArchiveServer::start(Kind::Sqlite).await;
    let aging = Aging::start(&archives, 5).await;
    let system = &aging.system;
    let target = system.create(AUTHOR, "target").await.unwrap().id;
    let repost = system.repost(OTHER, target).await.unwrap().id;
    let partition = support::post(repost).partition();
    assert_ne!(partition, support::post(target).partition());
    aging.archive().await;
    let older = copy(system).await;
    let prefix = format!("post:{{{partition}}}:");
    let older: Vec<_> = older.into_iter().filter(|(key, _)| key.starts_with(&prefix)).collect();
    let mut archive = connect(&aging.url).await;
    system.delete(OTHER, repost).await.unwrap();
    aging.archive().await;
    // Only the post that it repeats still has it, and the record of that.
    let row = format!(
        "UPDATE posts SET deleted = 0, author = {OTHER}, root = {target}, reposted = {target} \
         WHERE id = {repost}"
    );
    assert_eq!(execute(&mut archive, &row).await, 1);
    let lost = copy(system).await.into_iter().map(|(key, _)| key);
    let lost: Vec<_> = lost.filter(|key| key.starts_with(&prefix)).collect();
    let mut admin = system.redis.nodes()[0].admin().await;
    let () = redis::cmd("DEL").arg(lost).query_async(&mut admin).await.unwrap();
    write(system, &older).await;
    recover(&aging, [partition].into_iter()).await;
    sweep(&aging).await;
    assert_eq!(List::Reposts(target).whole(&system.client, 5).await, [repost]);
    aging.is_sound().await;
}

#[tokio::test]
async fn reposts_on_one_side_only_are_completed() {
    let archives = ArchiveServer::start(Kind::Sqlite).await;
    let aging = Aging::start(&archives, 5).await;
    let system = &aging.system;
    let target = system.create(AUTHOR, "target").await.unwrap().id;
    let [unlisted, missing] = [
        system.repost(OTHER, target).await.unwrap().id,
        system.repost(FAN, target).await.unwrap().id,
    ];
    aging.archive().await;
    // The record has one repost that is not on the list, and one on the list that does not exist.
    let mut archive = connect(&aging.url).await;
    for lose in [
        format!("DELETE FROM reposts WHERE member = {unlisted}"),
        format!("DELETE FROM posts WHERE id = {missing}"),
        format!("UPDATE posts SET reposts = 1 WHERE id = {target}"),
    ] {
        assert_eq!(execute(&mut archive, &lose).await, 1);
    }
    flush(system).await;
    recover(&aging, Partition::all()).await;
    sweep(&aging).await;
    assert_eq!(List::Reposts(target).whole(&system.client, 5).await, [unlisted]);
    assert_eq!(system.get(target, 0).await.unwrap().reposts, 1);
    aging.is_sound().await;
}

/// Removes all entries but the last ones, as if many had followed.
async fn trim_journals(system: &System) {
    let mut admin = system.redis.nodes()[0].admin().await;
    for partition in partitions() {
        let key = format!("post:{{{partition}}}:journal");
        let trim = redis::cmd("XTRIM").arg(&key).arg("MAXLEN").arg(1).take();
        let _: u64 = trim.query_async(&mut admin).await.unwrap();
    }
}

impl Aging {
    /// Continues with a database that is older than Redis. Returns how many partitions it lacked
    /// changes of as well.
    async fn put_back(self, url: &str) -> (Self, usize) {
        let flags = aging::flags(url, 2);
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        let config = support::config(&self.system.redis.url("post"), &flags);
        let archive = microblog_post::Archive::open(&config.database).unwrap().unwrap();
        let stale = recorder(&self.system.store, &archive, &config.archive);
        stale.run().await.unwrap();
        let begun = stale.begin_restore(Source::Database, false).await.unwrap();
        let mut changed = 0;
        for partition in partitions() {
            changed += usize::from(stale.restore(&begun, partition).await.unwrap());
        }
        let service = microblog_post::service(&config, None, support::WITHOUT_JOBS).await.unwrap();
        let client = support::client(&support::run(service, &config));
        let store = Store::open(&config).unwrap();
        (Self::on(System { client, store, ..self.system }, url, 2).await, changed)
    }
}

#[tokio::test]
async fn a_database_from_an_older_copy_is_written_anew() {
    let archives = ArchiveServer::start(Kind::Sqlite).await;
    let aging = Aging::start(&archives, 2).await;
    let posts = world(&aging).await;
    let url = archives.another().await;
    let file = url.strip_prefix("sqlite://").unwrap().split('?').next().unwrap();
    execute(&mut connect(&aging.url).await, &format!("VACUUM INTO '{file}'")).await;
    // What follows is missing in the copy, and its entries in the journals are trimmed.
    let system = &aging.system;
    let made = system.create(AUTHOR, "made").await.unwrap().id;
    system.delete(AUTHOR, posts[6]).await.unwrap();
    system.delete(id(2), posts[10]).await.unwrap();
    system.unlike(FAN, posts[9]).await.unwrap();
    system.unlike(id(20), posts[1]).await.unwrap();
    aging.archive().await;
    trim_journals(system).await;
    let all: Vec<_> = posts.iter().copied().chain([made]).collect();
    let before = seen(&aging, &all).await;
    let (aging, changed) = aging.put_back(&url).await;
    assert_eq!(changed, 2, "the partitions with changes");
    sweep(&aging).await;
    assert_eq!(seen(&aging, &all).await, before);
    aging.is_sound().await;
}

#[tokio::test]
async fn posts_evicted_since_the_copy_of_a_restored_database_are_listed_as_missing() {
    let archives = ArchiveServer::start(Kind::Sqlite).await;
    let aging = Aging::start(&archives, 2).await;
    let posts = world(&aging).await;
    let url = archives.another().await;
    let file = url.strip_prefix("sqlite://").unwrap().split('?').next().unwrap();
    execute(&mut connect(&aging.url).await, &format!("VACUUM INTO '{file}'")).await;
    let system = &aging.system;
    let mut lost = Vec::new();
    for n in 0..5 {
        lost.push(system.create(AUTHOR, &format!("late {n}")).await.unwrap().id);
    }
    let kept = lost.split_off(3);
    aging.evict(&lost).await;
    // One that the copy has was deleted since.
    system.delete(AUTHOR, posts[0]).await.unwrap();
    aging.archive().await;
    trim_journals(system).await;

    let (aging, changed) = aging.put_back(&url).await;
    assert_eq!(changed, 1);
    sweep(&aging).await;
    // The two that were on her list when the copy was made were evicted as well, but it has them.
    let missing = "SELECT author, posts FROM missing_posts";
    let missing = numbers(&mut connect(&url).await, missing).await;
    assert_eq!(missing, [[AUTHOR.cast_signed(), 3]]);
    for post in lost {
        let found = aging.system.get(post, 0).await;
        assert_rejected(found, Code::NotFound, ErrorReason::PostNotFound);
    }
    let of_author = List::UserPosts(AUTHOR).whole(&aging.system.client, 2).await;
    let [fourth, fifth] = kept[..] else { unreachable!("two are left") };
    assert_eq!(of_author, [fifth, fourth, posts[9], posts[6], posts[3]]);
    aging.is_sound().await;
}

#[tokio::test]
async fn a_partition_that_lacks_changes_does_not_stop_the_jobs_of_the_others() {
    let archives = ArchiveServer::start(Kind::Sqlite).await;
    let aging = Aging::start(&archives, 10).await;
    let system = &aging.system;
    let [lost, post] = [AUTHOR, OTHER].map(async |author| system.create(author, "post").await);
    let (lost, post) = (lost.await.unwrap().id, post.await.unwrap().id);
    // Two reposts whose posts were not notified, one of them with a post of the lost partition.
    for target in [lost, post] {
        let origin = Origin { root: support::post(target), reposted: support::post(target) };
        let (author, text) = (user(3), String::new());
        let content = Content { author, text, origin: Some(origin) };
        let request = RequestId::parse("id", &request_id()).unwrap();
        let published = system.store.publish(&content, request).await.unwrap();
        assert!(matches!(published, Published::New(_)));
    }
    aging.archive().await;
    let journal = format!("post:{{{}}}:journal", user(1).partition());
    let mut admin = system.redis.nodes()[0].admin().await;
    redis::cmd("DEL").arg(journal).exec_async(&mut admin).await.unwrap();
    aging.archive().await;
    assert_rejected(system.get(lost, 0).await, Code::Unavailable, ErrorReason::Recovering);

    let delivery = Delivery::new(system.store.clone(), None);
    let mut sweeper = Sweeper::new(aging.tiered(), delivery);
    sweeper.deliver(Duration::ZERO).await.unwrap();
    sweeper.notify_targets(Duration::ZERO).await.unwrap();
    assert_eq!(system.get(post, 0).await.unwrap().reposts, 1);
    forget_marked(&aging.tiered(), &aging.posts()).await.unwrap();
    // The evictor goes on to the next partition.
    aging.evictor.partition(user(1).partition()).await.unwrap();

    // An erasure visits all partitions.
    aging.recorder.recover_lost().await.unwrap();
    forget(&aging, GONE).await;
    sweep(&aging).await;
    assert_eq!(system.get(lost, 0).await.unwrap().reposts, 1);
    aging.is_sound().await;
}
