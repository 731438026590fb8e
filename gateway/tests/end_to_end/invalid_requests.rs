//! Errors of calls with an account or a page. Each names its field.

use microblog_domain::Scope;
use microblog_proto::{common::ErrorReason, gateway};
use tonic::Code;

use crate::{
    errors::{TOKEN_INVALID, TOKEN_MISSING, USER_NOT_FOUND, assert_error, invalid},
    system::{PASSWORD, System, by_id, by_name, with_token},
};

/// Expands to a check for each call with a field `user`.
macro_rules! calls_on_a_user {
    ($check:ident) => {
        $check!(optional, view_user, ViewUserRequest);
        $check!(optional, view_following, ViewFollowingRequest);
        $check!(optional, view_followers, ViewFollowersRequest);
        $check!(optional, view_mutuals, ViewMutualsRequest);
        $check!(required, view_common_following, ViewCommonFollowingRequest);
        $check!(required, view_followers_i_follow, ViewFollowersIFollowRequest);
        $check!(required, follow, FollowRequest);
        $check!(required, unfollow, UnfollowRequest);
        $check!(required, block, BlockRequest);
        $check!(required, unblock, UnblockRequest);
        $check!(required, mute, MuteRequest);
        $check!(required, unmute, UnmuteRequest);
        $check!(required, remove_follower, RemoveFollowerRequest);
    };
}

/// Expands to a check for each list.
macro_rules! lists {
    ($check:ident) => {
        $check!(view_following, ViewFollowingRequest, user);
        $check!(view_followers, ViewFollowersRequest, user);
        $check!(view_mutuals, ViewMutualsRequest, user);
        $check!(view_common_following, ViewCommonFollowingRequest, user);
        $check!(view_followers_i_follow, ViewFollowersIFollowRequest, user);
        $check!(view_blocks, ViewBlocksRequest);
        $check!(view_mutes, ViewMutesRequest);
    };
}

#[tokio::test]
async fn a_missing_token_is_rejected() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    macro_rules! check {
        (optional, $method:ident, $request:ident) => {};
        (required, $method:ident, $request:ident) => {
            let request = gateway::$request { user: by_id(ann.id), ..Default::default() };
            let answer = system.gateway().$method(request).await;
            assert_error(stringify!($method), answer, TOKEN_MISSING);
        };
        ($method:ident, $request:ident) => {
            let answer = system.gateway().$method(gateway::$request::default()).await;
            assert_error(stringify!($method), answer, TOKEN_MISSING);
        };
    }
    #[allow(clippy::needless_update, reason = "some of the requests have more fields")]
    {
        calls_on_a_user!(check);
    }
    check!(logout, LogoutRequest);
    check!(me, MeRequest);
    check!(update_profile, UpdateProfileRequest);
    check!(change_password, ChangePasswordRequest);
    check!(delete_account, DeleteAccountRequest);
    check!(view_blocks, ViewBlocksRequest);
    check!(view_mutes, ViewMutesRequest);
}

#[tokio::test]
async fn an_invalid_token_is_rejected_by_every_call_that_needs_a_valid_one() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let mut forged = ann.token.clone();
    let last = if forged.pop() == Some('A') { 'B' } else { 'A' };
    forged.insert(0, last);
    for token in [forged.as_str(), "x", &"x".repeat(4_000), "with space inside"] {
        macro_rules! check {
            ($needs:ident, $method:ident, $request:ident) => {
                let request = gateway::$request { user: by_id(ann.id), ..Default::default() };
                let answer = system.gateway().$method(with_token(token, request)).await;
                assert_error(stringify!($method), answer, TOKEN_INVALID);
            };
            ($method:ident, $request:ident) => {
                let request = gateway::$request::default();
                let answer = system.gateway().$method(with_token(token, request)).await;
                assert_error(stringify!($method), answer, TOKEN_INVALID);
            };
        }
        #[allow(clippy::needless_update, reason = "some of the requests have more fields")]
        {
            calls_on_a_user!(check);
        }
        check!(me, MeRequest);
        check!(update_profile, UpdateProfileRequest);
        check!(change_password, ChangePasswordRequest);
        check!(delete_account, DeleteAccountRequest);
        check!(view_blocks, ViewBlocksRequest);
        check!(view_mutes, ViewMutesRequest);
        let request = gateway::CheckAvailabilityRequest { name: "bob".to_owned() };
        system.gateway().check_availability(with_token(token, request)).await.unwrap();
        let (login, password) = ("ann".to_owned(), PASSWORD.to_owned());
        let request = gateway::LoginRequest { login, password };
        system.gateway().login(with_token(token, request)).await.unwrap();
        system.gateway().logout(with_token(token, gateway::LogoutRequest {})).await.unwrap();
    }
}

#[tokio::test]
async fn an_invalid_account_reference_is_rejected_by_every_call() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let long = "a".repeat(100_000);
    for (user, expected) in [
        (None, invalid(&["user"])),
        (Some(gateway::UserRef::default()), invalid(&["user"])),
        (by_id(0), invalid(&["user.id"])),
        (by_id(1 << 53), invalid(&["user.id"])),
        (by_id(1 << 63), invalid(&["user.id"])),
        (by_name(""), invalid(&["user.name"])),
        (by_name("a\0b"), invalid(&["user.name"])),
        (by_name("\u{202e}nna"), invalid(&["user.name"])),
        (by_name(&long), invalid(&["user.name"])),
        (by_name("unknown"), USER_NOT_FOUND),
    ] {
        macro_rules! check {
            ($needs:ident, $method:ident, $request:ident) => {
                let request = gateway::$request { user: user.clone(), ..Default::default() };
                let answer = system.gateway().$method(ann.request(request)).await;
                assert_error(stringify!($method), answer, expected);
            };
        }
        #[allow(clippy::needless_update, reason = "some of the requests have more fields")]
        {
            calls_on_a_user!(check);
        }
    }
}

#[tokio::test]
async fn an_unknown_id_can_be_unfollowed_but_not_viewed_or_followed() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let unknown = by_id(4_096);
    macro_rules! check {
        (optional, $method:ident, $request:ident) => {
            check!(required, $method, $request)
        };
        (required, unfollow, $request:ident) => {
            check!(leave, unfollow, $request)
        };
        (required, unblock, $request:ident) => {
            check!(leave, unblock, $request)
        };
        (required, unmute, $request:ident) => {
            check!(leave, unmute, $request)
        };
        (required, remove_follower, $request:ident) => {
            check!(leave, remove_follower, $request)
        };
        (required, $method:ident, $request:ident) => {
            let request = gateway::$request { user: unknown.clone(), ..Default::default() };
            let answer = system.gateway().$method(ann.request(request)).await;
            assert_error(stringify!($method), answer, USER_NOT_FOUND);
        };
        (leave, $method:ident, $request:ident) => {
            let request = gateway::$request { user: unknown.clone() };
            system.gateway().$method(ann.request(request)).await.expect(stringify!($method));
        };
    }
    #[allow(clippy::needless_update, reason = "some of the requests have more fields")]
    {
        calls_on_a_user!(check);
    }
}

#[tokio::test]
async fn self_follows_blocks_and_mutes_are_rejected() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let expected = (Code::InvalidArgument, ErrorReason::SelfRelation, &["user"][..]);
    macro_rules! check {
        ($method:ident, $request:ident) => {
            let request = gateway::$request { user: by_name("ann") };
            let answer = system.gateway().$method(ann.request(request)).await;
            assert_error(stringify!($method), answer, expected);
        };
    }
    check!(follow, FollowRequest);
    check!(block, BlockRequest);
    check!(mute, MuteRequest);
}

#[tokio::test]
async fn an_invalid_page_is_rejected_by_every_list() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let mismatch = Scope::new("SomeOtherList").with(ann.id).token([1, 2]);
    let mut forged = mismatch.clone();
    forged.replace_range(10..11, if &forged[10..11] == "A" { "B" } else { "A" });
    let token = |reason| (Code::InvalidArgument, reason, &["page_token"][..]);
    for (page_size, page_token, expected) in [
        (-1, "", invalid(&["page_size"])),
        (i32::MIN, "", invalid(&["page_size"])),
        (0, mismatch.as_str(), token(ErrorReason::PageTokenMismatch)),
        (0, forged.as_str(), token(ErrorReason::PageTokenInvalid)),
        (0, "\u{202e}?", token(ErrorReason::PageTokenInvalid)),
    ] {
        let page_token = page_token.to_owned();
        macro_rules! check {
            ($method:ident, $request:ident $(, $user:ident)?) => {
                let page_token = page_token.clone();
                let request = gateway::$request {
                    $($user: by_id(ann.id),)?
                    page_size,
                    page_token,
                    ..Default::default()
                };
                let answer = system.gateway().$method(ann.request(request)).await;
                assert_error(stringify!($method), answer, expected);
            };
        }
        #[allow(clippy::needless_update, reason = "some of the requests have more fields")]
        {
            lists!(check);
        }
    }
}

#[tokio::test]
async fn a_page_token_of_another_list_is_rejected() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let crowd = system.crowd("fan", 3).await;
    system.follows(crowd.iter().map(|&fan| (fan, ann.id))).await;
    let page_token = system.followers(None, ann.id, 1, "").await.next_page_token;
    assert_ne!(page_token, "");
    let mismatch = (Code::InvalidArgument, ErrorReason::PageTokenMismatch, &["page_token"][..]);

    let user = by_id(bob.id);
    let request =
        gateway::ViewFollowersRequest { user, page_size: 1, page_token, ..Default::default() };
    let answer = system.gateway().view_followers(request.clone()).await;
    assert_error("another's list", answer, mismatch);
    let gateway::ViewFollowersRequest { page_size, page_token, .. } = request;
    let user = by_id(ann.id);
    let request =
        gateway::ViewFollowingRequest { user, page_size, page_token, ..Default::default() };
    let answer = system.gateway().view_following(request).await;
    assert_error("another list", answer, mismatch);
}
