//! Names of a text, resolved to whose they are.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod harness;

use harness::{Client, PASSWORD, System, accounts, on_each_store, refused_for, register};
use microblog_domain::UserId;
use microblog_proto::user as pb;
use microblog_testkit::Topology;
use microblog_user::{Email, Kind, Name, Registration};

on_each_store! {
    names_in_any_case_are_resolved_in_their_order
    a_name_of_nobody_is_left_out
}

async fn resolve(client: &Client, names: &[&str]) -> Vec<(String, u64)> {
    let names = names.iter().map(|&name| name.to_owned()).collect();
    let request = pb::BatchResolveNamesRequest { names };
    let users = client.clone().batch_resolve_names(request).await.unwrap().into_inner().users;
    users.into_iter().map(|named| (named.name, named.user_id)).collect()
}

async fn names_in_any_case_are_resolved_in_their_order(topology: Topology) {
    let system = System::start(topology).await;
    let client = &system.client;
    let (ann, bob) = (register(client, "Ann").await, register(client, "bob").await);
    let asked = ["bob", "ANN", "nobody", "bob", "ann", "BOB", "ANN"];
    let expected = [("bob", bob.id), ("ANN", ann.id), ("ann", ann.id), ("BOB", bob.id)];
    let expected = expected.map(|(name, id)| (name.to_owned(), id));
    assert_eq!(resolve(client, &asked).await, expected);
    assert!(resolve(client, &[]).await.is_empty());
}

async fn a_name_of_nobody_is_left_out(topology: Topology) {
    let system = System::start(topology).await;
    let mut client = system.client.clone();
    let (ann, eve) = (register(&client, "ann").await, register(&client, "eve").await);
    let long = "a".repeat(3 << 20);
    let nobodys = ["", " ann", "ann ", "a\0", "李雷", "\u{202e}nna", "@ann", &long, "nobody"];
    assert!(resolve(&client, &nobodys).await.is_empty());
    let among: Vec<&str> = nobodys.into_iter().chain(["ann"]).collect();
    assert_eq!(resolve(&client, &among).await, [("ann".to_owned(), ann.id)]);

    // Claims that are worth nothing: of a registration under way, of an account with another name,
    // of no account, and of one that is deleted, whose release a crash cut short.
    let (store, _) = accounts(&system.redis).await;
    let pending = store.create(&[harness::draft("pending")]).await.unwrap();
    let stale = |name: &str, id: u64| {
        let email = Email::parse("email", &format!("{name}@example.org")).unwrap();
        let (id, name) = (UserId::new(id).unwrap(), Name::parse("name", name).unwrap());
        Registration { id, name, email }
    };
    let request = pb::DeleteUserRequest { user_id: eve.id, password: PASSWORD.to_owned() };
    client.delete_user(request).await.unwrap();
    let others = [stale("renamed", ann.id), stale("lost", 4096), stale("eve", eve.id)];
    let claims: Vec<Registration> = pending.into_iter().chain(others).collect();
    store.claim(Kind::Name, &claims).await.unwrap();
    let names = ["pending", "renamed", "lost", "eve", "Ann"];
    assert_eq!(resolve(&client, &names).await, [("Ann".to_owned(), ann.id)]);
}

#[tokio::test]
async fn at_most_500_names_are_resolved_at_once() {
    let system = System::start(Topology::Single).await;
    let mut client = system.client.clone();
    let ann = register(&client, "ann").await;
    let names = |count: usize| pb::BatchResolveNamesRequest {
        names: std::iter::repeat_n("ann".to_owned(), count).collect(),
    };
    refused_for(client.batch_resolve_names(names(501)).await, &["names"]);
    let most = client.batch_resolve_names(names(500)).await.unwrap().into_inner().users;
    assert_eq!(most, [pb::NamedUser { name: "ann".to_owned(), user_id: ann.id }]);
}

#[tokio::test]
async fn a_name_costs_one_command_and_one_more_for_its_account() {
    let system = System::start(Topology::Single).await;
    let client = &system.client;
    register(client, "ann").await;
    register(client, "bob").await;
    let node = &system.redis.nodes()[0];
    for (names, gets, hgets) in [
        (&["nobody", "no body", "nothing"][..], 2, 0),
        (&["ann", "nobody", "bob", "ANN", "ann"], 4, 2),
        (&["a b"], 0, 0),
    ] {
        node.reset_commandstats().await;
        resolve(client, names).await;
        let stats = node.commandstats().await;
        let count = |command: &str| stats.get(command).copied().unwrap_or_default();
        assert_eq!((count("get"), count("hget")), (gets, hgets), "{names:?}");
    }
}
