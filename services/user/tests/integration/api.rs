//! The calls of the service over gRPC.

use std::time::Duration;

use microblog_chassis::status::reason_of;
use microblog_proto::{common::ErrorReason as Reason, user as pb};
use microblog_testkit::{Database, Store, eventually};
use tonic_types::StatusExt as _;

use crate::support::{
    Guesses, PASSWORD, PATIENCE, System, Topology, assert_rejected, authenticate, login, login_as,
    on_each_store, register, registration, set_bio,
};

on_each_store! {
    an_account_is_found_by_id_and_name
    a_profile_is_changed_in_parts
    taken_names_and_addresses_are_rejected
    a_session_lives_until_it_is_ended
    a_new_password_ends_every_session
    guesses_by_name_and_by_address_count_together
}

async fn an_account_is_found_by_id_and_name(topology: Topology) {
    let system = System::start(topology).await;
    let mut client = system.client.clone();
    let (ann, bob) = (register(&client, "Ann").await, register(&client, "bob").await);
    assert_eq!((ann.name.as_str(), ann.display_name.as_str()), ("Ann", ""));
    assert!(ann.id < 1 << 53);
    let age = std::time::SystemTime::now()
        .duration_since(ann.created_at.unwrap().try_into().unwrap())
        .unwrap();
    assert!(age.as_secs() < 60);

    let get = client.get_user(pb::GetUserRequest { user_id: ann.id }).await.unwrap();
    assert_eq!(get.into_inner().user.as_ref(), Some(&ann));
    let by_name = pb::GetUserByNameRequest { name: "aNN".to_owned() };
    let by_name = client.get_user_by_name(by_name).await.unwrap();
    assert_eq!(by_name.into_inner().user.as_ref(), Some(&ann));
    let own = client.get_account(pb::GetAccountRequest { user_id: ann.id }).await.unwrap();
    let own = own.into_inner().account.unwrap();
    assert_eq!((own.user.as_ref(), own.email.as_str()), (Some(&ann), "Ann@example.org"));
    let user_ids = vec![bob.id, 1, ann.id, bob.id];
    let names = ["nobody", "BOB", "ann"].map(str::to_owned).to_vec();
    let batch = pb::BatchGetUsersRequest { user_ids, names, ..Default::default() };
    let batch = client.batch_get_users(batch).await.unwrap().into_inner();
    let named = batch.named.iter().map(|named| (named.name.as_str(), named.user_id));
    assert_eq!(named.collect::<Vec<_>>(), [("BOB", bob.id), ("ann", ann.id)]);
    assert_eq!(batch.users, [bob, ann]);

    let none = client.get_user(pb::GetUserRequest { user_id: 1 }).await;
    assert_rejected(none, Reason::UserNotFound);
    let none = client.get_user_by_name(pb::GetUserByNameRequest { name: "eve".to_owned() }).await;
    assert_rejected(none, Reason::UserNotFound);
    assert_rejected(
        client.get_account(pb::GetAccountRequest { user_id: 1 }).await,
        Reason::UserNotFound,
    );
    system.assert_valid(2).await;
}

async fn a_profile_is_changed_in_parts(topology: Topology) {
    let system = System::start(topology).await;
    let mut client = system.client.clone();
    let ann = register(&client, "ann").await;
    let mut update = async |user_id: u64, changes: pb::ProfileChanges| {
        let request = pb::UpdateProfileRequest { user_id, changes: Some(changes) };
        client.update_profile(request).await.map(|response| response.into_inner().user.unwrap())
    };
    let changes = pb::ProfileChanges {
        display_name: Some(" Ann 李 ".to_owned()),
        bio: Some("two\r\nlines".to_owned()),
        avatar_url: Some("https://example.org/a.png".to_owned()),
        ..Default::default()
    };
    let user = update(ann.id, changes).await.unwrap();
    assert_eq!((user.display_name.as_str(), user.bio.as_str()), ("Ann 李", "two\nlines"));
    assert_eq!(
        (user.avatar_url.as_str(), user.location.as_str()),
        ("https://example.org/a.png", "")
    );
    let changes = pb::ProfileChanges {
        bio: Some(String::new()),
        location: Some("北京".to_owned()),
        ..Default::default()
    };
    let user = update(ann.id, changes).await.unwrap();
    assert_eq!((user.bio.as_str(), user.location.as_str()), ("", "北京"));
    assert_eq!(user.display_name, "Ann 李");

    // The longest text, in the longest emoji.
    let bio = "👩🏻\u{200d}❤\u{fe0f}\u{200d}💋\u{200d}👨🏿".repeat(160);
    let long = pb::ProfileChanges { bio: Some(bio.clone()), ..Default::default() };
    assert_eq!(update(ann.id, long).await.unwrap().bio, bio);
    let unchanged = update(ann.id, pb::ProfileChanges::default()).await.unwrap();
    assert_eq!((unchanged.display_name, unchanged.bio), ("Ann 李".to_owned(), bio));

    let changes = pb::ProfileChanges { bio: Some("x".to_owned()), ..Default::default() };
    assert_rejected(update(5, changes).await, Reason::UserNotFound);
}

async fn taken_names_and_addresses_are_rejected(topology: Topology) {
    let system = System::start(topology).await;
    let mut client = system.client.clone();
    register(&client, "ann").await;
    let name = pb::RegisterRequest { email: "new@example.org".to_owned(), ..registration("ANN") };
    assert_rejected(client.register(name).await, Reason::NameTaken);
    let email = pb::RegisterRequest { email: "Ann@Example.org".to_owned(), ..registration("new") };
    assert_rejected(client.register(email).await, Reason::EmailTaken);

    let mut free = async |name: &str| {
        let request = pb::CheckAvailabilityRequest { name: name.to_owned() };
        client.check_availability(request).await.unwrap().into_inner().name_available
    };
    assert_eq!(free("Ann").await, Some(false));
    assert_eq!(free("new").await, Some(true));
    system.assert_valid(1).await;
}

async fn a_session_lives_until_it_is_ended(topology: Topology) {
    let system = System::start(topology).await;
    let mut client = system.client.clone();
    let ann = register(&client, "ann").await;
    let (first, second) = (
        login(&client, "ANN", PASSWORD).await.unwrap(),
        login(&client, "ann", PASSWORD).await.unwrap(),
    );
    assert_ne!(first, second);
    let request =
        pb::LoginRequest { login: "ann@example.org".to_owned(), password: PASSWORD.to_owned() };
    let opened = client.login(request).await.unwrap().into_inner();
    let shown = pb::AuthenticateRequest { token: opened.token };
    let shown = client.authenticate(shown).await.unwrap().into_inner();
    assert_eq!(shown.expires_at, opened.expires_at);
    assert_eq!(authenticate(&client, &first).await.unwrap(), ann.id);

    for _ in 0..2 {
        client.logout(pb::LogoutRequest { token: first.clone() }).await.unwrap();
        assert_rejected(authenticate(&client, &first).await, Reason::TokenInvalid);
    }
    assert_eq!(authenticate(&client, &second).await.unwrap(), ann.id);

    let system = System::start_with(topology, &["--session-ttl-s", "2"]).await;
    register(&system.client, "ann").await;
    let short = login(&system.client, "ann", PASSWORD).await.unwrap();
    eventually("the session ends by itself", PATIENCE, async || {
        authenticate(&system.client, &short).await.is_err()
    })
    .await;
    assert_rejected(authenticate(&system.client, &short).await, Reason::TokenInvalid);
}

async fn a_new_password_ends_every_session(topology: Topology) {
    let system = System::start(topology).await;
    let mut client = system.client.clone();
    let (ann, _) = (register(&client, "ann").await, register(&client, "bob").await);
    let (token, others) = (
        login(&client, "ann", PASSWORD).await.unwrap(),
        login(&client, "bob", PASSWORD).await.unwrap(),
    );
    let change = |current: &str| pb::ChangePasswordRequest {
        user_id: ann.id,
        current_password: current.to_owned(),
        new_password: "battery staple".to_owned(),
    };
    assert_rejected(client.change_password(change("wrong")).await, Reason::BadCredentials);
    assert!(authenticate(&client, &token).await.is_ok());
    client.change_password(change(PASSWORD)).await.unwrap();
    assert_rejected(authenticate(&client, &token).await, Reason::TokenInvalid);
    assert!(authenticate(&client, &others).await.is_ok());
    assert_rejected(login(&client, "ann", PASSWORD).await, Reason::BadCredentials);
    assert!(login(&client, "ann", "battery staple").await.is_ok());
}

#[tokio::test]
async fn password_guesses_are_throttled_and_errors_reveal_nothing() {
    let system = System::start(Topology::Single).await;
    let client = &system.client;
    register(client, "ann").await;
    // Known or unknown, the responses are equal.
    for name in ["ann", "nobody"] {
        let mut admitted = 0;
        let status = loop {
            let status = login(client, name, "wrong").await.unwrap_err();
            if reason_of(&status) == Some(Reason::LoginThrottled) {
                break status;
            }
            assert_eq!(reason_of(&status), Some(Reason::BadCredentials));
            assert_eq!(status.message(), "wrong name, e-mail address or password");
            admitted += 1;
        };
        // More than five only if a check takes longer than the delay, on a busy machine.
        assert!((5..10).contains(&admitted), "{admitted}");
        let wait = status.get_details_retry_info().unwrap().retry_delay.unwrap();
        assert!(!wait.is_zero() && wait <= Duration::from_secs(1 << (admitted - 5)), "{wait:?}");
    }
    eventually("the right password is accepted again", PATIENCE, async || {
        login(client, "ann", PASSWORD).await.is_ok()
    })
    .await;
    // Success resets the counter.
    assert_rejected(login(client, "ann", "wrong").await, Reason::BadCredentials);
    assert!(login(client, "ann", PASSWORD).await.is_ok());
}

#[tokio::test]
async fn concurrent_guesses_are_throttled() {
    for database in Database::both().await {
        let redis = Store::start(Topology::Single).await;
        let system = System::start_on(redis, database, &[]).await;
        let ann = register(&system.client, "ann").await.id;
        let clients = [&system.client, &system.another(&[]).await];
        system.set_failures(Guesses::Account(ann), 11).await;
        let guesses = (0..30).map(|n| login(clients[n % 2], "ann", "wrong"));
        let answers = futures::future::join_all(guesses).await;
        let admitted = answers.into_iter().filter(|answer| {
            let status = answer.as_ref().unwrap_err();
            reason_of(status) == Some(Reason::BadCredentials)
        });
        assert_eq!(admitted.count(), 1);
    }
}

async fn guesses_by_name_and_by_address_count_together(topology: Topology) {
    let system = System::start(topology).await;
    let client = &system.client;
    let ann = Guesses::Account(register(client, "Ann").await.id);
    for (count, login) in (1..).zip(["ANN", "Ann@example.org", "ann"]) {
        assert_rejected(login_as(client, login, "wrong").await, Reason::BadCredentials);
        assert_eq!(system.failures(ann).await, Some(count), "{login}");
    }
    login_as(client, "ann", PASSWORD).await.unwrap();
    assert_eq!(system.failures(ann).await, None, "success clears the count");

    system.set_failures(ann, 11).await;
    assert_rejected(login_as(client, "ann", "wrong").await, Reason::BadCredentials);
    assert_rejected(login_as(client, "ann@example.org", PASSWORD).await, Reason::LoginThrottled);
    assert_rejected(login_as(client, "ann", PASSWORD).await, Reason::LoginThrottled);

    // Known or unknown, a name is throttled.
    system.set_failures(Guesses::Name("nobody"), 11).await;
    assert_rejected(login_as(client, "nobody", "wrong").await, Reason::BadCredentials);
    assert_rejected(login_as(client, "NOBODY", "wrong").await, Reason::LoginThrottled);
}

#[tokio::test]
async fn every_call_that_takes_a_password_counts_for_the_same_account() {
    let system = System::start(Topology::Single).await;
    let mut client = system.client.clone();
    let ann = register(&client, "ann").await.id;
    let change = |current: &str| pb::ChangePasswordRequest {
        user_id: ann,
        current_password: current.to_owned(),
        new_password: "battery staple".to_owned(),
    };
    let delete =
        |password: &str| pb::DeleteUserRequest { user_id: ann, password: password.to_owned() };

    assert_rejected(client.change_password(change("wrong")).await, Reason::BadCredentials);
    assert_rejected(client.delete_user(delete("wrong")).await, Reason::BadCredentials);
    assert_rejected(login(&client, "ann", "wrong").await, Reason::BadCredentials);
    assert_eq!(system.failures(Guesses::Account(ann)).await, Some(3));
    client.change_password(change(PASSWORD)).await.unwrap();
    assert_eq!(system.failures(Guesses::Account(ann)).await, None, "success clears the count");

    system.set_failures(Guesses::Account(ann), 11).await;
    assert_rejected(client.change_password(change("wrong")).await, Reason::BadCredentials);
    assert_rejected(client.change_password(change("battery staple")).await, Reason::LoginThrottled);
    assert_rejected(client.delete_user(delete("battery staple")).await, Reason::LoginThrottled);
    assert_rejected(login(&client, "ann", "battery staple").await, Reason::LoginThrottled);
    assert!(set_bio(&client, ann, "there").await.is_ok());
}
