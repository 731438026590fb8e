//! Concurrency: names and addresses have one owner, and repeated requests have one effect.

use std::collections::HashSet;

use futures::future::join_all;
use microblog_chassis::status::reason_of;
use microblog_proto::{common::ErrorReason as Reason, user as pb};
use microblog_testkit::Topology;

use crate::support::{
    Client, PASSWORD, System, assert_valid, login, on_each_store, register, registration,
    try_register, with_retries,
};

const CLIENTS: usize = 64;

on_each_store! {
    concurrent_registrations_of_a_name_have_one_winner
    concurrent_registrations_of_an_address_have_one_winner
    concurrent_registrations_of_both_have_one_winner
    concurrent_repeats_of_a_registration_create_one_account
    imports_and_registrations_of_the_same_names_agree
}

/// Sends all requests concurrently; returns the winners, and the reasons of the others.
async fn race(
    client: &Client,
    requests: impl IntoIterator<Item = pb::RegisterRequest>,
) -> (Vec<pb::User>, Vec<Option<Reason>>) {
    let calls = requests.into_iter().map(|request| try_register(client, request));
    let (mut won, mut lost) = (Vec::new(), Vec::new());
    for answer in join_all(calls).await {
        match answer {
            Ok(user) => won.push(user),
            Err(status) => lost.push(reason_of(&status)),
        }
    }
    (won, lost)
}

async fn concurrent_registrations_of_a_name_have_one_winner(topology: Topology) {
    let system = System::start(topology).await;
    let requests = (0..CLIENTS).map(|i| pb::RegisterRequest {
        email: format!("client{i}@example.org"),
        name: if i % 2 == 0 { "ann".to_owned() } else { "ANN".to_owned() },
        ..registration("ann")
    });
    let (won, lost) = race(&system.client, requests).await;
    assert_eq!(won.len(), 1);
    assert_eq!(lost, vec![Some(Reason::NameTaken); CLIENTS - 1]);
    assert_valid(&system.client, 1).await;
    // The losers' addresses are free again.
    let requests = (0..CLIENTS).map(|i| pb::RegisterRequest {
        email: format!("client{i}@example.org"),
        ..registration(&format!("other{i}"))
    });
    let (won, lost) = race(&system.client, requests).await;
    assert_eq!((won.len(), lost), (CLIENTS - 1, vec![Some(Reason::EmailTaken)]));
    assert_valid(&system.client, CLIENTS as u64).await;
}

async fn concurrent_registrations_of_an_address_have_one_winner(topology: Topology) {
    let system = System::start(topology).await;
    let request = |i: usize| pb::RegisterRequest {
        email: "ann@example.org".to_owned(),
        ..registration(&format!("client{i}"))
    };
    let (won, lost) = race(&system.client, (0..CLIENTS).map(request)).await;
    assert_eq!(won.len(), 1);
    assert_eq!(lost, vec![Some(Reason::EmailTaken); CLIENTS - 1]);
    // The losers' names are free again.
    let requests = (0..CLIENTS).map(|i| registration(&format!("client{i}")));
    let (won, lost) = race(&system.client, requests).await;
    assert_eq!((won.len(), lost), (CLIENTS - 1, vec![Some(Reason::NameTaken)]));
    assert_valid(&system.client, CLIENTS as u64).await;
}

async fn concurrent_registrations_of_both_have_one_winner(topology: Topology) {
    let system = System::start(topology).await;
    let (won, lost) = race(&system.client, (0..CLIENTS).map(|_| registration("ann"))).await;
    assert_eq!((won.len(), lost.len()), (1, CLIENTS - 1));
    let taken = [Some(Reason::NameTaken), Some(Reason::EmailTaken)];
    assert!(lost.iter().all(|reason| taken.contains(reason)), "{lost:?}");
    assert!(login(&system.client, "ann", PASSWORD).await.is_ok());
    assert_valid(&system.client, 1).await;
}

async fn concurrent_repeats_of_a_registration_create_one_account(topology: Topology) {
    let system = System::start(topology).await;
    let request = registration("ann");
    let (won, lost) = race(&system.client, (0..CLIENTS).map(|_| request.clone())).await;
    let ids: HashSet<_> = won.iter().map(|user| user.id).collect();
    assert_eq!(ids.len(), 1);
    assert!(lost.iter().all(|&reason| reason == Some(Reason::RegistrationInProgress)), "{lost:?}");
    // And again afterwards.
    let again = try_register(&system.client, request.clone()).await.unwrap();
    assert!(ids.contains(&again.id));
    // The same request id with other content is another request.
    for other in [
        pb::RegisterRequest { password: "another password".to_owned(), ..request.clone() },
        pb::RegisterRequest { email: "other@example.org".to_owned(), ..request.clone() },
    ] {
        let (won, lost) = race(&system.client, [other]).await;
        assert_eq!((won.len(), lost), (0, vec![Some(Reason::NameTaken)]));
    }
    assert_valid(&system.client, 1).await;
}

async fn imports_and_registrations_of_the_same_names_agree(topology: Topology) {
    const NAMES: usize = 300;
    let system = System::start(topology).await;
    let import = pb::ImportUsersRequest {
        names: (0..NAMES).map(|i| format!("user{i}")).collect(),
        email_domain: "example.org".to_owned(),
        password: PASSWORD.to_owned(),
    };
    let imports = join_all((0..3).map(|_| {
        let (mut client, import) = (system.client.clone(), import.clone());
        async move { with_retries(async || client.import_users(import.clone()).await).await }
    }));
    let registered = race(&system.client, (0..40).map(|i| registration(&format!("USER{i}"))));
    let (imports, (won, lost)) = futures::future::join(imports, registered).await;

    assert!(lost.iter().all(|&reason| reason == Some(Reason::NameTaken)), "{lost:?}");
    let imports: Vec<_> = imports.into_iter().map(|answer| answer.unwrap().into_inner()).collect();
    let created: usize = imports.iter().map(|import| import.created as usize).sum();
    assert_eq!(created + won.len(), NAMES);
    for import in &imports {
        assert_eq!(import.user_ids, imports[0].user_ids);
    }
    for user in &won {
        let i: usize = user.name[4..].parse().unwrap();
        assert_eq!(imports[0].user_ids[i], user.id);
    }
    assert_valid(&system.client, NAMES as u64).await;
}

#[tokio::test]
async fn an_import_is_idempotent_and_keeps_existing_accounts() {
    let system = System::start(Topology::Single).await;
    let mut client = system.client.clone();
    let ann = register(&client, "Ann").await;
    let squatter =
        pb::RegisterRequest { email: "carl@example.org".to_owned(), ..registration("squatter") };
    try_register(&client, squatter).await.unwrap();
    let import = pb::ImportUsersRequest {
        names: ["ann", "bob", "carl", "dora"].map(str::to_owned).to_vec(),
        email_domain: "Example.org".to_owned(),
        password: String::new(),
    };
    let first = client.import_users(import.clone()).await.unwrap().into_inner();
    assert_eq!((first.created, first.user_ids[0], first.user_ids[2]), (2, ann.id, 0));
    let second = client.import_users(import).await.unwrap().into_inner();
    assert_eq!((second.created, &second.user_ids), (0, &first.user_ids));
    // Without a password, no log-in is possible.
    assert_eq!(
        reason_of(&login(&client, "bob", PASSWORD).await.unwrap_err()),
        Some(Reason::BadCredentials)
    );
    assert_valid(&client, 4).await;
    let more = pb::ImportUsersRequest {
        names: vec!["eve".to_owned()],
        email_domain: "example.org".to_owned(),
        password: PASSWORD.to_owned(),
    };
    with_retries(async || system.client.clone().import_users(more.clone()).await).await.unwrap();
    assert!(login(&client, "eve", PASSWORD).await.is_ok());
    let nothing = client.import_users(pb::ImportUsersRequest::default()).await.unwrap();
    assert!(nothing.into_inner().user_ids.is_empty());
}
