//! Deletion of an account's timelines.

use microblog_domain::{PostId, UserId};
use microblog_proto::timeline as pb;
use microblog_testkit::{Topology, redis::cmd};
use microblog_timeline::Entry;

use crate::support::{id, posts::WithPosts};

#[tokio::test]
async fn what_late_reads_and_deliveries_store_of_a_deleted_account_expires() {
    let (author, reader) = (id(1), id(10));
    let user = UserId::new(author).unwrap();
    // Without fan-out jobs.
    let system = WithPosts::start(Topology::Single, &["--mode=pull"]).await;
    system.system.follow(reader, author).await;
    let post = system.post(author).await;
    let late = system.publish(author).await;
    let request = pb::ForgetUserRequest { user_id: author };
    system.system.client.clone().forget_user(request).await.unwrap();

    // The follow and the posts are still there: their services end them later.
    assert_eq!(system.system.home(reader).await, [0; 0]);
    system.system.deliver(late).await;
    // As a read that had called the post service before.
    let post = PostId::new(post).unwrap();
    let entry = Entry { post, author: user, root: None, has_text: true };
    system.system.store.complete(&[user], &[entry], None).await.unwrap();

    let mut admin = system.system.redis.nodes()[0].admin().await;
    let key = format!("tl:{{{}}}:user:{author}", user.partition());
    let ttl: i64 = cmd("TTL").arg(key).query_async(&mut admin).await.unwrap();
    assert!(ttl > 0, "the user timeline expires: {ttl}");
}
