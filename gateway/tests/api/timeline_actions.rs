//! What people do with timelines, where nothing keeps them from it.

use std::time::Duration;

use microblog_proto::{
    gateway::{self, ViewedPost},
    post, timeline, user,
};
use microblog_testkit::{PATIENCE, Topology, eventually};

use crate::{
    acts::{asks, request_id},
    system::{Flags, Jobs, Member, PASSWORD, System, by_id},
};

/// For a post to come to those who follow its author.
pub(crate) const SOON: Duration = PATIENCE;

/// Returns a system in which nothing is carried to followers by itself: a home timeline is built
/// when it is first read, of all that there is.
pub(crate) async fn at_rest() -> System {
    System::start_on(Topology::Single, Jobs::Rest, Flags::default()).await
}

impl System {
    pub(crate) async fn home(
        &self,
        viewer: &Member,
        page_size: i32,
        page_token: &str,
        since_token: &str,
    ) -> gateway::ViewHomeResponse {
        let (page_token, since_token) = (page_token.to_owned(), since_token.to_owned());
        let request = gateway::ViewHomeRequest { page_size, page_token, since_token };
        self.gateway().view_home(viewer.asks(request)).await.unwrap().into_inner()
    }

    /// Returns the texts in somebody's home timeline, as many as a page has.
    pub(crate) async fn home_texts(&self, viewer: &Member) -> Vec<String> {
        texts(&self.home(viewer, 200, "", "").await.posts)
    }

    pub(crate) async fn friends(&self, viewer: &Member) -> gateway::ViewFriendsResponse {
        self.friends_page(viewer, 0, "").await
    }

    pub(crate) async fn friends_page(
        &self,
        viewer: &Member,
        page_size: i32,
        page_token: &str,
    ) -> gateway::ViewFriendsResponse {
        let (page_token, since_token) = (page_token.to_owned(), String::new());
        let request = gateway::ViewFriendsRequest { page_size, page_token, since_token };
        self.gateway().view_friends(viewer.asks(request)).await.unwrap().into_inner()
    }

    pub(crate) async fn user_timeline(
        &self,
        viewer: Option<&Member>,
        of: &Member,
        page_size: i32,
        page_token: &str,
    ) -> gateway::ViewUserTimelineResponse {
        let (user, page_token) = (by_id(of.id), page_token.to_owned());
        let since_token = String::new();
        let request = gateway::ViewUserTimelineRequest { user, page_size, page_token, since_token };
        self.gateway().view_user_timeline(asks(viewer, request)).await.unwrap().into_inner()
    }

    pub(crate) async fn count_new(&self, viewer: &Member, since_token: &str) -> u32 {
        let request = gateway::CountNewRequest { since_token: since_token.to_owned() };
        self.gateway().count_new(viewer.asks(request)).await.unwrap().into_inner().count
    }

    /// Waits until so many posts are new to somebody.
    pub(crate) async fn until_new(&self, viewer: &Member, since_token: &str, count: u32) {
        eventually("the posts arrive", SOON, async || {
            self.count_new(viewer, since_token).await == count
        })
        .await;
    }

    /// Makes posts of somebody's, past the gateway, and returns their ids.
    pub(crate) async fn publish_many(&self, author: &Member, texts: Vec<String>) -> Vec<u64> {
        let mut ids = Vec::with_capacity(texts.len());
        for text in texts {
            let (author_id, request_id) = (author.id, request_id());
            let request = post::CreatePostRequest { author_id, request_id, text };
            let response = self.post().create_post(request).await.unwrap().into_inner();
            ids.push(response.post.unwrap().id);
        }
        ids
    }

    /// Deletes posts of somebody's, past the gateway.
    pub(crate) async fn delete_many(&self, author: &Member, post_ids: &[u64]) {
        for &post_id in post_ids {
            let request = post::DeletePostRequest { author_id: author.id, post_id };
            self.post().delete_post(request).await.unwrap();
        }
    }

    /// Deletes an account, which no other service hears of.
    pub(crate) async fn leave(&self, user: &Member) {
        let request = user::DeleteUserRequest { user_id: user.id, password: PASSWORD.to_owned() };
        self.user().delete_user(request).await.unwrap();
    }

    pub(crate) async fn follow(&self, viewer: &Member, target: &Member) {
        let request = viewer.asks(gateway::FollowRequest { user: by_id(target.id) });
        self.gateway().follow(request).await.unwrap();
    }

    pub(crate) async fn unfollow(&self, viewer: &Member, target: &Member) {
        let request = viewer.asks(gateway::UnfollowRequest { user: by_id(target.id) });
        self.gateway().unfollow(request).await.unwrap();
    }

    /// Puts entries into the timelines of somebody and their followers, although there are no posts.
    pub(crate) async fn deliver(&self, author: &Member, post_ids: impl Iterator<Item = u64>) {
        let delivery = |post_id| timeline::Delivery {
            post_id,
            author_id: author.id,
            root_id: 0,
            has_text: true,
        };
        let deliveries: Vec<_> = post_ids.map(delivery).collect();
        for deliveries in deliveries.chunks(500) {
            let request = timeline::DeliverRequest { deliveries: deliveries.to_vec() };
            self.timeline().deliver(request).await.unwrap();
        }
    }
}

/// Returns the texts of posts, in their order.
pub(crate) fn texts(posts: &[ViewedPost]) -> Vec<String> {
    posts.iter().map(|viewed| viewed.post.as_ref().unwrap().text.clone()).collect()
}

/// Returns the ids of posts, in their order.
pub(crate) fn post_ids(posts: &[ViewedPost]) -> Vec<u64> {
    posts.iter().map(|viewed| viewed.post.as_ref().unwrap().id).collect()
}
