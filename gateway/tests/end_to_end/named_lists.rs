//! ViewUsers and ViewPosts: lists of the caller's choice, as each viewer sees them.

use std::collections::{BTreeMap, HashSet};

use microblog_chassis::status;
use microblog_proto::{
    common::ErrorReason,
    gateway::{self, ListedUser, UserRef, ViewedPost, WithheldReason},
    post,
    relation::{self, RelationState},
};
use microblog_testkit::Topology;
use tonic::{Code, Response, Status};

use crate::{
    actions::{request_as, request_id},
    errors::{TOKEN_INVALID, assert_error, invalid},
    long_texts::long,
    service_callers::{ACTING, Callers, acting_for, by_caller},
    system::{Flags, Jobs, Member, System, by_id, by_name, ids, names, with_token},
    timeline_actions::{post_ids, without_jobs},
};

/// The references of a request, where `None` is one with neither an id nor a name.
fn references(users: impl IntoIterator<Item = Option<UserRef>>) -> Vec<UserRef> {
    users.into_iter().map(Option::unwrap_or_default).collect()
}

/// Returns the reason of each reference that a response does not answer with an account, by index.
fn withheld_by_index(response: &gateway::ViewUsersResponse) -> BTreeMap<u32, WithheldReason> {
    let reasons = response.withheld.iter();
    reasons.flat_map(|one| one.indexes.iter().map(|index| (*index, one.reason()))).collect()
}

/// Checks that each reference of a request has one answer, in order.
fn assert_all_answered(response: &gateway::ViewUsersResponse, references: usize) {
    let shown: Vec<_> = response.users.iter().map(|listed| listed.indexes.clone()).collect();
    let withheld: Vec<_> = response.withheld.iter().map(|one| one.indexes.clone()).collect();
    for list in [&shown, &withheld] {
        assert!(list.iter().all(|indexes| indexes.is_sorted()) && list.is_sorted(), "{list:?}");
    }
    let mut answered = [shown, withheld].concat().concat();
    answered.sort_unstable();
    assert_eq!(answered, (0..references as u32).collect::<Vec<_>>());
}

impl System {
    async fn view_users(
        &self,
        viewer: Option<&Member>,
        users: impl IntoIterator<Item = Option<UserRef>>,
        include_counts: bool,
    ) -> Vec<ListedUser> {
        let users = references(users);
        let request = request_as(viewer, gateway::ViewUsersRequest { users, include_counts });
        let response = self.gateway().view_users(request).await.unwrap().into_inner();
        assert_eq!(response.withheld, [], "only service callers see reasons");
        response.users
    }

    async fn view_posts(
        &self,
        viewer: Option<&Member>,
        post_ids: &[u64],
        unasked: bool,
    ) -> gateway::ViewPostsResponse {
        let request = gateway::ViewPostsRequest { post_ids: post_ids.to_vec(), unasked };
        self.gateway().view_posts(request_as(viewer, request)).await.unwrap().into_inner()
    }
}

/// Which of the five edges between a viewer and an author exist.
#[derive(Clone, Copy, Debug)]
struct Edges {
    follows: bool,
    followed: bool,
    blocks: bool,
    blocked: bool,
    mutes: bool,
}

impl Edges {
    /// All combinations that can exist: a block ends follows.
    fn all() -> Vec<Self> {
        let bit = |n: u32, i: u32| n >> i & 1 == 1;
        let edges = |n| Self {
            follows: bit(n, 0),
            followed: bit(n, 1),
            blocks: bit(n, 2),
            blocked: bit(n, 3),
            mutes: bit(n, 4),
        };
        let can_exist =
            |edges: &Self| !(edges.blocks || edges.blocked) || !(edges.follows || edges.followed);
        (0..32).map(edges).filter(can_exist).collect()
    }

    fn state(self) -> RelationState {
        match (self.follows, self.followed) {
            (false, false) => RelationState::None,
            (true, false) => RelationState::Following,
            (false, true) => RelationState::Follower,
            (true, true) => RelationState::Mutual,
        }
    }
}

/// A viewer, an account for each combination of edges with the viewer, and one that is deleted.
struct Fixture {
    system: System,
    viewer: Member,
    accounts: Vec<(u64, Edges)>,
    deleted: u64,
}

impl Fixture {
    async fn set(topology: Topology) -> Self {
        let system = System::start_on(topology, Jobs::Rest, Flags::default()).await;
        let viewer = system.join("viewer").await;
        let all = Edges::all();
        let ids = system.crowd("author", all.len()).await;
        let accounts: Vec<_> = ids.into_iter().zip(all).collect();
        for &(id, edges) in &accounts {
            let (user_id, target_id) = (viewer.id, id);
            let (mut client, back) = (system.relation(), (id, viewer.id));
            if edges.follows {
                system.follows([(viewer.id, id)]).await;
            }
            if edges.followed {
                system.follows([back]).await;
            }
            if edges.blocks {
                client.block(relation::BlockRequest { user_id, target_id }).await.unwrap();
            }
            if edges.blocked {
                let (user_id, target_id) = back;
                client.block(relation::BlockRequest { user_id, target_id }).await.unwrap();
            }
            if edges.mutes {
                client.mute(relation::MuteRequest { user_id, target_id }).await.unwrap();
            }
        }
        let deleted = system.join("deleted").await;
        system.follow(&viewer, &deleted).await;
        system.block(&deleted, &viewer).await;
        let fixture = Self { system, viewer, accounts, deleted: deleted.id };
        fixture.system.publish(&deleted, "farewell").await;
        fixture.system.delete_account_only(&deleted).await;
        fixture
    }

    /// Publishes some posts of each account, and then reposts by each of a post of each third one.
    async fn publish(&self) -> Vec<u64> {
        let mut ids = Vec::new();
        for &(author_id, _) in &self.accounts {
            for n in 0..3 {
                let (request_id, text) = (request_id(), format!("number {n}"));
                let request = post::CreatePostRequest { author_id, request_id, text };
                let made = self.system.post().create_post(request).await.unwrap().into_inner();
                ids.push(made.post.unwrap().id);
            }
        }
        let roots: Vec<u64> = ids.iter().copied().step_by(9).collect();
        for &(author_id, _) in &self.accounts {
            for &post_id in &roots {
                let (request_id, text) = (request_id(), "look".to_owned());
                let request = post::RepostRequest { author_id, request_id, post_id, text };
                let made = self.system.post().repost(request).await.unwrap().into_inner();
                ids.push(made.post.unwrap().id);
            }
        }
        ids
    }
}

async fn named_accounts_are_shown_as_lists_show_them(topology: Topology) {
    let fixture = Fixture::set(topology).await;
    let Fixture { system, viewer, accounts, deleted } = &fixture;
    let all: Vec<u64> = accounts.iter().map(|&(id, _)| id).collect();
    let named = all.iter().copied().chain([*deleted, viewer.id, all[0], 4096]).map(by_id);
    let shown = system.view_users(Some(viewer), named.clone(), true).await;
    let visible = accounts.iter().filter(|(_, edges)| !edges.blocks && !edges.blocked);
    let expected: Vec<u64> = visible.clone().map(|&(id, _)| id).chain([viewer.id]).collect();
    assert_eq!(ids(&shown), expected);
    let followings = gateway::ViewFollowingRequest {
        user: by_id(viewer.id),
        page_size: 200,
        ..Default::default()
    };
    let followings = system.gateway().view_following(viewer.request(followings)).await;
    let followings = followings.unwrap().into_inner().users;
    for (listed, &(id, edges)) in shown.iter().zip(visible) {
        assert_eq!(listed.relation(), edges.state(), "{edges:?}");
        assert_eq!((listed.blocking, listed.blocked_by), (false, false), "{edges:?}");
        assert_eq!(listed.muting, edges.mutes, "{edges:?}");
        let following = followings.iter().find(|one| one.user.as_ref().unwrap().id == id);
        assert_eq!(listed.since, following.and_then(|following| following.since), "{edges:?}");
        assert_eq!(listed.since.is_some(), edges.follows, "{edges:?}");
        let counts = listed.counts.unwrap();
        assert_eq!((counts.user_id, listed.posts), (id, Some(0)));
        let (following, followers) = (u64::from(edges.followed), u64::from(edges.follows));
        assert_eq!((counts.following, counts.followers), (following, followers), "{edges:?}");
    }
    let own = shown.last().unwrap();
    assert_eq!((own.relation(), own.since), (RelationState::Self_, None));

    // Without a token nothing is hidden; without a request there are no counts.
    let shown = system.view_users(None, named, false).await;
    assert_eq!(ids(&shown), all.into_iter().chain([viewer.id]).collect::<Vec<_>>());
    for listed in shown {
        assert_eq!((listed.relation(), listed.since), (RelationState::None, None));
        assert_eq!((listed.counts, listed.posts), (None, None));
    }
    service_callers_see_why_accounts_are_withheld(&fixture).await;
}

async fn service_callers_see_why_accounts_are_withheld(fixture: &Fixture) {
    let Fixture { system, viewer, accounts, deleted } = fixture;
    let callers = Callers::start(system, &["ViewUsers"], ACTING);
    let expected_of = |edges: Edges| match edges {
        Edges { blocked: true, .. } => Some(WithheldReason::BlockedBy),
        Edges { blocks: true, .. } => Some(WithheldReason::Blocking),
        _ => None,
    };
    // Each account by id and by name, and what does not exist or cannot.
    let mut named: Vec<Option<UserRef>> = Vec::new();
    let mut expected = BTreeMap::new();
    for (n, &(id, edges)) in accounts.iter().enumerate() {
        named.extend([by_id(id), by_name(&format!("AUTHOR{n}"))]);
        let indexes = [named.len() - 2, named.len() - 1].map(|index| index as u32);
        expected.extend(indexes.map(|index| (index, expected_of(edges))));
    }
    let gone = [by_id(*deleted), by_id(4096), by_name("nobody"), by_id(0), by_name(""), None];
    for reference in gone.into_iter().chain([by_id(1 << 53), by_name("a b"), by_id(*deleted)]) {
        expected.insert(named.len() as u32, Some(WithheldReason::Gone));
        named.push(reference);
    }
    for (viewer, include_counts) in [(Some(viewer), true), (Some(viewer), false), (None, false)] {
        let users = references(named.clone());
        let message = gateway::ViewUsersRequest { users, include_counts };
        let request = match viewer {
            Some(viewer) => acting_for(viewer.id, message),
            None => by_caller(message),
        };
        let response = callers.gateway.clone().view_users(request).await.unwrap().into_inner();
        assert_all_answered(&response, named.len());
        let is_seen = |reason: &WithheldReason| viewer.is_some() || *reason == WithheldReason::Gone;
        let expected = expected
            .iter()
            .filter_map(|(index, reason)| reason.filter(is_seen).map(|reason| (*index, reason)));
        assert_eq!(withheld_by_index(&response), expected.collect());
        let people = system.view_users(viewer, named.clone(), include_counts).await;
        assert_eq!(response.users, people, "a person sees the same accounts");
    }
}

#[tokio::test]
async fn named_accounts_have_their_relations_to_the_viewer() {
    named_accounts_are_shown_as_lists_show_them(Topology::Single).await;
}

#[tokio::test]
async fn named_accounts_have_their_relations_to_the_viewer_on_a_cluster() {
    named_accounts_are_shown_as_lists_show_them(Topology::Cluster).await;
}

#[tokio::test]
async fn accounts_may_be_named_by_id_and_by_name() {
    let system = System::start().await;
    let [ann, bob] = [system.join("Ann").await, system.join("bob").await];
    let cleo = system.join("cleo").await;
    let long = "a".repeat(100_000);
    let mixed = [
        by_name("CLEO"),
        by_id(bob.id),
        by_name("nobody"),
        by_name(""),
        by_name("a\0b"),
        by_name(&long),
        by_name("ann"),
        by_name("Bob"),
        by_id(cleo.id),
    ];
    let shown = system.view_users(Some(&bob), mixed.clone(), false).await;
    assert_eq!(names(&shown), ["cleo", "bob", "Ann"]);
    let indexes: Vec<_> = shown.iter().map(|listed| listed.indexes.clone()).collect();
    assert_eq!(indexes, [vec![0, 8], vec![1, 7], vec![6]]);
    assert_eq!(shown[1].relation(), RelationState::Self_);
    system.block(&ann, &bob).await;
    assert_eq!(names(&system.view_users(Some(&bob), mixed, false).await), ["cleo", "bob"]);
    assert_eq!(system.view_users(Some(&bob), [], true).await, []);
    assert_eq!(system.view_users(None, [by_name("nobody")], true).await, []);
}

async fn named_posts_are_shown_as_view_post_shows_them(topology: Topology) {
    let fixture = Fixture::set(topology).await;
    let Fixture { system, viewer, accounts, deleted } = &fixture;
    let posts = fixture.publish().await;
    let one_by_one = async |viewer: Option<&Member>| {
        let mut expected = Vec::new();
        for &post_id in &posts {
            let request = request_as(viewer, gateway::ViewPostRequest { post_id });
            match system.gateway().view_post(request).await {
                Ok(view) => expected.extend(view.into_inner().post),
                Err(status) => {
                    let reason = status::reason_of(&status);
                    assert_eq!(reason, Some(ErrorReason::BlockedByTarget), "{status:?}");
                }
            }
        }
        expected
    };
    // Duplicates, and posts that do not exist.
    let named: Vec<u64> = posts.iter().copied().chain([posts[0], 4096, posts[7]]).collect();
    for viewer in [None, Some(viewer)] {
        let response = system.view_posts(viewer, &named, false).await;
        assert_eq!(response.posts, one_by_one(viewer).await);
        assert!(response.remaining_ids.is_empty());
    }
    let unasked = system.view_posts(Some(viewer), &named, true).await.posts;
    let edges_of = |id: u64| accounts.iter().find(|(account, _)| *account == id).unwrap().1;
    let hidden = |id: u64| {
        let edges = edges_of(id);
        edges.mutes || edges.blocks || edges.blocked
    };
    let author = |viewed: &ViewedPost| viewed.post.as_ref().unwrap().author_id;
    let mut expected = one_by_one(Some(viewer)).await;
    expected.retain(|viewed| !hidden(author(viewed)));
    assert_eq!(unasked, expected);
    // The home timeline shows the same posts, as far as they are of followed accounts.
    let home = system.home(viewer, 200, "", "").await.posts;
    let followed = |id: u64| accounts.iter().any(|&(one, edges)| one == id && edges.follows);
    let mut newest_first = posts.clone();
    newest_first.sort_unstable_by(|one, other| other.cmp(one));
    let mut expected = system.view_posts(Some(viewer), &newest_first, true).await.posts;
    expected.retain(|viewed| followed(viewed.post.as_ref().unwrap().author_id));
    assert_eq!(post_ids(&home), post_ids(&expected));
    assert_eq!(home, expected);
    let request = post::ListUserPostsRequest { author_id: *deleted, ..Default::default() };
    let farewell = system.post().list_user_posts(request).await.unwrap().into_inner().posts[0].id;
    let response = system.view_posts(Some(viewer), &[farewell], false).await;
    assert_eq!(response, gateway::ViewPostsResponse::default());

    // A service caller sees the same, and why it does not see the others.
    let all = system.view_posts(None, &posts, false).await.posts;
    let callers = Callers::start(system, &["ViewPosts"], ACTING);
    let named: Vec<u64> = named.into_iter().chain([farewell]).collect();
    for unasked in [false, true] {
        let post_ids = named.clone();
        let request = gateway::ViewPostsRequest { post_ids, unasked };
        let response = callers.gateway.clone().view_posts(acting_for(viewer.id, request)).await;
        let response = response.unwrap().into_inner();
        assert_eq!(response.posts, system.view_posts(Some(viewer), &named, unasked).await.posts);
        let reason = |id: u64| {
            let Some(viewed) = all.iter().find(|viewed| viewed.post.as_ref().unwrap().id == id)
            else {
                return Some(WithheldReason::Gone);
            };
            match edges_of(author(viewed)) {
                Edges { blocked: true, .. } => Some(WithheldReason::BlockedBy),
                Edges { blocks: true, .. } if unasked => Some(WithheldReason::Blocking),
                Edges { mutes: true, .. } if unasked => Some(WithheldReason::Muting),
                _ => None,
            }
        };
        let distinct = posts.iter().copied().chain([4096, farewell]);
        let expected: Vec<_> = distinct.filter_map(|id| Some((id, reason(id)?))).collect();
        let withheld = response.withheld.iter().map(|withheld| (withheld.id, withheld.reason()));
        assert_eq!(withheld.collect::<Vec<_>>(), expected);
    }
    // Without a viewer only what does not exist is withheld.
    let request = gateway::ViewPostsRequest { post_ids: named, unasked: true };
    let response = callers.gateway.clone().view_posts(by_caller(request)).await.unwrap();
    let withheld = response.into_inner().withheld;
    let withheld: Vec<_> = withheld.iter().map(|one| (one.id, one.reason())).collect();
    assert_eq!(withheld, [(4096, WithheldReason::Gone), (farewell, WithheldReason::Gone)]);
}

#[tokio::test]
async fn named_posts_are_hidden_as_their_authors_are() {
    named_posts_are_shown_as_view_post_shows_them(Topology::Single).await;
}

#[tokio::test]
async fn named_posts_are_hidden_as_their_authors_are_on_a_cluster() {
    named_posts_are_shown_as_view_post_shows_them(Topology::Cluster).await;
}

#[tokio::test]
async fn posts_without_room_in_the_response_are_named() {
    let system = without_jobs().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    let root = system.publish(&ann, &long(0)).await.id;
    let texts = (0..100).map(long).collect();
    let mut named = system.publish_many(&ann, texts).await;
    for n in 0..100 {
        let (author_id, request_id, text) = (bob.id, request_id(), long(n));
        let request = post::RepostRequest { author_id, request_id, post_id: root, text };
        let made = system.post().repost(request).await.unwrap().into_inner().post.unwrap();
        named.insert(n * 2, made.id);
    }
    let (mut seen, mut next) = (Vec::new(), named.clone());
    while !next.is_empty() {
        let response = system.view_posts(Some(&ann), &next, true).await;
        assert!(!response.posts.is_empty());
        seen.extend(post_ids(&response.posts));
        next = response.remaining_ids;
    }
    assert_eq!(seen, named);
    system.block(&bob, &ann).await;
    let mut next = named;
    let mut seen = HashSet::new();
    while !next.is_empty() {
        let response = system.view_posts(Some(&ann), &next, false).await;
        assert!(response.remaining_ids.len() < next.len());
        seen.extend(post_ids(&response.posts));
        next = response.remaining_ids;
    }
    assert_eq!(seen.len(), 100, "Bob's are hidden");
}

#[tokio::test]
async fn only_the_length_of_a_list_rejects_it() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let users = async |users: Vec<Option<UserRef>>| -> Result<Response<_>, Status> {
        let request = gateway::ViewUsersRequest { users: references(users), include_counts: true };
        system.gateway().view_users(ann.request(request)).await
    };
    let long = "a".repeat(100_000);
    let odd = [by_id(0), None, by_id(1 << 53), by_id(u64::MAX), by_name("a\0b"), by_name(&long)];
    let with_ann = odd.iter().cloned().chain([by_name("ann")]).collect();
    let shown = users(with_ann).await.unwrap().into_inner();
    assert_eq!((names(&shown.users), &shown.users[0].indexes), (vec!["ann"], &vec![6]));
    assert_eq!(users(odd.to_vec()).await.unwrap().into_inner(), Default::default());
    assert_error("many", users(vec![by_id(1); 201]).await, invalid(&["users"]));
    let same = users(vec![by_id(ann.id); 200]).await.unwrap().into_inner().users;
    assert_eq!((same.len(), same[0].indexes.len()), (1, 200));
    let posts = async |post_ids: Vec<u64>| {
        let request = gateway::ViewPostsRequest { post_ids, unasked: true };
        system.gateway().view_posts(ann.request(request)).await
    };
    let post = system.publish(&ann, "hello").await.id;
    let odd = vec![0, 1 << 53, post, u64::MAX, post];
    let shown = posts(odd.clone()).await.unwrap().into_inner();
    let expected = system.view_posts(Some(&ann), &[post], true).await;
    assert_eq!((post_ids(&shown.posts), shown), (vec![post], expected));
    let callers = Callers::start(&system, &["ViewPosts"], ACTING);
    let request = gateway::ViewPostsRequest { post_ids: odd, unasked: true };
    let explained = callers.gateway.clone().view_posts(acting_for(ann.id, request)).await;
    let withheld = explained.unwrap().into_inner().withheld;
    let withheld: Vec<_> = withheld.iter().map(|one| (one.id, one.reason())).collect();
    assert_eq!(withheld, [0, 1 << 53, u64::MAX].map(|id| (id, WithheldReason::Gone)));
    assert_error("many", posts(vec![1; 201]).await, invalid(&["post_ids"]));
    let response = posts(vec![]).await.unwrap().into_inner();
    assert_eq!(response, gateway::ViewPostsResponse::default());

    let request = gateway::ViewUsersRequest::default();
    let answer = system.gateway().view_users(with_token("x", request)).await;
    assert_error("users", answer, TOKEN_INVALID);
    let request = gateway::ViewPostsRequest::default();
    let answer = system.gateway().view_posts(with_token("x", request)).await;
    assert_error("posts", answer, TOKEN_INVALID);
}

#[tokio::test]
async fn counts_of_posts_are_absent_while_these_are_unavailable() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let text = "the service does not answer";
    let unavailable = status::with_reason(Code::Unavailable, ErrorReason::StoreUnavailable, text);
    system.recorder.reject("post.BatchGetPostCounts", unavailable.clone());
    let shown = system.view_users(Some(&ann), [by_id(ann.id)], true).await;
    assert!(shown[0].counts.is_some() && shown[0].posts.is_none());
    system.recorder.reject("relation.BatchGetCounts", unavailable);
    let request =
        gateway::ViewUsersRequest { users: vec![by_id(ann.id).unwrap()], include_counts: true };
    let status = system.gateway().view_users(ann.request(request)).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
}
