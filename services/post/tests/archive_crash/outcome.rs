//! The final state: what the callers expect, and nothing else.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

use futures::{StreamExt as _, stream};
use microblog_domain::Partition;
use microblog_post::{Archive, Config, Evictor, Store, recorder};
use microblog_proto::post as pb;
use microblog_testkit::eventually;

use crate::{
    PARTITIONS,
    load::{Known, Load},
    support::{Client, PATIENCE, lists::List, settles, timelines::Timelines},
};

/// Asserts the final state, then evicts all that can be evicted, and asserts it again.
pub(crate) async fn is_right(client: &Client, load: &Load, config: &Config, heard: &Timelines) {
    let known = load.posts.lock().unwrap().clone();
    let gone = load.gone.lock().unwrap().clone();
    assert!(known.len() > 150 && gone.len() > 10, "{} made, {} deleted", known.len(), gone.len());
    let store = Store::open(config).unwrap();
    let archive = Archive::open(&config.database).unwrap().unwrap();
    let recorder = Arc::new(recorder(&store, &archive, &config.archive));
    eventually("all is recorded", 2 * PATIENCE, async || recorder.run().await.is_ok()).await;
    settles(client).await;
    all_is_there(client, &known, &gone).await;

    let evictor = Evictor::new(store, archive, recorder, &config.archive);
    let mut evicted = 0;
    for partition in (0..PARTITIONS).map(Partition::new) {
        evicted += evictor.partition(partition).await.unwrap().evicted;
    }
    assert!(evicted > 0, "the newest of each author");
    all_is_there(client, &known, &gone).await;
    settles(client).await;
    let heard: HashSet<_> = heard.deliveries().iter().map(|heard| heard.post_id).collect();
    assert!(known.keys().all(|post| heard.contains(post)), "the timelines miss some");
}

async fn all_is_there(client: &Client, known: &BTreeMap<u64, Known>, gone: &[u64]) {
    let mut authors: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for (&id, known) in known {
        authors.entry(known.author).or_default().insert(0, id);
    }
    for (author, posts) in authors {
        assert_eq!(List::UserPosts(author).whole(client, 150).await, posts, "of {author}");
    }
    let checks = known.iter().map(|(&id, known)| is_as_known(client, id, known));
    stream::iter(checks).buffer_unordered(8).collect::<Vec<()>>().await;
    for post_ids in gone.chunks(500) {
        let request = pb::BatchGetPostsRequest {
            post_ids: post_ids.to_vec(),
            viewer_id: 0,
            ..Default::default()
        };
        let found = client.clone().batch_get_posts(request).await.unwrap().into_inner().posts;
        assert_eq!(found, []);
    }
}

async fn is_as_known(client: &Client, post_id: u64, known: &Known) {
    let request = pb::GetPostRequest { post_id, viewer_id: 0 };
    let post = client.clone().get_post(request).await.unwrap().into_inner().post.unwrap();
    assert_eq!((post.author_id, &post.text), (known.author, &known.text));
    assert_eq!([post.root_id, post.reposted_id], known.origin);
    let counts = [post.likes, post.comments, post.reposts];
    let known_counts = [known.likes.len(), known.comments.len(), known.reposts.len()];
    assert_eq!(counts, known_counts.map(|count| count as u64), "counts of {post_id}");
    let set = |ids: Vec<u64>| ids.into_iter().collect::<BTreeSet<u64>>();
    let likers = List::Likers(post_id).whole(client, 100).await;
    assert_eq!(set(likers), known.likes, "likers of {post_id}");
    let reposts = List::Reposts(post_id).whole(client, 100).await;
    assert_eq!(set(reposts), known.reposts, "reposts of {post_id}");
    let comments = List::oldest(post_id).whole(client, 100).await;
    let known: Vec<_> = known.comments.keys().copied().collect();
    assert_eq!(comments, known, "comments on {post_id}");
}
