//! What the service costs Redis, and what Redis lets it do.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod harness;

use std::collections::BTreeSet;

use harness::{PASSWORD, System, accounts, login, register};
use microblog_domain::Partition;
use microblog_keyspace::{Config, Keyspace, redis::cmd};
use microblog_proto::user as pb;
use microblog_testkit::{Store as Redis, Topology};
use microblog_user::store;

#[tokio::test]
async fn the_service_may_touch_no_other_keys_and_use_no_other_commands() {
    let redis = Redis::start(Topology::Single).await;
    accounts(&redis).await;
    let keyspace = Keyspace::open(&Config::at(redis.url("user")), store::LIBRARY).unwrap();
    let refused = async |words: &[&str]| {
        let mut command = cmd(words[0]);
        command.arg(&words[1..]);
        let answer = keyspace.query::<microblog_keyspace::redis::Value>(command).await;
        assert_eq!(answer.unwrap_err().code(), Some("NOPERM"), "{words:?}");
    };
    for words in [
        &["GET", "rel:{1}:clock"][..],
        &["SET", "rel:{1}:clock", "1"],
        &["ZADD", "rel:{1}:following:1", "1", "2"],
        &["GET", "post:{1}:clock"],
        &["GET", "tl:{1}:home:1"],
        &["GET", "users"],
        &["KEYS", "user:*"],
        &["SCAN", "0"],
        &["RANDOMKEY"],
        &["DBSIZE"],
        &["FLUSHALL"],
        &["FUNCTION", "FLUSH"],
        &["CONFIG", "GET", "*"],
        &["ACL", "LIST"],
        &["EVAL", "return 1", "0"],
        &["HGETALL", "user:{1}:profile:1"],
        &["SMEMBERS", "user:{1}:accounts"],
        &["RENAME", "user:{1}:clock", "user:{1}:other"],
        &["EXPIRE", "user:{1}:clock", "1"],
        &["MONITOR"],
        &["SHUTDOWN"],
    ] {
        refused(words).await;
    }
}

/// Returns the words in capitals that stand behind a mark in a text, in small letters.
fn commands<'a>(text: &'a str, mark: &'a str) -> impl Iterator<Item = String> + 'a {
    let quoted = text.split(mark).skip(1);
    quoted.filter_map(|rest| rest.split(['\'', '"']).next()).map(str::to_lowercase)
}

#[test]
fn the_acl_file_allows_what_the_sources_use_and_nothing_else() {
    let users = include_str!("../../../deploy/redis/users.acl");
    let (_, user) = users.split_once("\nuser user on ").unwrap();
    let (user, _) = user.split_once("\nuser ").unwrap();
    let lines = user.lines().filter(|line| !line.trim_start().starts_with('#'));
    let allowed: BTreeSet<_> = lines
        .flat_map(str::split_whitespace)
        .filter_map(|rule| rule.strip_prefix('+').map(str::to_owned))
        .collect();

    let of_the_keyspace = [
        "ping",
        "role",
        "cluster|slots",
        "cluster|info",
        "asking",
        "fcall",
        "function|load",
        "function|list",
    ];
    // And of the functions that it puts before every library.
    let of_the_clock = ["get", "set", "time"];
    let sources = [
        include_str!("../src/store/accounts.rs"),
        include_str!("../src/store/claims.rs"),
        include_str!("../src/store/registrations.rs"),
        include_str!("../src/store/sessions.rs"),
    ];
    let used: BTreeSet<_> = of_the_keyspace
        .into_iter()
        .chain(of_the_clock)
        .map(str::to_owned)
        .chain(commands(store::LIBRARY.source, "redis.call('"))
        .chain(sources.into_iter().flat_map(|source| commands(source, "cmd(\"")))
        .collect();
    assert_eq!(allowed, used);
}

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
