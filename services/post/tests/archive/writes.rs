//! Every write on an evicted post has the same result as in Redis.

use microblog_proto::{common::ErrorReason, post as pb};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::{
    aging::{Aging, on_both},
    support::{
        self, System,
        archives::{ArchiveServer, connect, execute},
        assert_rejected, id,
        lists::List,
        request_id, user,
    },
};

on_both! {
    likes_and_unlikes_of_an_evicted_post
    comments_are_added_to_and_deleted_from_an_evicted_post
    reposts_of_evicted_posts_are_made_and_deleted
    a_repeated_request_returns_the_evicted_post
    posts_from_before_the_archive_are_evicted
    a_call_that_changes_nothing_restores_no_post
    restores_are_rate_limited_per_account
    a_post_whose_row_is_lost_stays_in_redis
    a_deleted_repost_postpones_the_eviction_while_updates_may_be_in_flight
}

const AUTHOR: u64 = id(1);
const OTHER: u64 = id(2);
const FAN: u64 = id(3);

async fn like(system: &System, user_id: u64, post_id: u64) -> (pb::Like, u64) {
    let request = pb::LikeRequest { user_id, post_id };
    let answer = system.client.clone().like(request).await.unwrap().into_inner();
    (answer.like.unwrap(), answer.likes)
}

async fn likes_and_unlikes_of_an_evicted_post(archives: &ArchiveServer) {
    let aging = Aging::start(archives, 0).await;
    let system = &aging.system;
    let post = system.create(AUTHOR, "like me").await.unwrap().id;
    let (first, likes) = like(system, FAN, post).await;
    assert_eq!(likes, 1);
    aging.evict(&[post]).await;
    assert_eq!(like(system, FAN, post).await, (first, 1), "it keeps the first time");
    aging.evict(&[post]).await;
    assert_eq!(system.like(OTHER, post).await.unwrap(), 2);
    aging.evict(&[post]).await;
    assert_eq!(List::Likers(post).whole(&system.client, 1).await, [OTHER, FAN]);
    assert_eq!(system.unlike(id(9), post).await.unwrap(), 2, "unlike without a like");
    aging.evict(&[post]).await;
    assert_eq!(system.unlike(OTHER, post).await.unwrap(), 1);
    aging.evict(&[post]).await;
    assert_eq!(system.get(post, OTHER).await.unwrap().likes, 1);
    assert!(!system.get(post, OTHER).await.unwrap().liked);
    assert!(system.get(post, FAN).await.unwrap().liked);
    assert_eq!(like(system, FAN, post).await, (first, 1));
    assert_eq!(system.unlike(FAN, post).await.unwrap(), 0);
    aging.evict(&[post]).await;
    assert_eq!(List::Likers(post).whole(&system.client, 1).await, Vec::<u64>::new());
    aging.is_sound().await;
}

async fn comment(
    system: &System,
    (author_id, post_id): (u64, u64),
    request: &str,
    in_reply_to_id: u64,
) -> Result<pb::Comment, Status> {
    let (request_id, text) = (request.to_owned(), "well".to_owned());
    let request = pb::AddCommentRequest { author_id, request_id, post_id, text, in_reply_to_id };
    Ok(system.client.clone().add_comment(request).await?.into_inner().comment.unwrap())
}

async fn comments_are_added_to_and_deleted_from_an_evicted_post(archives: &ArchiveServer) {
    let aging = Aging::start(archives, 0).await;
    let system = &aging.system;
    let post = system.create(AUTHOR, "discuss").await.unwrap().id;
    let [first, second, third] = [request_id(), request_id(), request_id()];
    let by_fan = comment(system, (FAN, post), &first, 0).await.unwrap();
    aging.evict(&[post]).await;
    let answer = comment(system, (OTHER, post), &second, by_fan.id).await.unwrap();
    assert_eq!((answer.in_reply_to_id, answer.in_reply_to_author_id), (by_fan.id, FAN));
    aging.evict(&[post]).await;
    assert_eq!(comment(system, (FAN, post), &first, 0).await.unwrap(), by_fan, "repeated");
    aging.evict(&[post]).await;
    let repeated = comment(system, (OTHER, post), &second, by_fan.id).await.unwrap();
    assert_eq!(repeated, answer);
    aging.evict(&[post]).await;
    let reused = comment(system, (OTHER, post), &second, 0).await;
    assert_rejected(reused, Code::InvalidArgument, ErrorReason::RequestIdReused);
    aging.evict(&[post]).await;
    assert_eq!(List::newest(post).whole(&system.client, 1).await, [answer.id, by_fan.id]);

    let not_ones_own = system.uncomment(OTHER, post, by_fan.id).await;
    assert_rejected(not_ones_own, Code::PermissionDenied, ErrorReason::NotTheAuthor);
    aging.evict(&[post]).await;
    system.uncomment(FAN, post, by_fan.id).await.unwrap();
    assert_eq!(system.get(post, 0).await.unwrap().comments, 1);
    aging.evict(&[post]).await;
    system.uncomment(FAN, post, by_fan.id).await.unwrap();
    assert_eq!(List::oldest(post).whole(&system.client, 1).await, [answer.id]);
    aging.evict(&[post]).await;
    // The reply stays, and is returned to a repeated request, although its comment is deleted.
    let repeated = comment(system, (OTHER, post), &second, by_fan.id).await.unwrap();
    assert_eq!(repeated, answer);
    aging.evict(&[post]).await;
    let nothing_there = comment(system, (OTHER, post), &third, by_fan.id).await;
    assert_rejected(nothing_there, Code::NotFound, ErrorReason::CommentNotFound);
    aging.evict(&[post]).await;
    system.uncomment(AUTHOR, post, answer.id).await.unwrap();
    aging.evict(&[post]).await;
    assert_eq!(List::oldest(post).whole(&system.client, 1).await, Vec::<u64>::new());
    assert_eq!(system.get(post, 0).await.unwrap().comments, 0);
    assert_eq!(aging.count("SELECT COUNT(*) FROM comments WHERE text <> ''").await, 0);
    aging.is_sound().await;
}

async fn reposts_of_evicted_posts_are_made_and_deleted(archives: &ArchiveServer) {
    let aging = Aging::start(archives, 0).await;
    let system = &aging.system;
    let root = system.create(AUTHOR, "root").await.unwrap().id;
    aging.evict(&[root]).await;
    let request = pb::RepostRequest {
        author_id: OTHER,
        request_id: request_id(),
        post_id: root,
        text: "look".to_owned(),
    };
    let repost = async || {
        let answer = system.client.clone().repost(request.clone()).await.unwrap();
        answer.into_inner().post.unwrap()
    };
    let first = repost().await;
    assert_eq!((first.root_id, first.reposted_id), (root, root));
    assert_eq!(first.root.as_ref().unwrap().text, "root");
    aging.evict(&[root, first.id]).await;
    let again = repost().await;
    assert_eq!((again.id, &again.text, again.root_id), (first.id, &first.text, root), "repeated");
    assert_eq!(again.root.unwrap().reposts, 1);
    aging.evict(&[root, first.id]).await;
    let second = system.repost(FAN, first.id).await.unwrap();
    assert_eq!((second.root_id, second.reposted_id), (root, first.id));
    let posts = [root, first.id, second.id];
    aging.evict(&posts).await;
    assert_eq!(List::Reposts(root).whole(&system.client, 1).await, [second.id, first.id]);
    assert_eq!(List::Reposts(first.id).whole(&system.client, 1).await, [second.id]);
    let counts = async |id| system.get(id, 0).await.unwrap().reposts;
    assert_eq!((counts(root).await, counts(first.id).await), (2, 1));

    // A repost of an evicted post, evicted itself.
    system.delete(FAN, second.id).await.unwrap();
    assert_eq!((counts(root).await, counts(first.id).await), (1, 0));
    assert_eq!(List::Reposts(root).whole(&system.client, 1).await, [first.id]);
    aging.is_sound().await;
    // The tombstone of a repost lasts for a day, during which the post stays.
    assert_eq!(aging.age(&posts).await.evicted, 0);
    expire_repost_tombstones(&aging).await;
    aging.evict(&posts[..2]).await;
    assert_eq!((counts(root).await, counts(first.id).await), (1, 0));
    assert_eq!(List::Reposts(root).whole(&system.client, 1).await, [first.id]);

    // The root is deleted: its reposts stay, and show that.
    system.delete(AUTHOR, root).await.unwrap();
    let orphan = system.get(first.id, 0).await.unwrap();
    assert!(orphan.root_deleted && orphan.root.is_none());
    let too_late = system.repost(FAN, first.id).await;
    assert_rejected(too_late, Code::NotFound, ErrorReason::PostNotFound);
    aging.is_sound().await;
}

/// Simulates the day after which tombstones of reposts expire.
async fn expire_repost_tombstones(aging: &Aging) {
    let mut admin = aging.system.redis.nodes()[0].admin().await;
    let keys = microblog_testkit::redis::cmd("KEYS").arg("*:repost_tombstones:*").take();
    let keys: Vec<String> = keys.query_async(&mut admin).await.unwrap();
    assert!(!keys.is_empty());
    microblog_testkit::redis::cmd("DEL").arg(keys).exec_async(&mut admin).await.unwrap();
}

async fn a_repeated_request_returns_the_evicted_post(archives: &ArchiveServer) {
    let aging = Aging::start(archives, 0).await;
    let system = &aging.system;
    let request = |text: &str, request_id: &str| pb::CreatePostRequest {
        author_id: AUTHOR,
        request_id: request_id.to_owned(),
        text: text.to_owned(),
    };
    let id = request_id();
    let create = async |request| {
        Ok::<_, Status>(
            system.client.clone().create_post(request).await?.into_inner().post.unwrap(),
        )
    };
    let made = create(request("once", &id)).await.unwrap();
    aging.evict(&[made.id]).await;
    assert_eq!(create(request("once", &id)).await.unwrap(), made);
    let reused = create(request("twice", &id)).await;
    assert_rejected(reused, Code::InvalidArgument, ErrorReason::RequestIdReused);
    assert_eq!(List::UserPosts(AUTHOR).whole(&system.client, 5).await, [made.id]);
    system.delete(AUTHOR, made.id).await.unwrap();
    let gone = create(request("once", &id)).await;
    assert_rejected(gone, Code::NotFound, ErrorReason::PostNotFound);
    aging.is_sound().await;
}

async fn posts_from_before_the_archive_are_evicted(archives: &ArchiveServer) {
    let before = System::start_without_jobs(microblog_testkit::Topology::Single).await;
    let mut posts = Vec::new();
    for n in 0..150 {
        posts.insert(0, before.create(AUTHOR, &format!("number {n}")).await.unwrap().id);
    }
    let old = posts[149];
    assert_eq!(before.like(FAN, old).await.unwrap(), 1);
    let comment = before.comment(FAN, old, "well", 0).await.unwrap().id;
    let gone = before.comment(FAN, old, "well?", 0).await.unwrap().id;
    before.uncomment(FAN, old, gone).await.unwrap();
    let repost = before.repost(OTHER, old).await.unwrap().id;
    before.delete(AUTHOR, posts.remove(7)).await.unwrap();

    let aging = Aging::start_after(before, archives, 3).await;
    let system = &aging.system;
    // A new database is filled with what there is.
    aging.age(&[AUTHOR, OTHER]).await;
    let in_redis = async |id| !support::keys_of(system, id).await.is_empty();
    assert!(in_redis(posts[2]).await && !in_redis(posts[3]).await && !in_redis(old).await);
    assert_eq!(List::UserPosts(AUTHOR).whole(&system.client, 40).await, posts);
    assert_eq!(List::Likers(old).whole(&system.client, 1).await, [FAN]);
    assert_eq!(List::oldest(old).whole(&system.client, 1).await, [comment]);
    assert_eq!(List::Reposts(old).whole(&system.client, 1).await, [repost]);
    assert_eq!(system.get(old, FAN).await.unwrap().text, "number 0");
    aging.is_sound().await;
}

async fn a_call_that_changes_nothing_restores_no_post(archives: &ArchiveServer) {
    let aging = Aging::start(archives, 0).await;
    let system = &aging.system;
    let post = system.create(AUTHOR, "leave me").await.unwrap().id;
    let liked = like(system, FAN, post).await;
    let [first, answer, later] = [request_id(), request_id(), request_id()];
    let gone = comment(system, (FAN, post), &first, 0).await.unwrap();
    let stays = comment(system, (FAN, post), &answer, gone.id).await.unwrap();
    system.uncomment(FAN, post, gone.id).await.unwrap();
    aging.evict(&[post]).await;

    assert_eq!(system.unlike(OTHER, post).await.unwrap(), 1, "unlike without a like");
    assert_eq!(like(system, FAN, post).await, liked);
    system.uncomment(FAN, post, gone.id).await.unwrap();
    let not_ones_own = system.uncomment(OTHER, post, stays.id).await;
    assert_rejected(not_ones_own, Code::PermissionDenied, ErrorReason::NotTheAuthor);
    assert_eq!(comment(system, (FAN, post), &answer, gone.id).await.unwrap(), stays, "repeated");
    for request in [&first, &later] {
        let nothing_there = comment(system, (FAN, post), request, gone.id).await;
        assert_rejected(nothing_there, Code::NotFound, ErrorReason::CommentNotFound);
    }
    let reused = comment(system, (FAN, post), &answer, 0).await;
    assert_rejected(reused, Code::InvalidArgument, ErrorReason::RequestIdReused);
    system.delete(OTHER, post).await.unwrap_err();
    let pace = keys(&aging, "*:restore_rate:*").await;
    assert_eq!((support::keys_of(system, post).await, pace), (Vec::<String>::new(), Vec::new()));
    aging.is_sound().await;
}

async fn keys(aging: &Aging, pattern: &str) -> Vec<String> {
    let mut admin = aging.system.redis.nodes()[0].admin().await;
    let keys = microblog_testkit::redis::cmd("KEYS").arg(pattern).take();
    keys.query_async(&mut admin).await.unwrap()
}

async fn restores_are_rate_limited_per_account(archives: &ArchiveServer) {
    let aging = Aging::start_with(archives, 0, &["--restores-per-minute=2"]).await;
    let system = &aging.system;
    let mut posts = Vec::new();
    for n in 0..3 {
        posts.push(system.create(AUTHOR, &format!("number {n}")).await.unwrap().id);
    }
    let [first, second, third] = posts[..] else { unreachable!("three posts are archived") };
    aging.evict(&posts).await;
    // A post that is in Redis already is not limited.
    assert_eq!(system.like(FAN, first).await.unwrap(), 1);
    assert_eq!(system.unlike(FAN, first).await.unwrap(), 0);
    system.comment(FAN, second, "well", 0).await.unwrap();
    let request = request_id();
    for answer in [
        system.like(FAN, third).await.map(|_| ()),
        comment(system, (FAN, third), &request, 0).await.map(|_| ()),
    ] {
        let refusal = assert_rejected(answer, Code::ResourceExhausted, ErrorReason::RateLimited);
        let wait = refusal.get_details_retry_info().unwrap().retry_delay.unwrap();
        assert!(!wait.is_zero() && wait.as_secs() <= 30, "{wait:?}");
    }
    assert_eq!(support::keys_of(system, third).await, Vec::<String>::new());
    assert_eq!(system.unlike(FAN, third).await.unwrap(), 0, "which changes nothing");
    // Each account has its own limit, and notifications of reposts have none.
    assert_eq!(system.like(OTHER, third).await.unwrap(), 1);
    aging.evict(&posts).await;
    for &post in &posts {
        system.repost(FAN, post).await.unwrap();
        assert_eq!(system.get(post, 0).await.unwrap().reposts, 1);
    }
    aging.is_sound().await;
}

async fn a_post_whose_row_is_lost_stays_in_redis(archives: &ArchiveServer) {
    let aging = Aging::start(archives, 0).await;
    let system = &aging.system;
    let post = system.create(AUTHOR, "lost").await.unwrap().id;
    system.like(FAN, post).await.unwrap();
    let comment = system.comment(FAN, post, "well", 0).await.unwrap();
    aging.archive().await;
    let evictable = system.store.make_evictable(user(1), &[support::post(post)]).await.unwrap();
    assert_eq!(evictable, 1);
    let lose = format!("DELETE FROM posts WHERE id = {post}");
    assert_eq!(execute(&mut connect(&aging.url).await, &lose).await, 1);

    assert_eq!(aging.age(&[post]).await.evicted, 0, "the archive does not have it");
    let found = system.get(post, FAN).await.unwrap();
    assert_eq!((&*found.text, found.likes, found.comments, found.liked), ("lost", 1, 1, true));
    assert_eq!(List::oldest(post).whole(&system.client, 1).await, [comment.id]);
}

/// Makes a post's tombstones of reposts older by some minutes.
async fn age_tombstones(aging: &Aging, post: u64, minutes: u64) {
    let mut admin = aging.system.redis.nodes()[0].admin().await;
    let key = format!("post:{{{}}}:repost_tombstones:{post}", support::post(post).partition());
    let read =
        microblog_testkit::redis::cmd("ZRANGE").arg(&key).arg(0).arg(-1).arg("WITHSCORES").take();
    let tombstones: Vec<(u64, u64)> = read.query_async(&mut admin).await.unwrap();
    assert!(!tombstones.is_empty());
    for (repost, buried_at) in tombstones {
        let mut set = microblog_testkit::redis::cmd("ZADD");
        set.arg(&key).arg("XX").arg(buried_at - ((minutes * 60_000) << 12)).arg(repost);
        set.exec_async(&mut admin).await.unwrap();
    }
}

async fn a_deleted_repost_postpones_the_eviction_while_updates_may_be_in_flight(
    archives: &ArchiveServer,
) {
    let aging = Aging::start(archives, 0).await;
    let system = &aging.system;
    let root = system.create(AUTHOR, "root").await.unwrap().id;
    for minutes in [11, 5] {
        let repost = system.repost(FAN, root).await.unwrap().id;
        system.delete(FAN, repost).await.unwrap();
        assert_eq!(aging.age(&[root]).await.evicted, 0, "an update of the repost may be in flight");
        age_tombstones(&aging, root, minutes).await;
    }
    // The first one was deleted 16 minutes ago, the second one 5.
    assert_eq!(aging.age(&[root]).await.evicted, 0);
    age_tombstones(&aging, root, 6).await;
    aging.evict(&[root]).await;
    assert_eq!(List::Reposts(root).whole(&system.client, 1).await, Vec::<u64>::new());
    assert_eq!(system.get(root, 0).await.unwrap().reposts, 0);
    aging.is_sound().await;
}
