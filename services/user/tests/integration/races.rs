//! Concurrent calls of four processes: names and addresses have one owner, and repeated requests have one
//! effect.

use std::collections::HashSet;

use futures::future::join_all;
use microblog_chassis::status::reason_of;
use microblog_proto::{common::ErrorReason as Reason, user as pb};

use crate::support::{
    Client, PASSWORD, System, Topology, login, on_each_store, registration, try_register,
};

const CLIENTS: usize = 24;

on_each_store! {
    concurrent_registrations_of_a_name_have_one_winner
    concurrent_registrations_of_an_address_have_one_winner
    concurrent_registrations_of_both_have_one_winner
    concurrent_repeats_of_a_registration_create_one_account
}

/// Sends all requests concurrently, to the processes in turn; returns the winners, and the reasons of the
/// others.
async fn race(
    clients: &[Client; 4],
    requests: impl IntoIterator<Item = pb::RegisterRequest>,
) -> (Vec<pb::User>, Vec<Option<Reason>>) {
    let calls = requests.into_iter().zip(clients.iter().cycle());
    let calls = calls.map(|(request, client)| try_register(client, request));
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
    let clients = system.four_clients().await;
    let requests = (0..CLIENTS).map(|i| pb::RegisterRequest {
        email: format!("client{i}@example.org"),
        name: if i % 2 == 0 { "ann".to_owned() } else { "ANN".to_owned() },
        ..registration("ann")
    });
    let (won, lost) = race(&clients, requests).await;
    assert_eq!(won.len(), 1);
    assert_eq!(lost, vec![Some(Reason::NameTaken); CLIENTS - 1]);
    system.assert_valid(1).await;
    // The losers' addresses are free again.
    let requests = (0..CLIENTS).map(|i| pb::RegisterRequest {
        email: format!("client{i}@example.org"),
        ..registration(&format!("other{i}"))
    });
    let (won, lost) = race(&clients, requests).await;
    assert_eq!((won.len(), lost), (CLIENTS - 1, vec![Some(Reason::EmailTaken)]));
    system.assert_valid(CLIENTS as u64).await;
}

async fn concurrent_registrations_of_an_address_have_one_winner(topology: Topology) {
    let system = System::start(topology).await;
    let clients = system.four_clients().await;
    let request = |i: usize| pb::RegisterRequest {
        email: "ann@example.org".to_owned(),
        ..registration(&format!("client{i}"))
    };
    let (won, lost) = race(&clients, (0..CLIENTS).map(request)).await;
    assert_eq!(won.len(), 1);
    assert_eq!(lost, vec![Some(Reason::EmailTaken); CLIENTS - 1]);
    // The losers' names are free again.
    let requests = (0..CLIENTS).map(|i| registration(&format!("client{i}")));
    let (won, lost) = race(&clients, requests).await;
    assert_eq!((won.len(), lost), (CLIENTS - 1, vec![Some(Reason::NameTaken)]));
    system.assert_valid(CLIENTS as u64).await;
}

async fn concurrent_registrations_of_both_have_one_winner(topology: Topology) {
    let system = System::start(topology).await;
    let clients = system.four_clients().await;
    let (won, lost) = race(&clients, (0..50).map(|_| registration("ann"))).await;
    // The name is looked at first.
    assert_eq!((won.len(), lost), (1, vec![Some(Reason::NameTaken); 49]));
    assert!(login(&system.client, "ann", PASSWORD).await.is_ok());
    system.assert_valid(1).await;
}

async fn concurrent_repeats_of_a_registration_create_one_account(topology: Topology) {
    let system = System::start(topology).await;
    let clients = system.four_clients().await;
    let request = registration("ann");
    let (won, lost) = race(&clients, (0..CLIENTS).map(|_| request.clone())).await;
    let ids: HashSet<_> = won.iter().map(|user| user.id).collect();
    assert_eq!((ids.len(), won.len(), lost), (1, CLIENTS, vec![]));
    // And again afterwards.
    for client in &clients {
        let again = try_register(client, request.clone()).await.unwrap();
        assert!(ids.contains(&again.id));
    }
    // The same request id with other content is another request.
    for other in [
        pb::RegisterRequest { password: "another password".to_owned(), ..request.clone() },
        pb::RegisterRequest { email: "other@example.org".to_owned(), ..request.clone() },
    ] {
        let (won, lost) = race(&clients, [other]).await;
        assert_eq!((won.len(), lost), (0, vec![Some(Reason::NameTaken)]));
    }
    system.assert_valid(1).await;
}
