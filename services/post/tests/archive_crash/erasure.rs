//! A process that is killed again and again erases an account with posts in both tiers.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use microblog_domain::Partition;
use microblog_post::{Archive, Evictor, Store, recorder};
use microblog_proto::post as pb;
use microblog_testkit::eventually;
use tonic::Code;

use crate::{
    Deployed, account,
    support::{
        PATIENCE,
        archives::{Kind, connect, numbers},
        client,
        lists::List,
        request_id, settles,
    },
};

const POSTS: usize = 450;
const GONE: u64 = account(4);
const OTHER: u64 = account(5);

async fn a_deleted_account_leaves_nothing(kind: Kind) {
    let deployed = Deployed::new(kind).await;
    let process = deployed.start().await;
    let client = client(&process.address());
    let config = deployed.config(&["--hot-posts=5", "--warm-window=0s"]);
    let store = Store::open(&config).unwrap();
    let archive = Archive::open(&config.database).unwrap().unwrap();
    let recorder = Arc::new(recorder(&store, &archive, &config.archive));
    // The process migrates as well, and SQLite lets one of them fail.
    eventually("the tables exist", PATIENCE, async || recorder.run().await.is_ok()).await;

    let create = |author_id| {
        let (request_id, text) = (request_id(), "secret".to_owned());
        let request = pb::CreatePostRequest { author_id, request_id, text };
        let mut client = client.clone();
        async move { Ok::<_, tonic::Status>(client.create_post(request).await?.into_inner()) }
    };
    let made: Vec<_> =
        stream::iter((0..POSTS).map(|_| create(GONE))).buffered(8).try_collect().await.unwrap();
    let oldest = made[0].post.as_ref().unwrap().id;
    let request = pb::RepostRequest {
        author_id: OTHER,
        request_id: request_id(),
        post_id: oldest,
        text: "look".to_owned(),
    };
    let repost = client.clone().repost(request).await.unwrap().into_inner().post.unwrap().id;
    // Its likes and comments on posts of another account, which are in both tiers as well.
    let mut others = Vec::new();
    for _ in 0..20 {
        let post = create(OTHER).await.unwrap().post.unwrap().id;
        client.clone().like(pb::LikeRequest { user_id: GONE, post_id: post }).await.unwrap();
        let request = pb::AddCommentRequest {
            author_id: GONE,
            request_id: request_id(),
            post_id: post,
            text: "secret".to_owned(),
            in_reply_to_id: 0,
        };
        client.clone().add_comment(request).await.unwrap();
        others.push(post);
    }
    recorder.run().await.unwrap();
    let evictor = Evictor::new(store.clone(), archive, recorder.clone(), &config.archive);
    evictor.partition(Partition::of_id(GONE)).await.unwrap();
    evictor.partition(Partition::of_id(OTHER)).await.unwrap();
    let url = deployed.archives.url();
    let left = async |what: &str| numbers(&mut connect(&url).await, what).await[0][0];
    let secrets = "SELECT COUNT(*) FROM posts WHERE text = 'secret'";
    assert_eq!(left(secrets).await, (POSTS + others.len()) as i64);

    client.clone().forget_user(pb::ForgetUserRequest { user_id: GONE }).await.unwrap();
    let mut process = process;
    // Some kills during the deletion of posts, and some during the erasure.
    for milliseconds in [30, 600, 1_100, 1_300, 5_500, 700, 1_500] {
        tokio::time::sleep(Duration::from_millis(milliseconds)).await;
        process.kill9();
        process = deployed.start().await;
    }
    // The leases of a killed process last for some seconds.
    eventually("the account is erased", 6 * PATIENCE, async || {
        let account_is_erased = store.forgetting().await.unwrap().is_empty();
        account_is_erased && recorder.run().await.is_ok()
    })
    .await;
    settles(&client).await;
    assert_eq!(List::UserPosts(GONE).whole(&client, 100).await, Vec::<u64>::new());
    let get = async |post_id| {
        let request = pb::GetPostRequest { post_id, viewer_id: 0 };
        client.clone().get_post(request).await.map(|answer| answer.into_inner().post.unwrap())
    };
    assert_eq!(get(oldest).await.unwrap_err().code(), Code::NotFound);
    let repost = get(repost).await.unwrap();
    assert!(repost.root_deleted && repost.text == "look");
    assert_eq!(left(secrets).await, others.len() as i64);
    assert_eq!(left("SELECT COUNT(*) FROM comments WHERE text <> ''").await, 0);
    assert_eq!(left("SELECT COUNT(*) FROM likes WHERE ended = 0").await, 0);
    for post in others {
        let post = get(post).await.unwrap();
        assert_eq!((post.likes, post.comments), (0, 0));
    }
    drop(process);
}

#[tokio::test]
async fn a_deleted_account_leaves_nothing_in_postgres() {
    a_deleted_account_leaves_nothing(Kind::Postgres).await;
}

#[tokio::test]
async fn a_deleted_account_leaves_nothing_in_sqlite() {
    a_deleted_account_leaves_nothing(Kind::Sqlite).await;
}
