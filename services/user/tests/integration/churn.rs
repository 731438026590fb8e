//! Concurrent registrations, deletions and sweeps of the same few names and addresses, with a
//! sweeper that aborts registrations at any point.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures::future::join_all;
use microblog_domain::{Partition, UserId};
use microblog_testkit::{Store as Redis, Topology};
use microblog_user::{
    Accounts, Email, Error, Hash, Name, Store, Sweeper,
    import::{ImportEntry, ImportResult},
};

use crate::support::{
    database::{Database, Record as _, recorder, stored},
    on_each_store,
};

const NAMES: u8 = 5;
const TASKS: usize = 8;
const ROUNDS: usize = 40;

on_each_store! {
    names_and_addresses_stay_unique_under_aborts_and_deletions
}

fn name(i: u8) -> Name {
    Name::parse("name", &format!("name{i}")).unwrap()
}

fn email(i: u8) -> Email {
    Email::parse("email", &format!("address{i}@example.org")).unwrap()
}

fn any() -> u8 {
    rand::random_range(0..NAMES)
}

/// Registers two names with any addresses.
async fn some_register(accounts: &Accounts) -> Result<ImportResult, Error> {
    let (first, second) = (any(), any());
    let mut people = vec![ImportEntry { name: name(first), email: email(any()) }];
    if first != second {
        people.push(ImportEntry { name: name(second), email: email(any()) });
    }
    accounts.import(people, None).await
}

async fn work(store: Store, accounts: Accounts) -> HashSet<u64> {
    let mut made = HashSet::new();
    for _ in 0..ROUNDS {
        match rand::random_range(0..4) {
            0 | 1 => match some_register(&accounts).await {
                Ok(imported) => made.extend(imported.ids.into_iter().flatten().map(|id| id.get())),
                // The sweeper aborted each attempt.
                Err(Error::RegistrationInProgress) => {}
                Err(error) => panic!("{error:?}"),
            },
            2 => {
                if let Ok(user) = accounts.get_by_name(&name(any())).await {
                    store.delete(user.id, &Hash::none(), Duration::ZERO).await.unwrap();
                    if rand::random() {
                        accounts.confirm_deletion(user.id).await.unwrap();
                    }
                }
            }
            _ => {
                Sweeper::new(accounts.clone(), Duration::ZERO).sweep().await.unwrap();
            }
        }
    }
    made
}

async fn names_and_addresses_stay_unique_under_aborts_and_deletions(topology: Topology) {
    let redis = Redis::start(topology).await;
    let database = Database::sqlite();
    let (accounts, store, recorder) = recorder(&redis, &database, Duration::ZERO).await;
    let recorder = Arc::new(recorder);
    recorder.run().await.unwrap();
    let recording = recorder.clone();
    let recording = tokio::spawn(async move {
        loop {
            recording.run().await.unwrap();
        }
    });
    let tasks = (0..TASKS).map(|_| tokio::spawn(work(store.clone(), accounts.clone())));
    let made: HashSet<u64> =
        join_all(tasks).await.into_iter().flat_map(|made| made.unwrap()).collect();
    assert!(made.len() > TASKS, "only {} accounts were made", made.len());
    Sweeper::new(accounts.clone(), Duration::ZERO).sweep().await.unwrap();
    recording.abort();

    let mut alive = 0;
    for partition in Partition::all() {
        let findings = accounts.verify(partition).await.unwrap();
        assert!(findings.violations.is_empty(), "{:?}", findings.violations);
        assert!(findings.pending.is_empty(), "{:?}", findings.pending);
        alive += findings.checked;
    }
    recorder.run().await.unwrap();
    let (mut named, mut addresses) = (Vec::new(), HashSet::new());
    for i in 0..NAMES {
        if let Ok(user) = accounts.get_by_name(&name(i)).await {
            named.push(user.id.get());
            addresses.insert(accounts.get_own(user.id).await.unwrap().address);
        }
    }
    assert_eq!((named.len() as u64, addresses.len() as u64), (alive, alive), "each has its own");
    assert_eq!(database.accounts().await, stored(&redis, &named).await);
    for id in named.into_iter().filter_map(UserId::new) {
        store.delete(id, &Hash::none(), Duration::ZERO).await.unwrap();
    }
    // Everything is free in the end, despite stale claims.
    let people = (0..NAMES).map(|i| ImportEntry { name: name(i), email: email(i) }).collect();
    assert_eq!(accounts.import(people, None).await.unwrap().created, usize::from(NAMES));
}
