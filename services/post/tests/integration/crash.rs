//! Processes are killed under load: acknowledged writes are there, once, and reach the timelines.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures::future::{join, join_all};
use microblog_proto::post as pb;
use microblog_testkit::{self as testkit, Process, RedisServer};
use tonic::{Code, Request, Response, Status};

use crate::support::{
    Client, PATIENCE, client, config, id,
    lists::{self, List},
    request_id, settles,
    timelines::Timelines,
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_microblog-post");
const DEADLINE: Duration = Duration::from_secs(10);

/// The number of calls with a known outcome, and with an unknown one.
#[derive(Default)]
struct Tally {
    known: AtomicUsize,
    unknown: AtomicUsize,
}

impl Tally {
    /// Repeats a call until its outcome is known.
    async fn until_known<M: Clone, T>(
        &self,
        message: M,
        mut call: impl AsyncFnMut(Request<M>) -> Result<Response<T>, Status>,
    ) -> T {
        loop {
            let mut request = Request::new(message.clone());
            request.set_timeout(DEADLINE);
            let began = Instant::now();
            let answer = call(request).await;
            assert!(began.elapsed() < DEADLINE + PATIENCE / 2, "outlived its deadline");
            match answer {
                Ok(answer) => {
                    self.known.fetch_add(1, Ordering::Relaxed);
                    return answer.into_inner();
                }
                Err(status) => {
                    let unknown =
                        [Code::Unavailable, Code::DeadlineExceeded, Code::Cancelled, Code::Unknown];
                    assert!(unknown.contains(&status.code()), "{status:?}");
                    self.unknown.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
    }

    async fn goes_well(&self, calls: usize) {
        let known = || self.known.load(Ordering::Relaxed);
        let before = known();
        testkit::eventually("calls succeed", PATIENCE, async || known() >= before + calls).await;
    }
}

/// The post service as a process, with timelines that this process serves.
struct Deployed {
    redis: RedisServer,
    timelines: Timelines,
    port: u16,
    args: Vec<String>,
}

impl Deployed {
    async fn new() -> Self {
        let redis = RedisServer::start().await;
        let timelines = Timelines::default();
        let url = redis.url("post");
        let timeline_url = timelines.listen(&config(&url, &[]));
        let limits = ["--posts-per-minute=0", "--comments-per-minute=0"].map(str::to_owned);
        let args = ["--redis-url".to_owned(), url, "--timeline-url".to_owned(), timeline_url];
        let args = args.into_iter().chain(limits).collect();
        Self { redis, timelines, port: testkit::free_port(), args }
    }

    async fn start(&self) -> Process {
        let args: Vec<_> = self.args.iter().map(String::as_str).collect();
        Process::start_on(self.port, PROGRAM, &args).await
    }
}

const CALLERS: u64 = 64;
const POSTS_EACH: u64 = 157;

/// Publishes an author's posts; returns their texts by id.
async fn creates(client: Client, author_id: u64, tally: &Tally) -> HashMap<u64, String> {
    let mut made = HashMap::new();
    for n in 0..POSTS_EACH {
        let (request_id, text) = (request_id(), format!("post {n} of {author_id}"));
        let request = pb::CreatePostRequest { author_id, request_id, text: text.clone() };
        let create = async |request| client.clone().create_post(request).await;
        let post = tally.until_known(request, create).await.post.unwrap();
        assert_eq!(made.insert(post.id, text), None, "another request has this id");
    }
    made
}

#[tokio::test]
async fn ten_thousand_posts_survive_a_repeatedly_killed_service() {
    let deployed = Deployed::new().await;
    let mut process = deployed.start().await;
    let tally = Tally::default();
    let address = process.address();
    let callers = (1..=CALLERS).map(|n| creates(client(&address), id(n), &tally));
    let kills = async {
        for _ in 0..4 {
            tally.goes_well(1_800).await;
            process.kill9();
            process = deployed.start().await;
        }
    };
    let (made, ()) = join(join_all(callers), kills).await;
    assert!(tally.unknown.load(Ordering::Relaxed) > 0, "no kill interrupted a call");

    let client = client(&address);
    settles(&client).await;
    let heard = deployed.timelines.deliveries();
    let heard: HashSet<_> = heard.into_iter().map(|heard| heard.post_id).collect();
    for (author, made) in (1..=CALLERS).map(id).zip(made) {
        let listed = posts_of(&client, author).await;
        let ids = lists::ids(&listed);
        assert_eq!(ids.len() as u64, POSTS_EACH, "each once");
        let listed: HashMap<_, _> = listed.into_iter().map(|post| (post.id, post.text)).collect();
        assert_eq!(listed, made);
        assert!(ids.iter().all(|post| heard.contains(post)), "the timelines miss some");
        let batch =
            pb::BatchGetPostsRequest { post_ids: ids.clone(), viewer_id: 0, ..Default::default() };
        let found = client.clone().batch_get_posts(batch).await.unwrap().into_inner().posts;
        assert_eq!(lists::ids(&found), ids);
    }
}

async fn posts_of(client: &Client, author_id: u64) -> Vec<pb::Post> {
    let mut request = pb::ListUserPostsRequest { author_id, page_size: 200, ..Default::default() };
    let mut posts = Vec::new();
    loop {
        let page = client.clone().list_user_posts(request.clone()).await.unwrap().into_inner();
        posts.extend(page.posts);
        if page.next_page_token.is_empty() {
            return posts;
        }
        request.page_token = page.next_page_token;
    }
}

const USERS: u64 = 24;

/// The expected likes, comments and reposts of each post.
type Known = HashMap<u64, [HashSet<u64>; 3]>;

#[derive(Default)]
struct Load {
    stop: AtomicBool,
    tally: Tally,
    known: Mutex<Known>,
}

/// Likes, unlikes, comments and reposts as one user, until stopped.
async fn reacts(client: &Client, user_id: u64, posts: &[u64], load: &Load) {
    let Load { stop, tally, known } = load;
    let mut step = user_id;
    while !stop.load(Ordering::Relaxed) {
        step = step.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let post_id = posts[(step >> 33) as usize % posts.len()];
        let (kind, entry, is_there) = match (step >> 20) % 5 {
            0 | 1 => {
                let like = async |request| client.clone().like(request).await;
                tally.until_known(pb::LikeRequest { user_id, post_id }, like).await;
                (0, user_id, true)
            }
            2 => {
                let unlike = async |request| client.clone().unlike(request).await;
                tally.until_known(pb::UnlikeRequest { user_id, post_id }, unlike).await;
                (0, user_id, false)
            }
            3 => {
                let (author_id, request_id) = (user_id, request_id());
                let (text, in_reply_to_id) = ("well".to_owned(), 0);
                let request =
                    pb::AddCommentRequest { author_id, request_id, post_id, text, in_reply_to_id };
                let comment = async |request| client.clone().add_comment(request).await;
                (1, tally.until_known(request, comment).await.comment.unwrap().id, true)
            }
            _ => {
                let (author_id, request_id, text) = (user_id, request_id(), String::new());
                let request = pb::RepostRequest { author_id, request_id, post_id, text };
                let repost = async |request| client.clone().repost(request).await;
                (2, tally.until_known(request, repost).await.post.unwrap().id, true)
            }
        };
        let mut known = known.lock().unwrap();
        let entries = &mut known.entry(post_id).or_default()[kind];
        if is_there {
            entries.insert(entry)
        } else {
            entries.remove(&entry)
        };
    }
}

#[tokio::test]
async fn redis_killed_under_load_loses_nothing_and_the_service_recovers() {
    let deployed = Deployed::new().await;
    let process = deployed.start().await;
    let client = client(&process.address());
    let load = Load::default();
    let made = join_all((1..=6).map(|n| {
        let request = pb::CreatePostRequest {
            author_id: id(n),
            request_id: request_id(),
            text: "react".to_owned(),
        };
        let mut client = client.clone();
        async move { client.create_post(request).await.unwrap().into_inner().post.unwrap().id }
    }));
    let posts = made.await;
    let users = (0..USERS).map(|n| reacts(&client, id(100 + n), &posts, &load));
    let kills = async {
        for _ in 0..2 {
            load.tally.goes_well(400).await;
            deployed.redis.kill();
            let is_unavailable = async || !process.is_serving().await;
            testkit::eventually("health reports the outage", PATIENCE, is_unavailable).await;
            deployed.redis.restart().await;
            load.tally.goes_well(400).await;
            let back = async || process.is_serving().await;
            testkit::eventually("health recovers", PATIENCE, back).await;
        }
        load.stop.store(true, Ordering::Relaxed);
    };
    join(join_all(users), kills).await;
    assert!(load.tally.unknown.load(Ordering::Relaxed) > 0, "no kill interrupted a call");

    settles(&client).await;
    let heard = deployed.timelines.deliveries();
    let heard: HashSet<_> = heard.into_iter().map(|heard| heard.post_id).collect();
    let known = load.known.into_inner().unwrap();
    for (&post_id, known) in &known {
        let lists = [List::Likers(post_id), List::oldest(post_id), List::Reposts(post_id)];
        for (list, known) in lists.into_iter().zip(known) {
            let listed = list.whole(&client, 200).await;
            assert_eq!(listed.len(), known.len(), "{list:?}");
            assert_eq!(&HashSet::from_iter(listed), known, "{list:?}");
        }
        assert!(known[2].iter().all(|repost| heard.contains(repost)), "the timelines miss some");
        let request = pb::GetPostRequest { post_id, viewer_id: 0 };
        let post = client.clone().get_post(request).await.unwrap().into_inner().post.unwrap();
        let counts = [post.likes, post.comments, post.reposts];
        assert_eq!(counts, known.each_ref().map(|entries| entries.len() as u64));
    }
    assert_eq!(known.len(), posts.len());
}
