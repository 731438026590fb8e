//! Posts that are imported: they keep their times and texts, are made once, and nobody is told of them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::future::{join_all, try_join_all};
use microblog_proto::{
    common::{Change, ChangeKind, ErrorReason, FeedQuery},
    post as pb,
};
use microblog_testkit::Store;
use tonic::Code;

use crate::support::{
    Client, Database, System, Topology, WITHOUT_JOBS, assert_rejected, config, connect, id,
    lists::List, run, timelines::Timelines,
};

const TOPOLOGIES: [Topology; 2] = [Topology::Single, Topology::Cluster];

/// A time in Unix ms: 2012-03-04T05:06:07.089Z.
const THEN: u64 = 1_330_837_567_089;

/// Returns a post to be imported, of the n-th user, that was made at a time in Unix ms.
pub(crate) fn imported(author: u64, made_ms: u64, text: &str) -> pb::ImportedPost {
    let (author_id, text) = (id(author), text.to_owned());
    let created_at = Some((UNIX_EPOCH + Duration::from_millis(made_ms)).into());
    pb::ImportedPost { author_id, created_at, text }
}

/// Imports posts. Returns how many were created, how many existed, and how many were rejected.
pub(crate) async fn import(client: &Client, posts: &[pb::ImportedPost]) -> [u64; 3] {
    let request = pb::ImportPostsRequest { posts: posts.to_vec() };
    let answer = client.clone().import_posts(request).await.unwrap().into_inner();
    [answer.created, answer.unchanged, answer.rejected]
}

/// Adds up what some calls have answered.
pub(crate) fn sum(answers: &[[u64; 3]]) -> [u64; 3] {
    std::array::from_fn(|at| answers.iter().map(|answer| answer[at]).sum())
}

/// Returns the posts of the n-th user, newest first.
async fn posts_of(client: &Client, author: u64) -> Vec<pb::Post> {
    let request =
        pb::ListUserPostsRequest { author_id: id(author), page_size: 200, ..Default::default() };
    client.clone().list_user_posts(request).await.unwrap().into_inner().posts
}

/// Returns when a post was made, in Unix ms.
fn made_ms(post: &pb::Post) -> u64 {
    let made = SystemTime::try_from(post.created_at.unwrap()).unwrap();
    made.duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

async fn forget(system: &System, account: u64) {
    let request = pb::ForgetUserRequest { user_id: id(account) };
    system.client.clone().forget_user(request).await.unwrap();
}

#[tokio::test]
async fn an_imported_post_keeps_its_time_and_text() {
    for topology in TOPOLOGIES {
        let system = System::start(topology).await;
        let new = system.create(id(1), "new").await.unwrap();
        let between = UNIX_EPOCH + Duration::from_millis(THEN) + Duration::from_micros(999);
        let first = pb::ImportedPost {
            created_at: Some(between.into()),
            ..imported(1, 0, "hello @bob\nfrom #microblog")
        };
        let posts = [imported(1, THEN + 5_000, "later"), first, imported(2, THEN, "another")];
        assert_eq!(import(&system.client, &posts).await, [3, 0, 0]);

        let listed = posts_of(&system.client, 1).await;
        let seen: Vec<_> = listed.iter().map(|post| (made_ms(post), post.text.as_str())).collect();
        let expected = [
            (made_ms(&new), "new"),
            (THEN + 5_000, "later"),
            // To the millisecond.
            (THEN, "hello @bob\nfrom #microblog"),
        ];
        assert_eq!(seen, expected);
        assert_eq!(listed[2].entities.len(), 2);
        for post in &listed {
            assert_eq!((post.author_id, post.root_id), (id(1), 0));
            assert_eq!(system.get(post.id, 0).await.unwrap(), *post, "alone as in a list");
        }
        // Like any other post.
        assert_eq!(system.like(id(3), listed[2].id).await.unwrap(), 1);
        system.comment(id(3), listed[2].id, "so long ago", 0).await.unwrap();
        system.repost(id(3), listed[2].id).await.unwrap();
        let seen = system.get(listed[2].id, id(3)).await.unwrap();
        assert_eq!((seen.likes, seen.comments, seen.reposts, seen.liked), (1, 1, 1, true));
        let next = system.create(id(1), "next").await.unwrap();
        assert!(next.id > new.id);
        system.settles().await;
    }
}

#[tokio::test]
async fn a_repeated_import_makes_nothing_again() {
    for topology in TOPOLOGIES {
        let system = System::start(topology).await;
        let post = |n| imported(1 + n % 7, THEN + n, &format!("post {n}"));
        let posts: Vec<_> = (0..150).map(post).collect();
        // In one call.
        let twice = [&posts[..100], &posts[..100]].concat();
        assert_eq!(import(&system.client, &twice).await, [100, 100, 0]);
        // At the same time.
        let answers = join_all((0..4).map(|_| import(&system.client, &posts))).await;
        assert_eq!(sum(&answers), [50, 550, 0]);
        let listed = posts_of(&system.client, 1).await;
        system.settles().await;
        // Later, and with spaces that are not stored.
        assert_eq!(import(&system.client, &posts).await, [0, 150, 0]);
        let spaced = [imported(1, THEN, " post 0\r\n")];
        assert_eq!(import(&system.client, &spaced).await, [0, 1, 0]);
        assert_eq!(posts_of(&system.client, 1).await, listed);
        for table in ["posts", "texts"] {
            assert_eq!(system.rows(table).await, 150, "{table}");
        }
        system.settles().await;
    }
}

#[tokio::test]
async fn posts_of_one_time_are_all_made() {
    for topology in TOPOLOGIES {
        let system = System::start(topology).await;
        let posts: Vec<_> = (0..12).map(|n| imported(1, THEN, &format!("post {n}"))).collect();
        assert_eq!(import(&system.client, &posts[..2]).await, [2, 0, 0]);
        let made: Vec<_> = posts_of(&system.client, 1).await.iter().map(made_ms).collect();
        assert_eq!(made, [THEN, THEN]);
        assert_eq!(import(&system.client, &posts).await, [10, 2, 0]);
        assert_eq!(import(&system.client, &posts).await, [0, 12, 0]);
        let listed = posts_of(&system.client, 1).await;
        assert!(listed.iter().all(|post| (THEN..THEN + 10).contains(&made_ms(post))));
        let mut texts: Vec<_> = listed.into_iter().map(|post| post.text).collect();
        texts.sort_unstable();
        let mut expected: Vec<_> = posts.into_iter().map(|post| post.text).collect();
        expected.sort_unstable();
        assert_eq!(texts, expected);
        system.settles().await;
    }
}

/// Starts a service without jobs: what belonged to a deleted post stays.
async fn without_jobs(topology: Topology) -> System {
    let database = match topology {
        Topology::Single => Database::sqlite(),
        Topology::Cluster => Database::postgres().await,
    };
    let (redis, timelines) = (Store::start(topology).await, Timelines::default());
    let config = config(&redis.url("post"), &database.url(), &[]);
    let service = microblog_post::service(&config, None, WITHOUT_JOBS).await.unwrap();
    let address = run(service, &config);
    let client = connect(&address).await;
    System { redis, database, address, client, timelines }
}

/// While the likes and comments of a post that its author deleted are still there.
#[tokio::test]
async fn a_deleted_post_that_is_imported_again_is_another_one() {
    for topology in TOPOLOGIES {
        let idle = without_jobs(topology).await;
        let posts = [imported(1, THEN, "old")];
        assert_eq!(import(&idle.client, &posts).await, [1, 0, 0]);
        let gone = posts_of(&idle.client, 1).await[0].id;
        try_join_all((10..20).map(|n| idle.like(id(n), gone))).await.unwrap();
        try_join_all((10..20).map(|n| idle.comment(id(n), gone, "well", 0))).await.unwrap();
        idle.repost(id(9), gone).await.unwrap();
        idle.delete(id(1), gone).await.unwrap();
        assert_eq!([idle.rows("likes").await, idle.rows("comments").await], [10, 10]);

        assert_eq!(import(&idle.client, &posts).await, [1, 0, 0]);
        assert_eq!(import(&idle.client, &posts).await, [0, 1, 0]);
        let listed = posts_of(&idle.client, 1).await;
        let [made] = &*listed else { panic!("{listed:?}") };
        assert_ne!(made.id, gone);
        assert_eq!((made.likes, made.comments, made.reposts), (0, 0, 0));
        assert!(!idle.get(made.id, id(10)).await.unwrap().liked);
        for list in List::all_of(made.id, id(1)).into_iter().take(4) {
            assert_eq!(list.whole(&idle.client, 20).await, [0; 0], "{list:?}");
        }
        idle.like(id(10), made.id).await.unwrap();
        let comment = idle.comment(id(11), made.id, "again", 0).await.unwrap();

        let system = System::start_on(idle.redis, idle.database, &[]).await;
        system.settles().await;
        assert_eq!(import(&system.client, &posts).await, [0, 1, 0]);
        let seen = system.get(made.id, id(10)).await.unwrap();
        assert_eq!((seen.likes, seen.comments, seen.reposts, seen.liked), (1, 1, 0, true));
        assert_eq!(List::Likers(made.id).whole(&system.client, 20).await, [id(10)]);
        assert_eq!(List::oldest(made.id).whole(&system.client, 20).await, [comment.id]);
        assert_rejected(system.get(gone, 0).await, Code::NotFound, ErrorReason::PostNotFound);
        for (table, rows) in [("likes", 1), ("comments", 1), ("reposts", 0), ("deleted_posts", 0)] {
            assert_eq!(system.rows(table).await, rows, "{table}");
        }
    }
}

/// Returns changes of posts: some from the start of the feed, or all that exist.
async fn changes(system: &System, query: FeedQuery, count: usize) -> Vec<Change> {
    let query = Some(FeedQuery { kinds: vec![ChangeKind::Post.into()], ..query });
    let request = pb::StreamChangesRequest { query };
    let mut pages = system.client.clone().stream_changes(request).await.unwrap().into_inner();
    let mut changes = Vec::new();
    while changes.len() < count {
        let Some(page) = pages.message().await.unwrap() else { break };
        changes.extend(page.page.unwrap().changes);
    }
    changes
}

#[tokio::test]
async fn nothing_is_delivered_and_the_feed_says_that_a_post_is_imported() {
    for topology in TOPOLOGIES {
        let system = System::start(topology).await;
        let new = system.create(id(1), "new").await.unwrap().id;
        for author in [1, 2] {
            let posts = [imported(author, THEN, "old")];
            assert_eq!(import(&system.client, &posts).await, [1, 0, 0]);
            assert_eq!(import(&system.client, &posts).await, [0, 1, 0]);
        }
        let last = system.create(id(3), "last").await.unwrap().id;
        let [first, second] = [
            List::UserPosts(id(1)).whole(&system.client, 20).await[1],
            List::UserPosts(id(2)).whole(&system.client, 20).await[0],
        ];
        assert_eq!(system.rows(&format!("undelivered WHERE id < {new}")).await, 0);
        system.settles().await;
        let heard = system.timelines.deliveries();
        assert!(heard.iter().all(|heard| [new, last].contains(&heard.post_id)), "{heard:?}");

        let key = |change: &Change| (change.post_id, change.user_id, change.imported);
        let from_start = FeedQuery { from_start: true, ..FeedQuery::default() };
        let told: Vec<_> = changes(&system, from_start, 4).await.iter().map(key).collect();
        let expected = [
            (new, id(1), false),
            (first, id(1), true),
            (second, id(2), true),
            (last, id(3), false),
        ];
        assert_eq!(told, expected);
        let snapshot = FeedQuery { snapshot: true, ..FeedQuery::default() };
        let mut existing: Vec<_> =
            changes(&system, snapshot, usize::MAX).await.iter().map(key).collect();
        existing.sort_unstable();
        let mut expected = expected.map(|(post, author, _)| (post, author, false));
        expected.sort_unstable();
        assert_eq!(existing, expected);
    }
}

#[tokio::test]
async fn posts_of_a_deleted_account_are_rejected() {
    for topology in TOPOLOGIES {
        let system = System::start(topology).await;
        let posts = [imported(1, THEN, "of one who goes"), imported(2, THEN, "of one who stays")];
        assert_eq!(import(&system.client, &posts).await, [2, 0, 0]);
        forget(&system, 1).await;
        let more = [imported(1, THEN + 9, "more"), imported(2, THEN + 9, "more")];
        let all = [posts, more].concat();
        assert_eq!(import(&system.client, &all).await, [1, 1, 2]);
        system.settles().await;
        assert_eq!(import(&system.client, &all).await, [0, 2, 2]);
        let counts =
            [posts_of(&system.client, 1).await.len(), posts_of(&system.client, 2).await.len()];
        assert_eq!(counts, [0, 2]);
        assert_eq!([system.rows("posts").await, system.rows("texts").await], [2, 2]);
    }
}
