//! Bulk imports of names.

use std::collections::HashSet;

use futures::future::{join, join_all};
use microblog_chassis::status::reason_of;
use microblog_proto::{common::ErrorReason as Reason, user as pb};

use crate::support::{
    Client, PASSWORD, System, Topology, assert_rejected, is_free, login, on_each_store, register,
    registration, resolve, retried, try_register,
};

/// The most names of an import.
const NAMES: usize = 5_000;

/// An import takes longer than other calls on a busy machine.
const SLOW: [&str; 2] = ["--write-budget-ms", "60000"];

on_each_store! {
    concurrent_imports_of_the_same_names_agree
    concurrent_imports_of_different_names_do_not_wait_for_each_other
    imports_and_registrations_of_the_same_names_agree
    an_import_is_idempotent_and_keeps_existing_accounts
}

async fn import(client: &Client, request: &pb::ImportUsersRequest) -> pb::ImportUsersResponse {
    retried!(client, import_users, request).unwrap()
}

fn names(prefix: &str, count: usize) -> pb::ImportUsersRequest {
    pb::ImportUsersRequest {
        names: (0..count).map(|i| format!("{prefix}{i}")).collect(),
        email_domain: "example.org".to_owned(),
        password: String::new(),
    }
}

/// Asserts that each name has its account, and each account one name.
async fn assert_resolved(client: &Client, names: &[String], ids: &[u64]) {
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), names.len(), "ids are unique");
    for (names, ids) in names.chunks(500).zip(ids.chunks(500)) {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let found = resolve(client, &names).await;
        assert_eq!(found.len(), names.len());
        assert!(found.iter().map(|(_, id)| id).eq(ids));
    }
}

/// Asserts how many accounts there are, and that no two imports have created the same one. One that was
/// rejected may have created some.
async fn assert_created(system: &System, count: usize, imports: &[&pb::ImportUsersResponse]) {
    let created: usize = imports.iter().map(|imported| imported.created as usize).sum();
    assert!(created <= count, "{created}");
    assert_eq!(system.number("SELECT count(*) FROM accounts").await, count as i64);
    let registered = "SELECT count(*) FROM feed WHERE change LIKE 'register %'";
    assert_eq!(system.number(registered).await, count as i64);
}

async fn concurrent_imports_of_the_same_names_agree(topology: Topology) {
    let system = System::start_with(topology, &SLOW).await;
    let clients = [system.client.clone(), system.another(&SLOW).await];
    let request = names("user", NAMES);
    let (first, second) = join(import(&clients[0], &request), import(&clients[1], &request)).await;
    assert_eq!(first.user_ids, second.user_ids);
    assert_created(&system, NAMES, &[&first, &second]).await;
    for client in &clients {
        let again = import(client, &request).await;
        assert_eq!((again.created, &again.user_ids), (0, &first.user_ids));
        assert_resolved(client, &request.names, &first.user_ids).await;
    }
    system.assert_valid(NAMES as u64).await;
}

async fn concurrent_imports_of_different_names_do_not_wait_for_each_other(topology: Topology) {
    let system = System::start_with(topology, &SLOW).await;
    let clients = [system.client.clone(), system.another(&SLOW).await];
    let requests = ["ann", "bob", "carl", "dora"].map(|prefix| names(prefix, NAMES / 4));
    let imports = requests.iter().zip(clients.iter().cycle());
    let imports = join_all(imports.map(|(request, client)| import(client, request))).await;
    let mut ids = HashSet::new();
    for (request, imported) in requests.iter().zip(&imports) {
        ids.extend(imported.user_ids.iter().copied());
        assert_resolved(&system.client, &request.names, &imported.user_ids).await;
    }
    assert_eq!(ids.len(), NAMES);
    assert_created(&system, NAMES, &imports.iter().collect::<Vec<_>>()).await;
    system.assert_valid(NAMES as u64).await;
}

async fn imports_and_registrations_of_the_same_names_agree(topology: Topology) {
    const NAMES: usize = 300;
    let system = System::start(topology).await;
    let clients = system.four_clients().await;
    let request = pb::ImportUsersRequest { password: PASSWORD.to_owned(), ..names("user", NAMES) };
    let imports = join_all(clients.iter().map(|client| import(client, &request)));
    let registrations = (0..40).map(|i| {
        let client = &clients[i % 4];
        async move { (i, try_register(client, registration(&format!("USER{i}"))).await) }
    });
    let (imports, registrations) = join(imports, join_all(registrations)).await;

    for import in &imports {
        assert_eq!(import.user_ids, imports[0].user_ids);
    }
    for (i, registered) in registrations {
        match registered {
            Ok(user) => assert_eq!(imports[0].user_ids[i], user.id),
            Err(status) => assert_eq!(reason_of(&status), Some(Reason::NameTaken)),
        }
    }
    assert_created(&system, NAMES, &imports.iter().collect::<Vec<_>>()).await;
    system.assert_valid(NAMES as u64).await;
}

async fn an_import_is_idempotent_and_keeps_existing_accounts(topology: Topology) {
    let system = System::start(topology).await;
    let client = &system.client;
    let ann = register(client, "Ann").await;
    let squatter =
        pb::RegisterRequest { email: "carl@example.org".to_owned(), ..registration("squatter") };
    try_register(client, squatter).await.unwrap();
    let request = pb::ImportUsersRequest {
        names: ["ann", "bob", "carl", "dora"].map(str::to_owned).to_vec(),
        email_domain: "Example.org".to_owned(),
        password: String::new(),
    };
    let first = import(client, &request).await;
    assert_eq!((first.created, first.user_ids[0], first.user_ids[2]), (2, ann.id, 0));
    assert!(is_free(client, "carl").await, "the address is taken, the name is not");
    let second = import(client, &request).await;
    assert_eq!((second.created, &second.user_ids), (0, &first.user_ids));
    // Without a password, no log-in is possible.
    assert_rejected(login(client, "bob", PASSWORD).await, Reason::BadCredentials);
    let more = pb::ImportUsersRequest {
        names: vec!["eve".to_owned()],
        email_domain: "example.org".to_owned(),
        password: PASSWORD.to_owned(),
    };
    import(client, &more).await;
    assert!(login(client, "eve", PASSWORD).await.is_ok());
    let nothing = import(client, &pb::ImportUsersRequest::default()).await;
    assert!(nothing.user_ids.is_empty());
    system.assert_valid(5).await;
}
