//! The database is unavailable: hot posts work as usual, reads of archived ones fail within the
//! deadline, and all is back after the outage.

use std::time::{Duration, Instant};

use microblog_domain::Partition;
use microblog_proto::post as pb;
use microblog_testkit::{Topology, eventually, redis};
use sqlx::{AnyConnection, Connection as _, Row as _};
use tonic::{Code, Status};

use crate::{
    aging::{Aging, flags},
    support::{
        self, PATIENCE, System,
        archives::{ArchiveServer, Kind, connect, execute},
        id,
        lists::{List, ids},
    },
};

const AUTHOR: u64 = id(1);
/// Has new posts only.
const NEW: u64 = id(2);
const FAN: u64 = id(3);

/// Longer than the timeout of an archive read, and shorter than any deadline.
const SOON: Duration = Duration::from_secs(9);

/// Makes the database inaccessible from the start. Returns its URL, and what makes it accessible.
async fn absent(kind: Kind) -> (String, ArchiveServer) {
    let archives = ArchiveServer::start(kind).await;
    let url = match kind {
        // In a directory that does not exist yet.
        Kind::Sqlite => archives.url().replace("archive.sqlite", "later/archive.sqlite"),
        Kind::Postgres => {
            archives.postgres().kill();
            archives.url()
        }
    };
    (url, archives)
}

#[tokio::test]
async fn sqlite_that_becomes_available_later_gets_all_posts() {
    a_database_that_becomes_available_later_gets_all_posts(Kind::Sqlite).await;
}

#[tokio::test]
async fn postgres_that_becomes_available_later_gets_all_posts() {
    a_database_that_becomes_available_later_gets_all_posts(Kind::Postgres).await;
}

async fn a_database_that_becomes_available_later_gets_all_posts(kind: Kind) {
    let (url, archives) = absent(kind).await;
    let flags = flags(&url, 1);
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    // With its jobs.
    let system = System::start_with(Topology::Single, &flags).await;
    let mut posts = Vec::new();
    for n in 0..20 {
        let post = system.create(AUTHOR, &format!("number {n}")).await.unwrap().id;
        assert_eq!(system.like(FAN, post).await.unwrap(), 1);
        system.comment(FAN, post, "well", 0).await.unwrap();
        posts.insert(0, post);
    }
    let gone = posts.remove(3);
    system.delete(AUTHOR, gone).await.unwrap();
    assert_eq!(List::UserPosts(AUTHOR).whole(&system.client, 7).await, posts);

    match kind {
        Kind::Sqlite => {
            let file = url.strip_prefix("sqlite://").unwrap().split('?').next().unwrap();
            std::fs::create_dir(std::path::Path::new(file).parent().unwrap()).unwrap();
        }
        Kind::Postgres => archives.postgres().restart().await,
    }
    eventually("all is recorded", PATIENCE, async || {
        let Ok(mut archive) = AnyConnection::connect(&url).await else { return false };
        let query = sqlx::query("SELECT COUNT(*) FROM comments").fetch_one(&mut archive).await;
        query.is_ok_and(|row| row.get::<i64, _>(0) == 19)
    })
    .await;
    let aging = Aging::on(system, &url, 1).await;
    aging.age(&[AUTHOR]).await;
    let system = &aging.system;
    assert_eq!(
        support::keys_of(system, posts[1]).await,
        Vec::<String>::new(),
        "the post is evicted"
    );
    // The circuit breaker closes after a moment.
    eventually("archived posts are readable", PATIENCE, async || {
        system.get(posts[18], 0).await.is_ok()
    })
    .await;
    assert_eq!(List::UserPosts(AUTHOR).whole(&system.client, 7).await, posts);
    aging.is_sound().await;
}

/// How a database fails during operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outage {
    Killed,
    Hanging,
}

#[tokio::test]
async fn new_posts_work_while_postgres_is_killed() {
    new_posts_work(Outage::Killed).await;
}

#[tokio::test]
async fn new_posts_work_while_postgres_hangs() {
    new_posts_work(Outage::Hanging).await;
}

/// Asserts that a call fails because the archive is unavailable, within the deadline.
async fn is_unavailable<T>(what: &str, call: impl Future<Output = Result<T, Status>>) {
    let began = Instant::now();
    let status = call.await.err().unwrap_or_else(|| panic!("{what} was answered"));
    assert_eq!(status.code(), Code::Unavailable, "{what}: {status:?}");
    assert!(began.elapsed() < SOON, "{what} took {:?}", began.elapsed());
}

/// The state before the outage.
struct Before {
    old: u64,
    /// On the old post.
    comment: u64,
    all: Vec<u64>,
    hot: u64,
    /// On the hot post.
    hot_comment: u64,
    repost_of_old: u64,
}

async fn before(aging: &Aging) -> Before {
    let system = &aging.system;
    let mut all = Vec::new();
    for n in 0..12 {
        all.insert(0, system.create(AUTHOR, &format!("number {n}")).await.unwrap().id);
    }
    let old = all[11];
    system.like(FAN, old).await.unwrap();
    let comment = system.comment(FAN, old, "well", 0).await.unwrap().id;
    let hot_comment = system.comment(FAN, all[0], "well", 0).await.unwrap().id;
    aging.evict(&all[3..]).await;
    // The repost restores its root; that is evicted again, and the repost stays.
    let repost_of_old = system.repost(NEW, old).await.unwrap().id;
    aging.evict(&[old]).await;
    Before { old, comment, hot: all[0], hot_comment, all, repost_of_old }
}

async fn old_posts_are_unavailable(system: &System, before: &Before) {
    let Before { old, comment, hot, hot_comment, .. } = before;
    let (old, client) = (*old, || system.client.clone());
    is_unavailable("GetPost", system.get(old, FAN)).await;
    let request =
        pb::BatchGetPostsRequest { post_ids: vec![old], viewer_id: FAN, ..Default::default() };
    is_unavailable("BatchGetPosts", client().batch_get_posts(request)).await;
    let request = pb::BatchGetPostsRequest {
        post_ids: vec![old, *hot, old],
        viewer_id: FAN,
        allow_partial: true,
    };
    let partial = client().batch_get_posts(request).await.unwrap().into_inner();
    assert_eq!((ids(&partial.posts), partial.unavailable_ids), (vec![*hot], vec![old]));
    assert_eq!(partial.remaining_ids, [] as [u64; 0]);
    let request = pb::GetCommentRequest { post_id: old, comment_id: *comment };
    is_unavailable("GetComment", client().get_comment(request)).await;
    let keys = [(*hot, *hot_comment), (old, *comment), (*hot, *hot_comment)];
    is_unavailable("BatchGetComments", system.batch_comments(&keys, false)).await;
    let partial = system.batch_comments(&keys, true).await.unwrap();
    let key = |it: &pb::Comment| (it.post_id, it.id);
    assert_eq!(partial.comments.iter().map(key).collect::<Vec<_>>(), keys[..1]);
    let unavailable = partial.unavailable.iter().map(|key| (key.post_id, key.comment_id));
    assert_eq!(unavailable.collect::<Vec<_>>(), keys[1..2]);
    assert_eq!(partial.remaining, []);
    let request = pb::BatchGetLikedRequest { user_id: FAN, post_ids: vec![old] };
    is_unavailable("BatchGetLiked", client().batch_get_liked(request)).await;
    for list in [List::Likers(old), List::oldest(old), List::newest(old), List::Reposts(old)] {
        is_unavailable("a list", list.page(&system.client, 5, "")).await;
    }
    is_unavailable("Like", system.like(NEW, old)).await;
    is_unavailable("Unlike", system.unlike(FAN, old)).await;
    is_unavailable("AddComment", system.comment(NEW, old, "hello?", 0)).await;
    is_unavailable("DeleteComment", system.uncomment(FAN, old, 4096)).await;
    is_unavailable("Repost", system.repost(FAN, old)).await;
    is_unavailable("DeletePost", system.delete(AUTHOR, old)).await;
}

/// Returns the number of entries in all journals.
async fn journalled(system: &System) -> u64 {
    let mut lengths = redis::pipe();
    for partition in Partition::all() {
        lengths.cmd("XLEN").arg(format!("post:{{{partition}}}:journal"));
    }
    let mut admin = system.redis.nodes()[0].admin().await;
    lengths.query_async::<Vec<u64>>(&mut admin).await.unwrap().into_iter().sum()
}

/// Publishes, changes, reads and deletes new posts, which must not wait. Returns the number of
/// journal entries, and the posts that stay.
async fn new_posts_are_there(system: &System, Before { hot, .. }: &Before) -> (u64, Vec<u64>) {
    let began = Instant::now();
    let mut made = Vec::new();
    for n in 0..20 {
        let post = system.create(NEW, &format!("new {n}")).await.unwrap();
        let repost = system.quote(NEW, post.id, "look").await.unwrap();
        assert_eq!(system.get(repost.id, FAN).await.unwrap().root.unwrap().text, post.text);
        assert_eq!(system.like(FAN, post.id).await.unwrap(), 1);
        let comment = system.comment(FAN, post.id, "well", 0).await.unwrap().id;
        system.comment(NEW, post.id, "well?", comment).await.unwrap();
        system.uncomment(FAN, post.id, comment).await.unwrap();
        system.delete(NEW, repost.id).await.unwrap();
        made.insert(0, post.id);
    }
    system.like(FAN, *hot).await.unwrap();
    let (page, _) = List::UserPosts(NEW).page(&system.client, 20, "").await.unwrap();
    assert_eq!(page, made);
    // If each call waited for the archive, it would take minutes.
    assert!(began.elapsed() < PATIENCE, "calls wait: {:?}", began.elapsed());
    // Of the post, the repost and its deletion on both sides, the like, and the comments.
    (20 * 9 + 1, made)
}

async fn new_posts_work(outage: Outage) {
    let archives = ArchiveServer::start(Kind::Postgres).await;
    let aging = Aging::start(&archives, 3).await;
    let (system, postgres) = (&aging.system, archives.postgres());
    let before = before(&aging).await;
    aging.archive().await;
    let journalled_before = journalled(system).await;
    match outage {
        Outage::Killed => postgres.kill(),
        Outage::Hanging => postgres.pause(),
    }
    old_posts_are_unavailable(system, &before).await;
    let (waiting, mut made) = new_posts_are_there(system, &before).await;
    assert_eq!(journalled(system).await - journalled_before, waiting);

    // The hot part of a list; the rest follows when the database is back.
    let list = List::UserPosts(AUTHOR);
    let (page, token) = list.page(&system.client, 10, "").await.unwrap();
    assert_eq!(page, before.all[..3]);
    is_unavailable("the old part", list.page(&system.client, 10, &token)).await;
    // A repost with an archived root is shown without it, and not as deleted.
    let repost = system.get(before.repost_of_old, FAN).await.unwrap();
    assert!(repost.root.is_none() && !repost.root_deleted && repost.root_id == before.old);
    let request = pb::ListUserPostsRequest { author_id: NEW, page_size: 200, ..Default::default() };
    let posts = system.client.clone().list_user_posts(request).await.unwrap().into_inner().posts;
    let repost = posts.last().unwrap();
    assert_eq!((posts.len(), repost.id), (21, before.repost_of_old));
    assert!(repost.root.is_none() && !repost.root_deleted);
    // Its own list of reposts is hot, although its root is not.
    let again = system.repost(FAN, before.repost_of_old).await;
    assert_eq!(again.unwrap_err().code(), Code::Unavailable, "whether its root exists is unknown");
    assert_eq!(List::Reposts(before.repost_of_old).whole(&system.client, 5).await, [] as [u64; 0]);

    match outage {
        Outage::Killed => postgres.restart().await,
        Outage::Hanging => postgres.resume(),
    }
    eventually("archived posts are readable", PATIENCE, async || {
        system.get(before.old, 0).await.is_ok()
    })
    .await;
    let (rest, end) = list.page(&system.client, 10, &token).await.unwrap();
    assert_eq!((&rest[..], &*end), (&before.all[3..], ""));
    assert_eq!(system.get(before.repost_of_old, FAN).await.unwrap().root.unwrap().likes, 1);
    aging.is_sound().await;
    aging.age(&[AUTHOR, NEW]).await;
    made.push(before.repost_of_old);
    assert_eq!(List::UserPosts(NEW).whole(&system.client, 6).await, made);
    aging.is_sound().await;
}

#[tokio::test]
async fn new_posts_work_while_another_process_locks_sqlite() {
    let archives = ArchiveServer::start(Kind::Sqlite).await;
    let aging = Aging::start(&archives, 3).await;
    let system = &aging.system;
    let before = before(&aging).await;
    let mut other = connect(&aging.url).await;
    execute(&mut other, "BEGIN IMMEDIATE").await;
    let archiving = aging.archive();
    let meanwhile = async {
        let journalled_before = journalled(system).await;
        let (waiting, made) = new_posts_are_there(system, &before).await;
        // Archived posts can be read, and restored.
        assert_eq!(List::UserPosts(AUTHOR).whole(&system.client, 5).await, before.all);
        assert_eq!(system.like(NEW, before.old).await.unwrap(), 2);
        // The post was restored, too.
        assert_eq!(journalled(system).await - journalled_before, waiting + 2);
        execute(&mut other, "COMMIT").await;
        made
    };
    let ((), made) = futures::future::join(archiving, meanwhile).await;
    aging.is_sound().await;
    assert_eq!(List::UserPosts(NEW).whole(&system.client, 20).await[..20], made);
}
