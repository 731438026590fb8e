//! Callers that read: acknowledged posts are there, and deleted ones are not.

use std::{collections::BTreeSet, time::Duration};

use microblog_proto::post as pb;
use tonic::Code;

use super::{Known, Load};
use crate::support::Client;

impl Load {
    /// Reads expected posts: each is returned, or the call fails as unavailable.
    pub(super) async fn reads(&self, client: &Client) {
        while !self.is_stopped() {
            tokio::time::sleep(Duration::from_millis(2)).await;
            let Some((post_id, known)) = self.any_post() else { continue };
            let get = async |request| client.clone().get_post(request).await;
            let request = pb::GetPostRequest { post_id, viewer_id: 0 };
            let post = self.until_known(request, get).await.expect("it exists").post.unwrap();
            assert_eq!((post.author_id, &post.text), (known.author, &known.text));
            assert!(!post.root_deleted);
            if self.any(10) == 0 {
                self.scrolls(client, known.author).await;
            }
            let gone = self.gone.lock().unwrap().last().copied();
            if let Some(post_id) = gone {
                let request = pb::GetPostRequest { post_id, viewer_id: 0 };
                let there = self.until_known(request, get).await;
                assert_eq!(there.expect_err("it was deleted").code(), Code::NotFound);
            }
        }
    }

    async fn scrolls(&self, client: &Client, author_id: u64) {
        let of_author = |(id, known): (&u64, &Known)| (known.author == author_id).then_some(*id);
        let mut missing: BTreeSet<u64> =
            self.posts.lock().unwrap().iter().filter_map(of_author).collect();
        let gone: BTreeSet<u64> = self.gone.lock().unwrap().iter().copied().collect();
        let mut request =
            pb::ListUserPostsRequest { author_id, page_size: 100, ..Default::default() };
        let list = async |request| client.clone().list_user_posts(request).await;
        let mut last = u64::MAX;
        loop {
            let page = self.until_known(request.clone(), list).await.unwrap();
            for post in page.posts {
                assert!(post.id < last && !gone.contains(&post.id));
                last = post.id;
                missing.remove(&post.id);
            }
            if page.next_page_token.is_empty() {
                break;
            }
            request.page_token = page.next_page_token;
        }
        assert!(missing.is_empty(), "{missing:?} of {author_id} are missing");
    }
}
