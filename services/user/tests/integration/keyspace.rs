//! The cost of the service in Redis commands, and its `Verify` and repair.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use microblog_domain::Partition;
use microblog_keyspace::redis::cmd;
use microblog_proto::{common::ErrorReason as Reason, user as pb};
use microblog_testkit::{self as testkit, Store as Redis, Topology};
use microblog_user::{Draft, ProfileField};

use crate::support::{
    self, PASSWORD, PATIENCE, System, accounts, assert_rejected, draft, login, register,
};

fn profile(id: u64) -> String {
    format!("user:{{{}}}:profile:{id}", Partition::of_id(id))
}

async fn stored_card(redis: &Redis, id: u64) -> Vec<u8> {
    let mut admin = redis.nodes()[0].admin().await;
    cmd("HGET").arg(profile(id)).arg("card").query_async(&mut admin).await.unwrap()
}

#[tokio::test]
async fn reads_cost_one_command_for_each_account() {
    // Without the client-side cache, so that each read sends its commands.
    let uncached = ["--redis-cache-bytes", "0"];
    let system = System::start_without_jobs(Topology::Single, &uncached).await;
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

    let user_ids: Vec<_> = users.iter().map(|user| user.id).chain([1, users[0].id]).collect();
    for (session_token, zranges) in [(String::new(), 0), (token, 1)] {
        let user_ids = user_ids.clone();
        let request = pb::BatchGetUsersRequest { user_ids, session_token, ..Default::default() };
        counted("hget").await;
        client.batch_get_users(request).await.unwrap();
        let stats = node.commandstats().await;
        let calls = |command: &str| stats.get(command).copied().unwrap_or_default();
        assert_eq!([calls("hget"), calls("zrange")], [3, zranges]);
    }

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
        let request = pb::BatchGetUsersRequest { user_ids: user_ids.clone(), ..Default::default() };
        assert_eq!(client.batch_get_users(request).await.unwrap().into_inner().users.len(), 2);
        let stats = node.commandstats().await;
        ["zrange", "hget"].map(|command| stats.get(command).copied().unwrap_or_default())
    };
    // The connection of the cache is opened at its first use.
    testkit::eventually("all reads are cached", PATIENCE, async || reads().await == [0, 0]).await;
}

#[tokio::test]
async fn verify_reports_violations_by_ids_alone() {
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
    let (mut violations, mut pending) = (BTreeSet::new(), Vec::new());
    while let Some(message) = stream.message().await.unwrap() {
        violations.extend(message.violations);
        pending.extend(message.pending);
    }
    let expected = [
        format!("the name of account {ann} is not claimed"),
        format!("the address of account {bob} is claimed by {ann}"),
        format!("account {carl} has no profile"),
        format!("account {dora} has a damaged card"),
    ];
    assert_eq!(violations, expected.into());
    assert_eq!(pending, ["registration 29 is pending"]);

    // A repair fixes all but a damaged card, which stays.
    for is_first in [true, false] {
        let request = pb::VerifyRequest { repair: true };
        let mut stream = client.clone().verify(request).await.unwrap().into_inner();
        let (mut violations, mut repaired) = (BTreeSet::new(), BTreeSet::new());
        while let Some(message) = stream.message().await.unwrap() {
            violations.extend(message.violations);
            violations.extend(message.pending);
            repaired.extend(message.repaired);
        }
        assert_eq!(violations, [format!("account {dora} has a damaged card")].into());
        let expected = [
            format!("the name of account {ann}: claim restored"),
            format!("the address of account {bob}: claim restored"),
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
        let mut found = found.unwrap();
        let version = found.remove("v").map_or(id, |version| version.parse().unwrap());
        let expected = texts.iter().map(|&(field, text)| (field.to_owned(), text.to_owned()));
        assert_eq!(found, expected.collect());
        version
    };
    let of = |draft: &Draft| (draft.address.as_str().to_owned(), draft.request.clone());
    let [(email, request), (other_email, other_request)] = drafts.each_ref().map(of);
    let own = [("email", &*email), ("password", ""), ("request", &*request)];
    let others = [("email", &*other_email), ("password", ""), ("request", &*other_request)];

    let pending = [("state", "pending"), ("draft", "\n\u{3}Ann\u{12}\u{3}微")];
    fields(ann.get(), &[&pending[..], &own].concat()).await;
    assert!(store.users(&ids).await.unwrap().is_empty());
    assert_eq!(store.activate(&[ann]).await.unwrap(), [true]);
    let version = fields(ann.get(), &[&[("card", pending[1].1)][..], &own].concat()).await;
    assert_eq!(version, ann.get());
    assert_eq!(store.users(&ids).await.unwrap().len(), 1);

    let changes = [
        (ProfileField::Bio, "one\ntwo"),
        (ProfileField::AvatarUrl, "https://a.org/%25"),
        (ProfileField::DisplayName, ""),
        (ProfileField::Location, "here"),
    ];
    let changes = changes.map(|(field, text)| (field, text.to_owned()));
    assert!(store.update(ann, &changes).await.unwrap());
    let card = "\u{1a}\u{7}one\ntwo\"\u{11}https://a.org/%25*\u{4}here\n\u{3}Ann";
    let version = fields(ann.get(), &[&[("card", card)][..], &own].concat()).await;
    assert!(version > ann.get());
    assert!(!store.update(bob, &changes).await.unwrap(), "not an account yet");

    let password = &drafts[0].password;
    assert!(store.delete(ann, password, Duration::ZERO).await.unwrap());
    let deleted = [("state", "deleted"), ("draft", "\n\u{3}Ann"), own[0]];
    fields(ann.get(), &deleted).await;
    assert!(!store.update(ann, &changes).await.unwrap(), "not an account any more");
    assert!(!store.delete(bob, password, Duration::ZERO).await.unwrap(), "not an account yet");

    assert_eq!(store.abort(&[bob]).await.unwrap().len(), 1);
    let aborted = [("state", "aborted"), ("draft", "\n\u{3}bob\u{12}\u{3}微")];
    fields(bob.get(), &[&aborted[..], &others].concat()).await;
    assert!(store.users(&ids).await.unwrap().is_empty());
}

#[tokio::test]
async fn an_account_with_a_damaged_card_is_kept() {
    let system = System::start(Topology::Single).await;
    let mut client = system.client.clone();
    let ann = register(&client, "ann").await.id;
    let mut admin = system.redis.nodes()[0].admin().await;
    for card in [
        &b""[..],
        b"ann",
        // No name.
        b"\x12\x03Ann",
        b"\x0a\x00",
        // Truncated: a text, a length, a tag, a varint, a 32-bit and a 64-bit value.
        b"\x0a\x03ann\x12\x04Ann",
        b"\x0a\x03ann\x12\x83",
        b"\x0a\x03ann\x92",
        b"\x0a\x03ann\x78\x80",
        b"\x0a\x03ann\x7d\0\0\0",
        b"\x0a\x03ann\x79\0\0\0\0\0\0\0",
        // Field 0, an unknown wire type, a tag and a length that are too large, a varint that is too
        // long.
        b"\x0a\x03ann\x00\x00",
        b"\x0a\x03ann\x7f",
        b"\x0a\x03ann\x80\x80\x80\x80\x10\x00",
        b"\x0a\x03ann\x12\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x0a\x03ann\x78\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
    ] {
        let mut damage = cmd("HSET");
        damage.arg(profile(ann)).arg("card").arg(card);
        damage.query_async::<()>(&mut admin).await.unwrap();
        let user_ids = vec![ann];
        let batch = client
            .batch_get_users(pb::BatchGetUsersRequest { user_ids, ..Default::default() })
            .await;
        assert!(batch.unwrap().into_inner().users.is_empty());
        assert_rejected(
            client.get_account(pb::GetAccountRequest { user_id: ann }).await,
            Reason::Internal,
        );
        let changes = pb::ProfileChanges { bio: Some("x".to_owned()), ..Default::default() };
        let update = pb::UpdateProfileRequest { user_id: ann, changes: Some(changes) };
        assert_rejected(client.update_profile(update).await, Reason::Internal);
        let delete = pb::DeleteUserRequest { user_id: ann, password: PASSWORD.to_owned() };
        assert_rejected(client.delete_user(delete).await, Reason::Internal);
        assert_rejected(
            support::try_register(&client, support::registration("ann")).await,
            Reason::Internal,
        );
        assert_eq!(stored_card(&system.redis, ann).await, card);
    }
}

#[tokio::test]
async fn an_update_keeps_unknown_fields() {
    let system = System::start(Topology::Single).await;
    let mut client = system.client.clone();
    let ann = register(&client, "ann").await.id;
    // Fields of a later version: 15 as a varint, 64-bit and 32-bit value, and 6 and the largest
    // number, 2^29 - 1, as texts.
    let unknown: [&[u8]; 5] = [
        b"\x78\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x79\x01\x02\x03\x04\x05\x06\x07\x08",
        b"\x32\x08they/she",
        b"\x7d\xff\xff\xff\xff",
        b"\xfa\xff\xff\xff\x0f\x02\0\xff",
    ];
    let [varint, fixed64, text, fixed32, largest] = unknown;
    let card = [varint, b"\x1a\x03old", fixed64, text, b"\x0a\x03ann", fixed32, largest].concat();
    let mut write = cmd("HSET");
    let mut admin = system.redis.nodes()[0].admin().await;
    write.arg(profile(ann)).arg("card").arg(card).query_async::<()>(&mut admin).await.unwrap();
    let user = client.get_user(pb::GetUserRequest { user_id: ann }).await.unwrap().into_inner();
    assert_eq!(user.user.unwrap().bio, "old");

    let mut update = async |bio: &str| {
        let changes = pb::ProfileChanges { bio: Some(bio.to_owned()), ..Default::default() };
        let request = pb::UpdateProfileRequest { user_id: ann, changes: Some(changes) };
        client.update_profile(request).await.unwrap().into_inner().user.unwrap()
    };
    let kept = [varint, fixed64, text, b"\x0a\x03ann", fixed32, largest].concat();
    // Twice, since an update replaces the field.
    for _ in 0..2 {
        let user = update("new").await;
        assert_eq!((user.name.as_str(), user.bio.as_str()), ("ann", "new"));
        let expected = [b"\x1a\x03new", &kept[..]].concat();
        assert_eq!(stored_card(&system.redis, ann).await, expected);
    }
    assert_eq!(update("").await.bio, "");
    assert_eq!(stored_card(&system.redis, ann).await, kept);

    // A deletion keeps the name alone.
    let delete = pb::DeleteUserRequest { user_id: ann, password: PASSWORD.to_owned() };
    client.delete_user(delete).await.unwrap();
    let mut draft = cmd("HGET");
    draft.arg(profile(ann)).arg("draft");
    let draft: Vec<u8> = draft.query_async(&mut admin).await.unwrap();
    assert_eq!(draft, b"\x0a\x03ann");
}

#[tokio::test]
async fn a_card_with_invalid_utf8_does_not_affect_other_reads() {
    let system = System::start(Topology::Single).await;
    let mut client = system.client.clone();
    let [ann, bob] = [register(&client, "ann").await.id, register(&client, "bob").await.id];
    let mut admin = system.redis.nodes()[0].admin().await;
    let card = b"\x0a\x03ann\x12\x01\xff";
    let damage = cmd("HSET").arg(profile(ann)).arg("card").arg(card).take();
    damage.exec_async(&mut admin).await.unwrap();
    let request = pb::BatchGetUsersRequest { user_ids: vec![ann, bob], ..Default::default() };
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
