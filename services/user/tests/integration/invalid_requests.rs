//! Invalid requests: each invalid field is named, nothing is written, nothing crashes.

use microblog_proto::{common::ErrorReason as Reason, user as pb};

use crate::support::{
    self, PASSWORD, System, Topology, assert_invalid_fields, assert_rejected, register,
    registration, unknown_token,
};

const IDS: [u64; 4] = [0, 1 << 53, 1 << 63, u64::MAX];

fn malformed_texts() -> Vec<String> {
    let controls = ["\0", "a\u{7}b", "\u{1f}", "\r"];
    let others = ["\u{202e}evil", "\u{202d}evil", "a\u{ffff}", "\u{feff}", "\u{2800}", "\u{ffa0}"];
    let huge = ["x".repeat(3 << 20), "\u{301}".repeat(100_000), "👩‍👩‍👧‍👦".repeat(10_000)];
    controls.into_iter().chain(others).map(str::to_owned).chain(huge).collect()
}

#[tokio::test]
async fn invalid_registration_fields_are_named() {
    let system = System::start(Topology::Single).await;
    let mut client = system.client.clone();
    let nothing = client.register(pb::RegisterRequest::default()).await;
    assert_invalid_fields(nothing, &["request_id", "name", "email", "password"]);
    for malformed in malformed_texts() {
        let all = pb::RegisterRequest {
            request_id: malformed.clone(),
            email: malformed.clone(),
            name: malformed.clone(),
            password: format!("{malformed}\0"),
            display_name: format!("x{malformed}x"),
        };
        if malformed.len() < 800_000 {
            let fields = ["request_id", "name", "email", "password", "display_name"];
            assert_invalid_fields(client.register(all).await, &fields);
        }
        let one =
            pb::RegisterRequest { display_name: format!("x{malformed}x"), ..registration("a") };
        assert_invalid_fields(client.register(one).await, &["display_name"]);
    }
    let short = pb::RegisterRequest { password: "1234567".to_owned(), ..registration("ann") };
    assert_invalid_fields(client.register(short).await, &["password"]);
    let long = pb::RegisterRequest { name: "a".repeat(31), ..registration("ann") };
    assert_invalid_fields(client.register(long).await, &["name"]);
    let mut long = registration("ann");
    long.email = format!("{}@{}.org", "a".repeat(64), "b".repeat(250));
    assert_invalid_fields(client.register(long).await, &["email"]);
    let nil = uuid::Uuid::nil().to_string();
    let nil = pb::RegisterRequest { request_id: nil, ..registration("ann") };
    assert_invalid_fields(client.register(nil).await, &["request_id"]);
    system.assert_valid(0).await;
}

#[tokio::test]
async fn impossible_ids_are_rejected_by_every_call() {
    let system = System::start(Topology::Single).await;
    let mut client = system.client.clone();
    let ann = register(&client, "ann").await.id;
    for user_id in IDS {
        assert_invalid_fields(client.get_user(pb::GetUserRequest { user_id }).await, &["user_id"]);
        assert_invalid_fields(
            client.get_account(pb::GetAccountRequest { user_id }).await,
            &["user_id"],
        );
        let confirm = pb::ConfirmDeletionRequest { user_id };
        assert_invalid_fields(client.confirm_deletion(confirm).await, &["user_id"]);
        let delete = pb::DeleteUserRequest { user_id, password: PASSWORD.to_owned() };
        assert_invalid_fields(client.delete_user(delete).await, &["user_id"]);
        let update = pb::UpdateProfileRequest { user_id, ..Default::default() };
        assert_invalid_fields(client.update_profile(update).await, &["user_id"]);
        let change = pb::ChangePasswordRequest { user_id, ..Default::default() };
        let fields = ["user_id", "current_password", "new_password"];
        assert_invalid_fields(client.change_password(change).await, &fields);
        // A list is read without it.
        let user_ids = vec![user_id, ann, user_id];
        let batch = pb::BatchGetUsersRequest { user_ids, ..Default::default() };
        let found = client.batch_get_users(batch).await.unwrap().into_inner().users;
        assert_eq!(found.iter().map(|user| user.id).collect::<Vec<_>>(), [ann]);
    }
    let many = pb::BatchGetUsersRequest { user_ids: (1..=501).collect(), ..Default::default() };
    assert_invalid_fields(client.batch_get_users(many).await, &["user_ids"]);
    let most = pb::BatchGetUsersRequest { user_ids: (1..=500).collect(), ..Default::default() };
    assert!(client.batch_get_users(most).await.unwrap().into_inner().users.is_empty());
    let none = client.batch_get_users(pb::BatchGetUsersRequest::default()).await.unwrap();
    assert!(none.into_inner().users.is_empty());
    let negative = pb::ListDeletionsRequest { page_size: -1 };
    assert_invalid_fields(client.list_deletions(negative).await, &["page_size"]);
}

#[tokio::test]
async fn other_invalid_requests_are_rejected() {
    let system = System::start(Topology::Single).await;
    let mut client = system.client.clone();
    let ann = register(&client, "ann").await;
    for malformed in malformed_texts() {
        let text = Some(format!("x{malformed}x"));
        let changes = pb::ProfileChanges {
            display_name: text.clone(),
            location: text.clone().filter(|text| text.len() < 1 << 20),
            avatar_url: text.clone().filter(|text| text.len() < 1 << 20),
            ..Default::default()
        };
        let update = pb::UpdateProfileRequest { user_id: ann.id, changes: Some(changes) };
        let fields: &[&str] = match malformed.len() {
            0..1_000_000 => &["changes.display_name", "changes.avatar_url", "changes.location"],
            _ => &["changes.display_name"],
        };
        assert_invalid_fields(client.update_profile(update).await, fields);
        let by_name = pb::GetUserByNameRequest { name: malformed.clone() };
        assert_invalid_fields(client.get_user_by_name(by_name).await, &["name"]);
        let free = pb::CheckAvailabilityRequest { name: malformed.clone() };
        assert_invalid_fields(client.check_availability(free).await, &["name"]);
        let login = pb::LoginRequest { login: malformed.clone(), password: String::new() };
        assert_invalid_fields(client.login(login).await, &["login", "password"]);
        let token = pb::AuthenticateRequest { token: malformed.clone() };
        assert_rejected(client.authenticate(token).await, Reason::TokenInvalid);
        client.logout(pb::LogoutRequest { token: malformed }).await.unwrap();
    }
    let nothing = pb::CheckAvailabilityRequest::default();
    assert_invalid_fields(client.check_availability(nothing).await, &["name"]);
    assert_eq!(
        support::authenticate(&client, "").await.unwrap_err().code(),
        tonic::Code::Unauthenticated
    );
}

#[tokio::test]
async fn a_forged_token_is_rejected() {
    let system = System::start(Topology::Single).await;
    let client = &system.client;
    let (ann, bob) = (register(client, "ann").await, register(client, "bob").await);
    let token = support::login(client, "ann", PASSWORD).await.unwrap();
    // Any one character changed.
    for at in 0..token.len() {
        let other = if &token[at..=at] == "A" { "B" } else { "A" };
        let mut forged = token.clone();
        forged.replace_range(at..=at, other);
        assert_rejected(support::authenticate(client, &forged).await, Reason::TokenInvalid);
    }
    // Another account's id with a valid secret; an id alone.
    let foreign = unknown_token(bob.id);
    let stolen = format!("{}{}", &foreign[..12], &token[12..]);
    for forged in [foreign, stolen, token.to_uppercase(), format!("{token} "), ann.id.to_string()] {
        assert_rejected(support::authenticate(client, &forged).await, Reason::TokenInvalid);
    }
    assert_eq!(support::authenticate(client, &token).await.unwrap(), ann.id);
}

#[tokio::test]
async fn an_import_with_an_invalid_name_imports_nothing() {
    let system = System::start(Topology::Single).await;
    let mut client = system.client.clone();
    let request = |names: &[&str]| pb::ImportUsersRequest {
        names: names.iter().map(|&name| name.to_owned()).collect(),
        email_domain: "example.org".to_owned(),
        password: String::new(),
    };
    assert_invalid_fields(client.import_users(request(&["a", "b c"])).await, &["names[1]"]);
    assert_invalid_fields(client.import_users(request(&["a", "b", "A"])).await, &["names[2]"]);
    let many: Vec<_> = (0..5001).map(|i| i.to_string()).collect();
    let many = pb::ImportUsersRequest { names: many, ..request(&[]) };
    assert_invalid_fields(client.import_users(many).await, &["names"]);
    for domain in ["", "example", "a b.org", "x@example.org", "\u{202e}.org"] {
        let bad = pb::ImportUsersRequest { email_domain: domain.to_owned(), ..request(&["a"]) };
        assert_invalid_fields(client.import_users(bad).await, &["email_domain"]);
    }
    let bad = pb::ImportUsersRequest { password: "short".to_owned(), ..request(&["a"]) };
    assert_invalid_fields(client.import_users(bad).await, &["password"]);
    system.assert_valid(0).await;
}
