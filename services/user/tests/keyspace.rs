//! What the service costs Redis, and what it finds wrong there.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod harness;

use std::collections::BTreeSet;

use harness::{PASSWORD, System, login, register};
use microblog_domain::Partition;
use microblog_keyspace::redis::cmd;
use microblog_proto::user as pb;
use microblog_testkit::Topology;

#[tokio::test]
async fn reads_cost_one_command_for_each_account() {
    let system = System::start(Topology::Single).await;
    let mut client = system.client.clone();
    let users = [register(&client, "ann").await, register(&client, "bob").await];
    let token = login(&client, "ann", PASSWORD).await.unwrap();
    let node = &system.redis.nodes()[0];
    // The sweeper and the readiness probe ask for other things.
    let counted = async |command: &str| {
        let count = node.commandstats().await.get(command).copied().unwrap_or_default();
        node.reset_commandstats().await;
        count
    };
    counted("zscore").await;
    harness::authenticate(&client, &token).await.unwrap();
    assert_eq!(counted("zscore").await, 1);

    let user_ids = users.iter().map(|user| user.id).chain([1, users[0].id]).collect();
    counted("hmget").await;
    client.batch_get_users(pb::BatchGetUsersRequest { user_ids }).await.unwrap();
    assert_eq!(counted("hmget").await, 3);

    // Known or not, a log-in does the same in the store before the password is checked.
    let mut costs = Vec::new();
    for name in ["ann", "nobody"] {
        counted("fcall").await;
        let _ = login(&client, name, "wrong").await;
        let stats = node.commandstats().await;
        let count = |command: &str| stats.get(command).copied().unwrap_or_default();
        // One of the HMGETs, the GET and the rest are the function's.
        costs.push(["fcall", "hmget", "get", "hset", "pexpire"].map(count));
    }
    assert_eq!(costs[0], costs[1]);
    assert_eq!(costs[0], [1, 2, 1, 1, 1]);
}

#[tokio::test]
async fn verify_tells_what_is_wrong_by_ids_alone() {
    let system = System::start(Topology::Single).await;
    let client = &system.client;
    let mut ids = Vec::new();
    for name in ["ann", "bob", "carl"] {
        ids.push(register(client, name).await.id);
    }
    let [ann, bob, carl] = ids[..] else { panic!("three accounts") };
    let key =
        |kind: &str, text: &str| format!("user:{{{}}}:{kind}:{text}", Partition::of_text(text));
    let mut admin = system.redis.nodes()[0].admin().await;
    let partition = Partition::of_id(carl);
    for command in [
        cmd("DEL").arg(key("name", "ann")),
        cmd("SET").arg(key("email", "bob@example.org")).arg(ann),
        cmd("DEL").arg(format!("user:{{{partition}}}:profile:{carl}")),
        cmd("ZADD").arg("user:{7}:registrations").arg(29).arg(29),
    ] {
        command.query_async::<()>(&mut admin).await.unwrap();
    }
    let mut stream = client.clone().verify(pb::VerifyRequest {}).await.unwrap().into_inner();
    let mut violations = BTreeSet::new();
    while let Some(message) = stream.message().await.unwrap() {
        violations.extend(message.violations);
    }
    let expected = [
        format!("the name of account {ann} is not claimed"),
        format!("the e-mail address of account {bob} is claimed by {ann}"),
        format!("account {carl} has no profile"),
        "registration 29 is still under way".to_owned(),
    ];
    assert_eq!(violations, expected.into());
}
