//! Accounts that other systems identify: EnsureUser and BatchResolveExternalIds.

use std::collections::HashSet;

use futures::future::join_all;
use microblog_chassis::status::reason_of;
use microblog_proto::{common::ErrorReason as Reason, user as pb};
use tonic::{Code, Status};

use crate::support::{
    Client, System, Topology, confirm_deletion, on_each_store, register, registration, resolve,
    retried,
};

const CLIENTS: usize = 50;

on_each_store! {
    concurrent_calls_for_an_external_id_create_one_account
    a_name_has_one_account_whoever_identifies_it
    a_deleted_account_releases_its_external_id
    an_external_id_is_resolved_at_once_by_all_processes
}

fn request(id: &str, name: &str) -> pb::EnsureUserRequest {
    pb::EnsureUserRequest {
        issuer: "https://sso.example.org".to_owned(),
        external_id: id.to_owned(),
        name: name.to_owned(),
        display_name: format!("The {name}"),
    }
}

async fn ensure(
    client: &Client,
    request: pb::EnsureUserRequest,
) -> Result<pb::EnsureUserResponse, Status> {
    retried!(client, ensure_user, request)
}

async fn resolve_ids(client: &Client, ids: &[&str]) -> Vec<(String, u64)> {
    let request = pb::BatchResolveExternalIdsRequest {
        issuer: "https://sso.example.org".to_owned(),
        external_ids: ids.iter().map(|&id| id.to_owned()).collect(),
    };
    let users = client.clone().batch_resolve_external_ids(request).await.unwrap();
    users.into_inner().users.into_iter().map(|user| (user.external_id, user.user_id)).collect()
}

async fn concurrent_calls_for_an_external_id_create_one_account(topology: Topology) {
    let system = System::start(topology).await;
    let clients = system.four_clients().await;
    // With the same name, and with different ones.
    for names in [1, CLIENTS] {
        let name = |i: usize| format!("ann{names}_{}", i % names);
        let id = format!("ann{names}");
        for client in &clients {
            assert_eq!(resolve(client, &[&name(0)]).await, [], "nobody has it yet");
        }
        let calls = (0..CLIENTS).map(|i| ensure(&clients[i % 4], request(&id, &name(i))));
        let made: Vec<_> = join_all(calls).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(made.iter().filter(|made| made.created).count(), 1);
        let ids: HashSet<u64> = made.iter().map(|made| made.user.as_ref().unwrap().id).collect();
        assert_eq!(ids.len(), 1);
        let user = made[0].user.clone().unwrap();
        assert_eq!(user.display_name, format!("The {}", user.name));
        for client in &clients {
            let found = resolve_ids(client, &[&id, "nobody", &id]).await;
            assert_eq!(found, [(id.clone(), user.id)]);
            assert_eq!(resolve(client, &[&user.name]).await, [(user.name.clone(), user.id)]);
        }
    }
    system.assert_valid(2).await;
    // The losers' names are free.
    let losers = (0..CLIENTS).map(|i| {
        let (id, name) = (format!("loser{i}"), format!("ann{CLIENTS}_{i}"));
        let client = &clients[i % 4];
        async move { ensure(client, request(&id, &name)).await }
    });
    let made: Vec<_> = join_all(losers).await;
    assert_eq!(made.iter().filter(|made| made.is_ok()).count(), CLIENTS - 1);
    system.assert_valid(1 + CLIENTS as u64).await;
}

/// Each call makes an account, or finds the one that another process has just made or deleted.
async fn an_external_id_is_resolved_at_once_by_all_processes(topology: Topology) {
    let system = System::start(topology).await;
    let other = system.another(&[]).await;
    for round in 0..20 {
        let name = format!("ann{round}");
        assert_eq!(resolve_ids(&other, &["1"]).await, []);
        assert_eq!(resolve(&other, &[&name]).await, []);
        let made = ensure(&system.client, request("1", &name)).await.unwrap();
        let id = made.user.as_ref().unwrap().id;
        assert!(made.created);
        assert_eq!(resolve_ids(&other, &["1"]).await, [("1".to_owned(), id)]);
        assert_eq!(resolve(&other, &[&name]).await, [(name.clone(), id)]);
        let found = ensure(&other, request("1", "other")).await.unwrap();
        assert_eq!((found.user, found.created), (made.user, false));
        crate::support::delete(&other, id, "").await.unwrap();
        assert_eq!(resolve_ids(&system.client, &["1"]).await, []);
    }
    system.assert_valid(0).await;
}

async fn a_name_has_one_account_whoever_identifies_it(topology: Topology) {
    let system = System::start(topology).await;
    let ann = register(&system.client, "ann").await;
    let taken = ensure(&system.client, request("1", "ANN")).await.unwrap_err();
    assert_eq!(reason_of(&taken), Some(Reason::NameTaken));
    assert_eq!(resolve_ids(&system.client, &["1"]).await, []);
    let bob = ensure(&system.client, request("1", "bob")).await.unwrap().user.unwrap();
    let taken = system.client.clone().register(registration("bob")).await.unwrap_err();
    assert_eq!(reason_of(&taken), Some(Reason::NameTaken));
    // An existing account keeps its name, whose ever that of the request is.
    for name in ["ann", "bob", "other"] {
        let found = ensure(&system.client, request("1", name)).await.unwrap();
        assert_eq!((found.user.as_ref(), found.created), (Some(&bob), false));
    }
    // Case matters in external ids, and the issuer does.
    assert!(ensure(&system.client, request("a", "upper")).await.unwrap().created);
    assert!(ensure(&system.client, request("A", "lower")).await.unwrap().created);
    let issuer = "other".to_owned();
    let other = pb::EnsureUserRequest { issuer, ..request("1", "carl") };
    assert!(ensure(&system.client, other).await.unwrap().created);
    system.assert_valid(5).await;
    let account = pb::GetAccountRequest { user_id: bob.id };
    let account = system.client.clone().get_account(account).await.unwrap().into_inner();
    let account = account.account.unwrap();
    let external = account.external.unwrap();
    assert_eq!((account.email.as_str(), external.external_id.as_str()), ("", "1"));
    let account = pb::GetAccountRequest { user_id: ann.id };
    let account = system.client.clone().get_account(account).await.unwrap().into_inner();
    assert_eq!(account.account.unwrap().external, None);
    // It has no password.
    for password in ["", "correct horse battery"] {
        let login = pb::LoginRequest { login: "bob".to_owned(), password: password.to_owned() };
        assert!(system.client.clone().login(login).await.is_err());
    }
}

async fn a_deleted_account_releases_its_external_id(topology: Topology) {
    let system = System::start(topology).await;
    let delete = async |user_id, password: &str| {
        let request = pb::DeleteUserRequest { user_id, password: password.to_owned() };
        retried!(&system.client, delete_user, request)
    };
    let ann = register(&system.client, "ann").await;
    let without = delete(ann.id, "").await.unwrap_err();
    assert_eq!(without.code(), Code::InvalidArgument, "{without:?}");
    let bob = ensure(&system.client, request("1", "bob")).await.unwrap().user.unwrap();
    let wrong = delete(bob.id, "correct horse battery").await.unwrap_err();
    assert_eq!(reason_of(&wrong), Some(Reason::BadCredentials));
    delete(bob.id, "").await.unwrap();
    assert_eq!(resolve_ids(&system.client, &["1"]).await, []);
    // Its name is held, its external id is not.
    let held = ensure(&system.client, request("1", "bob")).await.unwrap_err();
    assert_eq!(reason_of(&held), Some(Reason::NameTaken));
    let again = ensure(&system.client, request("1", "bobby")).await.unwrap();
    let again_id = again.user.unwrap().id;
    assert!(again.created && again_id != bob.id);
    confirm_deletion(&system.client, bob.id).await;
    assert_eq!(resolve_ids(&system.client, &["1"]).await, [("1".to_owned(), again_id)]);
    system.assert_valid(2).await;
}

#[tokio::test]
async fn invalid_external_ids_are_named() {
    let system = System::start(Topology::Single).await;
    let fields = |status: Status| {
        use tonic_types::StatusExt as _;
        let violations = status.get_details_bad_request().unwrap().field_violations;
        violations.into_iter().map(|violation| violation.field).collect::<Vec<_>>()
    };
    let long = "a".repeat(201);
    for (request, expected) in [
        (pb::EnsureUserRequest { issuer: String::new(), ..request("1", "ann") }, vec!["issuer"]),
        (request("a b", "ann"), vec!["external_id"]),
        (request(&long, "not a name"), vec!["external_id", "name"]),
        (pb::EnsureUserRequest::default(), vec!["issuer", "external_id", "name"]),
    ] {
        assert_eq!(fields(ensure(&system.client, request).await.unwrap_err()), expected);
    }
    let resolve = async |external_ids: Vec<String>| {
        let issuer = "sso".to_owned();
        let request = pb::BatchResolveExternalIdsRequest { issuer, external_ids };
        system.client.clone().batch_resolve_external_ids(request).await
    };
    // What can be no id has no account; the others are found.
    let ann = pb::EnsureUserRequest { issuer: "sso".to_owned(), ..request("1", "ann") };
    let made = ensure(&system.client, ann).await.unwrap();
    let odd = ["", "1", " ", "é", "a\0b", &long].map(str::to_owned);
    let found = resolve(odd.into()).await.unwrap().into_inner().users;
    assert_eq!((found.len(), found[0].user_id), (1, made.user.unwrap().id));
    let no_issuer = pb::BatchResolveExternalIdsRequest {
        issuer: "a b".to_owned(),
        external_ids: vec!["1".to_owned(), String::new()],
    };
    let no_issuer = system.client.clone().batch_resolve_external_ids(no_issuer).await;
    assert_eq!(fields(no_issuer.unwrap_err()), ["issuer"]);
    let many = resolve(vec!["1".into(); 501]).await.unwrap_err();
    assert_eq!(fields(many), ["external_ids"]);
    assert_eq!(resolve(Vec::new()).await.unwrap().into_inner().users, []);
}
