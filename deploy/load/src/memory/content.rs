//! Creates posts, likes, comments and home timelines for existing accounts, and reads these and their lists,
//! through the services.
//! Independent of Redis.

use futures::{StreamExt as _, TryStreamExt as _, stream};
use microblog_local::{
    progress::Progress,
    remote::{self, CALL_TIMEOUT},
};
use microblog_proto::{
    post::{
        AddCommentRequest, GetPostRequest, LikeRequest, ListCommentsRequest, ListLikersRequest,
        ListUserPostsRequest,
    },
    relation::{EdgeList, ListEdgesRequest},
    user::GetUserByNameRequest,
};
use tonic::Status;
use uuid::Uuid;

use crate::{
    service_clients::{ServiceClients, status_to_error},
    system::Urls,
};

/// Calls in flight.
const IN_FLIGHT_MAX: usize = 32;

/// The characters of a text.
const CHARACTERS: usize = 140;

const WORDS: [&str; 28] = [
    "the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "people",
    "write", "about", "weather", "music", "food", "travel", "work", "football", "cats", "politics",
    "books", "and", "their", "day", "in", "few", "words",
];

/// Accounts that create content.
pub(super) struct Content<'a> {
    accounts: &'a [u64],
    services: ServiceClients,
}

impl<'a> Content<'a> {
    pub(super) async fn new(urls: &Urls, accounts: &'a [u64]) -> anyhow::Result<Self> {
        Ok(Self { accounts, services: ServiceClients::connect(urls).await? })
    }

    /// Publishes one post per account. Returns the posts in the order of the accounts.
    pub(super) async fn publish(&self, round: u32) -> anyhow::Result<Vec<u64>> {
        let first = round as usize * self.accounts.len();
        let calls = self.accounts.iter().enumerate().map(async |(index, &author)| {
            self.services.publish(author, &text(first + index)).await
        });
        all("posts", self.accounts.len(), calls).await
    }

    /// Likes each post with `each` accounts, or with all if there are fewer. Returns the number of
    /// likes.
    pub(super) async fn like(&self, posts: &[u64], each: u32) -> anyhow::Result<u64> {
        let each = self.accounts.len().min(each as usize);
        let likes = posts.iter().enumerate().flat_map(|(index, &post)| {
            (0..each).map(move |like| (self.account(index + like), post))
        });
        let calls = likes.map(async |(user_id, post_id)| {
            let message = LikeRequest { user_id, post_id };
            let response = remote::retry(async || {
                self.services.posts().like(remote::request(message, CALL_TIMEOUT)).await
            });
            response.await.map(drop)
        });
        Ok(all("likes", posts.len() * each, calls).await?.len() as u64)
    }

    /// Adds one comment to each post.
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
            let response = remote::retry(async || {
                self.services
                    .posts()
                    .add_comment(remote::request(message.clone(), CALL_TIMEOUT))
                    .await
            });
            response.await.map(drop)
        });
        all("comments", posts.len(), calls).await.map(drop)
    }

    /// Reads accounts by their names. The read puts both into the cache.
    pub(super) async fn read_accounts<'n>(
        &self,
        names: impl ExactSizeIterator<Item = &'n str>,
    ) -> anyhow::Result<()> {
        let count = names.len();
        let calls = names.map(async |name| {
            let message = GetUserByNameRequest { name: name.to_owned() };
            let response = remote::retry(async || {
                let request = remote::request(message.clone(), CALL_TIMEOUT);
                self.services.users().get_user_by_name(request).await
            });
            response.await.map(drop)
        });
        all("profiles", count, calls).await.map(drop)
    }

    /// Reads the lists of followings and of followers of each account. The read puts them into the cache.
    pub(super) async fn read_lists(&self) -> anyhow::Result<()> {
        let lists = [EdgeList::Following, EdgeList::Followers];
        let lists = self.accounts.iter().flat_map(|&user_id| lists.map(|list| (user_id, list)));
        let calls = lists.map(async |(user_id, list)| {
            let list = list.into();
            let message = ListEdgesRequest { user_id, list, page_size: 1, ..Default::default() };
            let response = remote::retry(async || {
                let request = remote::request(message.clone(), CALL_TIMEOUT);
                self.services.relations().list_edges(request).await
            });
            response.await.map(drop)
        });
        all("lists", 2 * self.accounts.len(), calls).await.map(drop)
    }

    /// Reads posts, each with a viewer, and the newest posts of each account. The read puts them into the cache,
    /// with what the viewer likes.
    pub(super) async fn read_posts(&self, posts: &[u64]) -> anyhow::Result<()> {
        let calls = posts.iter().enumerate().map(async |(index, &post_id)| {
            let message = GetPostRequest { post_id, viewer_id: self.account(index) };
            let response = remote::retry(async || {
                self.services.posts().get_post(remote::request(message, CALL_TIMEOUT)).await
            });
            response.await.map(drop)
        });
        all("posts", posts.len(), calls).await?;
        let calls = self.accounts.iter().map(async |&author_id| {
            let message = ListUserPostsRequest { author_id, page_size: 1, ..Default::default() };
            let response = remote::retry(async || {
                let request = remote::request(message.clone(), CALL_TIMEOUT);
                self.services.posts().list_user_posts(request).await
            });
            response.await.map(drop)
        });
        all("lists", self.accounts.len(), calls).await.map(drop)
    }

    /// Reads who likes posts. The read puts the lists into the cache.
    pub(super) async fn read_likers(&self, posts: &[u64]) -> anyhow::Result<()> {
        let calls = posts.iter().map(async |&post_id| {
            let message = ListLikersRequest { post_id, ..Default::default() };
            let response = remote::retry(async || {
                let request = remote::request(message.clone(), CALL_TIMEOUT);
                self.services.posts().list_likers(request).await
            });
            response.await.map(drop)
        });
        all("lists", posts.len(), calls).await?;
        self.read_posts(posts).await
    }

    /// Reads the comments on posts. The read puts the lists into the cache.
    pub(super) async fn read_comments(&self, posts: &[u64]) -> anyhow::Result<()> {
        let calls = posts.iter().map(async |&post_id| {
            let message = ListCommentsRequest { post_id, ..Default::default() };
            let response = remote::retry(async || {
                let request = remote::request(message.clone(), CALL_TIMEOUT);
                self.services.posts().list_comments(request).await
            });
            response.await.map(drop)
        });
        all("lists", posts.len(), calls).await?;
        self.read_posts(posts).await
    }

    /// Reads the home timeline of each account. The read creates the timeline.
    pub(super) async fn read_homes(&self) -> anyhow::Result<()> {
        let calls = self.accounts.iter().map(async |&account| {
            remote::retry(async || self.services.home(account).await).await.map(drop)
        });
        all("homes", self.accounts.len(), calls).await.map(drop)
    }

    fn account(&self, number: usize) -> u64 {
        self.accounts[number % self.accounts.len()]
    }
}

/// Makes calls concurrently and returns the responses in order.
async fn all<T>(
    label: &'static str,
    count: usize,
    calls: impl Iterator<Item = impl Future<Output = Result<T, Status>>>,
) -> anyhow::Result<Vec<T>> {
    let progress = Progress::start(label, count as u64);
    let answers = stream::iter(calls).buffered(IN_FLIGHT_MAX).inspect(|_| progress.add(1));
    let answers = answers.try_collect().await;
    progress.finish();
    status_to_error(answers)
}

/// Returns a deterministic text of 140 characters.
fn text(number: usize) -> String {
    let mut text = String::new();
    let mut state = number as u64 + 1;
    while text.len() < CHARACTERS {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        text.push_str(WORDS[(state >> 33) as usize % WORDS.len()]);
        text.push(' ');
    }
    text.truncate(CHARACTERS - 1);
    // The service trims trailing spaces.
    text + "."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_140_characters_and_differ() {
        assert!((0..100).all(|number| text(number).len() == CHARACTERS));
        assert_ne!(text(0), text(1));
    }
}
