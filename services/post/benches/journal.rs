//! What the change journal adds to Redis' time for changes of posts.
//!
//! `cargo bench -p microblog-post --bench journal`

#![allow(clippy::unwrap_used, reason = "a measurement that fails panics")]

mod support;

use clap::Parser as _;
use futures::{StreamExt as _, future::join_all, stream};
use microblog_domain::{PostId, RequestId, UserId};
use microblog_post::{AddedComment, CommentContent, Config, Store};
use microblog_testkit::journal_cost::{CHANGES, PARTITIONS, print_journal_cost};
use uuid::Uuid;

/// Changes that are under way at once.
const AT_ONCE: usize = 64;

/// The service, and a post in each partition.
struct State {
    store: Store,
    posts: Vec<PostId>,
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let journal = |partition| format!("post:{{{partition}}}:journal");
    runtime.block_on(print_journal_cost(
        &["like", "unlike", "publish", "comment"],
        journal,
        async |server| {
            let flags = ["post", "--redis-url", &server.url("post")];
            let store = Store::open(&Config::parse_from(flags)).unwrap();
            assert!(store.is_ready().await);
            let publish = |n| support::publish(&store, user(n), support::english(n));
            let posts = join_all((0..PARTITIONS).map(publish)).await;
            State { store, posts }
        },
        async |state, kind| {
            stream::iter(0..CHANGES)
                .map(|n| state.change(kind, n))
                .buffer_unordered(AT_ONCE)
                .for_each(async |()| ())
                .await;
        },
    ));
}

impl State {
    async fn change(&self, kind: &str, n: u64) {
        let account = user(1 << 20 | n);
        let post = self.posts[(n % PARTITIONS) as usize];
        match kind {
            "like" => assert!(self.store.like(account, post).await.unwrap().is_some()),
            "unlike" => assert!(self.store.unlike(account, post).await.unwrap().is_some()),
            "publish" => drop(support::publish(&self.store, account, support::english(n)).await),
            _ => {
                let text = support::english(n);
                let content = CommentContent { author: account, text, in_reply_to: None };
                let request = Uuid::new_v4().to_string();
                let request = RequestId::parse("request_id", &request).unwrap();
                let added = self.store.add_comment(post, &content, request).await.unwrap();
                assert!(matches!(added, AddedComment::New(_)));
            }
        }
    }
}

fn user(n: u64) -> UserId {
    UserId::new((60_000_000_000 + n / PARTITIONS) << 12 | (n % PARTITIONS) << 2).unwrap()
}
