//! Redis may vanish at any moment: nothing is lost, nothing is wrong, and no call fails.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use futures::future::{join, join_all};
use microblog_proto::post as pb;
use microblog_testkit::eventually;

use crate::support::{Client, PATIENCE, System, Topology, id, lists::List, request_id};

const TOPOLOGIES: [Topology; 2] = [Topology::Single, Topology::Cluster];

/// What a lane of calls has made: posts that are there, with their comments, and who likes them.
#[derive(Default)]
struct Lane {
    posts: Vec<u64>,
    comments: BTreeMap<u64, Vec<u64>>,
    likes: BTreeMap<u64, BTreeSet<u64>>,
    reposts: BTreeMap<u64, Vec<u64>>,
    deleted: Vec<u64>,
}

async fn get(client: &Client, post_id: u64, viewer_id: u64) -> Option<pb::Post> {
    let request = pb::GetPostRequest { post_id, viewer_id };
    match client.clone().get_post(request).await {
        Ok(answer) => answer.into_inner().post,
        Err(status) if status.code() == tonic::Code::NotFound => None,
        Err(status) => panic!("{status:?}"),
    }
}

impl Lane {
    /// Takes steps with an author and posts of its own, through two processes in turn, and compares what both
    /// answer with what it knows.
    async fn run(number: u64, clients: &[Client; 2], until: Instant) -> Self {
        let mut lane = Self::default();
        let author_id = id(1_000 + number);
        let mut round = 0;
        while Instant::now() < until || round == 0 {
            let [here, there] = [&clients[round % 2], &clients[(round + 1) % 2]];
            let (request_id, text) = (request_id(), format!("post {round}"));
            let create = pb::CreatePostRequest { author_id, request_id, text };
            let made = here.clone().create_post(create.clone()).await.unwrap().into_inner().post;
            let post = made.unwrap();
            let again = there.clone().create_post(create).await.unwrap().into_inner().post;
            assert_eq!(again.unwrap().id, post.id, "the same request");
            lane.posts.push(post.id);
            lane.react(post.id, number, here, there).await;
            for client in clients {
                lane.check(client, author_id).await;
            }
            if round % 4 == 3 {
                let gone = lane.posts.remove(lane.posts.len() / 2);
                let delete = pb::DeletePostRequest { author_id, post_id: gone };
                there.clone().delete_post(delete).await.unwrap();
                lane.deleted.push(gone);
                for client in clients {
                    assert_eq!(get(client, gone, 0).await, None, "it was deleted");
                    lane.check(client, author_id).await;
                }
            }
            round += 1;
        }
        lane
    }

    async fn react(&mut self, post_id: u64, number: u64, here: &Client, there: &Client) {
        for n in 0..3 {
            let user_id = id(2_000 + number * 10 + n);
            here.clone().like(pb::LikeRequest { user_id, post_id }).await.unwrap();
            self.likes.entry(post_id).or_default().insert(user_id);
            assert!(get(there, post_id, user_id).await.unwrap().liked);
        }
        let user_id = id(2_000 + number * 10);
        there.clone().unlike(pb::UnlikeRequest { user_id, post_id }).await.unwrap();
        self.likes.entry(post_id).or_default().remove(&user_id);
        assert!(!get(here, post_id, user_id).await.unwrap().liked);
        for n in 0..2 {
            let (author_id, request_id) = (id(3_000 + n), request_id());
            let (text, in_reply_to_id) = ("well".to_owned(), 0);
            let comment =
                pb::AddCommentRequest { author_id, request_id, post_id, text, in_reply_to_id };
            let made = there.clone().add_comment(comment).await.unwrap().into_inner().comment;
            self.comments.entry(post_id).or_default().push(made.unwrap().id);
        }
        let (author_id, text) = (id(4_000 + number), String::new());
        let repost = pb::RepostRequest { author_id, request_id: request_id(), post_id, text };
        let made = here.clone().repost(repost).await.unwrap().into_inner().post.unwrap();
        self.reposts.entry(post_id).or_default().insert(0, made.id);
    }

    /// Compares what a process answers about the newest posts.
    async fn check(&self, client: &Client, author_id: u64) {
        let newest: Vec<u64> = self.posts.iter().rev().take(20).copied().collect();
        let (listed, _) = List::UserPosts(author_id).page(client, 20, "").await.unwrap();
        assert_eq!(listed, newest);
        for &post in newest.iter().take(3) {
            let seen = get(client, post, 0).await.unwrap();
            let likes: Vec<u64> = self.likes[&post].iter().copied().collect();
            assert_eq!(seen.likes, likes.len() as u64);
            assert_eq!(seen.comments, self.comments[&post].len() as u64);
            assert_eq!(seen.reposts, self.reposts[&post].len() as u64);
            let mut likers = List::Likers(post).whole(client, 20).await;
            likers.sort_unstable();
            assert_eq!(likers, likes);
            assert_eq!(List::oldest(post).whole(client, 20).await, self.comments[&post]);
            assert_eq!(List::Reposts(post).whole(client, 20).await, self.reposts[&post]);
        }
    }
}

#[tokio::test]
async fn nothing_is_lost_and_no_call_fails_while_redis_is_emptied() {
    const RUN: Duration = Duration::from_secs(8);
    for topology in TOPOLOGIES {
        let system = System::start(topology).await;
        let clients = [system.client.clone(), system.another(&[]).await];
        let until = Instant::now() + RUN;
        let (is_over, mut over) = tokio::sync::oneshot::channel::<()>();
        let emptied = async {
            let mut times = 0;
            while over.try_recv().is_err() {
                system.flush().await;
                // In the longer ones, reads rely on the cache again.
                tokio::time::sleep(Duration::from_millis([200, 500, 900][times % 3])).await;
                times += 1;
            }
            times
        };
        let lanes = async {
            let lanes = join_all((0..6).map(|lane| Lane::run(lane, &clients, until))).await;
            is_over.send(()).unwrap();
            lanes
        };
        let (times, lanes) = join(emptied, lanes).await;
        assert!(times > 5, "{times}");
        system.settles().await;
        for (lane, number) in lanes.iter().zip(0..) {
            for client in &clients {
                let listed = List::UserPosts(id(1_000 + number)).whole(client, 200).await;
                assert_eq!(listed.into_iter().rev().collect::<Vec<_>>(), lane.posts);
            }
        }
        eventually("the cache fills again", PATIENCE, async || {
            List::UserPosts(id(1_000)).page(&clients[0], 20, "").await.unwrap();
            !system.keys("pst:*:author:*").await.is_empty()
        })
        .await;
    }
}

/// Any key may be evicted, alone.
#[tokio::test]
async fn nothing_is_wrong_while_single_keys_vanish() {
    for topology in TOPOLOGIES {
        let system = System::start(topology).await;
        let clients = [system.client.clone(), system.another(&[]).await];
        let until = Instant::now() + Duration::from_secs(4);
        let (is_over, mut over) = tokio::sync::oneshot::channel::<()>();
        let deleted = async {
            let mut deleted = 0;
            while over.try_recv().is_err() {
                for node in system.redis.nodes() {
                    let mut admin = node.admin().await;
                    let key = microblog_testkit::redis::cmd("RANDOMKEY");
                    let key: Option<String> = key.query_async(&mut admin).await.unwrap();
                    // Without its mark, nothing of a primary is cached for a while.
                    let is_chosen = |key: &String| {
                        key.starts_with("pst:") && (!key.ends_with(":mark") || deleted % 50 == 49)
                    };
                    if let Some(key) = key.filter(is_chosen) {
                        let delete = microblog_testkit::redis::cmd("DEL").arg(key).take();
                        delete.exec_async(&mut admin).await.unwrap();
                        deleted += 1;
                    }
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            deleted
        };
        let lanes = async {
            let lanes = join_all((0..4).map(|lane| Lane::run(lane, &clients, until))).await;
            is_over.send(()).unwrap();
            lanes
        };
        let (deleted, lanes) = join(deleted, lanes).await;
        assert!(deleted > 100, "{deleted}");
        assert!(lanes.iter().all(|lane| !lane.posts.is_empty()));
        system.settles().await;
    }
}

/// The database answers, and calls go on.
#[tokio::test]
async fn calls_go_on_while_redis_does_not_answer() {
    for topology in TOPOLOGIES {
        let system = System::start(topology).await;
        let post = system.create(id(1), "before").await.unwrap().id;
        for node in system.redis.nodes() {
            node.pause();
        }
        let clients = [system.client.clone(), system.client.clone()];
        let lane = Lane::run(1, &clients, Instant::now()).await;
        assert!(get(&system.client, post, id(2)).await.is_some());
        for node in system.redis.nodes() {
            node.resume();
        }
        lane.check(&system.client, id(1_001)).await;
        system.settles().await;
    }
}

/// A hot post: exact counts from every process, and the cache answers most reads.
#[tokio::test]
async fn a_hot_post_is_counted_exactly() {
    let system = System::start(Topology::Cluster).await;
    let clients = system.four_clients().await;
    let post_id = system.create(id(1), "hot").await.unwrap().id;
    let like = |n: u64| {
        let mut client = clients[n as usize % clients.len()].clone();
        let user_id = id(10 + n);
        async move { client.like(pb::LikeRequest { user_id, post_id }).await.unwrap() }
    };
    for round in 0..4 {
        let answers = join_all((round * 200..(round + 1) * 200).map(like)).await;
        let mut counts: Vec<_> = answers.iter().map(|answer| answer.get_ref().likes).collect();
        counts.sort_unstable();
        let expected: Vec<u64> = (round * 200 + 1..=(round + 1) * 200).collect();
        assert_eq!(counts, expected, "each like has its own count");
        for client in &clients {
            assert_eq!(get(client, post_id, 0).await.unwrap().likes, (round + 1) * 200);
        }
    }
    let likers = List::Likers(post_id).whole(&clients[3], 7).await;
    assert_eq!(likers.iter().collect::<BTreeSet<_>>().len(), 800);
    assert_eq!(likers.len(), 800, "each once");
    system.settles().await;
}
