//! Redis at `maxmemory`: calls succeed. The databases have the data of all services but timeline,
//! whose Redis cannot take what is new.

use microblog_proto::{gateway, relation, user};
use microblog_testkit::{PATIENCE, eventually, redis};
use tonic::Request;

use crate::{
    actions::request_id,
    system::{Member, PASSWORD, System, by_id, email, registration, with_token},
    timeline_actions::SOON,
};

/// Sets the memory limit of the store, which all five keyspaces share; 0 for none.
async fn limit_memory(system: &System, bytes: u64) {
    for node in system.store.nodes() {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg("maxmemory").arg(bytes);
        set.exec_async(&mut node.admin().await).await.unwrap();
    }
}

/// The accounts and data from before the limit.
struct World {
    system: System,
    ann: Member,
    bob: Member,
    cat: Member,
    dan: Member,
    eve: Member,
    /// A second session of bob.
    token: String,
    /// A post of Ann, liked and commented on by bob.
    post_id: u64,
    comment_id: u64,
}

impl World {
    async fn new() -> Self {
        let system = System::start().await;
        let [ann, bob, cat] =
            [system.join("ann").await, system.join("bob").await, system.join("cat").await];
        let [dan, eve] = [system.join("dan").await, system.join("eve").await];
        let follows = [(&bob, &ann), (&ann, &bob), (&cat, &ann), (&dan, &ann), (&eve, &ann)];
        system.follows(follows.map(|(from, to)| (from.id, to.id))).await;
        system.block(&cat, &dan).await;
        system.mute(&cat, &eve).await;
        let post_id = system.publish(&ann, "one").await.id;
        system.like(&bob, post_id).await;
        let comment_id = system.comment(&bob, post_id, "first").await.id;
        let login = gateway::LoginRequest { login: email("bob"), password: PASSWORD.to_owned() };
        let token = system.gateway().login(login).await.unwrap().into_inner().token;
        // Bob has a home timeline; cat has none.
        eventually("bob sees the post", SOON, async || system.home_texts(&bob).await == ["one"])
            .await;
        Self { system, ann, bob, cat, dan, eve, token, post_id, comment_id }
    }

    async fn counts(&self, of: &Member) -> relation::Counts {
        let request = gateway::ViewUserRequest { user: by_id(of.id) };
        self.system.gateway().view_user(request).await.unwrap().into_inner().counts.unwrap()
    }
}

/// Makes a call that must succeed, and returns its response.
macro_rules! goes_on {
    ($world:expr, $method:ident, $request:expr) => {
        match $world.system.gateway().$method($request).await {
            Ok(response) => response.into_inner(),
            Err(status) => panic!("{}: {status:?}", stringify!($method)),
        }
    };
}

#[tokio::test]
async fn calls_that_add_data_succeed_and_reach_readers_when_there_is_room() {
    let world = World::new().await;
    limit_memory(&world.system, 1).await;
    let World { ann, bob, cat, post_id, .. } = &world;
    let post_id = *post_id;

    let register = registration("fay");
    let publish = gateway::PublishRequest { request_id: request_id(), text: "two".into() };
    let repost = gateway::RepostRequest { request_id: request_id(), post_id, text: "so".into() };
    let comment = gateway::CommentRequest {
        request_id: request_id(),
        post_id,
        text: "second".into(),
        in_reply_to_id: 0,
    };
    let changes = user::ProfileChanges { bio: Some("Hello".into()), ..Default::default() };
    let profile = gateway::UpdateProfileRequest { changes: Some(changes) };
    let available = gateway::CheckAvailabilityRequest { name: "fay".into() };
    assert_eq!(goes_on!(world, check_availability, available).name_available, Some(true));
    for _ in 0..2 {
        goes_on!(world, publish, ann.request(publish.clone()));
        goes_on!(world, repost, cat.request(repost.clone()));
        goes_on!(world, like, cat.request(gateway::LikeRequest { post_id }));
        goes_on!(world, comment, cat.request(comment.clone()));
    }
    let counts = goes_on!(world, view_post, gateway::ViewPostRequest { post_id }).post.unwrap();
    let counts = counts.post.unwrap();
    assert_eq!((counts.likes, counts.comments, counts.reposts), (2, 2, 1));
    goes_on!(world, register, register);
    goes_on!(world, update_profile, bob.request(profile));
    goes_on!(world, follow, bob.request(gateway::FollowRequest { user: by_id(cat.id) }));
    assert_eq!(world.counts(bob).await.following, 2);
    assert!(!world.system.home_texts(bob).await.contains(&"two".to_owned()));

    limit_memory(&world.system, 0).await;
    eventually("bob sees what was posted", PATIENCE, async || {
        world.system.home_texts(bob).await.contains(&"two".to_owned())
    })
    .await;
}

#[tokio::test]
async fn reads_succeed_at_the_memory_limit() {
    let world = World::new().await;
    limit_memory(&world.system, 1).await;
    let World { system, ann, bob, cat, post_id, .. } = &world;
    let post_id = *post_id;

    // The first read without a home timeline, and reads of an existing one.
    for viewer in [cat, bob, cat] {
        assert_eq!(system.home_texts(viewer).await, ["one"]);
    }
    assert_eq!(system.friends(bob).await.posts.len(), 1);
    assert_eq!(system.user_timeline(Some(bob), ann, 20, "").await.posts.len(), 1);
    let since_token = system.home(cat, 20, "", "").await.since_token;
    goes_on!(
        world,
        count_new,
        cat.request(gateway::CountNewRequest { since_token: since_token.clone() })
    );
    let mut watch =
        goes_on!(world, watch_home, cat.request(gateway::WatchHomeRequest { since_token }));
    assert!(watch.message().await.unwrap().unwrap().posts.is_empty());

    goes_on!(world, me, bob.request(gateway::MeRequest {}));
    goes_on!(world, check_availability, gateway::CheckAvailabilityRequest { name: "fay".into() });
    let user = || by_id(ann.id);
    goes_on!(world, view_user, bob.request(gateway::ViewUserRequest { user: user() }));
    goes_on!(
        world,
        view_following,
        bob.request(gateway::ViewFollowingRequest { user: user(), ..Default::default() })
    );
    goes_on!(
        world,
        view_followers,
        bob.request(gateway::ViewFollowersRequest { user: user(), ..Default::default() })
    );
    goes_on!(
        world,
        view_mutuals,
        ann.request(gateway::ViewMutualsRequest { user: user(), ..Default::default() })
    );
    goes_on!(
        world,
        view_common_following,
        bob.request(gateway::ViewCommonFollowingRequest { user: user(), ..Default::default() })
    );
    goes_on!(
        world,
        view_followers_i_follow,
        bob.request(gateway::ViewFollowersIFollowRequest { user: user(), ..Default::default() })
    );
    let users = user().into_iter().collect();
    let named = gateway::ViewUsersRequest { users, include_counts: true };
    assert_eq!(goes_on!(world, view_users, bob.request(named)).users.len(), 1);
    let named = gateway::ViewPostsRequest { post_ids: vec![post_id], unasked: true };
    assert_eq!(goes_on!(world, view_posts, bob.request(named)).posts.len(), 1);
    goes_on!(world, view_blocks, cat.request(gateway::ViewBlocksRequest::default()));
    goes_on!(world, view_mutes, cat.request(gateway::ViewMutesRequest::default()));
    goes_on!(world, view_post, bob.request(gateway::ViewPostRequest { post_id }));
    goes_on!(
        world,
        view_likers,
        bob.request(gateway::ViewLikersRequest { post_id, ..Default::default() })
    );
    goes_on!(
        world,
        view_comments,
        bob.request(gateway::ViewCommentsRequest { post_id, ..Default::default() })
    );
    goes_on!(
        world,
        view_reposts,
        bob.request(gateway::ViewRepostsRequest { post_id, ..Default::default() })
    );
}

#[tokio::test]
async fn deletions_and_protective_calls_succeed_at_the_memory_limit() {
    let world = World::new().await;
    limit_memory(&world.system, 1).await;
    let World { system, ann, bob, cat, dan, eve, post_id, comment_id, .. } = &world;
    let (post_id, comment_id) = (*post_id, *comment_id);

    goes_on!(world, unlike, bob.request(gateway::UnlikeRequest { post_id }));
    goes_on!(
        world,
        delete_comment,
        bob.request(gateway::DeleteCommentRequest { post_id, comment_id })
    );
    goes_on!(world, delete_post, ann.request(gateway::DeletePostRequest { post_id }));
    assert_eq!(system.home_texts(bob).await, [""; 0]);
    goes_on!(world, unfollow, bob.request(gateway::UnfollowRequest { user: by_id(ann.id) }));
    goes_on!(
        world,
        remove_follower,
        ann.request(gateway::RemoveFollowerRequest { user: by_id(cat.id) })
    );
    goes_on!(world, block, ann.request(gateway::BlockRequest { user: by_id(dan.id) }));
    // Only Eve remains.
    assert_eq!(world.counts(ann).await.followers, 1);
    goes_on!(world, unblock, cat.request(gateway::UnblockRequest { user: by_id(dan.id) }));
    goes_on!(world, mute, ann.request(gateway::MuteRequest { user: by_id(eve.id) }));
    goes_on!(world, unmute, cat.request(gateway::UnmuteRequest { user: by_id(eve.id) }));

    let login =
        |password: &str| gateway::LoginRequest { login: email("bob"), password: password.into() };
    goes_on!(world, login, login(PASSWORD));
    goes_on!(world, logout, with_token(&world.token, gateway::LogoutRequest {}));
    let change = gateway::ChangePasswordRequest {
        current_password: PASSWORD.to_owned(),
        new_password: "another horse battery".to_owned(),
    };
    goes_on!(world, change_password, bob.request(change));
    goes_on!(world, login, login("another horse battery"));

    let delete = gateway::DeleteAccountRequest { password: PASSWORD.to_owned() };
    goes_on!(world, delete_account, eve.request(delete));
    eventually("the deletion is carried out", SOON, async || {
        let request = Request::new(user::ListDeletionsRequest::default());
        let left = system.user().list_deletions(request).await.unwrap().into_inner().user_ids;
        left.is_empty() && world.counts(ann).await.followers == 0
    })
    .await;
}
