//! Successful calls on posts.

use microblog_proto::{
    gateway::{self, ViewedPost},
    post::{Comment, Post},
};
use microblog_testkit::next_millisecond;
use tonic::Request;
use uuid::Uuid;

use crate::system::{Member, System, by_id};

/// Returns a request with the viewer's token, or an anonymous one.
pub(crate) fn request_as<T>(viewer: Option<&Member>, message: T) -> Request<T> {
    match viewer {
        Some(viewer) => viewer.request(message),
        None => Request::new(message),
    }
}

pub(crate) fn request_id() -> String {
    Uuid::new_v4().to_string()
}

impl System {
    pub(crate) async fn publish(&self, author: &Member, text: &str) -> Post {
        next_millisecond().await;
        let request = gateway::PublishRequest { request_id: request_id(), text: text.to_owned() };
        let response = self.gateway().publish(author.request(request)).await.unwrap();
        response.into_inner().post.unwrap()
    }

    pub(crate) async fn repost(&self, author: &Member, post_id: u64, text: &str) -> Post {
        next_millisecond().await;
        let text = text.to_owned();
        let request = gateway::RepostRequest { request_id: request_id(), post_id, text };
        let response = self.gateway().repost(author.request(request)).await.unwrap();
        response.into_inner().post.unwrap()
    }

    pub(crate) async fn delete_post(&self, author: &Member, post_id: u64) {
        let request = gateway::DeletePostRequest { post_id };
        self.gateway().delete_post(author.request(request)).await.unwrap();
    }

    pub(crate) async fn like(&self, viewer: &Member, post_id: u64) -> u64 {
        next_millisecond().await;
        let request = viewer.request(gateway::LikeRequest { post_id });
        self.gateway().like(request).await.unwrap().into_inner().likes
    }

    /// Removes a like, and returns the response as text.
    pub(crate) async fn unlike(&self, viewer: &Member, post_id: u64) -> String {
        let request = viewer.request(gateway::UnlikeRequest { post_id });
        format!("{:?}", self.gateway().unlike(request).await.unwrap().into_inner())
    }

    pub(crate) async fn comment(&self, author: &Member, post_id: u64, text: &str) -> Comment {
        let (request_id, text) = (request_id(), text.to_owned());
        let request = gateway::CommentRequest { request_id, post_id, text, in_reply_to_id: 0 };
        let response = self.gateway().comment(author.request(request)).await.unwrap();
        response.into_inner().comment.unwrap()
    }

    pub(crate) async fn view(&self, viewer: Option<&Member>, post_id: u64) -> ViewedPost {
        let request = request_as(viewer, gateway::ViewPostRequest { post_id });
        self.gateway().view_post(request).await.unwrap().into_inner().post.unwrap()
    }

    pub(crate) async fn comments(
        &self,
        viewer: Option<&Member>,
        post_id: u64,
        page_size: i32,
        page_token: &str,
    ) -> gateway::ViewCommentsResponse {
        let page_token = page_token.to_owned();
        let request = gateway::ViewCommentsRequest { post_id, order: 0, page_size, page_token };
        self.gateway().view_comments(request_as(viewer, request)).await.unwrap().into_inner()
    }

    pub(crate) async fn reposts(
        &self,
        viewer: Option<&Member>,
        post_id: u64,
        page_size: i32,
        page_token: &str,
    ) -> gateway::ViewRepostsResponse {
        let page_token = page_token.to_owned();
        let request = gateway::ViewRepostsRequest { post_id, page_size, page_token };
        self.gateway().view_reposts(request_as(viewer, request)).await.unwrap().into_inner()
    }

    pub(crate) async fn likers(
        &self,
        viewer: Option<&Member>,
        post_id: u64,
        page_size: i32,
        page_token: &str,
    ) -> gateway::ViewLikersResponse {
        let page_token = page_token.to_owned();
        let request = gateway::ViewLikersRequest { post_id, page_size, page_token };
        self.gateway().view_likers(request_as(viewer, request)).await.unwrap().into_inner()
    }

    pub(crate) async fn block(&self, viewer: &Member, target: &Member) {
        let request = viewer.request(gateway::BlockRequest { user: by_id(target.id) });
        self.gateway().block(request).await.unwrap();
    }

    pub(crate) async fn mute(&self, viewer: &Member, target: &Member) {
        let request = viewer.request(gateway::MuteRequest { user: by_id(target.id) });
        self.gateway().mute(request).await.unwrap();
    }
}

/// Returns the texts of the comments on a page, in order.
pub(crate) fn comment_texts(page: &gateway::ViewCommentsResponse) -> Vec<&str> {
    page.comments.iter().map(|viewed| viewed.comment.as_ref().unwrap().text.as_str()).collect()
}

/// Returns the texts of the posts on a page, in order.
pub(crate) fn post_texts(page: &gateway::ViewRepostsResponse) -> Vec<&str> {
    page.posts.iter().map(|viewed| viewed.post.as_ref().unwrap().text.as_str()).collect()
}
