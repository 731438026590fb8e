//! Every read of an evicted or restored post answers as before the eviction.

use microblog_proto::post as pb;
use microblog_testkit::{Topology, redis::cmd};

use crate::{
    aging::{Aging, on_both},
    support::{self, System, archives::ArchiveServer, id, lists::List},
};

on_both! {
    every_read_answers_as_before_the_eviction
    tokens_from_before_an_eviction_stay_valid
    likes_with_equal_stamps_keep_their_order
}

const AUTHOR: u64 = id(1);
const OTHER: u64 = id(2);
const FAN: u64 = id(3);

/// What there is to read.
struct World {
    posts: Vec<u64>,
    authors: Vec<u64>,
}

/// The answers of all reads.
#[derive(Debug, PartialEq)]
struct Seen {
    posts: Vec<pb::Post>,
    batches: Vec<Vec<pb::Post>>,
    liked: Vec<Vec<u64>>,
    likers: Vec<Vec<pb::Like>>,
    comments: Vec<Vec<pb::Comment>>,
    reposts: Vec<Vec<pb::Post>>,
    lists: Vec<Vec<u64>>,
    of_authors: Vec<Vec<pb::Post>>,
}

/// Posts of several authors with likes, comments, replies and reposts.
async fn world(system: &System) -> World {
    let mut posts = Vec::new();
    for n in 0..6 {
        posts
            .push(system.create(AUTHOR, &format!("number {n} by @ada about #this")).await.unwrap());
    }
    let mut posts: Vec<_> = posts.iter().map(|post| post.id).collect();
    for (n, &post) in posts.clone().iter().enumerate().take(4) {
        for fan in 0..=n as u64 {
            system.like(id(3 + fan), post).await.unwrap();
        }
        let comment = system.comment(FAN, post, "well", 0).await.unwrap().id;
        let answer = system.comment(OTHER, post, "really?", comment).await.unwrap().id;
        system.comment(FAN, post, "yes", answer).await.unwrap();
        // The comment that a reply answers may be deleted.
        system.uncomment(OTHER, post, answer).await.unwrap();
        let repost = system.quote(OTHER, post, "look").await.unwrap().id;
        let again = system.repost(FAN, repost).await.unwrap().id;
        posts.extend([repost, again]);
    }
    World { posts, authors: vec![AUTHOR, OTHER, FAN] }
}

async fn see(system: &System, world: &World) -> Seen {
    let client = || system.client.clone();
    let mut seen = Seen {
        posts: Vec::new(),
        batches: Vec::new(),
        liked: Vec::new(),
        likers: Vec::new(),
        comments: Vec::new(),
        reposts: Vec::new(),
        lists: Vec::new(),
        of_authors: Vec::new(),
    };
    for viewer_id in [0, FAN, id(5)] {
        for &post in &world.posts {
            seen.posts.push(system.get(post, viewer_id).await.unwrap());
        }
        let mut post_ids = world.posts.clone();
        post_ids.reverse();
        post_ids.extend([world.posts[0], 4096]);
        let request = pb::BatchGetPostsRequest {
            post_ids: post_ids.clone(),
            viewer_id,
            ..Default::default()
        };
        seen.batches.push(client().batch_get_posts(request).await.unwrap().into_inner().posts);
        if viewer_id != 0 {
            let request = pb::BatchGetLikedRequest { user_id: viewer_id, post_ids };
            let liked = client().batch_get_liked(request).await.unwrap().into_inner().post_ids;
            seen.liked.push(liked);
        }
    }
    for &post_id in &world.posts {
        let (page_size, page_token) = (200, String::new());
        let request = pb::ListLikersRequest { post_id, page_size, page_token: page_token.clone() };
        seen.likers.push(client().list_likers(request).await.unwrap().into_inner().likes);
        for order in 0..=2 {
            let page_token = page_token.clone();
            let request = pb::ListCommentsRequest { post_id, order, page_size, page_token };
            let page = client().list_comments(request).await.unwrap().into_inner();
            let keys: Vec<_> = page.comments.iter().map(|it| (post_id, it.id)).collect();
            let batch = system.batch_comments(&keys, false).await.unwrap();
            assert_eq!(batch.comments, page.comments);
            for comment in &page.comments {
                let request = pb::GetCommentRequest { post_id, comment_id: comment.id };
                let one = client().get_comment(request).await.unwrap().into_inner().comment;
                assert_eq!(one.as_ref(), Some(comment));
            }
            seen.comments.push(page.comments);
        }
        let request = pb::ListRepostsRequest { post_id, viewer_id: FAN, page_size, page_token };
        seen.reposts.push(client().list_reposts(request).await.unwrap().into_inner().posts);
        for list in List::all_of(post_id, AUTHOR) {
            seen.lists.push(list.whole(&system.client, 2).await);
        }
    }
    for page_size in [1, 4, 200] {
        let authors = &world.authors;
        seen.of_authors.push(of_authors(system, authors, 0, page_size).await);
    }
    seen
}

/// Returns the posts of some authors below a cursor, read in pages of this size.
async fn of_authors(system: &System, authors: &[u64], below: u64, size: i32) -> Vec<pb::Post> {
    let (mut posts, mut before_id) = (Vec::new(), below);
    loop {
        let request = pb::ListAuthorsPostsRequest {
            author_ids: authors.to_vec(),
            viewer_id: FAN,
            page_size: size,
            before_id,
            ..Default::default()
        };
        let page = system.client.clone().list_authors_posts(request).await.unwrap().into_inner();
        posts.extend(page.posts);
        before_id = page.next_before_id;
        if before_id == 0 {
            return posts;
        }
    }
}

async fn every_read_answers_as_before_the_eviction(archives: &ArchiveServer) {
    // None or one of an author's posts stays in Redis.
    for hot_posts in [0, 1] {
        let aging = Aging::start(archives, hot_posts).await;
        let system = &aging.system;
        let world = world(system).await;
        let before = see(system, &world).await;
        assert_eq!(before.of_authors[2].len(), world.posts.len());
        let likes_its_root = |post: &pb::Post| post.root.as_ref().is_some_and(|root| root.liked);
        assert!(before.posts.iter().any(likes_its_root));

        let moved = aging.age(&world.authors).await;
        let evicted = (world.posts.len() - 3 * hot_posts) as u64;
        assert_eq!((moved.evictable, moved.evicted), (evicted, evicted));
        assert_eq!(see(system, &world).await, before, "{hot_posts} posts stay");
        aging.is_sound().await;

        // They are restored, and evicted again.
        for &post in &world.posts {
            assert!(aging.tiered().restore(support::post(post)).await.unwrap());
            assert!(!support::keys_of(system, post).await.is_empty(), "{post} is restored");
        }
        assert_eq!(
            see(system, &world).await,
            before,
            "{hot_posts} posts stay, the others are restored"
        );
        assert_eq!(aging.age(&world.authors).await.evicted, evicted);
        assert_eq!(see(system, &world).await, before, "evicted again");
        aging.is_sound().await;
    }
}

async fn tokens_from_before_an_eviction_stay_valid(archives: &ArchiveServer) {
    let aging = Aging::start(archives, 0).await;
    let system = &aging.system;
    let post = system.create(AUTHOR, "discuss").await.unwrap().id;
    for n in 0..7 {
        let comment = system.comment(id(20 + n), post, "well", 0).await.unwrap().id;
        system.comment(id(20 + n), post, "well?", comment).await.unwrap();
        system.like(id(20 + n), post).await.unwrap();
        system.repost(id(20 + n), post).await.unwrap();
        system.create(AUTHOR, "another one").await.unwrap();
    }
    let lists = List::all_of(post, AUTHOR);
    let mut whole = Vec::new();
    for list in lists {
        whole.push(list.whole(&system.client, 200).await);
        assert!(whole.last().unwrap().len() >= 7, "{list:?}");
    }
    let of_authors = of_authors(system, &[AUTHOR, id(20), id(21)], 0, 200).await;
    let of_authors: Vec<_> = of_authors.iter().map(|post| post.id).collect();
    assert_eq!(of_authors.len(), 10);

    // Alternates between a page of each list and an eviction or restore.
    let mut read = vec![(Vec::new(), String::new()); lists.len()];
    let mut below = Vec::new();
    loop {
        for (list, (ids, token)) in lists.into_iter().zip(&mut read) {
            if ids.is_empty() || !token.is_empty() {
                let (page, next) = list.page(&system.client, 2, token).await.unwrap();
                ids.extend(page);
                *token = next;
            }
        }
        below.push(below_all(system, &of_authors[..(2 * below.len()).min(9)]).await);
        if read.iter().all(|(_, token)| token.is_empty()) {
            break;
        }
        match below.len() % 2 {
            1 => aging.evict(&of_authors).await,
            _ => {
                assert!(aging.tiered().restore(support::post(post)).await.unwrap());
                assert!(!support::keys_of(system, post).await.is_empty());
            }
        }
    }
    assert!(below.len() >= 7);
    for (list, ((ids, _), whole)) in lists.into_iter().zip(read.iter().zip(&whole)) {
        assert_eq!(ids, whole, "{list:?}");
    }
    for (n, rest) in below.iter().enumerate() {
        assert_eq!(rest, &of_authors[(2 * n).min(9)..], "below {n}");
    }
}

async fn below_all(system: &System, seen: &[u64]) -> Vec<u64> {
    let below = seen.last().copied().unwrap_or_default();
    let rest = of_authors(system, &[AUTHOR, id(20), id(21)], below, 3).await;
    rest.iter().map(|post| post.id).collect()
}

async fn likes_with_equal_stamps_keep_their_order(archives: &ArchiveServer) {
    let system = System::start_without_jobs(Topology::Single).await;
    let post = system.create(AUTHOR, "liked by all at once").await.unwrap().id;
    let key = |kind: &str| format!("post:{{{}}}:{kind}:{post}", support::post(post).partition());
    let mut admin = system.redis.nodes()[0].admin().await;
    // Ids of four to eleven digits, whose order as numbers differs from that as text.
    let fans = [1, 2, 3, 20, 30, 250, 2_500, 24_000, 300_000, 2_400_000, 24_000_000].map(id);
    for (n, fan) in fans.into_iter().enumerate() {
        let moment = post + 4096 * (n as u64 / 4);
        cmd("ZADD").arg(key("likes")).arg(moment).arg(fan).exec_async(&mut admin).await.unwrap();
    }
    cmd("HSET").arg(key("post")).arg("l").arg(fans.len()).exec_async(&mut admin).await.unwrap();
    let list = List::Likers(post);
    let before = list.whole(&system.client, 200).await;
    assert_eq!(before.len(), fans.len());
    assert!(!before.is_sorted_by(|a, b| a > b), "their order is that of texts");
    let mut tokens = vec![String::new()];
    while let (_, next) = list.page(&system.client, 1, tokens.last().unwrap()).await.unwrap()
        && !next.is_empty()
    {
        tokens.push(next);
    }
    assert_eq!(tokens.len(), fans.len());

    let aging = Aging::start_after(system, archives, 0).await;
    aging.evict(&[post]).await;
    let system = &aging.system;
    for page_size in [1, 2, 3, 5, 200] {
        assert_eq!(list.whole(&system.client, page_size).await, before, "by {page_size}");
    }
    for (n, token) in tokens.iter().enumerate() {
        let rest = list.page(&system.client, 200, token).await.unwrap().0;
        assert_eq!(rest, before[n..], "behind {n}");
    }
    assert!(aging.tiered().restore(support::post(post)).await.unwrap());
    assert_eq!(list.whole(&system.client, 3).await, before, "restored");
    aging.is_sound_everywhere().await;
}
