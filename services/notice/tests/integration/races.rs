//! Notices against a model: accounts act at random, while services are ended at random.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;
use microblog_proto::notice::NoticeKind;
use microblog_testkit::Topology;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::time::{Duration, sleep};

use crate::support::{Shown, System, id};

const ACCOUNTS: u64 = 6;
const ACTS: usize = 60;

/// What an account does, and what of it is left.
#[derive(Default)]
struct Acts {
    follows: BTreeSet<u64>,
    likes: BTreeSet<u64>,
    /// The reposted post of each repost.
    reposts: BTreeMap<u64, u64>,
    /// The post of each comment.
    comments: BTreeMap<u64, u64>,
}

async fn act(system: &System, actor: u64, posts: &[u64], seed: u64) -> Acts {
    let (mut random, mut acts) = (StdRng::seed_from_u64(seed), Acts::default());
    for _ in 0..ACTS {
        let post = posts[random.random_range(0..posts.len())];
        let target = id(random.random_range(0..ACCOUNTS));
        match random.random_range(0..10) {
            0 | 1 if target != actor => {
                system.follow(actor, target).await;
                acts.follows.insert(target);
            }
            2 if target != actor => {
                system.unfollow(actor, target).await;
                acts.follows.remove(&target);
            }
            3..=5 => {
                system.like(actor, post).await;
                acts.likes.insert(post);
            }
            6 | 7 => {
                system.unlike(actor, post).await;
                acts.likes.remove(&post);
            }
            8 => {
                acts.comments.insert(system.comment(actor, post, 0, "hi").await, post);
            }
            _ => {
                let newest = acts.reposts.last_key_value().map(|(&repost, _)| repost);
                if let Some(repost) = newest.filter(|_| random.random()) {
                    system.delete_post(actor, repost).await;
                    acts.reposts.remove(&repost);
                } else {
                    acts.reposts.insert(system.repost(actor, post).await, post);
                }
            }
        }
    }
    acts
}

/// A notice without its order: kind, post, comment, and its accounts.
type Unordered = BTreeMap<(NoticeKind, u64, u64), Vec<u64>>;

fn unordered(notices: Vec<Shown>) -> Unordered {
    let mut found = Unordered::new();
    for (kind, mut actors, earlier, post, comment) in notices {
        assert_eq!(earlier, 0);
        actors.sort_unstable();
        // Which of two follows came first may differ from their versions.
        let kind = if kind == NoticeKind::Mutual { NoticeKind::Follow } else { kind };
        found.entry((kind, post, comment)).or_default().extend(actors);
    }
    found.values_mut().for_each(|actors| actors.sort_unstable());
    found
}

fn expected(all: &[(u64, Acts)], user: u64, own: &[u64]) -> Unordered {
    let mut expected = Unordered::new();
    for (actor, acts) in all.iter().filter(|(actor, _)| *actor != user) {
        let mut add = |kind, post, comment| {
            expected.entry((kind, post, comment)).or_default().push(*actor);
        };
        if acts.follows.contains(&user) {
            add(NoticeKind::Follow, 0, 0);
        }
        acts.likes.iter().filter(|post| own.contains(post)).for_each(|&post| {
            add(NoticeKind::Like, post, 0);
        });
        acts.reposts.values().filter(|post| own.contains(post)).for_each(|&post| {
            add(NoticeKind::Repost, post, 0);
        });
        acts.comments.iter().filter(|(_, post)| own.contains(post)).for_each(
            |(&comment, &post)| {
                add(NoticeKind::Comment, post, comment);
            },
        );
    }
    expected.values_mut().for_each(|actors| actors.sort_unstable());
    expected
}

/// Ends the service at random moments, and starts it again.
async fn end_at_random(system: &System, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    loop {
        let (_, replica) = system.replica().await;
        sleep(Duration::from_millis(random.random_range(1..400))).await;
        replica.abort();
        let _ = replica.await;
        system.release_leases().await;
    }
}

const TOKENS: &str = "SELECT token FROM positions ORDER BY feed";

async fn notices_agree(topology: Topology, seed: u64) {
    let mut system = System::start(topology).await;
    let accounts: Vec<_> = (0..ACCOUNTS).map(id).collect();
    let mut posts = Vec::new();
    for n in 0..ACCOUNTS {
        posts.push(system.publish(id(n), "post").await);
    }
    let begun = [system.positions().await, system.numbers(TOKENS).await];
    system.stop().await;
    let acting = (0..ACCOUNTS).map(|n| act(&system, id(n), &posts, seed + n));
    let all = tokio::select! {
        acts = join_all(acting) => (0..ACCOUNTS).map(id).zip(acts).collect::<Vec<_>>(),
        () = end_at_random(&system, seed) => unreachable!("it has no end"),
    };
    system.restart().await;
    system.settle(&accounts).await;
    system.verifies().await;
    let mut found = Vec::new();
    for n in 0..ACCOUNTS {
        let shown = system.shown(id(n)).await;
        assert_eq!(unordered(shown), expected(&all, id(n), &[posts[n as usize]]), "seed {seed}");
        found.push(system.page(id(n), &[], false).await);
    }
    // Everything again has no effect.
    system.stop().await;
    let [sequences, tokens] = begun;
    for (feed, (sequence, token)) in
        ["post", "relation", "user"].iter().zip(sequences.iter().zip(tokens))
    {
        let set = format!("sequence = {sequence}, token = {token}, applied = 0");
        system.execute(&format!("UPDATE positions SET {set} WHERE feed = '{feed}'")).await;
    }
    system.restart().await;
    system.settle(&accounts).await;
    for (n, found) in (0..).zip(found) {
        assert_eq!(system.page(id(n), &[], false).await, found, "seed {seed}");
    }
}

#[tokio::test]
async fn notices_agree_with_a_model() {
    notices_agree(Topology::Single, rand::random()).await;
}

#[tokio::test]
async fn notices_agree_with_a_model_on_a_cluster() {
    notices_agree(Topology::Cluster, rand::random()).await;
}
