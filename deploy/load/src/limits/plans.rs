//! What a call, most often of the gateway, is made of: which calls it makes in turn, with messages as large as
//! those of the world that clients act on. As the gateway states it at its handlers, for a viewer
//! who is logged in and an account named by its id. What a service asks another for a call stands
//! among the gateway's own, one stage later: as many calls follow each other.

mod messages;

use microblog_proto::{
    gateway::{
        self, FollowRequest, LikeRequest, ListedUser, PublishRequest, ViewFollowersRequest,
        ViewHomeRequest, ViewUserRequest, ViewUserTimelineRequest,
    },
    post::{self, Like, Post},
    relation::{self, Counts},
    timeline::{self, Delivery},
};
use prost::Message;

use self::messages::{
    ID, authenticate, authors, by_id, edge, entry, get_user, one_relation, page_token, post, posts,
    relation, relations, request_id, state, step, text, time, timeline_token, user, users,
    viewed_post,
};
use super::{
    call::Sizes,
    chain::{Chain, Peer, Step},
};
use crate::{scenario::PAGE, world::Pages};

/// The posts that a page of a timeline has room for, as many as the gateway shows unless it is told
/// otherwise. Home timelines fill it.
pub(crate) const POSTS: usize = 20;

/// A call of the gateway, and the calls behind it.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) sizes: Sizes,
    pub(crate) chain: Chain,
}

/// Returns a call's plan on a world whose pages are so long.
pub(crate) type Planning = fn(Pages) -> Plan;

/// Returns the plan of a page of followers: 5 calls in 2 stages.
pub(crate) fn view_followers(Pages { followers, .. }: Pages) -> Plan {
    let page = relation::ListFollowersRequest {
        user_id: ID,
        page_size: PAGE as i32,
        ..Default::default()
    };
    let edges = relation::ListFollowersResponse {
        edges: vec![edge(); followers],
        next_page_token: page_token(),
    };
    let request =
        ViewFollowersRequest { user: Some(by_id()), page_size: PAGE as i32, ..Default::default() };
    let listed = ListedUser {
        user: Some(user()),
        relation: state(),
        since: Some(time()),
        ..Default::default()
    };
    let answer = gateway::ViewFollowersResponse {
        users: vec![listed; followers],
        next_page_token: page_token(),
    };
    let first = vec![authenticate(), get_user(), step(Peer::Relation, &page, &edges)];
    // The list's owner as well: somebody whom they block is refused.
    let asked = followers + 1;
    let hydration = vec![users(followers), relations(asked, authors(asked))];
    plan(&request, &answer, vec![first, hydration])
}

/// Returns the plan of a question to the relation service, how one account stands to another: it
/// calls nobody.
pub(crate) fn one_pair(_: Pages) -> Plan {
    let relations = vec![one_relation()];
    let answer = relation::BatchGetRelationsResponse { relations, ..Default::default() };
    plan(&relation(1), &answer, Vec::new())
}

/// Returns the plan of a look at one account of whose followers the viewer follows at least six: 9
/// calls in 3 stages.
pub(crate) fn view_user(_: Pages) -> Plan {
    let counts = Counts { user_id: ID, following: 60, followers: 400, mutuals: 30 };
    let count = step(
        Peer::Relation,
        &relation::BatchGetCountsRequest { user_ids: vec![ID] },
        &relation::BatchGetCountsResponse { counts: vec![counts] },
    );
    let posts = step(
        Peer::Post,
        &post::BatchGetPostCountsRequest { user_ids: vec![ID] },
        &post::BatchGetPostCountsResponse {
            counts: vec![post::PostCount { user_id: ID, posts: 200 }],
        },
    );
    let stands = step(
        Peer::Relation,
        &relation::GetRelationRequest { viewer_id: ID, target_id: ID },
        &relation::GetRelationResponse { relation: Some(one_relation()) },
    );
    let common = step(
        Peer::Relation,
        &relation::CountCommonFollowingRequest { user_id: ID, other_id: ID },
        &relation::CountCommonFollowingResponse { count: 20 },
    );
    let followed_by = step(
        Peer::Relation,
        &relation::CountFollowersIFollowRequest { user_id: ID, viewer_id: ID, newest: 6 },
        &relation::CountFollowersIFollowResponse { count: 15, newest: vec![edge(); 6] },
    );
    let answer = gateway::ViewUserResponse {
        user: Some(user()),
        counts: Some(counts),
        relation: Some(one_relation()),
        common_following: 20,
        posts: Some(200),
        followed_by: vec![user(); 3],
        followed_by_count: 15,
    };
    let request = ViewUserRequest { user: Some(by_id()) };
    let first = vec![authenticate(), get_user(), count, posts];
    let names = vec![users(6), relations(6, authors(6))];
    plan(&request, &answer, vec![first, vec![stands, common, followed_by], names])
}

/// Returns the plan of a follow: 3 calls in 2 stages. Of the end of one it is the same without
/// user.GetUser.
pub(crate) fn follow(_: Pages) -> Plan {
    let follow = step(
        Peer::Relation,
        &relation::FollowRequest { follower_id: ID, target_id: ID },
        &relation::FollowResponse { edge: Some(edge()), state: state() },
    );
    let answer = gateway::FollowResponse { relation: state(), since: Some(time()) };
    let request = FollowRequest { user: Some(by_id()) };
    plan(&request, &answer, vec![vec![authenticate(), get_user()], vec![follow]])
}

/// Returns the plan of a post by which nobody is mentioned: 3 calls in 3 stages, the last one by
/// which the post service tells the timeline service.
pub(crate) fn publish(_: Pages) -> Plan {
    let (request_id, text) = (request_id(), text(140));
    let post = Some(Post { text: text.clone(), ..post() });
    let create = post::CreatePostRequest {
        author_id: ID,
        request_id: request_id.clone(),
        text: text.clone(),
    };
    let create = step(Peer::Post, &create, &post::CreatePostResponse { post: post.clone() });
    let delivery = Delivery { post_id: ID, author_id: ID, root_id: 0, has_text: true };
    let deliver = step(
        Peer::Timeline,
        &timeline::DeliverRequest { deliveries: vec![delivery] },
        &timeline::DeliverResponse {},
    );
    let request = PublishRequest { request_id, text };
    let answer = gateway::PublishResponse { post };
    plan(&request, &answer, vec![vec![authenticate()], vec![create], vec![deliver]])
}

/// Returns the plan of the first page of a home timeline: 5 calls in 5 stages, one of them by which
/// the timeline service asks how its authors stand to the reader, and tells it with the page.
pub(crate) fn view_home(_: Pages) -> Plan {
    let request = timeline::GetHomeTimelineRequest {
        user_id: ID,
        page_size: POSTS as i32,
        page_token: String::new(),
        since_token: String::new(),
    };
    let answer = timeline::GetHomeTimelineResponse {
        entries: vec![entry(); POSTS],
        next_page_token: timeline_token(),
        since_token: timeline_token(),
        older_than_id: 0,
        relations: vec![one_relation(); POSTS],
    };
    let home = step(Peer::Timeline, &request, &answer);
    let standing = relation::BatchGetRelationsRequest {
        include_newest_following_version: true,
        ..authors(POSTS)
    };
    let stages = [authenticate(), home, relations(POSTS, standing), posts(POSTS), users(POSTS)];
    let answer = gateway::ViewHomeResponse {
        posts: vec![viewed_post(); POSTS],
        next_page_token: timeline_token(),
        since_token: timeline_token(),
    };
    plan(&ViewHomeRequest::default(), &answer, stages.map(|step| vec![step]).to_vec())
}

/// Returns the plan of the first page of somebody's posts: 6 calls in 3 stages.
pub(crate) fn view_user_timeline(Pages { posts: count, .. }: Pages) -> Plan {
    let request = timeline::GetUserTimelineRequest {
        user_id: ID,
        page_size: POSTS as i32,
        page_token: String::new(),
        since_token: String::new(),
    };
    let answer = timeline::GetUserTimelineResponse {
        entries: vec![entry(); count],
        next_page_token: String::new(),
        since_token: page_token(),
        older_than_id: 0,
    };
    let own = step(Peer::Timeline, &request, &answer);
    // All of them are by the account itself.
    let hydration = vec![users(1), relations(1, authors(1))];
    let stages = vec![vec![authenticate(), get_user(), own], vec![posts(count)], hydration];
    let answer = gateway::ViewUserTimelineResponse {
        posts: vec![viewed_post(); count],
        next_page_token: String::new(),
        since_token: page_token(),
    };
    let request = ViewUserTimelineRequest { user: Some(by_id()), ..Default::default() };
    plan(&request, &answer, stages)
}

/// Returns the plan of a like of somebody else's post: 5 calls in 3 stages. Taking it back is
/// user.Authenticate, then post.Unlike.
pub(crate) fn like(_: Pages) -> Plan {
    let read = step(
        Peer::Post,
        &post::GetPostRequest { post_id: ID, viewer_id: 0 },
        &post::GetPostResponse { post: Some(post()) },
    );
    let like = step(
        Peer::Post,
        &post::LikeRequest { user_id: ID, post_id: ID },
        &post::LikeResponse { like: Some(Like { user_id: ID, liked_at: Some(time()) }), likes: 1 },
    );
    let author = relation::BatchGetRelationsRequest {
        include_mutes: false,
        include_blocks: true,
        ..relation(1)
    };
    let stages = vec![vec![authenticate(), read], vec![users(1), relations(1, author)], vec![like]];
    let answer = gateway::LikeResponse { liked_at: Some(time()), likes: 1 };
    plan(&LikeRequest { post_id: ID }, &answer, stages)
}

fn plan(request: &impl Message, answer: &impl Message, stages: Vec<Vec<Step>>) -> Plan {
    let sizes = Sizes { request: request.encoded_len(), answer: answer.encoded_len() };
    Plan { sizes, chain: Chain { stages } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_have_the_calls_that_the_gateway_states() {
        let shape = |plan: Planning| -> Vec<usize> {
            let pages = Pages { followers: PAGE, posts: POSTS };
            plan(pages).chain.stages.iter().map(Vec::len).collect()
        };
        assert_eq!(shape(view_followers), [3, 2]);
        assert!(shape(one_pair).is_empty());
        assert_eq!(shape(view_user), [4, 3, 2]);
        assert_eq!(shape(follow), [2, 1]);
        assert_eq!(shape(publish), [1, 1, 1]);
        assert_eq!(shape(view_home), [1, 1, 1, 1, 1]);
        assert_eq!(shape(view_user_timeline), [3, 1, 2]);
        assert_eq!(shape(like), [2, 2, 1]);
    }
}
