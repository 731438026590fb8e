//! Concurrent registrations, changes and deletions of the same few names and addresses, by two processes.

use std::collections::{BTreeMap, HashSet};

use futures::future::join_all;
use microblog_chassis::status::reason_of;
use microblog_proto::{common::ErrorReason as Reason, user as pb};

use crate::support::{
    Client, System, Topology, confirm_deletion, delete, on_each_store, resolve, retried, set_bio,
};

const NAMES: u8 = 5;
const TASKS: usize = 8;
const ROUNDS: usize = 60;

on_each_store! {
    names_and_addresses_stay_unique_under_registrations_and_deletions
}

fn any() -> u8 {
    rand::random_range(0..NAMES)
}

fn name(i: u8) -> String {
    format!("name{i}")
}

/// Makes an account with a name and an external id, neither of which another account may have. It has no
/// password, so that no call takes the time of a hash. Returns its id, unless one of them is taken.
async fn make(client: &Client, external: u8, of: u8) -> Option<u64> {
    let request = pb::EnsureUserRequest {
        issuer: "sso".to_owned(),
        external_id: format!("id{external}"),
        name: name(of),
        display_name: String::new(),
    };
    match retried!(client, ensure_user, request) {
        Ok(made) => made.user.map(|user| user.id),
        Err(status) => {
            assert_eq!(reason_of(&status), Some(Reason::NameTaken), "{status:?}");
            None
        }
    }
}

/// Imports some names, each with an address that its name determines.
async fn import(client: &Client, names: HashSet<u8>) -> Vec<u64> {
    let request = pb::ImportUsersRequest {
        names: names.into_iter().map(name).collect(),
        email_domain: "example.org".to_owned(),
        password: String::new(),
    };
    let imported = retried!(client, import_users, request).unwrap();
    imported.user_ids.into_iter().filter(|&id| id > 0).collect()
}

/// Deletes an account with an external id. Others have an address, but no password: they stay.
async fn end(client: &Client, id: u64) {
    match delete(client, id, "").await {
        Ok(()) => confirm_deletion(client, id).await,
        // Another task was faster, or it is one that stays.
        Err(status) => assert!(
            matches!(
                reason_of(&status),
                Some(Reason::UserNotFound | Reason::BadCredentials | Reason::InvalidField)
            ),
            "{status:?}"
        ),
    }
}

async fn work(client: Client) -> HashSet<u64> {
    let mut made = HashSet::new();
    for _ in 0..ROUNDS {
        match rand::random_range(0..8) {
            0..4 => made.extend(make(&client, any(), any()).await),
            4 => {
                // Of two names that are not among the others.
                let names = HashSet::from([NAMES + any(), NAMES + any()]);
                made.extend(import(&client, names).await);
            }
            which => {
                let Some((_, id)) = resolve(&client, &[&name(any())]).await.pop() else { continue };
                match which {
                    5 => end(&client, id).await,
                    6 => {
                        if let Err(status) = set_bio(&client, id, "here").await {
                            assert_eq!(reason_of(&status), Some(Reason::UserNotFound));
                        }
                    }
                    _ => _ = resolve(&client, &[&name(any()), &name(any())]).await,
                }
            }
        }
    }
    made
}

async fn names_and_addresses_stay_unique_under_registrations_and_deletions(topology: Topology) {
    let flags = ["--freed-name-hold-s", "0"];
    let system = System::start_with(topology, &flags).await;
    let clients = [system.client.clone(), system.another(&flags).await];
    let tasks = (0..TASKS).map(|task| tokio::spawn(work(clients[task % 2].clone())));
    let made: HashSet<u64> =
        join_all(tasks).await.into_iter().flat_map(|made| made.unwrap()).collect();
    assert!(made.len() > TASKS, "only {} accounts were made", made.len());

    let names: Vec<String> = (0..2 * NAMES).map(name).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let named: BTreeMap<String, u64> = resolve(&clients[0], &names).await.into_iter().collect();
    assert_eq!(resolve(&clients[1], &names).await.into_iter().collect::<BTreeMap<_, _>>(), named);
    let alive = named.len() as u64;
    system.assert_valid(alive).await;
    for what in ["name", "address"] {
        let different = format!("SELECT count(DISTINCT {what}) FROM accounts");
        assert_eq!(system.number(&different).await as u64, alive, "each has its own {what}");
    }
    let identifiers = "SELECT count(*) FROM identifiers WHERE account <> 0";
    assert_eq!(system.number(identifiers).await as u64, 2 * alive);
    // In the end, everything can be free.
    for name in &names[..NAMES.into()] {
        if let Some(&id) = named.get(*name) {
            end(&clients[1], id).await;
        }
    }
    for i in 0..NAMES {
        assert!(make(&clients[usize::from(i) % 2], i, i).await.is_some());
    }
    system.assert_valid(alive - named_of(&named) + u64::from(NAMES)).await;
}

/// Returns how many of the accounts that can be deleted there are.
fn named_of(named: &BTreeMap<String, u64>) -> u64 {
    (0..NAMES).filter(|&i| named.contains_key(&name(i))).count() as u64
}
