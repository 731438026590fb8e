//! Accounts and sessions through the gateway.

use microblog_chassis::status;
use microblog_proto::{common::ErrorReason, gateway, user};
use tonic::{Code, Status};

use crate::system::{Member, PASSWORD, System, by_id, email, registration, with_token};

async fn me(system: &System, member: &Member) -> Result<gateway::MeResponse, Status> {
    let response = system.gateway().me(member.request(gateway::MeRequest {})).await;
    response.map(tonic::Response::into_inner)
}

fn is_invalid_token(outcome: Result<gateway::MeResponse, Status>) -> bool {
    let status = outcome.unwrap_err();
    status.code() == Code::Unauthenticated
        && status::reason_of(&status) == Some(ErrorReason::TokenInvalid)
}

#[tokio::test]
async fn a_registration_is_idempotent_and_its_name_is_taken() {
    let system = System::start().await;
    let is_free = async |name: &str| {
        let request = gateway::CheckAvailabilityRequest { name: name.to_owned() };
        system.gateway().check_availability(request).await.unwrap().into_inner().name_available
    };
    assert_eq!(is_free("ann").await, Some(true));

    let request = registration("ann");
    let first = system.gateway().register(request.clone()).await.unwrap().into_inner();
    let again = system.gateway().register(request).await.unwrap().into_inner();
    assert_eq!(first, again);

    assert_eq!(is_free("ANN").await, Some(false));
}

#[tokio::test]
async fn a_profile_update_changes_only_the_given_fields() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let update = async |changes: user::ProfileChanges| {
        let request = gateway::UpdateProfileRequest { changes: Some(changes) };
        system.gateway().update_profile(ann.request(request)).await.unwrap()
    };
    update(user::ProfileChanges {
        display_name: Some("Ann".to_owned()),
        bio: Some("one\ntwo".to_owned()),
        ..Default::default()
    })
    .await;
    let clear = user::ProfileChanges { bio: Some(String::new()), ..Default::default() };
    let response = update(clear).await;
    let user = response.into_inner().user.unwrap();
    assert_eq!((user.display_name.as_str(), user.bio.as_str()), ("Ann", ""));
    assert_eq!(me(&system, &ann).await.unwrap().account.unwrap().user, Some(user));
}

#[tokio::test]
async fn logout_ends_the_session_and_is_idempotent() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    me(&system, &ann).await.unwrap();
    for _ in 0..2 {
        system.gateway().logout(ann.request(gateway::LogoutRequest {})).await.unwrap();
        assert!(is_invalid_token(me(&system, &ann).await));
    }
}

#[tokio::test]
async fn a_new_password_ends_every_session() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let login = gateway::LoginRequest { login: email("ann"), password: PASSWORD.to_owned() };
    let second = system.gateway().login(login.clone()).await.unwrap().into_inner().token;
    let request = gateway::ChangePasswordRequest {
        current_password: PASSWORD.to_owned(),
        new_password: "another good one".to_owned(),
    };
    system.gateway().change_password(with_token(&second, request)).await.unwrap();
    assert!(is_invalid_token(me(&system, &ann).await));
    let error = system.gateway().login(login).await.unwrap_err();
    assert_eq!(status::reason_of(&error), Some(ErrorReason::BadCredentials));
}

pub(crate) async fn log_in(system: &System, login: &str, password: &str) -> Result<String, Status> {
    let (login, password) = (login.to_owned(), password.to_owned());
    let answer = system.gateway().login(gateway::LoginRequest { login, password }).await;
    answer.map(|answer| answer.into_inner().token)
}

#[tokio::test]
async fn an_account_logs_in_by_its_name_or_its_address() {
    let system = System::start().await;
    let ann = system.join("Ann").await;
    for login in ["Ann", "aNN", "ann@example.com", "ANN@Example.com"] {
        let token = log_in(&system, login, PASSWORD).await.unwrap();
        let shown = me(&system, &Member { id: ann.id, token }).await.unwrap();
        assert_eq!(shown.account.unwrap().user.unwrap().id, ann.id, "{login}");
    }
    let outcome = async |login| {
        let status = log_in(&system, login, "not this one").await.unwrap_err();
        (status.code(), status::reason_of(&status), status.message().to_owned())
    };
    // The same error whether or not the account exists.
    let wrong = outcome("ann").await;
    assert_eq!((wrong.0, wrong.1), (Code::Unauthenticated, Some(ErrorReason::BadCredentials)));
    for login in ["ann@example.com", "unknown", "unknown@example.com"] {
        assert_eq!(outcome(login).await, wrong, "{login}");
    }
    for login in ["", "an n", "@ann", "ann@"] {
        assert_eq!(outcome(login).await.1, Some(ErrorReason::InvalidField), "{login}");
    }
}

#[tokio::test]
async fn the_name_of_a_deleted_account_stays_reserved() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let request = gateway::DeleteAccountRequest { password: PASSWORD.to_owned() };
    system.gateway().delete_account(ann.request(request)).await.unwrap();
    let taken = system.gateway().register(registration("ANN")).await.unwrap_err();
    assert_eq!(status::reason_of(&taken), Some(ErrorReason::NameTaken));
    let request = gateway::CheckAvailabilityRequest { name: "ann".to_owned() };
    let free = system.gateway().check_availability(request).await.unwrap().into_inner();
    assert_eq!(free.name_available, Some(false));
    // The address is available at once.
    let back = gateway::RegisterRequest { email: email("ann"), ..registration("ann2") };
    system.gateway().register(back).await.unwrap();
}

#[tokio::test]
async fn an_invalid_token_is_rejected_even_where_none_is_needed() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let request = || gateway::ViewUserRequest { user: by_id(ann.id) };
    system.gateway().view_user(ann.request(request())).await.unwrap();
    system.gateway().logout(ann.request(gateway::LogoutRequest {})).await.unwrap();
    let error = system.gateway().view_user(ann.request(request())).await.unwrap_err();
    assert_eq!(status::reason_of(&error), Some(ErrorReason::TokenInvalid));
    system.gateway().view_user(request()).await.unwrap();
}

#[tokio::test]
async fn a_session_of_another_system_is_invalid() {
    let here = System::start().await;
    let there = System::start().await;
    here.join("ann").await;
    let ann_there = there.join("ann").await;
    assert!(is_invalid_token(me(&here, &ann_there).await));
}
