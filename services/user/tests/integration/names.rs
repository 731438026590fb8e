//! Names in a text, resolved to accounts.

use microblog_proto::user as pb;

use crate::support::{
    PASSWORD, System, Topology, assert_invalid_fields, delete, on_each_store, register,
    registration, resolve, try_register,
};

on_each_store! {
    names_in_any_case_are_resolved_in_their_order
    unknown_names_are_skipped
    a_name_is_resolved_at_once_by_all_processes
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
    let client = system.client.clone();
    let (ann, eve) = (register(&client, "ann").await, register(&client, "eve").await);
    let long = "a".repeat(3 << 20);
    let unknown = ["", " ann", "ann ", "a\0", "李雷", "\u{202e}nna", "@ann", &long, "nobody"];
    assert!(resolve(&client, &unknown).await.is_empty());
    let among: Vec<&str> = unknown.into_iter().chain(["ann"]).collect();
    assert_eq!(resolve(&client, &among).await, [("ann".to_owned(), ann.id)]);

    // Of one that is deleted, the name is held; of a registration that was rejected, nobody has it.
    delete(&client, eve.id, PASSWORD).await.unwrap();
    let taken =
        pb::RegisterRequest { email: registration("ann").email, ..registration("rejected") };
    assert!(try_register(&client, taken).await.is_err());
    let names = ["eve", "rejected", "Ann"];
    assert_eq!(resolve(&client, &names).await, [("Ann".to_owned(), ann.id)]);
}

/// Each of the others has noted before that nobody has the name, and notes who has it.
async fn a_name_is_resolved_at_once_by_all_processes(topology: Topology) {
    let system = System::start(topology).await;
    let others = [system.another(&[]).await, system.another(&[]).await];
    for round in 0..20 {
        let name = format!("ann{round}");
        for other in &others {
            for _ in 0..3 {
                assert_eq!(resolve(other, &[&name]).await, []);
            }
        }
        let ann = register(&system.client, &name).await.id;
        for other in &others {
            for _ in 0..3 {
                assert_eq!(resolve(other, &[&name]).await, [(name.clone(), ann)], "{round}");
            }
        }
        delete(&system.client, ann, PASSWORD).await.unwrap();
        for other in &others {
            assert_eq!(resolve(other, &[&name]).await, [], "{round}");
        }
    }
    system.assert_valid(0).await;
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
