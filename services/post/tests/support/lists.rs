//! All lists of the service behind one interface, so that one test covers all.

use microblog_proto::post as pb;
use tonic::Status;

use super::Client;

/// A list of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    /// Accounts that like a post.
    Likers(u64),
    /// The comments on a post, with the wire value of their order.
    Comments(u64, i32),
    /// The reposts of a post.
    Reposts(u64),
    /// The posts of an account.
    UserPosts(u64),
}

impl List {
    /// The comments on a post, oldest first.
    pub(crate) const fn oldest(post: u64) -> Self {
        Self::Comments(post, pb::CommentOrder::OldestFirst as i32)
    }

    /// The comments on a post, newest first.
    pub(crate) const fn newest(post: u64) -> Self {
        Self::Comments(post, pb::CommentOrder::NewestFirst as i32)
    }

    /// All lists of a post and an account.
    pub(crate) const fn all_of(post: u64, author: u64) -> [Self; 5] {
        let (oldest, newest) = (Self::oldest(post), Self::newest(post));
        [Self::Likers(post), oldest, newest, Self::Reposts(post), Self::UserPosts(author)]
    }

    /// Returns a page, as ids, and the token of the next one.
    pub(crate) async fn page(
        self,
        client: &Client,
        page_size: i32,
        page_token: &str,
    ) -> Result<(Vec<u64>, String), Status> {
        let (mut client, page_token) = (client.clone(), page_token.to_owned());
        Ok(match self {
            Self::Likers(post_id) => {
                let request = pb::ListLikersRequest { post_id, page_size, page_token };
                let page = client.list_likers(request).await?.into_inner();
                let ids = page.likes.iter().map(|like| like.user_id).collect();
                (ids, page.next_page_token)
            }
            Self::Comments(post_id, order) => {
                let request = pb::ListCommentsRequest { post_id, order, page_size, page_token };
                let page = client.list_comments(request).await?.into_inner();
                let ids = page.comments.iter().map(|comment| comment.id).collect();
                (ids, page.next_page_token)
            }
            Self::Reposts(post_id) => {
                let request =
                    pb::ListRepostsRequest { post_id, viewer_id: 0, page_size, page_token };
                let page = client.list_reposts(request).await?.into_inner();
                (ids(&page.posts), page.next_page_token)
            }
            Self::UserPosts(author_id) => {
                let request = pb::ListUserPostsRequest {
                    author_id,
                    page_size,
                    page_token,
                    ..Default::default()
                };
                let page = client.list_user_posts(request).await?.into_inner();
                (ids(&page.posts), page.next_page_token)
            }
        })
    }

    /// Returns the whole list, read in pages of this size.
    pub(crate) async fn whole(self, client: &Client, page_size: i32) -> Vec<u64> {
        let (mut whole, mut token) = (Vec::new(), String::new());
        loop {
            let (page, next) = self.page(client, page_size, &token).await.unwrap();
            whole.extend(page);
            if next.is_empty() {
                return whole;
            }
            token = next;
        }
    }
}

/// Returns the ids of posts.
pub(crate) fn ids(posts: &[pb::Post]) -> Vec<u64> {
    posts.iter().map(|post| post.id).collect()
}
