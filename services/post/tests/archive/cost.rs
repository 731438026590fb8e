//! The cost of an archive for hot posts: one journal entry for each change.

use std::collections::BTreeMap;

use microblog_proto::post as pb;
use microblog_testkit::Topology;

use crate::{
    aging::{Aging, on_both},
    support::{System, archives::ArchiveServer, id, lists::List},
};

on_both! {
    a_new_post_costs_a_journal_entry
    hot_posts_cost_the_same_as_without_an_archive
}

const TIMES: u64 = 10;
const AUTHOR: u64 = id(1);

/// Returns how often each command runs in Redis for a repeated call.
async fn cost(system: &System, mut call: impl AsyncFnMut(u64)) -> BTreeMap<String, u64> {
    // The first call may load something.
    call(TIMES).await;
    let redis = &system.redis.nodes()[0];
    redis.reset_commandstats().await;
    for n in 0..TIMES {
        call(n).await;
    }
    let mut commands: BTreeMap<_, _> = redis.commandstats().await.into_iter().collect();
    commands.values_mut().for_each(|calls| *calls /= TIMES);
    // Without those of the measurement, and of the readiness probe.
    commands.retain(|_, calls| *calls > 0);
    commands
}

async fn a_new_post_costs_a_journal_entry(archives: &ArchiveServer) {
    let without = System::start_without_jobs(Topology::Single).await;
    let aging = Aging::start(archives, 0).await;
    let create = async |system: &System| {
        cost(system, async |_| drop(system.create(AUTHOR, "a post").await.unwrap())).await
    };
    let (mut without, mut with) = (create(&without).await, create(&aging.system).await);
    // The entry tells that the journal lacks nothing. That there is no journal must be read.
    assert_eq!(with.remove("xadd"), Some(1));
    assert_eq!(without.remove("xrevrange"), Some(1));
    assert_eq!(with, without);
}

async fn hot_posts_cost_the_same_as_without_an_archive(archives: &ArchiveServer) {
    let without = System::start_without_jobs(Topology::Single).await;
    let aging = Aging::start(archives, 40).await;
    let mut costs = Vec::new();
    for system in [&without, &aging.system] {
        let mut posts = Vec::new();
        for n in 0..60 {
            posts.push(system.create(AUTHOR, &format!("number {n}")).await.unwrap().id);
        }
        if system.redis.nodes()[0].port() == aging.system.redis.nodes()[0].port() {
            aging.evict(&posts[..20]).await;
        }
        let post_ids = posts.split_off(30);
        let (post, client) = (post_ids[3], || system.client.clone());
        let repost = system.repost(id(2), post).await.unwrap().id;
        system.like(id(2), post).await.unwrap();
        let comment = system.comment(id(2), post, "well", 0).await.unwrap().id;
        costs.push([
            cost(system, async |_| {
                let page = List::UserPosts(AUTHOR).page(&system.client, 20, "").await.unwrap();
                assert_eq!(page.0.len(), 20);
            })
            .await,
            cost(system, async |_| {
                let post_ids = post_ids.clone();
                let request =
                    pb::BatchGetPostsRequest { post_ids, viewer_id: id(2), ..Default::default() };
                let found = client().batch_get_posts(request).await.unwrap().into_inner().posts;
                assert_eq!(found.len(), 30);
            })
            .await,
            cost(system, async |_| {
                let request = pb::ListAuthorsPostsRequest {
                    author_ids: vec![AUTHOR, id(2)],
                    page_size: 20,
                    ..Default::default()
                };
                let page = client().list_authors_posts(request).await.unwrap().into_inner();
                assert_eq!(page.posts.len(), 20);
            })
            .await,
            cost(system, async |_| {
                let request =
                    pb::BatchGetLikedRequest { user_id: id(2), post_ids: post_ids.clone() };
                let liked = client().batch_get_liked(request).await.unwrap().into_inner().post_ids;
                assert_eq!(liked, [post]);
            })
            .await,
            cost(system, async |_| drop(system.get(repost, id(2)).await.unwrap())).await,
            cost(system, async |n| assert!(system.like(id(10 + n), post).await.unwrap() > 1)).await,
            cost(system, async |n| assert!(system.unlike(id(10 + n), post).await.unwrap() > 0))
                .await,
            cost(system, async |_| {
                let page = List::Likers(post).page(&system.client, 20, "").await.unwrap();
                assert_eq!(page.0, [id(2)]);
            })
            .await,
            cost(system, async |_| {
                let found = system.batch_comments(&[(post, comment)], false).await.unwrap();
                assert_eq!(found.comments.len(), 1);
            })
            .await,
        ]);
    }
    // A like and its end have an entry each.
    let [without, with] = &mut costs[..] else { unreachable!() };
    for (without, with) in without.iter_mut().zip(with).skip(5).take(2) {
        assert_eq!(with.remove("xadd"), Some(1));
        assert_eq!(without.remove("xrevrange"), Some(1));
    }
    assert_eq!(costs[1], costs[0]);
}
