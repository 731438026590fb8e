//! Successful calls on timelines.

use std::time::Duration;

use microblog_proto::{
    gateway::{self, ViewedPost},
    post, timeline, user,
};
use microblog_testkit::{PATIENCE, Topology, eventually};

use crate::{
    actions::{request_as, request_id},
    system::{Flags, Jobs, Member, PASSWORD, System, by_id},
};

/// Timeout for the delivery of a post to followers.
pub(crate) const SOON: Duration = PATIENCE;

/// Returns a system without fan-out: the first read of a home timeline builds it from all existing
/// posts.
pub(crate) async fn without_jobs() -> System {
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
        self.gateway().view_home(viewer.request(request)).await.unwrap().into_inner()
    }

    /// Returns the texts on the first page of a home timeline.
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
        self.gateway().view_friends(viewer.request(request)).await.unwrap().into_inner()
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
        self.gateway().view_user_timeline(request_as(viewer, request)).await.unwrap().into_inner()
    }

    pub(crate) async fn count_new(&self, viewer: &Member, since_token: &str) -> u32 {
        let request = gateway::CountNewRequest { since_token: since_token.to_owned() };
        self.gateway().count_new(viewer.request(request)).await.unwrap().into_inner().count
    }

    /// Waits until this many posts are new to a viewer.
    pub(crate) async fn until_new(&self, viewer: &Member, since_token: &str, count: u32) {
        eventually("the posts arrive", SOON, async || {
            self.count_new(viewer, since_token).await == count
        })
        .await;
    }

    /// Creates posts of an author directly at the post service, and returns their ids.
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

    /// Deletes posts of an author directly at the post service.
    pub(crate) async fn delete_many(&self, author: &Member, post_ids: &[u64]) {
        for &post_id in post_ids {
            let request = post::DeletePostRequest { author_id: author.id, post_id };
            self.post().delete_post(request).await.unwrap();
        }
    }

    /// Deletes an account without notifying other services.
    pub(crate) async fn delete_account_only(&self, user: &Member) {
        let request = user::DeleteUserRequest { user_id: user.id, password: PASSWORD.to_owned() };
        self.user().delete_user(request).await.unwrap();
    }

    pub(crate) async fn follow(&self, viewer: &Member, target: &Member) {
        let request = viewer.request(gateway::FollowRequest { user: by_id(target.id) });
        self.gateway().follow(request).await.unwrap();
    }

    pub(crate) async fn unfollow(&self, viewer: &Member, target: &Member) {
        let request = viewer.request(gateway::UnfollowRequest { user: by_id(target.id) });
        self.gateway().unfollow(request).await.unwrap();
    }

    /// Delivers entries without posts to the timelines of an author and the followers.
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

/// Returns the texts of posts, in order.
pub(crate) fn texts(posts: &[ViewedPost]) -> Vec<String> {
    posts.iter().map(|viewed| viewed.post.as_ref().unwrap().text.clone()).collect()
}

/// Returns the ids of posts, in order.
pub(crate) fn post_ids(posts: &[ViewedPost]) -> Vec<u64> {
    posts.iter().map(|viewed| viewed.post.as_ref().unwrap().id).collect()
}
