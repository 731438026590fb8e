//! Lists of accounts as each viewer sees them: blocks, orders and a filter.

use microblog_proto::{
    gateway::{self, ListedUser},
    relation::{FollowOrder, RelationState},
};
use microblog_testkit::{Topology, next_millisecond};
use tonic::Request;

use crate::{
    actions::request_as,
    errors::{BLOCKED_BY_TARGET, Expected, assert_error, invalid},
    system::{Flags, Jobs, Member, System, by_id, by_name, ids, names},
};

/// Expands to a check for each call that lists accounts around an account.
macro_rules! lists_of {
    ($check:ident) => {{
        $check!(view_following, ViewFollowingRequest);
        $check!(view_followers, ViewFollowersRequest);
        $check!(view_mutuals, ViewMutualsRequest);
        $check!(view_common_following, ViewCommonFollowingRequest);
        $check!(view_followers_i_follow, ViewFollowersIFollowRequest);
    }};
}

/// Creates follows in sequence, so that their order is known.
async fn follow_in_order(system: &System, follows: impl IntoIterator<Item = (u64, u64)>) {
    for follow in follows {
        next_millisecond().await;
        system.follows([follow]).await;
    }
}

/// Returns the flags of an entry: blocking, blocked by, muting.
fn flags(listed: &ListedUser) -> [bool; 3] {
    [listed.blocking, listed.blocked_by, listed.muting]
}

/// A star with six mutuals who like its post. Of the newest, the viewer blocks one, one blocks the
/// viewer, and the viewer mutes one.
struct Fixture {
    system: System,
    star: Member,
    post_id: u64,
    viewer: Member,
    blocked: Member,
    blocker: Member,
}

impl Fixture {
    async fn set(topology: Topology) -> Self {
        let system = System::start_on(topology, Jobs::Rest, Flags::default()).await;
        let star = system.join("star").await;
        let viewer = system.join("viewer").await;
        let post_id = system.publish(&star, "hello").await.id;
        let mut fans = Vec::new();
        for name in ["a", "b", "c", "muted", "blocker", "blocked"] {
            let fan = system.join(name).await;
            follow_in_order(&system, [(fan.id, star.id), (star.id, fan.id)]).await;
            system.like(&fan, post_id).await;
            fans.push(fan);
        }
        let (Some(blocked), Some(blocker), Some(muted)) = (fans.pop(), fans.pop(), fans.pop())
        else {
            panic!("six fans");
        };
        system.mute(&viewer, &muted).await;
        system.block(&blocker, &viewer).await;
        system.block(&viewer, &blocked).await;
        Self { system, star, post_id, viewer, blocked, blocker }
    }

    /// Returns each list of the star, read to the end in pages of two.
    async fn read(&self, viewer: Option<&Member>) -> Vec<(&'static str, Vec<ListedUser>)> {
        let mut lists = Vec::new();
        macro_rules! read {
            ($method:ident, $request:ident { $field:ident: $value:expr }) => {
                let (mut token, mut listed) = (String::new(), Vec::new());
                loop {
                    let request = gateway::$request {
                        $field: $value,
                        page_size: 2,
                        page_token: token,
                        ..Default::default()
                    };
                    let page = self.system.gateway().$method(request_as(viewer, request)).await;
                    let page = page.expect(stringify!($method)).into_inner();
                    let is_last = page.next_page_token.is_empty();
                    assert!(is_last || page.users.len() == 2, "a page is short only at the end");
                    listed.extend(page.users);
                    token = page.next_page_token;
                    if is_last {
                        break;
                    }
                }
                lists.push((stringify!($method), listed));
            };
        }
        #[allow(clippy::needless_update, reason = "some of the requests have more fields")]
        {
            read!(view_following, ViewFollowingRequest { user: by_id(self.star.id) });
            read!(view_followers, ViewFollowersRequest { user: by_id(self.star.id) });
            read!(view_mutuals, ViewMutualsRequest { user: by_id(self.star.id) });
            read!(view_likers, ViewLikersRequest { post_id: self.post_id });
        }
        lists
    }
}

async fn block_hides(topology: Topology) {
    let fixture = Fixture::set(topology).await;
    for (list, users) in fixture.read(Some(&fixture.viewer)).await {
        assert_eq!(names(&users), ["muted", "c", "b", "a"], "{list}");
        assert_eq!(flags(&users[0]), [false, false, true], "{list}");
        assert!(users[1..].iter().all(|user| flags(user) == [false; 3]), "{list}");
    }
    for other in [&fixture.blocked, &fixture.blocker] {
        fixture.system.follows([(fixture.viewer.id, fixture.star.id)]).await;
        let followers = fixture.system.followers(Some(other), fixture.star.id, 0, "").await.users;
        assert!(!names(&followers).contains(&"viewer"), "{:?}", names(&followers));
        let request = gateway::UnfollowRequest { user: by_id(fixture.star.id) };
        fixture.system.gateway().unfollow(fixture.viewer.request(request)).await.unwrap();
    }
    for (list, users) in fixture.read(None).await {
        assert_eq!(names(&users), ["blocked", "blocker", "muted", "c", "b", "a"], "{list}");
        assert!(users.iter().all(|user| flags(user) == [false; 3]), "{list}");
        assert!(users.iter().all(|user| user.relation() == RelationState::None), "{list}");
    }
}

#[tokio::test]
async fn a_block_hides_accounts_in_all_lists() {
    block_hides(Topology::Single).await;
}

#[tokio::test]
async fn a_block_hides_accounts_in_all_lists_on_a_cluster() {
    block_hides(Topology::Cluster).await;
}

#[tokio::test]
async fn an_account_blocked_by_the_owner_cannot_page_the_owners_lists() {
    let fixture = Fixture::set(Topology::Single).await;
    let (system, star, viewer) = (&fixture.system, &fixture.star, &fixture.viewer);
    let other = system.join("other").await;
    let empty = system.join("empty").await;
    let fan = by_name("a");
    let request = gateway::FollowRequest { user: fan };
    system.gateway().follow(viewer.request(request)).await.unwrap();
    let second = system.followers(Some(viewer), star.id, 2, "").await.next_page_token;
    let liked = system.likers(Some(viewer), fixture.post_id, 2, "").await.next_page_token;
    system.block(star, viewer).await;
    system.block(&empty, viewer).await;
    system.block(&other, star).await;

    for user in [by_id(star.id), by_name("star"), by_id(empty.id), by_name("empty")] {
        macro_rules! check {
            ($method:ident, $request:ident) => {
                let request = gateway::$request { user: user.clone(), ..Default::default() };
                let answer = system.gateway().$method(viewer.request(request)).await;
                assert_error(stringify!($method), answer, BLOCKED_BY_TARGET);
            };
        }
        lists_of!(check);
    }
    let (user, page_token) = (by_id(star.id), second);
    let request = gateway::ViewFollowersRequest { user, page_token, ..Default::default() };
    let answer = system.gateway().view_followers(viewer.request(request)).await;
    assert_error("the second page", answer, BLOCKED_BY_TARGET);
    let (post_id, page_token) = (fixture.post_id, liked);
    let request = gateway::ViewLikersRequest { post_id, page_token, ..Default::default() };
    let answer = system.gateway().view_likers(viewer.request(request)).await;
    assert_error("the second page of likers", answer, BLOCKED_BY_TARGET);

    // Allowed: viewers who block the owner, anonymous viewers, and the owner.
    for viewer in [&other, star] {
        macro_rules! check {
            ($method:ident, $request:ident) => {
                let request = gateway::$request { user: by_id(star.id), ..Default::default() };
                system.gateway().$method(viewer.request(request)).await.expect(stringify!($method));
            };
        }
        lists_of!(check);
    }
    assert_eq!(system.followers(None, star.id, 0, "").await.users.len(), 6);
}

#[tokio::test]
async fn the_viewers_blocks_and_mutes_are_complete() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let cleo = system.join("cleo").await;
    system.mute(&ann, &bob).await;
    system.block(&ann, &bob).await;
    system.block(&bob, &ann).await;
    system.mute(&ann, &cleo).await;

    let request = ann.request(gateway::ViewBlocksRequest::default());
    let blocks = system.gateway().view_blocks(request).await.unwrap().into_inner().users;
    assert_eq!(names(&blocks), ["bob"]);
    assert_eq!(flags(&blocks[0]), [true; 3]);
    let request = ann.request(gateway::ViewMutesRequest::default());
    let mutes = system.gateway().view_mutes(request).await.unwrap().into_inner().users;
    assert_eq!(names(&mutes), ["cleo", "bob"]);
    assert_eq!(mutes.iter().map(flags).collect::<Vec<_>>(), [[false, false, true], [true; 3]]);
}

async fn view_user(
    system: &System,
    viewer: Option<&Member>,
    target: u64,
) -> gateway::ViewUserResponse {
    let request = gateway::ViewUserRequest { user: by_id(target) };
    system.gateway().view_user(request_as(viewer, request)).await.unwrap().into_inner()
}

fn followed_by(view: &gateway::ViewUserResponse) -> (Vec<&str>, u64) {
    let names = view.followed_by.iter().map(|user| user.name.as_str()).collect();
    (names, view.followed_by_count)
}

async fn followers_i_follow_are_listed(topology: Topology) {
    let system = System::start_on(topology, Jobs::Rest, Flags::default()).await;
    let star = system.join("star").await;
    let viewer = system.join("viewer").await;
    let mut fans = Vec::new();
    for name in ["fan0", "fan1", "fan2", "fan3", "fan4", "fan5"] {
        fans.push(system.join(name).await);
    }
    assert_eq!(followed_by(&view_user(&system, Some(&viewer), star.id).await), (vec![], 0));
    // The viewer followed them in another order than they followed the star. Both lists have
    // further accounts.
    follow_in_order(&system, fans.iter().rev().map(|fan| (viewer.id, fan.id))).await;
    follow_in_order(&system, fans.iter().map(|fan| (fan.id, star.id))).await;
    let newest = ["fan5", "fan4", "fan3"];
    for strangers in [0, 1, 2] {
        // The lists are equally long, then the star's is longer, then the viewer's.
        let crowd = system.crowd(&format!("stranger{strangers}_"), 20 * strangers).await;
        match strangers {
            1 => system.follows(crowd.iter().map(|&one| (one, star.id))).await,
            _ => system.follows(crowd.iter().map(|&one| (viewer.id, one))).await,
        }
        let view = view_user(&system, Some(&viewer), star.id).await;
        assert_eq!(followed_by(&view), (newest.to_vec(), 6), "{strangers}");
    }
    let request = gateway::ViewUserRequest { user: by_name("star") };
    let named = system.gateway().view_user(viewer.request(request)).await.unwrap().into_inner();
    assert_eq!(named, view_user(&system, Some(&viewer), star.id).await);

    // Muted accounts are counted, and not shown.
    system.mute(&viewer, &fans[4]).await;
    let view = view_user(&system, Some(&viewer), star.id).await;
    assert_eq!(followed_by(&view), (vec!["fan5", "fan3", "fan2"], 6));
    system.block(&fans[5], &viewer).await;
    let view = view_user(&system, Some(&viewer), star.id).await;
    assert_eq!(followed_by(&view), (vec!["fan3", "fan2", "fan1"], 5));

    assert_eq!(followed_by(&view_user(&system, None, star.id).await), (vec![], 0));
    system.follows([(fans[0].id, viewer.id)]).await;
    assert_eq!(followed_by(&view_user(&system, Some(&viewer), viewer.id).await), (vec![], 0));
    system.follows([(star.id, fans[0].id)]).await;
    assert_eq!(view_user(&system, Some(&viewer), star.id).await.common_following, 1);
    system.block(&star, &viewer).await;
    let view = view_user(&system, Some(&viewer), star.id).await;
    assert_eq!(followed_by(&view), (vec![], 0));
    assert_eq!(view.common_following, 0);
}

#[tokio::test]
async fn a_profile_has_the_followers_whom_the_viewer_follows() {
    followers_i_follow_are_listed(Topology::Single).await;
}

#[tokio::test]
async fn a_profile_has_the_followers_whom_the_viewer_follows_on_a_cluster() {
    followers_i_follow_are_listed(Topology::Cluster).await;
}

#[tokio::test]
async fn followers_i_follow_cost_view_user_two_more_calls() {
    let system = System::start_on(Topology::Single, Jobs::Rest, Flags::default()).await;
    let star = system.join("star").await;
    let viewer = system.join("viewer").await;
    let fan = system.join("fan").await;
    let of_anybody = ["post.BatchGetPostCounts", "relation.BatchGetCounts", "user.BatchGetUsers"];
    let of_viewer = [
        "post.BatchGetPostCounts",
        "relation.BatchGetCounts",
        "relation.CountEdges",
        "relation.CountEdges",
        "relation.GetRelation",
        "user.BatchGetUsers",
    ];
    // Without the followers that the viewer follows.
    let of_self = [&of_viewer[..3], &of_viewer[4..]].concat();
    let mut with_names = of_viewer.to_vec();
    with_names.extend(["relation.BatchGetRelations", "user.BatchGetUsers"]);
    with_names.sort_unstable();
    view_user(&system, Some(&viewer), star.id).await;
    system.recorder.calls();
    view_user(&system, None, star.id).await;
    assert_eq!(system.recorder.calls(), of_anybody);
    view_user(&system, Some(&viewer), star.id).await;
    assert_eq!(system.recorder.calls(), of_viewer);
    view_user(&system, Some(&viewer), viewer.id).await;
    assert_eq!(system.recorder.calls(), of_self);
    system.follows([(viewer.id, fan.id), (fan.id, star.id)]).await;
    system.recorder.calls();
    view_user(&system, Some(&viewer), star.id).await;
    assert_eq!(system.recorder.calls(), with_names);
}

fn not_followed_back(user: Option<gateway::UserRef>) -> gateway::ViewFollowersRequest {
    gateway::ViewFollowersRequest { user, not_followed_back: true, ..Default::default() }
}

#[tokio::test]
async fn followers_not_followed_back_are_listed_for_the_own_account() {
    const ONLY_OWN: Expected<'_> = invalid(&["not_followed_back"]);
    let system = System::start().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let crowd = system.crowd("fan", 60).await;
    system.follows(crowd.iter().map(|&fan| (fan, ann.id))).await;
    system.follows(crowd.iter().step_by(3).map(|&fan| (ann.id, fan))).await;
    let blocked = system.followers(Some(&ann), ann.id, 200, "").await.users;
    let expected: Vec<u64> =
        ids(&blocked).into_iter().filter(|id| !crowd.iter().step_by(3).any(|f| f == id)).collect();
    assert_eq!(expected.len(), 40);

    for user in [by_id(ann.id), by_name("ANN")] {
        let mut request = gateway::ViewFollowersRequest { page_size: 9, ..not_followed_back(user) };
        let mut seen = Vec::new();
        loop {
            let page = system.gateway().view_followers(ann.request(request.clone())).await.unwrap();
            let page = page.into_inner();
            assert!(page.users.iter().all(|user| user.relation() == RelationState::Follower));
            seen.extend(ids(&page.users));
            request.page_token = page.next_page_token;
            if request.page_token.is_empty() {
                break;
            }
            assert_eq!(page.users.len(), 9, "a page is short only at the end");
        }
        assert_eq!(seen, expected);
    }

    for user in [by_id(ann.id), by_name("ann")] {
        let request = || not_followed_back(user.clone());
        let answer = system.gateway().view_followers(bob.request(request())).await;
        assert_error("another's list", answer, ONLY_OWN);
        let answer = system.gateway().view_followers(Request::new(request())).await;
        assert_error("without a token", answer, ONLY_OWN);
    }
}

#[tokio::test]
async fn following_is_listed_in_either_order() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let crowd = system.crowd("friend", 25).await;
    follow_in_order(&system, crowd.iter().map(|&friend| (ann.id, friend))).await;
    let mut newest = crowd.clone();
    newest.reverse();
    let orders = [
        (FollowOrder::Unspecified, &newest),
        (FollowOrder::NewestFirst, &newest),
        (FollowOrder::OldestFirst, &crowd),
    ];
    for (viewer, (order, expected)) in
        [Some(&ann), Some(&bob), None].into_iter().flat_map(|viewer| orders.map(|of| (viewer, of)))
    {
        let (user, order) = (by_id(ann.id), order.into());
        let request =
            gateway::ViewFollowingRequest { user, order, page_size: 10, ..<_>::default() };
        let mut request = request;
        let mut seen = Vec::new();
        loop {
            let request_now = request_as(viewer, request.clone());
            let page = system.gateway().view_following(request_now).await.unwrap().into_inner();
            seen.extend(ids(&page.users));
            request.page_token = page.next_page_token;
            if request.page_token.is_empty() {
                break;
            }
        }
        assert_eq!(&seen, expected);
    }
    let request = gateway::ViewFollowingRequest { order: 7, page_size: -1, ..Default::default() };
    let answer = system.gateway().view_following(request).await;
    assert_error("all that is wrong", answer, invalid(&["user", "order", "page_size"]));
}
