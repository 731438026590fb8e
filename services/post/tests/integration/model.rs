//! Random calls, while processes are killed and keys vanish: each answer is that of a model, and in the end the
//! lists are those of the database.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use futures::future::join_all;
use microblog_chassis::status::reason_of;
use microblog_proto::{
    common::ErrorReason::{self, CommentNotFound, NotTheAuthor, PostNotFound, Unspecified},
    post as pb,
};
use microblog_testkit::{Store, redis::cmd};
use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng, seq::IndexedRandom as _};
use tonic::Status;

use crate::support::{
    Client, Database, PATIENCE, System, Topology, id, lists::List, numbers, processes::Processes,
    request_id, settles,
};

/// The time after the death of a writer in which a read may answer what it answered before.
const STALE: Duration = Duration::from_secs(15);

/// How many lanes of calls there are at a time, and accounts in each.
const LANES: u64 = 4;
const ACCOUNTS: u64 = 4;

/// The most posts of a lane.
const POSTS: usize = 12;

/// A call that writes.
#[derive(Clone, Debug)]
enum Step {
    Create(pb::CreatePostRequest),
    Repost(pb::RepostRequest),
    Delete(pb::DeletePostRequest),
    Like(pb::LikeRequest),
    Unlike(pb::UnlikeRequest),
    Comment(pb::AddCommentRequest),
    Uncomment(pb::DeleteCommentRequest),
}

/// What a call answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// It made a post or comment.
    Made(u64),
    /// The post has so many likes.
    Likes(u64),
    Done,
    Rejected(ErrorReason),
}

impl Step {
    async fn call(self, mut client: Client) -> Result<Answer, Status> {
        Ok(match self {
            Self::Create(request) => {
                let made = client.create_post(request).await?.into_inner();
                Answer::Made(made.post.unwrap().id)
            }
            Self::Repost(request) => {
                Answer::Made(client.repost(request).await?.into_inner().post.unwrap().id)
            }
            Self::Delete(request) => {
                client.delete_post(request).await?;
                Answer::Done
            }
            Self::Like(request) => Answer::Likes(client.like(request).await?.into_inner().likes),
            Self::Unlike(request) => {
                Answer::Likes(client.unlike(request).await?.into_inner().likes)
            }
            Self::Comment(request) => {
                let made = client.add_comment(request).await?.into_inner();
                Answer::Made(made.comment.unwrap().id)
            }
            Self::Uncomment(request) => {
                client.delete_comment(request).await?;
                Answer::Done
            }
        })
    }
}

/// A post as the model has it.
#[derive(Clone, Debug, Default)]
struct Known {
    author: u64,
    text: String,
    /// Of a repost.
    root: u64,
    reposted: u64,
    likers: BTreeSet<u64>,
    /// The comments and their authors, oldest first.
    comments: Vec<(u64, u64)>,
}

/// The posts of accounts that no other lane knows.
#[derive(Default)]
struct Model {
    posts: BTreeMap<u64, Known>,
    /// What was deleted.
    gone: Vec<u64>,
    /// The newest post of each author, and the newest comment on each post, also of those that are gone.
    newest: BTreeMap<u64, u64>,
}

impl Model {
    /// Takes a step that was answered. Fails if the answer is not the expected one.
    fn take(&mut self, step: &Step, answer: Answer) {
        let expected = self.answer(step, answer);
        assert_eq!(answer, expected, "{step:?}");
    }

    // Returns the expected answer. Takes ids from the answer.
    fn answer(&mut self, step: &Step, answer: Answer) -> Answer {
        match step {
            Step::Create(pb::CreatePostRequest { author_id, text, .. }) => {
                let post = Known { author: *author_id, text: text.clone(), ..Known::default() };
                self.publish(post, answer)
            }
            Step::Repost(pb::RepostRequest { author_id, post_id, text, .. }) => {
                let Some(reposted) = self.posts.get(post_id) else {
                    return Answer::Rejected(PostNotFound);
                };
                let root = if reposted.root == 0 { *post_id } else { reposted.root };
                if !self.posts.contains_key(&root) {
                    return Answer::Rejected(PostNotFound);
                }
                let (author, text) = (*author_id, text.clone());
                self.publish(
                    Known { author, text, root, reposted: *post_id, ..Known::default() },
                    answer,
                )
            }
            Step::Delete(pb::DeletePostRequest { author_id, post_id }) => {
                match self.posts.get(post_id) {
                    None => Answer::Done,
                    Some(post) if post.author != *author_id => Answer::Rejected(NotTheAuthor),
                    Some(_) => {
                        self.posts.remove(post_id);
                        self.gone.push(*post_id);
                        Answer::Done
                    }
                }
            }
            Step::Like(pb::LikeRequest { user_id, post_id }) => match self.posts.get_mut(post_id) {
                None => Answer::Rejected(PostNotFound),
                Some(post) => {
                    post.likers.insert(*user_id);
                    Answer::Likes(post.likers.len() as u64)
                }
            },
            Step::Unlike(pb::UnlikeRequest { user_id, post_id }) => {
                match self.posts.get_mut(post_id) {
                    None => Answer::Likes(0),
                    Some(post) => {
                        post.likers.remove(user_id);
                        Answer::Likes(post.likers.len() as u64)
                    }
                }
            }
            Step::Comment(pb::AddCommentRequest { author_id, post_id, in_reply_to_id, .. }) => {
                let Some(post) = self.posts.get_mut(post_id) else {
                    return Answer::Rejected(PostNotFound);
                };
                let is_there = |comment: &(u64, u64)| comment.0 == *in_reply_to_id;
                if *in_reply_to_id != 0 && !post.comments.iter().any(is_there) {
                    return Answer::Rejected(CommentNotFound);
                }
                let Answer::Made(id) = answer else { return Answer::Made(0) };
                post.comments.push((id, *author_id));
                self.grows(*post_id, id)
            }
            Step::Uncomment(pb::DeleteCommentRequest { user_id, post_id, comment_id }) => {
                let Some(post) = self.posts.get_mut(post_id) else { return Answer::Done };
                let at = post.comments.iter().position(|(id, _)| id == comment_id);
                let Some(at) = at else { return Answer::Done };
                if post.author != *user_id && post.comments[at].1 != *user_id {
                    return Answer::Rejected(NotTheAuthor);
                }
                post.comments.remove(at);
                Answer::Done
            }
        }
    }

    fn publish(&mut self, post: Known, answer: Answer) -> Answer {
        let Answer::Made(id) = answer else { return Answer::Made(0) };
        let author = post.author;
        assert!(self.posts.insert(id, post).is_none(), "{id} is another post");
        self.grows(author, id)
    }

    // Returns an answer with this id, which must be behind all others of an author, or on a post.
    fn grows(&mut self, of: u64, id: u64) -> Answer {
        let newest = self.newest.insert(of, id).unwrap_or_default();
        assert!(newest < id, "{id} is not behind {newest}");
        Answer::Made(id)
    }

    fn reposts_of(&self, target: u64) -> Vec<u64> {
        let reposts = self.posts.iter().rev();
        let of_target = reposts.filter(|(_, post)| [post.root, post.reposted].contains(&target));
        of_target.map(|(id, _)| *id).collect()
    }

    fn posts_of(&self, author: u64) -> Vec<u64> {
        let posts = self.posts.iter().rev().filter(|(_, post)| post.author == author);
        posts.map(|(id, _)| *id).collect()
    }
}

/// The clients of all processes, of which some may be dead.
type Clients = Mutex<Vec<Client>>;

/// A lane of calls, one after the other, each through any process.
struct Lane<'a> {
    clients: &'a Clients,
    accounts: Vec<u64>,
    model: Model,
    random: SmallRng,
    /// Until when reads may be old: a process died that may have written for this lane.
    stale: Option<Instant>,
}

impl<'a> Lane<'a> {
    fn new(number: u64, clients: &'a Clients, seed: u64) -> Self {
        Self {
            clients,
            accounts: (0..ACCOUNTS).map(|n| id(5_000 + number * ACCOUNTS + n)).collect(),
            model: Model::default(),
            random: SmallRng::seed_from_u64(seed + number),
            stale: None,
        }
    }

    fn account(&mut self) -> u64 {
        *self.accounts.choose(&mut self.random).unwrap()
    }

    // Returns a post: mostly one that exists.
    fn post(&mut self) -> u64 {
        let gone = &self.model.gone;
        if !gone.is_empty() && self.random.random_bool(0.1) {
            return *gone.choose(&mut self.random).unwrap();
        }
        let posts: Vec<u64> = self.model.posts.keys().copied().collect();
        posts.choose(&mut self.random).copied().unwrap_or(1 << 40)
    }

    fn comment_of(&mut self, post: u64) -> u64 {
        let comments = self.model.posts.get(&post).map(|post| post.comments.clone());
        let comments = comments.unwrap_or_default();
        comments.choose(&mut self.random).map_or(77, |comment| comment.0)
    }

    // Deletes a post on behalf of its author.
    fn delete_own(&self, post_id: u64) -> Step {
        let author = self.model.posts.get(&post_id).map(|post| post.author);
        let author_id = author.unwrap_or(self.accounts[0]);
        Step::Delete(pb::DeletePostRequest { author_id, post_id })
    }

    fn step(&mut self) -> Step {
        let (user_id, post_id, request_id) = (self.account(), self.post(), request_id());
        let author_id = user_id;
        let text = format!("text {}", self.random.random_range(0..1_000_000));
        let is_full = self.model.posts.len() >= POSTS;
        match self.random.random_range(0..20) {
            0..=5 if is_full => self.delete_own(post_id),
            0..=2 => Step::Create(pb::CreatePostRequest { author_id, request_id, text }),
            3..=5 => Step::Repost(pb::RepostRequest { author_id, request_id, post_id, text }),
            6 => self.delete_own(post_id),
            7 => Step::Delete(pb::DeletePostRequest { author_id, post_id }),
            8..=11 => Step::Like(pb::LikeRequest { user_id, post_id }),
            12..=14 => Step::Unlike(pb::UnlikeRequest { user_id, post_id }),
            15..=17 => {
                let is_reply = self.random.random_bool(0.3);
                let in_reply_to_id = if is_reply { self.comment_of(post_id) } else { 0 };
                Step::Comment(pb::AddCommentRequest {
                    author_id,
                    request_id,
                    post_id,
                    text,
                    in_reply_to_id,
                })
            }
            _ => {
                let comment_id = self.comment_of(post_id);
                Step::Uncomment(pb::DeleteCommentRequest { user_id, post_id, comment_id })
            }
        }
    }

    fn client(&mut self) -> Client {
        self.clients.lock().unwrap().choose(&mut self.random).unwrap().clone()
    }

    // Makes a call until a process answers it. Returns also whether one may have died with it.
    async fn call(&mut self, step: &Step) -> (Answer, bool) {
        let (deadline, mut is_uncertain) = (Instant::now() + PATIENCE, false);
        loop {
            let client = self.client();
            match step.clone().call(client).await {
                Ok(answer) => return (answer, is_uncertain),
                Err(status) => match reason_of(&status) {
                    Some(reason) if reason != Unspecified => {
                        return (Answer::Rejected(reason), is_uncertain);
                    }
                    _ => assert!(Instant::now() < deadline, "{step:?}: {status:?}"),
                },
            }
            is_uncertain = true;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Takes steps, and reads what they may have changed.
    async fn run(mut self, is_over: &AtomicBool) -> Model {
        while !is_over.load(Ordering::Relaxed) {
            let step = self.step();
            let (answer, is_uncertain) = self.call(&step).await;
            if is_uncertain {
                self.stale = Some(Instant::now() + STALE);
            }
            self.model.take(&step, answer);
            let (post, viewer) = (self.post(), self.account());
            self.check(post, viewer).await;
        }
        for post in self.model.posts.keys().copied().collect::<Vec<_>>() {
            let viewer = self.account();
            self.check(post, viewer).await;
        }
        self.model
    }

    // Compares a post and its lists with the model; what a viewer likes, and an author's posts.
    async fn check(&mut self, post: u64, viewer: u64) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let client = self.client();
            match self.differences(&client, post, viewer).await {
                Ok(differences) if differences.is_empty() => return,
                Ok(differences) => {
                    let is_stale = self.stale.is_some_and(|until| Instant::now() < until);
                    assert!(is_stale, "{differences:#?}");
                }
                // The process is dead.
                Err(status) => {
                    let is_rejected =
                        reason_of(&status).is_some_and(|reason| reason != Unspecified);
                    assert!(!is_rejected, "{status:?}");
                    assert!(Instant::now() < deadline, "{status:?}");
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn differences(
        &self,
        client: &Client,
        post_id: u64,
        viewer_id: u64,
    ) -> Result<Vec<String>, Status> {
        let mut differences = Vec::new();
        let request = pb::GetPostRequest { post_id, viewer_id };
        let found = match client.clone().get_post(request).await {
            Ok(answer) => answer.into_inner().post,
            Err(status) if reason_of(&status) == Some(PostNotFound) => None,
            Err(status) => return Err(status),
        };
        let mut compare = |what: &str, found: String, expected: String| {
            if found != expected {
                differences.push(format!("{what} {post_id}: {found}, not {expected}"));
            }
        };
        let known = self.model.posts.get(&post_id);
        let reposts = self.model.reposts_of(post_id);
        let expected = known.map(|known| {
            let counts = [known.likers.len(), known.comments.len(), reposts.len()];
            let counts = counts.map(|count| count as u64);
            let (origin, liked) = ([known.root, known.reposted], known.likers.contains(&viewer_id));
            (known.author, known.text.clone(), origin, counts, liked)
        });
        let found = found.map(|post| {
            let (origin, counts) =
                ([post.root_id, post.reposted_id], [post.likes, post.comments, post.reposts]);
            (post.author_id, post.text, origin, counts, post.liked)
        });
        compare("post", format!("{found:?}"), format!("{expected:?}"));
        let page_size = 3;
        if let Some(known) = known {
            let mut likers = whole(List::Likers(post_id), client, page_size).await?;
            likers.sort_unstable();
            let expected: Vec<u64> = known.likers.iter().copied().collect();
            compare("likers", format!("{likers:?}"), format!("{expected:?}"));
            let mut comments: Vec<u64> = known.comments.iter().map(|comment| comment.0).collect();
            for list in [List::oldest(post_id), List::newest(post_id)] {
                let found = whole(list, client, page_size).await?;
                compare("comments", format!("{found:?}"), format!("{comments:?}"));
                comments.reverse();
            }
            let found = whole(List::Reposts(post_id), client, page_size).await?;
            compare("reposts", format!("{found:?}"), format!("{reposts:?}"));
        }
        let found = whole(List::UserPosts(viewer_id), client, page_size).await?;
        let expected = self.model.posts_of(viewer_id);
        compare("posts of an author", format!("{found:?}"), format!("{expected:?}"));
        Ok(differences)
    }
}

// Reads a list. A page may fail if the process is dead, or the post is not found.
async fn whole(list: List, client: &Client, page_size: i32) -> Result<Vec<u64>, Status> {
    let (mut whole, mut token) = (Vec::new(), String::new());
    loop {
        let (page, next) = list.page(client, page_size, &token).await?;
        whole.extend(page);
        if next.is_empty() {
            return Ok(whole);
        }
        token = next;
    }
}

// Deletes a key after the other, until the lanes have ended.
async fn delete_keys(redis: &Store, is_over: &AtomicBool) -> u64 {
    let mut deleted = 0;
    while !is_over.load(Ordering::Relaxed) {
        for node in redis.nodes() {
            let mut admin = node.admin().await;
            let key: Option<String> = cmd("RANDOMKEY").query_async(&mut admin).await.unwrap();
            // Without its mark, nothing of a primary is cached for a while.
            let is_chosen = |key: &String| !key.ends_with(":mark") || deleted % 50 == 49;
            if let Some(key) = key.filter(is_chosen) {
                cmd("DEL").arg(key).exec_async(&mut admin).await.unwrap();
                deleted += 1;
            }
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    deleted
}

// Compares what the service answers with the tables.
async fn compare_with_tables(client: &Client, database: &Database, models: &[Model]) {
    let read = async |sql: String| -> Vec<u64> {
        let found = numbers(database, &sql).await;
        found.into_iter().map(|number| u64::try_from(number).unwrap()).collect()
    };
    for model in models {
        for post in model.posts.keys() {
            let likers = format!(
                "SELECT account FROM likes WHERE post = {post} ORDER BY since DESC, account DESC"
            );
            let comments = format!("SELECT id FROM comments WHERE post = {post} ORDER BY id");
            let reposts =
                format!("SELECT repost FROM reposts WHERE target = {post} ORDER BY repost DESC");
            for (list, sql) in [
                (List::Likers(*post), likers),
                (List::oldest(*post), comments),
                (List::Reposts(*post), reposts),
            ] {
                assert_eq!(list.whole(client, 2).await, read(sql).await, "{list:?}");
            }
        }
        let authors: BTreeSet<u64> = model.posts.values().map(|post| post.author).collect();
        for author in authors {
            let posts = format!("SELECT id FROM texts WHERE author = {author} ORDER BY id DESC");
            let list = List::UserPosts(author);
            assert_eq!(list.whole(client, 2).await, read(posts).await, "{list:?}");
        }
    }
}

// Runs lanes while keys vanish, and until `disturb` has ended.
async fn run_lanes(
    redis: &Store,
    clients: &Clients,
    disturb: impl Future<Output = ()>,
) -> Vec<Model> {
    let (seed, is_over) = (rand::random::<u64>() >> 1, AtomicBool::new(false));
    println!("seed {seed}");
    let disturb = async {
        disturb.await;
        is_over.store(true, Ordering::Relaxed);
    };
    let lanes = (0..LANES).map(|number| Lane::new(number, clients, seed).run(&is_over));
    let deleted = delete_keys(redis, &is_over);
    let (models, deleted, ()) = tokio::join!(join_all(lanes), deleted, disturb);
    assert!(deleted > 100, "{deleted} keys were deleted");
    assert!(models.iter().all(|model| !model.posts.is_empty() && !model.gone.is_empty()));
    models
}

#[tokio::test]
async fn four_processes_answer_as_the_model_while_they_are_killed_and_keys_vanish() {
    let mut processes = Processes::start(4).await;
    let clients: Vec<Client> = (0..4).map(|n| processes.client(n)).collect();
    let clients = Mutex::new(clients);
    let redis = processes.redis.clone();
    let kill = async {
        for round in 0..8 {
            tokio::time::sleep(Duration::from_millis(700)).await;
            processes.replace(round % 4).await;
            clients.lock().unwrap()[round % 4] = processes.client(round % 4);
        }
    };
    let models = run_lanes(&redis, &clients, kill).await;
    settles(&processes.client(0)).await;
    for n in 0..4 {
        compare_with_tables(&processes.client(n), &processes.database, &models).await;
    }
}

#[tokio::test]
async fn a_single_process_answers_as_the_model_while_keys_vanish() {
    let system = System::start(Topology::Single).await;
    let clients = Mutex::new(vec![system.client.clone()]);
    let wait = tokio::time::sleep(Duration::from_secs(5));
    let models = run_lanes(&system.redis, &clients, wait).await;
    system.settles().await;
    compare_with_tables(&system.client, &system.database, &models).await;
}
