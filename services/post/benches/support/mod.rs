//! Shared by the benchmarks: accounts, texts, and Redis' memory statistics.

#![allow(dead_code, reason = "no measurement uses all of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that fails panics")]

use microblog_domain::{PostId, RequestId, UserId};
use microblog_post::{Content, Published, Store};
use microblog_testkit::redis::{aio::MultiplexedConnection, cmd};
use uuid::Uuid;

/// The characters of a text.
pub(crate) const CHARACTERS: usize = 140;

const ENGLISH: &str = "the quick brown fox jumps over a lazy dog while people write about weather \
     music food travel work football cats politics books and their day in a few short words";

const CHINESE: &str = "今天天气很好我们一起去公园散步然后吃了一顿火锅晚上回家看了一部电影觉得非常有意思\
     希望明天也能这么开心大家都在微博上分享自己的生活照片和心情";

/// An account as its service makes them, two years in, each in a partition of its own.
pub(crate) fn author(n: u64) -> UserId {
    UserId::new(((60_000_000_000 + n * 7919) << 12) | ((n * 37 % 1024) << 2)).unwrap()
}

pub(crate) async fn publish(store: &Store, author: UserId, text: String) -> PostId {
    let request = RequestId::parse("request_id", &Uuid::new_v4().to_string()).unwrap();
    let content = Content { author, text, origin: None };
    match store.publish(&content, request).await.unwrap() {
        Published::New(id) => id,
        other => panic!("{other:?}"),
    }
}

/// Returns words in an order that depends on `n`.
pub(crate) fn english(n: u64) -> String {
    let words: Vec<_> = ENGLISH.split_whitespace().collect();
    let mut text = String::new();
    for index in indices(n, words.len()) {
        text.push_str(words[index]);
        text.push(' ');
        if text.len() > CHARACTERS {
            break;
        }
    }
    text.truncate(CHARACTERS - 1);
    text + "."
}

pub(crate) fn chinese(n: u64) -> String {
    let characters: Vec<_> = CHINESE.chars().filter(|c| !c.is_whitespace()).collect();
    indices(n, characters.len()).take(CHARACTERS).map(|index| characters[index]).collect()
}

fn indices(n: u64, below: usize) -> impl Iterator<Item = usize> {
    let step = |state: &u64| Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    std::iter::successors(Some(n + 1), step).map(move |state| (state >> 33) as usize % below)
}

/// Returns the bytes that the server uses, without buffers of connections and the append-only file.
pub(crate) async fn used(admin: &mut MultiplexedConnection) -> i64 {
    let info = info(admin).await;
    let number = |name: &str| -> i64 {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap().trim().parse().unwrap()
    };
    number("used_memory") - number("mem_clients_normal") - number("mem_aof_buffer")
}

pub(crate) async fn usage(admin: &mut MultiplexedConnection, key: &str) -> u64 {
    cmd("MEMORY").arg("USAGE").arg(key).arg("SAMPLES").arg(0).query_async(admin).await.unwrap()
}

/// Deletes keys; returns how many.
pub(crate) async fn remove(admin: &mut MultiplexedConnection, pattern: &str) -> u64 {
    let keys: Vec<String> = cmd("KEYS").arg(pattern).query_async(admin).await.unwrap();
    cmd("DEL").arg(keys).query_async(admin).await.unwrap()
}

/// Returns the server's memory statistics.
pub(crate) async fn info(admin: &mut MultiplexedConnection) -> String {
    cmd("INFO").arg("memory").query_async(admin).await.unwrap()
}
