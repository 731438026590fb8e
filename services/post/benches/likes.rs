//! Redis' own microseconds for each command on likes, at 10, 500 and 1,000,000 likes of a post.
//! Lists of up to 500 are packed (listpack), and searched from the front.
//!
//! `cargo bench -p microblog-post --bench likes`

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that fails panics")]

use clap::Parser as _;
use microblog_domain::{PostId, RequestId, UserId};
use microblog_keyspace::Entry;
use microblog_post::{Config, Content, List, Published, Store};
use microblog_testkit::{
    RedisServer,
    redis::{self, aio::MultiplexedConnection, cmd},
};

/// The numbers of likes. 499, since one is added and removed: the list must stay packed.
const LIKES: [u64; 3] = [10, 499, 1_000_000];

/// Repetitions of each call.
const TIMES: u64 = 2_000;

/// A page that even the shortest list has, from its middle too.
const SHORT: usize = 5;

/// A usual page; all of the shortest list.
const PAGE: usize = 50;

/// The likes that one command writes.
const CHUNK: u64 = 10_000;

/// Each call, and its command.
const CALLS: [(&str, &str); 7] = [
    ("like", "fcall"),
    ("unlike", "fcall"),
    ("liked?", "zscore"),
    ("count (the post)", "hmget"),
    ("the first 5 likers", "zrange"),
    ("5 from the middle", "zrange"),
    ("the first 50 (10 of 10)", "zrange"),
];

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = RedisServer::start().await;
        let url = server.url("post");
        let store = Store::open(&Config::parse_from(["post", "--redis-url", &url])).unwrap();
        let mut columns = Vec::new();
        for (n, likes) in (1..).zip(LIKES) {
            let post = liked_post(&store, &server, user(n), likes).await;
            columns.push(measure(&store, &server, post, likes).await);
        }
        print(&columns);
    });
}

fn print(columns: &[[f64; CALLS.len()]]) {
    println!("microseconds of Redis for each call, {TIMES} calls\n");
    print!("{:<24}", "likes");
    LIKES.iter().for_each(|likes| print!("{likes:>12}"));
    println!("{:>16}{:>16}", "500/10", "1,000,000/10");
    for (row, (name, _)) in CALLS.iter().enumerate() {
        print!("{name:<24}");
        columns.iter().for_each(|column| print!("{:>12.2}", column[row]));
        let ratio = |column: usize| columns[column][row] / columns[0][row];
        println!("{:>16.2}{:>16.2}", ratio(1), ratio(2));
    }
}

/// Publishes a post with so many likes.
async fn liked_post(store: &Store, server: &RedisServer, author: UserId, likes: u64) -> PostId {
    let request = uuid::Uuid::new_v4().to_string();
    let request = RequestId::parse("request_id", &request).unwrap();
    let content = Content { author, text: "like me".to_owned(), origin: None };
    let Published::New(id) = store.publish(&content, request).await.unwrap() else {
        panic!("a new post");
    };
    let key = |kind: &str| format!("post:{{{}}}:{kind}:{id}", id.partition());
    let mut admin = server.admin().await;
    for from in (0..likes).step_by(CHUNK as usize) {
        let mut add = cmd("ZADD");
        add.arg(key("likes"));
        for n in from..likes.min(from + CHUNK) {
            add.arg(id.get() + n * 4096).arg(user(1_000 + n).get());
        }
        add.exec_async(&mut admin).await.unwrap();
    }
    cmd("HSET").arg(key("post")).arg("l").arg(likes).exec_async(&mut admin).await.unwrap();
    id
}

/// Returns the microseconds of each call.
async fn measure(
    store: &Store,
    server: &RedisServer,
    id: PostId,
    likes: u64,
) -> [f64; CALLS.len()] {
    let mut admin = server.admin().await;
    let mut spent = [0; CALLS.len()];
    let middle =
        Entry { member: user(1_000 + likes / 2).get(), score: id.get() + likes / 2 * 4096 };
    let middle = Some(middle);
    let page = async |after: Option<Entry>, size: usize| {
        store.list(List::Likers, id, after, size).await.unwrap().entries.len()
    };
    for round in 0..=TIMES {
        // The account varies, and so does its position in the list.
        let fan = user(1_000 + round * 7919 % likes);
        let new = user(5_000_000 + round);
        for (call, (_, command)) in CALLS.iter().enumerate() {
            let before = microseconds(&mut admin, command).await;
            match call {
                0 => assert_eq!(store.like(new, id).await.unwrap().unwrap().1, likes + 1),
                1 => assert_eq!(store.unlike(new, id).await.unwrap(), Some(likes)),
                2 => assert_eq!(store.liked_in_redis(fan, &[id]).await.unwrap(), [Some(true)]),
                3 => {
                    let post = store.post(id, None).await.unwrap().unwrap();
                    assert_eq!(post.counts.likes, likes);
                }
                4 => assert_eq!(page(None, SHORT).await, SHORT),
                5 => assert_eq!(page(middle, SHORT).await, SHORT),
                _ => assert_eq!(page(None, PAGE).await, PAGE.min(likes as usize)),
            }
            // The first round warms up.
            if round > 0 {
                spent[call] += microseconds(&mut admin, command).await - before;
            }
        }
    }
    spent.map(|microseconds| microseconds as f64 / TIMES as f64)
}

fn user(n: u64) -> UserId {
    UserId::new(((60_000_000_000 + n) << 12) | ((n * 37 % 1024) << 2)).unwrap()
}

/// Returns the total time that Redis spent on a command.
async fn microseconds(admin: &mut MultiplexedConnection, command: &str) -> u64 {
    let mut question = redis::cmd("INFO");
    let info: String = question.arg("commandstats").query_async(admin).await.unwrap();
    let line = info.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:")));
    let Some((_, rest)) = line.and_then(|line| line.split_once("usec=")) else { return 0 };
    rest.split(',').next().unwrap().parse().unwrap()
}
