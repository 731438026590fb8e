//! Reads timelines page by page, and repeats calls until they succeed.

use std::time::{Duration, Instant};

use microblog_proto::timeline as pb;
use tonic::{Code, Request, Status};

use super::{Client, PATIENCE, posts};

/// The deadline of a call.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

/// The time in which a call ends: its deadline, with a margin for busy machines.
pub(crate) const OVER: Duration = Duration::from_secs(40);

/// Status codes with an unknown outcome.
pub(crate) const UNKNOWN: [Code; 4] =
    [Code::Unavailable, Code::DeadlineExceeded, Code::Cancelled, Code::Unknown];

/// One of the two timelines of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timeline {
    Home,
    Friends,
}

/// A page: entries, `next_page_token`, `since_token`.
pub(crate) type Page = (Vec<pb::Entry>, String, String);

impl Timeline {
    pub(crate) const ALL: [Self; 2] = [Self::Home, Self::Friends];

    /// Returns the kind as requests have it.
    pub(crate) fn kind(self) -> i32 {
        match self {
            Self::Home => pb::TimelineKind::Home.into(),
            Self::Friends => pb::TimelineKind::Friends.into(),
        }
    }

    /// Returns a request for a page.
    pub(crate) fn request(
        self,
        user_id: u64,
        page_size: i32,
        page_token: &str,
        since_token: &str,
    ) -> pb::GetTimelineRequest {
        let (page_token, since_token) = (page_token.to_owned(), since_token.to_owned());
        pb::GetTimelineRequest { user_id, kind: self.kind(), page_size, page_token, since_token }
    }

    /// Returns a page.
    pub(crate) async fn page(
        self,
        client: &Client,
        user_id: u64,
        page_size: i32,
        page_token: &str,
        since_token: &str,
    ) -> Result<Page, Status> {
        let mut request = Request::new(self.request(user_id, page_size, page_token, since_token));
        request.set_timeout(DEADLINE);
        let page = client.clone().get_timeline(request).await?.into_inner();
        Ok((page.entries, page.next_page_token, page.since_token))
    }

    /// Returns the authors, sorted by id.
    pub(crate) async fn authors(self, client: &Client, user_id: u64) -> Result<Vec<u64>, Status> {
        let request = pb::ListAuthorsRequest { user_id, kind: self.kind() };
        let mut authors = client.clone().list_authors(request).await?.into_inner().author_ids;
        authors.sort_unstable();
        Ok(authors)
    }

    /// Returns the posts of all pages: those new since a token, or all.
    pub(crate) async fn whole(
        self,
        client: &Client,
        user_id: u64,
        page_size: i32,
        since_token: &str,
    ) -> Vec<u64> {
        let (mut all, mut token) = (Vec::new(), String::new());
        loop {
            let call = async || self.page(client, user_id, page_size, &token, since_token).await;
            let (entries, next, _) = until_answered(call).await;
            assert!(
                next.is_empty() || entries.len() == page_size as usize,
                "only the last is short"
            );
            all.extend(posts(&entries));
            if next.is_empty() {
                return all;
            }
            token = next;
        }
    }
}

/// Repeats a call while its outcome is unknown.
pub(crate) async fn until_answered<T>(mut call: impl AsyncFnMut() -> Result<T, Status>) -> T {
    let give_up = Instant::now() + 3 * PATIENCE;
    loop {
        let began = Instant::now();
        let answer = call().await;
        assert!(began.elapsed() < OVER, "outlived its deadline");
        match answer {
            Ok(answer) => return answer,
            Err(status) => {
                assert!(UNKNOWN.contains(&status.code()), "{status:?}");
                assert!(Instant::now() < give_up, "no answer: {status:?}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// Delivers posts, with retries.
pub(crate) async fn deliver_all(client: &Client, deliveries: &[pb::Delivery]) {
    until_answered(async || {
        let deliveries = deliveries.to_vec();
        let mut request = Request::new(pb::DeliverRequest { deliveries });
        request.set_timeout(DEADLINE);
        client.clone().deliver(request).await
    })
    .await;
}

/// Returns whether posts are newest first without duplicates.
pub(crate) fn is_newest_first(posts: &[u64]) -> bool {
    posts.is_sorted_by(|a, b| a > b)
}
