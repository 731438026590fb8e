//! How a case begins, with an empty store, and what must be in the store at its end.

use microblog_domain::{PostId, UserId};
use microblog_keyspace::{Order, Page};
use microblog_post::{Comment, Content, Counts, Error, Gathered, List, Post, verify_partition};
use microblog_testkit::{Store as Redis, redis};

use crate::{Case, Made, Model, USERS};

/// Longer than any list of a case.
const ALL: usize = 200;

/// Kinds of keys that belong to one post.
const OF_POSTS: [&str; 6] =
    ["post", "likes", "comments", "comment_bodies", "reposts", "unreposted"];

/// Other kinds that may be there when nothing waits.
const OTHERS: [&str; 6] =
    ["posts", "clock", "authors", "request", "comment_admission", "comment_request"];

/// Takes everything out of a store but the functions.
pub(crate) async fn empty(redis: &Redis) {
    for node in redis.nodes() {
        redis::cmd("FLUSHALL").exec_async(&mut node.admin().await).await.unwrap();
    }
}

/// Asserts that each key belongs to a post that is there, or is what may be left of others.
pub(crate) async fn nothing_is_left_behind(redis: &Redis) {
    for node in redis.nodes() {
        let mut admin = node.admin().await;
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut admin).await.unwrap();
        for key in &keys {
            let (partition, kind) = key.split_once("}:").unwrap();
            let (kind, owner) = kind.split_once(':').unwrap_or((kind, ""));
            let belongs = match OF_POSTS.contains(&kind) {
                true => keys.contains(&format!("{partition}}}:post:{owner}")),
                false => OTHERS.contains(&kind),
            };
            assert!(belongs, "{key} is left");
        }
    }
}

fn members(page: Page) -> Vec<u64> {
    page.entries.iter().map(|entry| entry.member).collect()
}

impl Case {
    pub(crate) async fn nothing_waits(&self) -> bool {
        for user in USERS {
            if self.store.unfinished(user.partition()).await.unwrap() != [0; 4] {
                return false;
            }
        }
        true
    }

    pub(crate) async fn is_as_the_model(&self) -> Result<(), Error> {
        let posts = self.model().posts.clone();
        for (&id, made) in &posts {
            if made.ended {
                self.is_gone(id).await?;
            } else {
                self.is_there(id).await?;
            }
        }
        for user in USERS {
            let expected = self.model().posts_of(user);
            assert_eq!(members(self.store.posts_of(user, None, ALL).await?), expected);
            let report =
                verify_partition(&crate::support::tiers(&self.store), user.partition()).await?;
            assert_eq!(report.violations.into_vec(), Vec::<String>::new());
        }
        Ok(())
    }

    async fn is_gone(&self, id: PostId) -> Result<(), Error> {
        assert_eq!(self.store.post(id, None).await?, None);
        assert_eq!(self.store.gathered(&[id]).await?, [Gathered::default()]);
        let comments: Vec<_> = self.model().comments.keys().copied().collect();
        assert_eq!(self.store.comments(id, &comments).await?, []);
        for user in USERS {
            assert_eq!(self.store.liked(user, &[id]).await?, [false]);
        }
        Ok(())
    }

    async fn is_there(&self, id: PostId) -> Result<(), Error> {
        let (content, comments, likers, reposts) = {
            let model = self.model();
            let content = model.posts[&id].it.clone();
            (content, model.comments_on(id), model.likers_of(id), model.reposts_of(id))
        };
        let length = |length: usize| u64::try_from(length).unwrap();
        let counts = Counts {
            likes: length(likers.len()),
            comments: length(comments.len()),
            reposts: length(reposts.len()),
        };
        let expected = Post { id, content, counts, liked: false };
        assert_eq!(self.store.post(id, None).await?, Some(expected));
        assert_eq!(members(self.store.list(List::Likers, id, None, ALL).await?), likers);
        assert_eq!(members(self.store.list(List::Reposts, id, None, ALL).await?), reposts);
        let ids: Vec<_> = comments.iter().map(|comment| comment.id).collect();
        let listed = members(self.store.list(List::Comments(Order::Oldest), id, None, ALL).await?);
        assert_eq!(listed, ids.iter().map(|id| id.get()).collect::<Vec<_>>());
        assert_eq!(self.store.comments(id, &ids).await?, comments);
        assert!(self.timelines.times(id.get()) > 0, "{id} was never delivered");
        Ok(())
    }
}

// The lists as they must be, all newest first but the comments.
impl Model {
    fn comments_on(&self, post: PostId) -> Vec<Comment> {
        let is_there = |made: &&Made<Comment>| made.it.post == post && !made.ended;
        self.comments.values().filter(is_there).map(|made| made.it.clone()).collect()
    }

    fn likers_of(&self, post: PostId) -> Vec<u64> {
        let likes = self.likes.iter().filter(|((liked, _), _)| *liked == post);
        // Those of one moment as Redis orders them.
        let mut likes: Vec<_> =
            likes.map(|((_, user), since)| (*since, user.to_string(), user.get())).collect();
        likes.sort_unstable();
        likes.into_iter().rev().map(|(_, _, user)| user).collect()
    }

    fn reposts_of(&self, post: PostId) -> Vec<u64> {
        let repeats =
            |made: &Made<Content>| !made.ended && made.it.counted_by().any(|target| target == post);
        let reposts = self.posts.iter().rev().filter(|(_, made)| repeats(made));
        reposts.map(|(id, _)| id.get()).collect()
    }

    fn posts_of(&self, author: UserId) -> Vec<u64> {
        let is_own = |made: &Made<Content>| made.it.author == author && !made.ended;
        let own = self.posts.iter().rev().filter(|(_, made)| is_own(made));
        own.map(|(id, _)| id.get()).collect()
    }
}
