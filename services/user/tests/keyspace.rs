//! The cost of the service in Redis commands, and its `Verify` and repair.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use microblog_domain::Partition;
use microblog_keyspace::redis::cmd;
use microblog_proto::{common::ErrorReason as Reason, user as pb};
use microblog_testkit::{self as testkit, Store as Redis, Topology};
use microblog_user::{Draft, ProfileField};
use support::{PASSWORD, System, WAIT_TIMEOUT, accounts, assert_rejected, draft, login, register};

fn profile(id: u64) -> String {
    format!("user:{{{}}}:profile:{id}", Partition::of_id(id))
}

#[tokio::test]
async fn reads_cost_one_command_for_each_account() {
    // Without the client-side cache, so that each read sends its commands.
    let forgetful = ["--redis-recall-bytes", "0"];
    let system = System::start_without_jobs(Topology::Single, &forgetful).await;
    let mut client = system.client.clone();
    let users = [register(&client, "ann").await, register(&client, "bob").await];
    let token = login(&client, "ann", PASSWORD).await.unwrap();
    let node = &system.redis.nodes()[0];
    // The readiness probe sends other commands.
    let counted = async |command: &str| {
        let count = node.commandstats().await.get(command).copied().unwrap_or_default();
        node.reset_commandstats().await;
        count
    };
    counted("zrange").await;
    support::authenticate(&client, &token).await.unwrap();
    assert_eq!(counted("zrange").await, 1);

    let user_ids = users.iter().map(|user| user.id).chain([1, users[0].id]).collect();
    counted("hget").await;
    client.batch_get_users(pb::BatchGetUsersRequest { user_ids }).await.unwrap();
    assert_eq!(counted("hget").await, 3);

    // Known or unknown, a log-in sends the same commands before the password check.
    let cost = async |login: &str| {
        counted("fcall").await;
        let _ = support::login_as(&client, login, "wrong").await;
        let stats = node.commandstats().await;
        ["fcall", "hmget", "get", "hset", "pexpire"].map(|command| stats.get(command).copied())
    };
    // One HMGET and one GET are in the service, the others in the function. A log-in by name first
    // reads the claim and the address.
    for (known, unknown, expected) in [
        ("ann@example.org", "nobody@example.org", [1, 2, 1, 1, 1]),
        ("ann", "nobody", [1, 3, 2, 1, 1]),
    ] {
        assert_eq!(cost(known).await, expected.map(Some), "{known}");
        assert_eq!(cost(unknown).await, expected.map(Some), "{unknown}");
    }
}

#[tokio::test]
async fn unchanged_data_is_read_from_the_cache() {
    let system = System::start_without_jobs(Topology::Single, &[]).await;
    let mut client = system.client.clone();
    let user_ids: Vec<_> = [register(&client, "ann").await.id, register(&client, "bob").await.id]
        .into_iter()
        .chain([1])
        .collect();
    let token = login(&client, "ann", PASSWORD).await.unwrap();
    let node = &system.redis.nodes()[0];
    let mut reads = async || {
        node.reset_commandstats().await;
        support::authenticate(&client, &token).await.unwrap();
        let request = pb::BatchGetUsersRequest { user_ids: user_ids.clone() };
        assert_eq!(client.batch_get_users(request).await.unwrap().into_inner().users.len(), 2);
        let stats = node.commandstats().await;
        ["zrange", "hget"].map(|command| stats.get(command).copied().unwrap_or_default())
    };
    // The connection of the cache is opened at its first use.
    testkit::eventually("all reads are cached", WAIT_TIMEOUT, async || reads().await == [0, 0])
        .await;
}

#[tokio::test]
async fn verify_names_violations_by_id_only() {
    let system = System::start(Topology::Single).await;
    let client = &system.client;
    let mut ids = Vec::new();
    for name in ["ann", "bob", "carl", "dora"] {
        ids.push(register(client, name).await.id);
    }
    let [ann, bob, carl, dora] = ids[..] else { panic!("four accounts") };
    let key =
        |kind: &str, text: &str| format!("user:{{{}}}:{kind}:{text}", Partition::of_text(text));
    let mut admin = system.redis.nodes()[0].admin().await;
    for command in [
        cmd("DEL").arg(key("name", "ann")),
        cmd("SET").arg(key("email", "bob@example.org")).arg(ann),
        cmd("DEL").arg(profile(carl)),
        cmd("HSET").arg(profile(dora)).arg("card").arg("dora"),
        cmd("ZADD").arg("user:{7}:registrations").arg(29).arg(29),
    ] {
        command.query_async::<()>(&mut admin).await.unwrap();
    }
    let mut stream =
        client.clone().verify(pb::VerifyRequest::default()).await.unwrap().into_inner();
    let mut violations = BTreeSet::new();
    while let Some(message) = stream.message().await.unwrap() {
        violations.extend(message.violations);
    }
    let expected = [
        format!("the name of account {ann} is not claimed"),
        format!("the e-mail address of account {bob} is claimed by {ann}"),
        format!("account {carl} has no profile"),
        format!("account {dora} has a damaged card"),
        "registration 29 is pending".to_owned(),
    ];
    assert_eq!(violations, expected.into());

    // A repair fixes all but a damaged card, which stays.
    for is_first in [true, false] {
        let request = pb::VerifyRequest { repair: true };
        let mut stream = client.clone().verify(request).await.unwrap().into_inner();
        let (mut violations, mut repaired) = (BTreeSet::new(), BTreeSet::new());
        while let Some(message) = stream.message().await.unwrap() {
            violations.extend(message.violations);
            repaired.extend(message.repaired);
        }
        assert_eq!(violations, [format!("account {dora} has a damaged card")].into());
        let expected = [
            format!("the name of account {ann}: claim restored"),
            format!("the e-mail address of account {bob}: claim restored"),
            format!("account {carl} is not active, removed from the list of accounts"),
            "registration 29 aborted".to_owned(),
        ];
        assert_eq!(repaired, if is_first { expected.into() } else { BTreeSet::new() });
    }
}

#[tokio::test]
async fn an_account_has_a_card_exactly_while_it_is_active() {
    let redis = Redis::start(Topology::Single).await;
    let (store, _) = accounts(&redis).await;
    let mut admin = redis.nodes()[0].admin().await;
    let drafts = ["Ann", "bob"].map(|name| Draft { display_name: "微".to_owned(), ..draft(name) });
    let ids: Vec<_> = store.create(&drafts).await.unwrap().iter().map(|begun| begun.id).collect();
    let [ann, bob] = ids[..] else { panic!("two registrations") };
    let mut fields = async |id: u64, texts: &[(&str, &str)]| {
        let mut all = cmd("HGETALL");
        let found = all.arg(profile(id)).query_async::<BTreeMap<String, String>>(&mut admin).await;
        let expected = texts.iter().map(|&(field, text)| (field.to_owned(), text.to_owned()));
        assert_eq!(found.unwrap(), expected.collect());
    };
    let of = |draft: &Draft| (draft.email.as_str().to_owned(), draft.request.clone());
    let [(email, request), (other_email, other_request)] = drafts.each_ref().map(of);
    let own = [("email", &*email), ("password", ""), ("request", &*request)];
    let others = [("email", &*other_email), ("password", ""), ("request", &*other_request)];

    let pending = [("state", "pending"), ("draft", "Ann\u{1f}微\u{1f}\u{1f}\u{1f}")];
    fields(ann.get(), &[&pending[..], &own].concat()).await;
    assert!(store.users(&ids).await.unwrap().is_empty());
    assert_eq!(store.activate(&[ann]).await.unwrap(), [true]);
    fields(ann.get(), &[&[("card", pending[1].1)][..], &own].concat()).await;
    assert_eq!(store.users(&ids).await.unwrap().len(), 1);

    let changes = [
        (ProfileField::Bio, "one\ntwo"),
        (ProfileField::AvatarUrl, "https://a.org/%25"),
        (ProfileField::DisplayName, ""),
        (ProfileField::Location, "here"),
    ];
    let changes = changes.map(|(part, text)| (part, text.to_owned()));
    assert!(store.update(ann, &changes).await.unwrap());
    let card = "Ann\u{1f}\u{1f}one\ntwo\u{1f}https://a.org/%25\u{1f}here";
    fields(ann.get(), &[&[("card", card)][..], &own].concat()).await;
    assert!(!store.update(bob, &changes).await.unwrap(), "not an account yet");

    let password = &drafts[0].password;
    assert!(store.delete(ann, password).await.unwrap());
    let deleted = [("state", "deleted"), ("draft", "Ann\u{1f}\u{1f}\u{1f}\u{1f}"), own[0]];
    fields(ann.get(), &deleted).await;
    assert!(!store.update(ann, &changes).await.unwrap(), "not an account any more");
    assert!(!store.delete(bob, password).await.unwrap(), "not an account yet");

    assert_eq!(store.abort(&[bob]).await.unwrap().len(), 1);
    let aborted = [("state", "aborted"), ("draft", "bob\u{1f}微\u{1f}\u{1f}\u{1f}")];
    fields(bob.get(), &[&aborted[..], &others].concat()).await;
    assert!(store.users(&ids).await.unwrap().is_empty());
}

#[tokio::test]
async fn an_account_with_a_damaged_card_is_kept() {
    let system = System::start(Topology::Single).await;
    let mut client = system.client.clone();
    let ann = register(&client, "ann").await.id;
    let mut admin = system.redis.nodes()[0].admin().await;
    for card in ["", "ann", "ann\u{1f}\u{1f}\u{1f}", "ann\u{1f}\u{1f}\u{1f}\u{1f}\u{1f}"] {
        let mut damage = cmd("HSET");
        damage.arg(profile(ann)).arg("card").arg(card);
        damage.query_async::<()>(&mut admin).await.unwrap();
        let user_ids = vec![ann];
        let batch = client.batch_get_users(pb::BatchGetUsersRequest { user_ids }).await;
        assert!(batch.unwrap().into_inner().users.is_empty());
        assert_rejected(
            client.get_account(pb::GetAccountRequest { user_id: ann }).await,
            Reason::Internal,
        );
        let bio = Some("x".to_owned());
        let update = pb::UpdateProfileRequest { user_id: ann, bio, ..Default::default() };
        assert_rejected(client.update_profile(update).await, Reason::Internal);
        let delete = pb::DeleteUserRequest { user_id: ann, password: PASSWORD.to_owned() };
        assert_rejected(client.delete_user(delete).await, Reason::Internal);
        assert_rejected(
            support::try_register(&client, support::registration("ann")).await,
            Reason::Internal,
        );
        let kept: String =
            cmd("HGET").arg(profile(ann)).arg("card").query_async(&mut admin).await.unwrap();
        assert_eq!(kept, card);
    }
}

#[tokio::test]
async fn a_card_with_invalid_utf8_does_not_affect_other_reads() {
    let system = System::start(Topology::Single).await;
    let mut client = system.client.clone();
    let [ann, bob] = [register(&client, "ann").await.id, register(&client, "bob").await.id];
    let mut admin = system.redis.nodes()[0].admin().await;
    let card = b"ann\x1f\xff\x1f\x1f\x1f";
    let damage = cmd("HSET").arg(profile(ann)).arg("card").arg(card).take();
    damage.exec_async(&mut admin).await.unwrap();
    let request = pb::BatchGetUsersRequest { user_ids: vec![ann, bob] };
    let users = client.batch_get_users(request).await.unwrap().into_inner().users;
    assert_eq!(users.iter().map(|user| user.id).collect::<Vec<_>>(), [bob]);
}

#[tokio::test]
async fn a_registration_with_a_damaged_draft_is_not_activated() {
    let redis = Redis::start(Topology::Single).await;
    let (store, _) = accounts(&redis).await;
    let mut admin = redis.nodes()[0].admin().await;
    let id = store.create(&[draft("ann")]).await.unwrap()[0].id;
    let mut damage = cmd("HSET");
    damage.arg(profile(id.get())).arg("draft").arg("ann");
    damage.query_async::<()>(&mut admin).await.unwrap();
    assert_eq!(store.activate(&[id]).await.unwrap(), [false]);
    assert!(store.read(&[id]).await.unwrap()[0].is_none());
}
