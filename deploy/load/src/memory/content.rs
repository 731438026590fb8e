//! Posts, likes, comments and home timelines for accounts that exist, by the calls of their
//! services. Knows nothing of Redis.

use futures::{StreamExt as _, TryStreamExt as _, stream};
use microblog_local::{
    progress::Progress,
    remote::{self, CALL_TIMEOUT},
};
use microblog_proto::post::{AddCommentRequest, LikeRequest};
use tonic::Status;
use uuid::Uuid;

use crate::{
    services::{Services, told},
    system::Urls,
};

/// Calls in flight.
const AT_ONCE: usize = 32;

/// The characters of a text.
const CHARACTERS: usize = 140;

const WORDS: [&str; 28] = [
    "the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "people",
    "write", "about", "weather", "music", "food", "travel", "work", "football", "cats", "politics",
    "books", "and", "their", "day", "in", "few", "words",
];

/// Accounts that do something.
pub(super) struct Content<'a> {
    accounts: &'a [u64],
    services: Services,
}

impl<'a> Content<'a> {
    pub(super) async fn new(urls: &Urls, accounts: &'a [u64]) -> anyhow::Result<Self> {
        Ok(Self { accounts, services: Services::of(urls).await? })
    }

    /// Lets each account post once; returns the posts, in the order of the accounts.
    pub(super) async fn publish(&self, round: u32) -> anyhow::Result<Vec<u64>> {
        let first = round as usize * self.accounts.len();
        let calls = self.accounts.iter().enumerate().map(async |(index, &author)| {
            self.services.publish(author, &text(first + index)).await
        });
        all("posts", self.accounts.len(), calls).await
    }

    /// Lets so many accounts like each post, or all, if they are fewer; returns how many likes
    /// these are.
    pub(super) async fn like(&self, posts: &[u64], each: u32) -> anyhow::Result<u64> {
        let each = self.accounts.len().min(each as usize);
        let likes = posts.iter().enumerate().flat_map(|(index, &post)| {
            (0..each).map(move |like| (self.account(index + like), post))
        });
        let calls = likes.map(async |(user_id, post_id)| {
            let message = LikeRequest { user_id, post_id };
            let response = remote::repeatedly(async || {
                self.services.posts().like(remote::request(message, CALL_TIMEOUT)).await
            });
            response.await.map(drop)
        });
        Ok(all("likes", posts.len() * each, calls).await?.len() as u64)
    }

    /// Lets somebody comment on each of the posts.
    pub(super) async fn comment(&self, posts: &[u64], round: u32) -> anyhow::Result<()> {
        let first = round as usize;
        let calls = posts.iter().enumerate().map(async |(index, &post_id)| {
            let message = AddCommentRequest {
                author_id: self.account(first + index + 1),
                request_id: Uuid::new_v4().to_string(),
                post_id,
                text: text(first + index),
                in_reply_to_id: 0,
            };
            let response = remote::repeatedly(async || {
                self.services
                    .posts()
                    .add_comment(remote::request(message.clone(), CALL_TIMEOUT))
                    .await
            });
            response.await.map(drop)
        });
        all("comments", posts.len(), calls).await.map(drop)
    }

    /// Lets each account read its home timeline, which is there from then on.
    pub(super) async fn read_homes(&self) -> anyhow::Result<()> {
        let calls = self.accounts.iter().map(async |&account| {
            remote::repeatedly(async || self.services.home(account).await).await.map(drop)
        });
        all("homes", self.accounts.len(), calls).await.map(drop)
    }

    fn account(&self, number: usize) -> u64 {
        self.accounts[number % self.accounts.len()]
    }
}

/// Makes so many calls, some at a time, and returns their answers in their order.
async fn all<T>(
    label: &'static str,
    count: usize,
    calls: impl Iterator<Item = impl Future<Output = Result<T, Status>>>,
) -> anyhow::Result<Vec<T>> {
    let progress = Progress::start(label, count as u64);
    let answers = stream::iter(calls).buffered(AT_ONCE).inspect(|_| progress.add(1));
    let answers = answers.try_collect().await;
    progress.finish();
    told(answers)
}

/// Returns words in an order that depends on the number.
fn text(number: usize) -> String {
    let mut text = String::new();
    let mut state = number as u64 + 1;
    while text.len() < CHARACTERS {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        text.push_str(WORDS[(state >> 33) as usize % WORDS.len()]);
        text.push(' ');
    }
    text.truncate(CHARACTERS - 1);
    // The service leaves out blanks at the end.
    text + "."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_as_long_as_they_are_said_to_be_and_differ() {
        assert!((0..100).all(|number| text(number).len() == CHARACTERS));
        assert_ne!(text(0), text(1));
    }
}
