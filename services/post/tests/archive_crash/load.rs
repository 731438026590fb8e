//! Callers who write and record what they wrote, and callers who read and compare.

mod readers;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures::future::join_all;
use microblog_proto::post as pb;
use microblog_testkit as testkit;
use tonic::{Code, Request, Response, Status};

use crate::{
    account,
    support::{Client, PATIENCE, request_id},
};

/// Longer than the service waits for the archive.
const DEADLINE: Duration = Duration::from_secs(10);

/// Callers who only publish, who change the posts of others, and who read.
const MAKERS: u64 = 3;
const CHANGERS: u64 = 5;
const READERS: u64 = 3;

/// The expected state of a post.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    pub(crate) author: u64,
    pub(crate) text: String,
    /// Its root and the reposted post, or 0.
    pub(crate) origin: [u64; 2],
    pub(crate) likes: BTreeSet<u64>,
    pub(crate) comments: BTreeMap<u64, String>,
    pub(crate) reposts: BTreeSet<u64>,
}

/// The expected state so far.
#[derive(Default)]
pub(crate) struct Load {
    pub(crate) posts: Mutex<BTreeMap<u64, Known>>,
    pub(crate) gone: Mutex<Vec<u64>>,
    well: AtomicUsize,
    ill: AtomicUsize,
    made: AtomicUsize,
    stop: AtomicBool,
    over: AtomicBool,
    chance: AtomicU64,
}

impl Load {
    /// Runs all callers until they are stopped.
    pub(crate) async fn run(&self, client: &Client) {
        let makers = join_all((1..=MAKERS).map(|n| self.makes(client, account(n))));
        let changers = join_all((1..=CHANGERS).map(|n| self.changes(client, account(100 + n))));
        let readers = join_all((0..READERS).map(|_| self.reads(client)));
        futures::join!(makers, changers, readers);
        self.over.store(true, Ordering::Relaxed);
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(crate) async fn is_over(&self) {
        let over = async || self.over.load(Ordering::Relaxed);
        testkit::eventually("the callers end", PATIENCE, over).await;
    }

    pub(crate) async fn goes_well(&self, calls: usize) {
        grows(&self.well, calls, "calls succeed").await;
    }

    pub(crate) async fn makes_posts(&self, count: usize) {
        grows(&self.made, count, "posts are made").await;
    }

    pub(crate) async fn meets_trouble(&self) {
        grows(&self.ill, 1, "calls fail").await;
    }

    /// Repeats a call until its outcome is known.
    async fn until_known<M: Clone, T>(
        &self,
        message: M,
        mut call: impl AsyncFnMut(Request<M>) -> Result<Response<T>, Status>,
    ) -> Result<T, Status> {
        loop {
            let mut request = Request::new(message.clone());
            request.set_timeout(DEADLINE);
            let began = Instant::now();
            let answer = call(request).await;
            assert!(began.elapsed() < 4 * DEADLINE, "outlived its deadline");
            let status = match answer {
                Ok(answer) => {
                    self.well.fetch_add(1, Ordering::Relaxed);
                    return Ok(answer.into_inner());
                }
                Err(status) if status.code() == Code::NotFound => return Err(status),
                Err(status) => status,
            };
            let unknown =
                [Code::Unavailable, Code::DeadlineExceeded, Code::Cancelled, Code::Unknown];
            assert!(unknown.contains(&status.code()), "{status:?}");
            self.ill.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Returns a pseudo-random number below a bound.
    fn any(&self, below: usize) -> usize {
        let step = self.chance.fetch_add(1, Ordering::Relaxed);
        let mixed = (step + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed >> 33) as usize) % below.max(1)
    }

    /// Returns a post: one of the first ones, which are evicted, or any.
    fn any_post(&self) -> Option<(u64, Known)> {
        let posts = self.posts.lock().unwrap();
        let among = if self.any(2) == 0 { posts.len().min(20) } else { posts.len() };
        posts.iter().nth(self.any(among)).map(|(id, known)| (*id, known.clone()))
    }

    fn of(&self, post: u64, change: impl FnOnce(&mut Known)) {
        change(self.posts.lock().unwrap().get_mut(&post).unwrap());
    }

    async fn create(&self, client: &Client, author_id: u64, text: &str) -> u64 {
        let (request_id, text) = (request_id(), text.to_owned());
        let request = pb::CreatePostRequest { author_id, request_id, text };
        let create = async |request| client.clone().create_post(request).await;
        self.until_known(request, create).await.unwrap().post.unwrap().id
    }

    async fn makes(&self, client: &Client, author: u64) {
        for n in 0.. {
            let text = format!("post {n} of {author}");
            let id = self.create(client, author, &text).await;
            let known = Known { author, text, ..Known::default() };
            let doubled = self.posts.lock().unwrap().insert(id, known).is_some();
            assert!(!doubled, "another request has this id");
            self.made.fetch_add(1, Ordering::Relaxed);
            if self.is_stopped() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Changes posts of others, as one account.
    async fn changes(&self, client: &Client, user_id: u64) {
        while !self.is_stopped() {
            tokio::time::sleep(Duration::from_millis(2)).await;
            let Some((post_id, known)) = self.any_post() else { continue };
            match self.any(8) {
                0 | 1 => {
                    let like = async |request| client.clone().like(request).await;
                    let request = pb::LikeRequest { user_id, post_id };
                    self.until_known(request, like).await.unwrap();
                    self.of(post_id, |known| known.likes.extend([user_id]));
                }
                2 => {
                    let unlike = async |request| client.clone().unlike(request).await;
                    let request = pb::UnlikeRequest { user_id, post_id };
                    let likes = self.until_known(request, unlike).await.unwrap().likes;
                    let others = known.likes.iter().filter(|&&id| id != user_id).count();
                    // Each of the other callers may unlike meanwhile.
                    assert!(likes + CHANGERS >= others as u64, "{likes} of {others}");
                    self.of(post_id, |known| known.likes.retain(|&id| id != user_id));
                }
                3 | 4 => self.comments(client, user_id, post_id, &known).await,
                5 | 6 => self.reposts(client, user_id, post_id, &known).await,
                _ => {
                    let post = self.create(client, user_id, "goes").await;
                    let like = async |request| client.clone().like(request).await;
                    let request = pb::LikeRequest { user_id, post_id: post };
                    self.until_known(request, like).await.unwrap();
                    // It may be evicted before it is deleted.
                    tokio::time::sleep(Duration::from_millis(self.any(300) as u64)).await;
                    self.delete(client, user_id, post).await;
                }
            }
        }
    }

    async fn delete(&self, client: &Client, author_id: u64, post_id: u64) {
        let delete = async |request| client.clone().delete_post(request).await;
        let request = pb::DeletePostRequest { author_id, post_id };
        self.until_known(request, delete).await.unwrap();
        self.gone.lock().unwrap().push(post_id);
    }

    async fn comments(&self, client: &Client, author_id: u64, post_id: u64, known: &Known) {
        let in_reply_to_id = known.comments.keys().next().copied().unwrap_or_default();
        let (request_id, text) = (request_id(), format!("by {author_id}"));
        let request = pb::AddCommentRequest {
            author_id,
            request_id,
            post_id,
            text: text.clone(),
            in_reply_to_id,
        };
        let comment = async |request| client.clone().add_comment(request).await;
        // The comment that it replies to may be deleted meanwhile.
        let Ok(answer) = self.until_known(request, comment).await else {
            let exists =
                self.posts.lock().unwrap()[&post_id].comments.contains_key(&in_reply_to_id);
            assert!(in_reply_to_id != 0 && !exists, "the post or comment does not exist");
            return;
        };
        let id = answer.comment.unwrap().id;
        if self.any(3) > 0 {
            self.of(post_id, |known| drop(known.comments.insert(id, text)));
            return;
        }
        let request = pb::DeleteCommentRequest { user_id: author_id, post_id, comment_id: id };
        let uncomment = async |request| client.clone().delete_comment(request).await;
        self.until_known(request, uncomment).await.unwrap();
    }

    async fn reposts(&self, client: &Client, author_id: u64, post_id: u64, known: &Known) {
        let (request_id, text) = (request_id(), format!("repost of {post_id}"));
        let request = pb::RepostRequest { author_id, request_id, post_id, text: text.clone() };
        let repost = async |request| client.clone().repost(request).await;
        let id = self.until_known(request, repost).await.unwrap().post.unwrap().id;
        if self.any(4) == 0 {
            self.delete(client, author_id, id).await;
            return;
        }
        let root = if known.origin[0] == 0 { post_id } else { known.origin[0] };
        let made = Known { author: author_id, text, origin: [root, post_id], ..Known::default() };
        let mut posts = self.posts.lock().unwrap();
        posts.insert(id, made);
        for target in [root, post_id] {
            posts.get_mut(&target).unwrap().reposts.insert(id);
        }
    }
}

async fn grows(counter: &AtomicUsize, by: usize, what: &str) {
    let before = counter.load(Ordering::Relaxed);
    let grown = async || counter.load(Ordering::Relaxed) >= before + by;
    testkit::eventually(what, PATIENCE, grown).await;
}
