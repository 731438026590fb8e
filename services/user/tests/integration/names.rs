//! Names in a text, resolved to accounts.

use microblog_domain::UserId;
use microblog_proto::user as pb;
use microblog_testkit::Topology;
use microblog_user::{IdentifierKind, Name, Registration};

use crate::support::{
    self, Client, PASSWORD, System, accounts, assert_invalid_fields, on_each_store, register,
};

on_each_store! {
    names_in_any_case_are_resolved_in_their_order
    unknown_names_are_skipped
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

async fn unknown_names_are_skipped(topology: Topology) {
    let system = System::start(topology).await;
    let mut client = system.client.clone();
    let (ann, eve) = (register(&client, "ann").await, register(&client, "eve").await);
    let long = "a".repeat(3 << 20);
    let unknown = ["", " ann", "ann ", "a\0", "李雷", "\u{202e}nna", "@ann", &long, "nobody"];
    assert!(resolve(&client, &unknown).await.is_empty());
    let among: Vec<&str> = unknown.into_iter().chain(["ann"]).collect();
    assert_eq!(resolve(&client, &among).await, [("ann".to_owned(), ann.id)]);

    // Stale claims: of a pending registration, of an account with another name, of no account, and
    // of a deleted one whose release was interrupted by a crash.
    let (store, _) = accounts(&system.redis).await;
    let pending = store.create(&[support::draft("pending")]).await.unwrap();
    let stale = |name: &str, id: u64| {
        let address = support::email(name).into();
        let (id, name) = (UserId::new(id).unwrap(), Name::parse("name", name).unwrap());
        Registration { id, name, address }
    };
    let request = pb::DeleteUserRequest { user_id: eve.id, password: PASSWORD.to_owned() };
    client.delete_user(request).await.unwrap();
    let others = [stale("renamed", ann.id), stale("lost", 4096), stale("eve", eve.id)];
    let claims: Vec<Registration> = pending.into_iter().chain(others).collect();
    store.claim(IdentifierKind::Name, &claims).await.unwrap();
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
    assert_invalid_fields(client.batch_resolve_names(names(501)).await, &["names"]);
    let most = client.batch_resolve_names(names(500)).await.unwrap().into_inner().users;
    assert_eq!(most, [pb::NamedUser { name: "ann".to_owned(), user_id: ann.id }]);
}

#[tokio::test]
async fn resolving_a_name_takes_two_commands() {
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
