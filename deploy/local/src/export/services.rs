//! Reads the data of an account from the services, as records and pages.

use std::collections::HashMap;

use microblog_proto::{
    post::{
        ListLikedPostsRequest, ListUserCommentsRequest, ListUserPostsRequest,
        post_service_client::PostServiceClient,
    },
    relation::{self, EdgeList, ListEdgesRequest, relation_service_client::RelationServiceClient},
    user::{
        BatchGetUsersRequest, GetAccountRequest, GetUserByNameRequest,
        user_service_client::UserServiceClient,
    },
};
use tonic::{Code, Request, Status};

use super::records::{Account, Comment, Edge, Like, Post};
use crate::{
    keys::{Keys, SignedChannel},
    remote::{self, CALL_TIMEOUT},
};

// The services' maximum.
const PAGE_SIZE: i32 = 200;
// Enough for a page of posts of maximum length, each with a root of that length.
const PAGE_BYTES_MAX: usize = 32 << 20;

/// Clients of the services.
pub(super) struct Services {
    user: SignedChannel,
    relation: SignedChannel,
    post: SignedChannel,
}

/// A page of a list.
pub(super) struct Page<T> {
    /// The records.
    pub(super) records: Vec<T>,
    /// The next page token; empty at the end.
    pub(super) next: String,
}

impl Services {
    /// Returns clients of the services, which must be serving.
    pub(super) async fn connect(
        keys: &Keys,
        user_url: &str,
        relation_url: &str,
        post_url: &str,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            user: keys.sign(remote::connect(user_url).await?),
            relation: keys.sign(remote::connect(relation_url).await?),
            post: keys.sign(remote::connect(post_url).await?),
        })
    }

    /// Returns an account with its private fields.
    pub(super) async fn account(&self, user_id: u64) -> Result<Option<Account>, Status> {
        let request = request(GetAccountRequest { user_id });
        let answer = not_found_as_none(self.user().get_account(request).await)?;
        Ok(answer.and_then(|answer| answer.into_inner().account).and_then(Account::of))
    }

    /// Returns the id of the account with a name.
    pub(super) async fn id_of(&self, name: &str) -> Result<Option<u64>, Status> {
        let request = request(GetUserByNameRequest { name: name.to_owned() });
        let answer = not_found_as_none(self.user().get_user_by_name(request).await)?;
        Ok(answer.and_then(|answer| answer.into_inner().user).map(|user| user.id))
    }

    /// Lists the accounts that an account follows.
    pub(super) async fn following(
        &self,
        user_id: u64,
        page_token: String,
    ) -> Result<Page<Edge>, Status> {
        self.edges(EdgeList::Following, user_id, 0, page_token).await
    }

    /// Lists the followers of an account.
    pub(super) async fn followers(
        &self,
        user_id: u64,
        page_token: String,
    ) -> Result<Page<Edge>, Status> {
        self.edges(EdgeList::Followers, user_id, 0, page_token).await
    }

    /// Lists the accounts that an account blocks.
    pub(super) async fn blocks(
        &self,
        user_id: u64,
        page_token: String,
    ) -> Result<Page<Edge>, Status> {
        self.edges(EdgeList::Blocks, user_id, user_id, page_token).await
    }

    /// Lists the accounts that an account mutes.
    pub(super) async fn mutes(
        &self,
        user_id: u64,
        page_token: String,
    ) -> Result<Page<Edge>, Status> {
        self.edges(EdgeList::Mutes, user_id, user_id, page_token).await
    }

    async fn edges(
        &self,
        list: EdgeList,
        user_id: u64,
        viewer_id: u64,
        page_token: String,
    ) -> Result<Page<Edge>, Status> {
        let message = ListEdgesRequest {
            user_id,
            list: list.into(),
            viewer_id,
            page_size: PAGE_SIZE,
            page_token,
            ..Default::default()
        };
        let answer = self.relation().list_edges(request(message)).await?.into_inner();
        self.with_names(answer.edges, answer.next_page_token).await
    }

    /// Lists the posts and reposts of an account.
    pub(super) async fn posts(
        &self,
        author_id: u64,
        page_token: String,
    ) -> Result<Page<Post>, Status> {
        let (page_size, viewer_id, before_id) = (PAGE_SIZE, 0, 0);
        let message =
            ListUserPostsRequest { author_id, viewer_id, page_size, page_token, before_id };
        let answer = self.post().list_user_posts(request(message)).await?.into_inner();
        let records = answer.posts.into_iter().map(Post::of).collect();
        Ok(Page { records, next: answer.next_page_token })
    }

    /// Lists the posts that an account likes.
    pub(super) async fn likes(
        &self,
        user_id: u64,
        page_token: String,
    ) -> Result<Page<Like>, Status> {
        let message = ListLikedPostsRequest { user_id, page_size: PAGE_SIZE, page_token };
        let answer = self.post().list_liked_posts(request(message)).await?.into_inner();
        let records = answer.posts.iter().map(Like::of).collect();
        Ok(Page { records, next: answer.next_page_token })
    }

    /// Lists the comments of an account.
    pub(super) async fn comments(
        &self,
        author_id: u64,
        page_token: String,
    ) -> Result<Page<Comment>, Status> {
        let message = ListUserCommentsRequest { author_id, page_size: PAGE_SIZE, page_token };
        let answer = self.post().list_user_comments(request(message)).await?.into_inner();
        let records = answer.comments.into_iter().map(Comment::of).collect();
        Ok(Page { records, next: answer.next_page_token })
    }

    /// Adds the names of existing accounts.
    async fn with_names(
        &self,
        edges: Vec<relation::Edge>,
        next: String,
    ) -> Result<Page<Edge>, Status> {
        if edges.is_empty() {
            return Ok(Page { records: Vec::new(), next });
        }
        let user_ids = edges.iter().map(|edge| edge.user_id).collect();
        let request = request(BatchGetUsersRequest { user_ids, ..Default::default() });
        let answer = self.user().batch_get_users(request).await?.into_inner();
        let users = answer.users.into_iter();
        let mut names: HashMap<u64, String> = users.map(|user| (user.id, user.name)).collect();
        let record = |edge: relation::Edge| Edge::of(&edge, names.remove(&edge.user_id));
        Ok(Page { records: edges.into_iter().map(record).collect(), next })
    }

    fn user(&self) -> UserServiceClient<SignedChannel> {
        UserServiceClient::new(self.user.clone())
    }

    fn relation(&self) -> RelationServiceClient<SignedChannel> {
        RelationServiceClient::new(self.relation.clone())
    }

    fn post(&self) -> PostServiceClient<SignedChannel> {
        let client = PostServiceClient::new(self.post.clone());
        client.max_decoding_message_size(PAGE_BYTES_MAX)
    }
}

fn request<T>(message: T) -> Request<T> {
    remote::request(message, CALL_TIMEOUT)
}

/// Maps NOT_FOUND, and INVALID_ARGUMENT for an impossible id or name, to `None`.
fn not_found_as_none<T>(answer: Result<T, Status>) -> Result<Option<T>, Status> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(status) if matches!(status.code(), Code::NotFound | Code::InvalidArgument) => Ok(None),
        Err(status) => Err(status),
    }
}
