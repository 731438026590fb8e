//! The cost of calls: the statements and the Redis commands that a service sends, whatever the number of
//! likes.

use microblog_proto::post as pb;
use microblog_testkit::{ADMIN, PostgresServer, RedisServer, Sent, SentMeter, Store};

use crate::support::{Client, Database, PATIENCE, System, id, lists::List, request_id};

/// Notes what one service sends. Another one has the background jobs, and another Redis user.
struct Meter {
    system: System,
    client: Client,
    sent: SentMeter,
}

impl Meter {
    async fn start() -> Self {
        let redis = RedisServer::start().await;
        let database = PostgresServer::start_with(&SentMeter::SETTINGS).await;
        let (url, counted) = (redis.url("post"), SentMeter::database_url(&database));
        let (admin_url, sent) = (redis.url(ADMIN), SentMeter::start(&redis, "post").await);
        let (redis, database) = (Store::Single(redis), Database::Postgres(database));
        let system = System::start_as(&admin_url, redis, database, &[]).await;
        let client = system.another_at(&url, &counted, &[]).await;
        Self { system, client, sent }
    }

    async fn sent(&mut self, call: impl AsyncFnOnce(&Client)) -> Sent {
        let Database::Postgres(database) = &self.system.database else { unreachable!() };
        self.sent.sent(&self.system.redis.nodes()[0], database, call(&self.client)).await
    }

    /// Asserts what a call costs, as soon as nothing of before adds to it. The other service prepares each
    /// call.
    async fn costs<T>(
        &mut self,
        what: &str,
        [statements, commands]: [&[&str]; 2],
        prepare: impl AsyncFn(&System) -> T,
        call: impl AsyncFn(&Client, T),
    ) {
        let expected = Sent::new(statements, commands);
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let prepared = prepare(&self.system).await;
            let sent = self.sent(async |client| call(client, prepared).await).await;
            if sent == expected {
                return;
            }
            assert!(tokio::time::Instant::now() < deadline, "{what}: {sent:#?}, not {expected:#?}");
        }
    }
}

/// What a transaction begins with: as one statement, if it needs the row of an account.
const HISTORY: &str = "SELECT history";
const ACCOUNT: &str = "INSERT accounts + SELECT history";

/// What a transaction ends with, in one message.
const APPEND: &str = "append to the feed and COMMIT";

/// Likes a post so many times, by accounts of its own.
async fn add_likes(system: &System, post: u64, likes: u64) {
    let stamp = |n: u64| 1_700_000_000_000 + n;
    let row = |n: u64| format!("({}, {post}, {})", id(1_000_000 + n), stamp(n));
    for from in (0..likes).step_by(10_000) {
        let rows: Vec<_> = (from..likes.min(from + 10_000)).map(row).collect();
        let rows = rows.join(", ");
        system.execute(&format!("INSERT INTO likes (account, post, since) VALUES {rows}")).await;
    }
    system.execute(&format!("UPDATE posts SET likes = {likes} WHERE id = {post}")).await;
    system.flush().await;
    system.caches().await;
}

#[tokio::test]
async fn calls_that_write_cost_so_many_statements_and_commands() {
    let mut meter = Meter::start().await;
    let author = id(1);
    let nothing = async |_: &System| {};
    let publish = [
        ACCOUNT,
        "SELECT accounts",
        "SELECT requests",
        "INSERT posts + INSERT texts + INSERT undelivered + INSERT requests + UPDATE accounts",
        APPEND,
    ];
    meter
        .costs("a post", [&publish, &["lease", "apply", "install"]], nothing, async |client, ()| {
            let request = pb::CreatePostRequest {
                author_id: author,
                request_id: request_id(),
                text: "here".to_owned(),
            };
            client.clone().create_post(request).await.unwrap();
        })
        .await;
    let post = async |system: &System| system.create(author, "like me").await.unwrap().id;
    let repost = [
        ACCOUNT,
        "SELECT accounts",
        "SELECT posts",
        "SELECT posts",
        "SELECT requests",
        "INSERT posts + INSERT texts + INSERT undelivered + UPDATE posts + INSERT reposts \
         + INSERT requests + UPDATE accounts",
        APPEND,
    ];
    // The answer has the reposted post.
    let commands = ["lease", "apply", "apply", "apply", "install", "HMGET", "GET", "GET"];
    meter
        .costs("a repost", [&repost, &commands], post, async |client, post_id| {
            let request = pb::RepostRequest {
                author_id: id(2),
                request_id: request_id(),
                post_id,
                text: String::new(),
            };
            client.clone().repost(request).await.unwrap();
        })
        .await;
    let comment = [
        ACCOUNT,
        "SELECT accounts",
        "SELECT posts",
        "SELECT requests",
        "UPDATE posts + INSERT comments + INSERT requests",
        APPEND,
    ];
    meter
        .costs("a comment", [&comment, &["apply", "apply"]], post, async |client, post_id| {
            let request = pb::AddCommentRequest {
                author_id: id(3),
                request_id: request_id(),
                post_id,
                text: "so".to_owned(),
                in_reply_to_id: 0,
            };
            client.clone().add_comment(request).await.unwrap();
        })
        .await;
    for likes in [0, 100_000] {
        let liked = post(&meter.system).await;
        add_likes(&meter.system, liked, likes).await;
        let fan = async |system: &System| {
            assert!(system.unlike(id(4), liked).await.unwrap() <= likes);
        };
        let like = [
            ACCOUNT,
            "SELECT accounts",
            "SELECT posts",
            "SELECT likes",
            "UPDATE posts + INSERT likes + UPDATE accounts",
            APPEND,
        ];
        let what = format!("a like of a post with {likes}");
        let call = async |client: &Client, ()| {
            let request = pb::LikeRequest { user_id: id(4), post_id: liked };
            client.clone().like(request).await.unwrap();
        };
        meter.costs(&what, [&like, &["apply"; 2]], fan, call).await;
        let again = [ACCOUNT, "SELECT accounts", "SELECT posts", "SELECT likes"];
        meter.costs("a repeated like", [&again, &["apply"; 2]], nothing, call).await;
        let liking = async |system: &System| {
            system.like(id(4), liked).await.unwrap();
        };
        let unlike = [
            HISTORY,
            "SELECT accounts",
            "SELECT posts",
            "SELECT likes",
            "DELETE likes",
            "UPDATE posts + UPDATE accounts",
            APPEND,
        ];
        meter
            .costs("its end", [&unlike, &["apply"; 2]], liking, async |client, ()| {
                let request = pb::UnlikeRequest { user_id: id(4), post_id: liked };
                client.clone().unlike(request).await.unwrap();
            })
            .await;
    }
}

#[tokio::test]
async fn reads_of_what_is_cached_cost_no_statement() {
    let mut meter = Meter::start().await;
    let (author, viewer) = (id(1), id(2));
    let mut posts = Vec::new();
    for n in 0..20 {
        let post = meter.system.create(author, &format!("post {n}")).await.unwrap().id;
        posts.push(post);
        meter.system.like(id(50 + n), post).await.unwrap();
    }
    meter.system.like(viewer, posts[7]).await.unwrap();
    let nothing = async |_: &System| {};
    let page = async |client: &Client, ()| {
        let request = pb::BatchGetPostsRequest {
            post_ids: posts.clone(),
            viewer_id: viewer,
            ..Default::default()
        };
        let found = client.clone().batch_get_posts(request).await.unwrap().into_inner();
        let liked: Vec<_> = found.posts.iter().filter(|post| post.liked).collect();
        assert_eq!((found.posts.len(), liked.len(), liked[0].id), (20, 1, posts[7]));
    };
    // The posts are kept in the process; the likes of the viewer are one entry.
    let commands = ["PING", "HMGET", "GET"];
    meter.costs("a page of a viewer", [&[], &commands], nothing, page).await;
    let list = async |client: &Client, list: List| {
        let (found, _) = list.page(client, 10, "").await.unwrap();
        assert!(!found.is_empty());
    };
    for (what, wanted, commands) in [
        ("likers", List::Likers(posts[7]), &["PING"][..]),
        ("comments", List::oldest(posts[7]), &["HMGET", "GET"]),
        ("an author's posts", List::UserPosts(author), &["HMGET", "GET", "PING"]),
    ] {
        if what == "comments" {
            meter.system.comment(author, posts[7], "so", 0).await.unwrap();
        }
        meter
            .costs(
                what,
                [&[], commands],
                async |_| wanted,
                async |client, wanted| {
                    list(client, wanted).await;
                },
            )
            .await;
    }
}
