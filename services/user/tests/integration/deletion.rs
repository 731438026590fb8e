//! Deleted accounts: what is free at once, what is held, and what the other services are told.

use microblog_proto::{common::ErrorReason as Reason, user as pb};
use microblog_testkit::eventually;

use crate::support::{
    Client, PASSWORD, PATIENCE, System, Topology, assert_rejected, authenticate, confirm_deletion,
    delete, digest, fingerprint, is_free, login, login_as, now_ms, on_each_store, register,
    registration, resolve, retried, set_bio, try_register, verify,
};

on_each_store! {
    a_deleted_account_frees_its_name_and_address
    a_freed_name_is_held_for_its_time
    a_hold_ends_by_itself
    what_has_expired_is_removed
}

async fn deletions(client: &Client, page_size: i32) -> Vec<u64> {
    let request = pb::ListDeletionsRequest { page_size };
    client.clone().list_deletions(request).await.unwrap().into_inner().user_ids
}

fn import(name: &str) -> pb::ImportUsersRequest {
    pb::ImportUsersRequest {
        names: vec![name.to_owned(), "zoe".to_owned()],
        email_domain: "example.com".to_owned(),
        password: String::new(),
    }
}

async fn a_deleted_account_frees_its_name_and_address(topology: Topology) {
    let system = System::start_with(topology, &["--freed-name-hold-s", "0"]).await;
    let mut client = system.client.clone();
    let ann = register(&client, "ann").await;
    let token = login(&client, "ann", PASSWORD).await.unwrap();
    assert_rejected(delete(&client, ann.id, "wrong").await, Reason::BadCredentials);
    delete(&client, ann.id, PASSWORD).await.unwrap();

    assert_rejected(delete(&client, ann.id, PASSWORD).await, Reason::UserNotFound);
    let get = pb::GetUserRequest { user_id: ann.id };
    assert_rejected(client.get_user(get).await, Reason::UserNotFound);
    assert_rejected(set_bio(&client, ann.id, "x").await, Reason::UserNotFound);
    assert_rejected(authenticate(&client, &token).await, Reason::TokenInvalid);
    assert_rejected(login(&client, "ann", PASSWORD).await, Reason::BadCredentials);
    let again = register(&client, "ann").await;
    assert_ne!(again.id, ann.id);
    assert!(login(&client, "ann", PASSWORD).await.is_ok());

    assert_eq!(deletions(&client, 0).await, [ann.id]);
    assert_eq!(verify(&client).await.pending.len(), 1, "the other services have its data");
    for id in [ann.id, ann.id, again.id, 77] {
        confirm_deletion(&client, id).await;
    }
    assert!(deletions(&client, 0).await.is_empty());
    assert_eq!(verify(&client).await.pending.len(), 0);
    assert_eq!(resolve(&client, &["ann"]).await, [("ann".to_owned(), again.id)]);
    system.assert_valid(1).await;

    // The oldest ones first.
    let mut deleted = Vec::new();
    for n in 0..25 {
        let request = pb::EnsureUserRequest {
            issuer: "sso".to_owned(),
            external_id: n.to_string(),
            name: format!("user{n}"),
            display_name: String::new(),
        };
        let made = retried!(&client, ensure_user, request).unwrap().user.unwrap().id;
        delete(&client, made, "").await.unwrap();
        deleted.push(made);
    }
    // Accounts of the same millisecond have no set order.
    deleted.sort_unstable();
    assert_eq!(deletions(&client, 0).await, deleted[..20]);
    assert_eq!(deletions(&client, 3).await, deleted[..3]);
    assert_eq!(deletions(&client, 200).await, deleted);
    for &id in &deleted[..24] {
        confirm_deletion(&client, id).await;
    }
    assert_eq!(deletions(&client, 200).await, deleted[24..]);
}

async fn a_freed_name_is_held_for_its_time(topology: Topology) {
    let system = System::start(topology).await;
    let client = system.client.clone();
    let other = system.another(&[]).await;
    let ann = register(&client, "Ann").await;
    assert_eq!(resolve(&other, &["ANN"]).await, [("ANN".to_owned(), ann.id)]);
    let deleted = now_ms();
    delete(&client, ann.id, PASSWORD).await.unwrap();
    // The held name cannot be registered, not even by the same request.
    let same = pb::RegisterRequest { name: "ann".to_owned(), ..registration("ann") };
    assert_rejected(try_register(&client, same).await, Reason::NameTaken);
    for client in [&client, &other] {
        assert!(!is_free(client, "ANN").await);
        assert_eq!(resolve(client, &["ann"]).await, []);
    }
    let imported = retried!(&client, import_users, import("ann")).unwrap();
    assert_eq!((imported.user_ids[0], imported.created), (0, 1));
    assert_rejected(login_as(&client, "ann", PASSWORD).await, Reason::BadCredentials);
    // The address is free at once.
    let back = pb::RegisterRequest { name: "ann2".to_owned(), ..registration("Ann") };
    try_register(&client, back).await.unwrap();
    confirm_deletion(&client, ann.id).await;
    system.assert_valid(2).await;

    // 30 days, not changed by the confirmation.
    let (name, day_ms) = (digest("name ann"), 86_400_000);
    let held = format!("SELECT held_until FROM identifiers WHERE digest = {name}");
    let held = system.number(&held).await as u64 - deleted;
    assert!((30 * day_ms..30 * day_ms + PATIENCE.as_millis() as u64).contains(&held), "{held}");
    let past = now_ms() - 1;
    system
        .execute(&format!("UPDATE identifiers SET held_until = {past} WHERE digest = {name}"))
        .await;
    system.flush().await;
    assert!(is_free(&client, "ann").await && is_free(&other, "ann").await);
    let imported = retried!(&client, import_users, import("ann")).unwrap();
    assert_ne!(imported.user_ids[0], 0);
    assert!(!is_free(&other, "ann").await);
    system.assert_valid(3).await;
}

async fn a_hold_ends_by_itself(topology: Topology) {
    let system = System::start_with(topology, &["--freed-name-hold-s", "2"]).await;
    let other = system.another(&[]).await;
    let ann = register(&system.client, "ann").await.id;
    let begun = now_ms();
    delete(&system.client, ann, PASSWORD).await.unwrap();
    // What is cached of a held name is not wrong when the hold ends.
    eventually("the name is free", PATIENCE, async || is_free(&other, "ann").await).await;
    assert!(now_ms() - begun >= 2_000);
    let again = register(&other, "ann").await.id;
    assert_eq!(resolve(&system.client, &["ann"]).await, [("ann".to_owned(), again)]);
    system.assert_valid(1).await;
}

/// By the job of a service that starts.
async fn what_has_expired_is_removed(topology: Topology) {
    let system = System::start(topology).await;
    let ann = register(&system.client, "ann").await.id;
    let bob = register(&system.client, "bob").await.id;
    let [kept, expired] = [
        login(&system.client, "ann", PASSWORD).await.unwrap(),
        login(&system.client, "ann", PASSWORD).await.unwrap(),
    ];
    assert_rejected(login(&system.client, "ann", "wrong").await, Reason::BadCredentials);
    assert_rejected(login(&system.client, "nobody", "wrong").await, Reason::BadCredentials);
    delete(&system.client, bob, PASSWORD).await.unwrap();
    let (now, day_ms) = (now_ms(), 86_400_000);
    let (token, nobody) = (fingerprint(&expired), digest("email nobody@example.org"));
    let expire = format!(
        "UPDATE sessions SET expires = {} WHERE token = '{token}'; \
         UPDATE guesses SET expires = {} WHERE digest = {nobody}; \
         UPDATE identifiers SET held_until = {} WHERE account = 0; \
         DELETE FROM leases;",
        now - 1,
        now - 1,
        now - day_ms - 1_000,
    );
    system.execute(&expire).await;
    system.flush().await;
    // Another one, whose jobs begin now.
    let _other = system.another_with_jobs().await;
    eventually("what has expired is gone", PATIENCE, async || {
        let sessions = system.number("SELECT count(*) FROM sessions").await;
        let guesses = system.number("SELECT count(*) FROM guesses").await;
        let names = system.number("SELECT count(*) FROM identifiers").await;
        (sessions, guesses, names) == (1, 1, 2)
    })
    .await;
    assert_eq!(authenticate(&system.client, &kept).await.unwrap(), ann);
    assert!(is_free(&system.client, "bob").await);
    system.assert_valid(1).await;
}
