//! The messages that calls are made of, as large as those of the world that clients act on: accounts
//! with short names and nothing else about them, and short posts that mention nobody.

use microblog_proto::{
    gateway::{Author, RootState, UserRef, ViewedPost, user_ref},
    post::{self, Post},
    relation::{self, Edge, Relation, RelationState},
    timeline,
    user::{self, User},
};
use prost::Message;
use prost_types::Timestamp;

use crate::limits::chain::{Peer, Step};

/// An id of late 2026, of seven bytes as all are until 2028.
pub(super) const ID: u64 = 373_000_000_000_001;
const NANOS: i32 = 123_000_000;
const SECONDS: i64 = 1_795_000_000;

/// Returns a call with messages as large as these.
pub(super) fn step(peer: Peer, request: &impl Message, answer: &impl Message) -> Step {
    Step { peer, request: request.encoded_len(), answer: answer.encoded_len() }
}

/// Returns user.Authenticate: who the viewer is.
pub(super) fn authenticate() -> Step {
    let request = user::AuthenticateRequest { token: text(54) };
    let answer = user::AuthenticateResponse { user_id: ID, expires_at: Some(time()) };
    step(Peer::User, &request, &answer)
}

/// Returns user.GetUser: that the account is there, and its profile.
pub(super) fn get_user() -> Step {
    let answer = user::GetUserResponse { user: Some(user()) };
    step(Peer::User, &user::GetUserRequest { user_id: ID }, &answer)
}

/// Returns user.BatchGetUsers: profiles.
pub(super) fn users(count: usize) -> Step {
    let request = user::BatchGetUsersRequest { user_ids: vec![ID; count] };
    step(Peer::User, &request, &user::BatchGetUsersResponse { users: vec![user(); count] })
}

/// Returns relation.BatchGetRelations: how accounts stand to the viewer.
pub(super) fn relations(count: usize, request: relation::BatchGetRelationsRequest) -> Step {
    let answer = relation::BatchGetRelationsResponse {
        relations: vec![one_relation(); count],
        newest_following_version: 0,
    };
    step(Peer::Relation, &request, &answer)
}

/// Returns post.BatchGetPosts: the posts of a timeline. Nobody likes them, so that nobody asks
/// whether the viewer does.
pub(super) fn posts(count: usize) -> Step {
    step(
        Peer::Post,
        &post::BatchGetPostsRequest { post_ids: vec![ID; count], viewer_id: 0 },
        &post::BatchGetPostsResponse { posts: vec![post(); count] },
    )
}

/// Returns the request of relation.BatchGetRelations for the authors of posts.
pub(super) fn authors(count: usize) -> relation::BatchGetRelationsRequest {
    relation::BatchGetRelationsRequest {
        include_blocks: true,
        include_mutes: true,
        ..relation(count)
    }
}

/// Returns the request of relation.BatchGetRelations for so many accounts.
pub(super) fn relation(count: usize) -> relation::BatchGetRelationsRequest {
    relation::BatchGetRelationsRequest {
        viewer_id: ID,
        target_ids: vec![ID; count],
        ..Default::default()
    }
}

/// Returns how one account stands to the viewer.
pub(super) fn one_relation() -> Relation {
    Relation { user_id: ID, state: state(), ..Default::default() }
}

/// Returns the state in that.
pub(super) fn state() -> i32 {
    RelationState::Following.into()
}

/// Returns a profile.
pub(super) fn user() -> User {
    User { id: ID, name: text(8), created_at: Some(time()), ..Default::default() }
}

/// Returns a post as it is read.
pub(super) fn post() -> Post {
    Post { id: ID, author_id: ID, text: text(43), created_at: Some(time()), ..Default::default() }
}

/// Returns a post as a viewer sees it.
pub(super) fn viewed_post() -> ViewedPost {
    ViewedPost {
        post: Some(post()),
        author: Some(Author { user: Some(user()), relation: state() }),
        root_state: RootState::None.into(),
        root: None,
    }
}

/// Returns an entry of a timeline.
pub(super) fn entry() -> timeline::Entry {
    timeline::Entry { post_id: ID, author_id: ID, ..Default::default() }
}

/// Returns an entry of a list of accounts.
pub(super) fn edge() -> Edge {
    Edge { user_id: ID, since: Some(time()), version: ID }
}

/// Returns an account by its id, as callers name it.
pub(super) fn by_id() -> UserRef {
    UserRef { r#ref: Some(user_ref::Ref::Id(ID)) }
}

/// Returns a time.
pub(super) fn time() -> Timestamp {
    Timestamp { seconds: SECONDS, nanos: NANOS }
}

/// Returns a request id.
pub(super) fn request_id() -> String {
    text(36)
}

/// Returns a page's token, as long as one of two numbers.
pub(super) fn page_token() -> String {
    text(44)
}

/// Returns a token of a home timeline, which knows of many posts.
pub(super) fn timeline_token() -> String {
    text(240)
}

/// Returns a text of so many characters.
pub(super) fn text(length: usize) -> String {
    "x".repeat(length)
}
