//! The record in SQL has what Redis has: changes and what was there before, also after the database
//! was away. What Redis has lost comes back from there, and nothing that has ended.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime},
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use microblog_chassis::status::reason_of;
use microblog_domain::{Partition, UserId};
use microblog_proto::{
    common::{ErrorReason as Reason, RestoredPartition},
    user as pb,
};
use microblog_record::{Recorder, Source};
use microblog_testkit::{
    Store as Redis, Topology, eventually,
    redis::{self, aio::MultiplexedConnection, cmd},
};
use microblog_user::{
    AccountTables, Accounts, Email, EnsureRequest, Error, ExternalId, Hash, IdentifierKind,
    JournalEntry, Name, Password, ProfileField, Store, Token, import::ImportEntry,
    registration::RegistrationRequest,
};
use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config as ProptestConfig, TestRunner},
};
use sqlx::{Row as _, any::AnyRow};
use tonic::{Code, Status};

use crate::support::{
    self, Client, PASSWORD, PATIENCE, System, accounts_with_hold, assert_rejected, assert_valid,
    authenticate,
    database::{Database, Record as _, admin_of, recorder, stored},
    draft, email, login, register, registration,
};

/// Returns the deleted accounts: whether they are confirmed, and the names that are held.
async fn deletions(database: &Database) -> BTreeMap<u64, (bool, String)> {
    let text = "SELECT account, confirmed, draft, held_until FROM deleted_accounts";
    let row = |row: &AnyRow| {
        let card = BASE64.decode(row.get::<String, _>(2)).unwrap();
        let is_held = row.get::<i64, _>(3) > 0;
        let name =
            if is_held { String::from_utf8(card[2..].to_vec()).unwrap() } else { String::new() };
        (row.get::<i64, _>(0) as u64, (row.get::<i64, _>(1) == 1, name))
    };
    database.query(text.to_owned()).await.iter().map(row).collect()
}

/// Waits until these deletions are recorded: each partition is recorded for itself.
async fn has_deletions(database: &Database, expected: &BTreeMap<u64, (bool, String)>) {
    let what = format!("the deletions are recorded: {expected:?}");
    eventually(&what, PATIENCE, async || deletions(database).await == *expected).await;
}

/// Starts the service, and waits until all journals are open.
async fn start(topology: Topology, database: &Database, flags: &[&str]) -> System {
    let flag = database.flag();
    let flags = [flags, &[&*flag]].concat();
    let system = System::start_with(topology, &flags).await;
    eventually("the database is filled", PATIENCE, async || {
        let count = "SELECT COUNT(*) FROM journal_positions".to_owned();
        let rows = database.query(count).await;
        rows.first().is_some_and(|row| row.get::<i64, _>(0) == i64::from(Partition::COUNT))
    })
    .await;
    system
}

async fn update(system: &System, user_id: u64, bio: &str) {
    let changes = pb::ProfileChanges { bio: Some(bio.to_owned()), ..Default::default() };
    let request = pb::UpdateProfileRequest { user_id, changes: Some(changes) };
    system.client.clone().update_profile(request).await.unwrap();
}

const NEW_PASSWORD: &str = "battery staple";

async fn change_password(system: &System, user_id: u64) {
    let change = pb::ChangePasswordRequest {
        user_id,
        current_password: PASSWORD.to_owned(),
        new_password: NEW_PASSWORD.to_owned(),
    };
    system.client.clone().change_password(change).await.unwrap();
}

async fn logout(system: &System, token: &str) {
    let request = pb::LogoutRequest { token: token.to_owned() };
    system.client.clone().logout(request).await.unwrap();
}

async fn delete(system: &System, user_id: u64) {
    let request = pb::DeleteUserRequest { user_id, password: PASSWORD.to_owned() };
    system.client.clone().delete_user(request).await.unwrap();
}

async fn confirm(system: &System, user_id: u64) {
    let request = pb::ConfirmDeletionRequest { user_id };
    system.client.clone().confirm_deletion(request).await.unwrap();
}

async fn is_free(system: &System, name: &str) -> bool {
    let request = pb::CheckAvailabilityRequest { name: name.to_owned() };
    let answer = system.client.clone().check_availability(request).await.unwrap();
    answer.into_inner().name_available.unwrap()
}

async fn import(system: &System, names: impl Iterator<Item = String>) -> Vec<u64> {
    let request = pb::ImportUsersRequest {
        names: names.collect(),
        email_domain: "example.org".to_owned(),
        ..Default::default()
    };
    let answer = system.client.clone().import_users(request).await.unwrap().into_inner();
    answer.user_ids
}

/// Returns all entries of the journals of a single server.
async fn journal_entries(redis: &Redis) -> Vec<String> {
    let mut entries = Vec::new();
    for partition in Partition::all() {
        let key = format!("user:{{{partition}}}:journal");
        let mut admin = admin_of(redis, &key).await;
        let read = cmd("XRANGE").arg(&key).arg("-").arg("+").take();
        let found: Vec<(String, [String; 2])> = read.query_async(&mut admin).await.unwrap();
        entries.extend(found.into_iter().map(|(_, [_, text])| text));
    }
    entries
}

#[tokio::test]
async fn changes_reach_the_database() {
    for (database, topology) in
        Database::both().await.into_iter().zip([Topology::Single, Topology::Cluster])
    {
        let system = start(topology, &database, &[]).await;
        let mut ids = Vec::new();
        for name in ["ann", "Bob", "carl", "dora"] {
            ids.push(register(&system.client, name).await.id);
        }
        let [ann, bob, carl, dora] = ids[..] else { panic!("four accounts") };
        database.has(&system.redis, &ids).await;
        update(&system, ann, "one\ntwo").await;
        change_password(&system, dora).await;
        delete(&system, bob).await;
        confirm(&system, bob).await;
        delete(&system, carl).await;
        database.has(&system.redis, &[ann, dora]).await;
        let expected = [(bob, (true, "Bob".to_owned())), (carl, (false, "carl".to_owned()))];
        has_deletions(&database, &expected.into()).await;
        confirm(&system, carl).await;
        eventually("the confirmation is recorded", PATIENCE, async || {
            deletions(&database).await[&carl].0
        })
        .await;
        let addresses = database.query("SELECT email FROM deleted_accounts".to_owned()).await;
        assert!(addresses.iter().all(|row| row.get::<String, _>(0).is_empty()));
    }
}

#[tokio::test]
async fn journals_have_neither_texts_nor_secrets() {
    let database = Database::sqlite();
    let system = start(Topology::Single, &database, &[]).await;
    let ann = register(&system.client, "ann").await.id;
    database.has(&system.redis, &[ann]).await;
    update(&system, ann, "secret").await;
    // Nothing changes.
    update(&system, ann, "secret").await;
    let token = login(&system.client, "ann", PASSWORD).await.unwrap();
    logout(&system, &token).await;
    // Nothing ends.
    logout(&system, &token).await;
    let bob = register(&system.client, "bob").await.id;
    delete(&system, bob).await;
    confirm(&system, bob).await;
    confirm(&system, bob).await;
    let entries = journal_entries(&system.redis).await;
    let mut kinds = BTreeMap::<&str, usize>::new();
    for entry in &entries {
        let kind = entry.split(' ').next().unwrap();
        if kind != "opened" {
            JournalEntry::parse(entry).expect(entry);
            *kinds.entry(kind).or_default() += 1;
        }
    }
    let expected = [
        ("claim", 4),
        ("register", 2),
        ("update", 1),
        ("logout", 1),
        ("delete", 1),
        ("deleted", 1),
        ("release", 2),
    ];
    assert_eq!(kinds, expected.into());
}

#[tokio::test]
async fn a_new_database_is_filled_with_what_there_is() {
    for database in Database::both().await {
        let system = System::start(Topology::Single).await;
        let mut ids = import(&system, (0..500).map(|i| format!("user{i}"))).await;
        let [bob, carl] =
            [register(&system.client, "bob").await.id, register(&system.client, "carl").await.id];
        ids.push(register(&system.client, "ann").await.id);
        update(&system, ids[0], "changed").await;
        delete(&system, bob).await;
        confirm(&system, bob).await;
        delete(&system, carl).await;
        system.another(&[&database.flag()]).await;
        database.has(&system.redis, &ids).await;
        let expected = [(bob, (true, "bob".to_owned())), (carl, (false, "carl".to_owned()))];
        has_deletions(&database, &expected.into()).await;
        ids.push(register(&system.client, "dora").await.id);
        database.has(&system.redis, &ids).await;
    }
}

#[tokio::test]
async fn changes_wait_while_the_database_is_away() {
    let database = Database::postgres().await;
    let system = start(Topology::Single, &database, &[]).await;
    let mut ids = vec![register(&system.client, "ann").await.id];
    database.has(&system.redis, &ids).await;
    let Database::Postgres(server) = &database else { unreachable!() };
    server.kill();
    update(&system, ids[0], "changed").await;
    ids.push(register(&system.client, "bob").await.id);
    let carl = register(&system.client, "carl").await.id;
    delete(&system, carl).await;
    confirm(&system, carl).await;
    server.restart().await;
    database.has(&system.redis, &ids).await;
    has_deletions(&database, &[(carl, (true, "carl".to_owned()))].into()).await;
}

/// Restores Redis by the RPC, and returns how many partitions that changed, once the service serves
/// again.
async fn restore(system: &System) -> usize {
    restored(system).await.iter().filter(|partition| partition.restored).count()
}

/// Restores Redis by the RPC, until the service serves again. Repeats it, as `microblog restore` does,
/// while a node of a busy cluster does not answer.
async fn restored(system: &System) -> Vec<RestoredPartition> {
    let mut client = system.client.clone();
    let mut partitions = Vec::new();
    eventually("Redis is restored", PATIENCE, async || {
        match restore_once(&mut client, &mut partitions).await {
            Err(status) if status.code() == Code::Unavailable => false,
            ended => ended.map(|()| true).unwrap(),
        }
    })
    .await;
    eventually("the service serves", PATIENCE, async || {
        let user = client.get_user(pb::GetUserRequest { user_id: 1 }).await;
        user.is_err_and(|status| reason_of(&status) == Some(Reason::UserNotFound))
    })
    .await;
    partitions
}

/// Restores Redis by the RPC, and adds the partitions.
async fn restore_once(
    client: &mut Client,
    partitions: &mut Vec<RestoredPartition>,
) -> Result<(), Status> {
    let mut answers = client.restore(pb::RestoreRequest::default()).await?.into_inner();
    while let Some(restored) = answers.message().await? {
        partitions.extend(restored.partition);
    }
    Ok(())
}

/// Returns the tables and keys of the damaged rows.
fn damaged(partitions: &[RestoredPartition]) -> BTreeSet<(&str, &str)> {
    let rows = partitions.iter().flat_map(|partition| &partition.damaged);
    rows.map(|row| (row.table.as_str(), row.key.as_str())).collect()
}

#[tokio::test]
async fn damaged_rows_are_named_and_left_out() {
    for database in Database::both().await {
        let system = start(Topology::Single, &database, &[]).await;
        let names = ["ann", "bob", "carl", "dora", "eve", "fred", "gil", "hal"];
        let mut ids = Vec::new();
        for name in names {
            ids.push(register(&system.client, name).await.id);
        }
        let [ann, bob, carl, dora, eve, fred, gil, hal] = ids[..] else { panic!("eight accounts") };
        delete(&system, eve).await;
        ids.retain(|&id| id != eve);
        database.has(&system.redis, &ids).await;
        eventually("the deletion is recorded", PATIENCE, async || {
            deletions(&database).await.contains_key(&eve)
        })
        .await;
        // PostgreSQL rejects what is not UTF-8.
        let bad_text = match &database {
            Database::Sqlite(_) => "CAST(x'ff' AS TEXT)",
            Database::Postgres(_) => "'not an address'",
        };
        for change in [
            format!("UPDATE accounts SET card = '!' WHERE account = {ann}"),
            format!("UPDATE accounts SET card_version = -1 WHERE account = {bob}"),
            format!("UPDATE accounts SET email = {bad_text} WHERE account = {carl}"),
            format!(
                "UPDATE accounts SET partition = (partition + 1) % 1024 WHERE account = {dora}"
            ),
            format!("UPDATE deleted_accounts SET held_until = -1 WHERE account = {eve}"),
            format!("UPDATE accounts SET account = -4 WHERE account = {fred}"),
            // Both have one name.
            format!(
                "UPDATE accounts SET card = (SELECT card FROM accounts WHERE account = {gil}), \
                 name_partition = (SELECT name_partition FROM accounts WHERE account = {gil}) \
                 WHERE account = {hal}"
            ),
        ] {
            database.change(&change).await;
        }
        cmd("FLUSHALL").exec_async(&mut system.redis.nodes()[0].admin().await).await.unwrap();
        let partitions = restored(&system).await;
        let keys = [-4, ann as i64, bob as i64, carl as i64, dora as i64];
        let keys = keys.map(|id| format!("account={id}"));
        let deleted = format!("account={eve}");
        let mut expected: BTreeSet<_> = keys.iter().map(|key| ("accounts", &**key)).collect();
        expected.insert(("deleted_accounts", &deleted));
        let mut found = damaged(&partitions);
        // The accounts with one name may be restored after its claim.
        let owners = [gil, hal].map(|id| format!("account={id}"));
        found.retain(|(_, key)| !owners.iter().any(|owner| owner == key));
        assert_eq!(found, expected);
        let left_out = [ann, bob, carl, dora, fred];
        for id in left_out {
            let user = system.client.clone().get_user(pb::GetUserRequest { user_id: id }).await;
            assert_rejected(user, Reason::UserNotFound);
        }
        for id in [gil, hal] {
            system.client.clone().get_user(pb::GetUserRequest { user_id: id }).await.unwrap();
        }
        // A mended row comes back, and so do its claims.
        let mend = format!("UPDATE accounts SET card_version = account WHERE account = {bob}");
        database.change(&mend).await;
        let again = restored(&system).await;
        let again = damaged(&again);
        assert!(!again.contains(&("accounts", &keys[2])), "{again:?}");
        assert!(again.contains(&("accounts", &keys[1])), "{again:?}");
        login(&system.client, "bob", PASSWORD).await.unwrap();
    }
}

/// What Redis has: each key with its remaining time and its value.
type Copy = Vec<(Vec<u8>, i64, Vec<u8>)>;

fn partition_of(key: &[u8]) -> u16 {
    let text = String::from_utf8_lossy(key);
    text.split_once('{').unwrap().1.split_once('}').unwrap().0.parse().unwrap()
}

async fn keys(admin: &mut MultiplexedConnection) -> Vec<Vec<u8>> {
    cmd("KEYS").arg("user:*").query_async(admin).await.unwrap()
}

async fn copy(redis: &Redis) -> Copy {
    let mut admin = redis.nodes()[0].admin().await;
    let mut copied = Copy::new();
    for key in keys(&mut admin).await {
        let (ttl, value): (i64, Option<Vec<u8>>) =
            redis::pipe().pttl(&key).cmd("DUMP").arg(&key).query_async(&mut admin).await.unwrap();
        // It may have expired in between.
        copied.extend(value.map(|value| (key, ttl.max(0), value)));
    }
    copied
}

/// Replaces what some partitions have by a copy.
async fn roll_back(redis: &Redis, copy: &Copy, is_lost: impl Fn(u16) -> bool) {
    let mut admin = redis.nodes()[0].admin().await;
    let mut lose = redis::pipe();
    lose.atomic();
    for key in keys(&mut admin).await.iter().filter(|key| is_lost(partition_of(key))) {
        lose.del(key).ignore();
    }
    for (key, ttl, value) in copy.iter().filter(|(key, ..)| is_lost(partition_of(key))) {
        lose.cmd("RESTORE").arg(key).arg(ttl).arg(value).ignore();
    }
    let () = lose.query_async(&mut admin).await.unwrap();
}

#[tokio::test]
async fn an_empty_redis_is_restored() {
    for (database, topology) in
        Database::both().await.into_iter().zip([Topology::Cluster, Topology::Single])
    {
        let system = start(topology, &database, &[]).await;
        let mut ids = Vec::new();
        for name in ["ann", "bob", "carl", "dora"] {
            ids.push(register(&system.client, name).await.id);
        }
        let [ann, bob, carl, dora] = ids[..] else { panic!("four accounts") };
        update(&system, ann, "one\ntwo").await;
        change_password(&system, dora).await;
        let token = login(&system.client, "ann", PASSWORD).await.unwrap();
        delete(&system, bob).await;
        confirm(&system, bob).await;
        delete(&system, carl).await;
        let last = register(&system.client, "last").await.id;
        let ids = [ann, dora, last];
        database.has(&system.redis, &ids).await;
        eventually("deletions are recorded", PATIENCE, async || {
            deletions(&database).await.len() == 2
        })
        .await;
        let before = stored(&system.redis, &ids).await;
        for node in system.redis.nodes() {
            cmd("FLUSHALL").exec_async(&mut node.admin().await).await.unwrap();
        }
        let rejected = system.client.clone().register(support::registration("last")).await;
        assert_eq!(rejected.unwrap_err().code(), Code::Unavailable);
        assert!(restore(&system).await > 0);
        assert_valid(&system.client, 3).await;
        assert_eq!(stored(&system.redis, &ids).await, before);
        login(&system.client, "ann", PASSWORD).await.unwrap();
        login(&system.client, "dora", NEW_PASSWORD).await.unwrap();
        assert_rejected(login(&system.client, "dora", PASSWORD).await, Reason::BadCredentials);
        assert_rejected(authenticate(&system.client, &token).await, Reason::TokenInvalid);
        for name in ["bob", "carl"] {
            assert!(!is_free(&system, name).await, "{name} is held");
            assert_rejected(login(&system.client, name, PASSWORD).await, Reason::BadCredentials);
        }
        let deletions = pb::ListDeletionsRequest { page_size: 10 };
        let deletions = system.client.clone().list_deletions(deletions).await.unwrap();
        assert_eq!(deletions.into_inner().user_ids, [carl]);
        confirm(&system, carl).await;
        assert!(!is_free(&system, "carl").await);
        // Recording goes on.
        let new = register(&system.client, "eve").await.id;
        database.has(&system.redis, &[ann, dora, last, new]).await;
        assert_eq!(restore(&system).await, 0, "nothing is left to recover");
    }
}

#[tokio::test]
async fn a_lost_partition_is_restored_and_its_names_are_not_given_away() {
    for database in Database::both().await {
        let system = start(Topology::Single, &database, &["--write-budget-ms=3000"]).await;
        let ids = import(&system, (0..50).map(|i| format!("user{i}"))).await;
        let ann = register(&system.client, "ann").await.id;
        let ids: Vec<u64> = ids.into_iter().chain([ann]).collect();
        database.has(&system.redis, &ids).await;
        let before = stored(&system.redis, &ids).await;
        let lost = Partition::of_id(ann).number();
        // Another process, which does nothing, has the lease on the recovery.
        let lease = format!("user:{{{lost}}}:journal:lease");
        let mut admin = system.redis.nodes()[0].admin().await;
        let hold = cmd("SET").arg(&lease).arg("other").arg("PX").arg(600_000).take();
        let () = hold.query_async(&mut admin).await.unwrap();
        let mut nothing = copy(&system.redis).await;
        nothing.retain(|(key, ..)| *key == lease.as_bytes());
        roll_back(&system.redis, &nothing, |partition| partition == lost).await;
        // Another account must not take the name of a profile that is only lost.
        let request = support::registration("ann");
        let taken = system.client.clone().register(request).await;
        assert_rejected(taken, Reason::Recovering);
        let () = cmd("DEL").arg(&lease).query_async(&mut admin).await.unwrap();
        assert_valid(&system.client, ids.len() as u64).await;
        assert_eq!(stored(&system.redis, &ids).await, before);
        login(&system.client, "ann", PASSWORD).await.unwrap();
    }
}

// The old profile is back, and equals the request: confirming it would be wrong once the recovery writes
// the recorded one.
#[tokio::test]
async fn an_update_that_was_lost_is_not_undone_without_a_difference() {
    let database = Database::sqlite();
    let system = start(Topology::Single, &database, &[]).await;
    let ann = register(&system.client, "ann").await.id;
    let lost = Partition::of_id(ann).number();
    database.has(&system.redis, &[ann]).await;
    // Another process, which does nothing, has the lease on the recovery.
    let mut admin = system.redis.nodes()[0].admin().await;
    let lease = format!("user:{{{lost}}}:journal:lease");
    let hold = cmd("SET").arg(&lease).arg("other").arg("PX").arg(600_000).take();
    let () = hold.query_async(&mut admin).await.unwrap();
    let before = copy(&system.redis).await;
    update(&system, ann, "about me").await;
    roll_back(&system.redis, &before, |partition| partition == lost).await;
    let changes = pb::ProfileChanges { bio: Some(String::new()), ..Default::default() };
    let request = pb::UpdateProfileRequest { user_id: ann, changes: Some(changes) };
    assert_rejected(system.client.clone().update_profile(request).await, Reason::Recovering);
}

#[tokio::test]
async fn an_older_copy_of_redis_is_recovered() {
    for database in Database::both().await {
        let system = start(Topology::Single, &database, &[]).await;
        let mut ids = Vec::new();
        for name in ["ann", "bob", "carl", "dora", "eve"] {
            ids.push(register(&system.client, name).await.id);
        }
        let [ann, bob, carl, dora, eve] = ids[..] else { panic!("five accounts") };
        let [mut revoked, mut other] = [String::new(), String::new()];
        for token in [&mut revoked, &mut other] {
            *token = login(&system.client, "ann", PASSWORD).await.unwrap();
        }
        let changed = login(&system.client, "dora", PASSWORD).await.unwrap();
        let kept = login(&system.client, "eve", PASSWORD).await.unwrap();
        database.has(&system.redis, &ids).await;
        // A registration that completes after the copy.
        let (store, accounts) = support::accounts(&system.redis).await;
        let begun = store.create(&[draft("fred")]).await.unwrap();
        for kind in [IdentifierKind::Name, IdentifierKind::Address] {
            store.claim(kind, &begun).await.unwrap();
        }
        let older = copy(&system.redis).await;
        let fred = begun[0].id;
        assert_eq!(store.activate(&[fred]).await.unwrap(), [true]);
        update(&system, ann, "new").await;
        let [mut begun_by_ann, mut begun_by_eve] = [String::new(), String::new()];
        for (token, name) in [(&mut begun_by_ann, "ann"), (&mut begun_by_eve, "eve")] {
            *token = login(&system.client, name, PASSWORD).await.unwrap();
        }
        logout(&system, &revoked).await;
        change_password(&system, dora).await;
        delete(&system, bob).await;
        confirm(&system, bob).await;
        delete(&system, carl).await;
        let ids = [ann, dora, eve, fred.get()];
        database.has(&system.redis, &ids).await;
        eventually("the deletions are recorded", PATIENCE, async || {
            deletions(&database).await.contains_key(&carl)
        })
        .await;
        let before = stored(&system.redis, &ids).await;
        roll_back(&system.redis, &older, |_| true).await;
        restore(&system).await;
        assert_eq!(stored(&system.redis, &ids).await, before);
        assert_valid(&system.client, 4).await;
        for token in [&revoked, &other, &changed, &begun_by_ann, &begun_by_eve] {
            assert_rejected(authenticate(&system.client, token).await, Reason::TokenInvalid);
        }
        assert_eq!(authenticate(&system.client, &kept).await.unwrap(), eve, "nothing ended");
        login(&system.client, "dora", NEW_PASSWORD).await.unwrap();
        for name in ["bob", "carl"] {
            assert!(!is_free(&system, name).await, "{name} is held");
        }
        // Redis had bob: all services delete it again.
        let mut deletions = accounts.deletions(10).await.unwrap();
        deletions.sort_unstable();
        assert_eq!(deletions.iter().map(|id| id.get()).collect::<Vec<_>>(), [bob, carl]);
        confirm(&system, bob).await;
        assert!(!is_free(&system, "bob").await, "the hold goes on");
    }
}

/// Sessions of one account ended on both sides of a failover that lost the first end.
#[tokio::test]
async fn a_session_that_ended_before_a_loss_stays_ended_if_another_ended_after_it() {
    let redis = Redis::start(Topology::Single).await;
    for database in Database::both().await {
        cmd("FLUSHALL").exec_async(&mut redis.nodes()[0].admin().await).await.unwrap();
        let mut world = World::new(&redis, &database, Duration::ZERO).await;
        for step in [Step::Register(0), Step::Login(0), Step::Login(0), Step::Record] {
            world.take(step).await;
        }
        let older = copy(&redis).await;
        // Ends the first session.
        world.take(Step::Logout(0)).await;
        world.take(Step::Record).await;
        roll_back(&redis, &older, |_| true).await;
        // A process that has not seen the lost change.
        let (_, other) = support::accounts(&redis).await;
        other.logout(&world.tokens[1].1).await.unwrap();
        assert_eq!(world.view().await.sessions.len(), 1, "the loss brought it back");
        world.recover().await;
        assert_eq!(world.view().await.sessions.len(), 0);
        world.take(Step::Login(0)).await;
        world.recover().await;
        assert_eq!(world.view().await.sessions.len(), 1);
    }
}

#[tokio::test]
async fn a_name_goes_to_its_last_owner() {
    let (redis, database) = (Redis::start(Topology::Single).await, Database::sqlite());
    let mut world = World::new(&redis, &database, Duration::ZERO).await;
    world.register(0).await;
    let older = copy(&redis).await;
    world.take(Step::Delete(0)).await;
    world.register(0).await;
    world.take(Step::Record).await;
    let expected = world.view().await;
    roll_back(&redis, &older, |_| true).await;
    // While the partition of the first account has the copy yet.
    let partition = name(0).partition();
    let begun = world.recorder.begin_restore(Source::Database, false).await.unwrap();
    assert!(world.recorder.restore(&begun, partition).await.unwrap());
    world.recover().await;
    assert_eq!(world.view().await, expected);
    world.assert_valid(1).await;
}

#[tokio::test]
async fn a_database_from_an_older_copy_is_written_anew() {
    for database in Database::both().await {
        let system = start(Topology::Single, &database, &[]).await;
        let ann = register(&system.client, "ann").await.id;
        database.has(&system.redis, &[ann]).await;
        let partition = Partition::of_id(ann);
        for text in [
            format!(
                "UPDATE accounts SET password = 'old', password_version = 9 WHERE account = {ann}"
            ),
            format!(
                "UPDATE journal_positions SET version = 1, entry = 'x' WHERE partition = {partition}"
            ),
        ] {
            database.query(text).await;
        }
        let key = format!("user:{{{partition}}}:journal");
        let mut admin = admin_of(&system.redis, &key).await;
        let trim = cmd("XTRIM").arg(&key).arg("MAXLEN").arg(1).take();
        let () = trim.query_async(&mut admin).await.unwrap();
        database.has(&system.redis, &[ann]).await;
        // The rows are there before the recovery ends.
        eventually("the partition is recovered", PATIENCE, async || {
            login(&system.client, "ann", PASSWORD).await.is_ok()
        })
        .await;
    }
}

#[tokio::test]
async fn recorded_accounts_are_in_the_database_when_they_are_acknowledged() {
    let database = Database::postgres().await;
    let system = start(Topology::Single, &database, &["--durability=recorded"]).await;
    let ann = register(&system.client, "ann").await.id;
    assert_eq!(database.accounts().await, stored(&system.redis, &[ann]).await);
    update(&system, ann, "about me").await;
    assert_eq!(database.accounts().await, stored(&system.redis, &[ann]).await);
    delete(&system, ann).await;
    assert_eq!(database.accounts().await.len(), 0);

    let Database::Postgres(server) = &database else { unreachable!() };
    let bob = register(&system.client, "bob").await.id;
    server.kill();
    let changes = pb::ProfileChanges { bio: Some("lost".to_owned()), ..Default::default() };
    let request = pb::UpdateProfileRequest { user_id: bob, changes: Some(changes) };
    let rejected = system.client.clone().update_profile(request.clone()).await;
    assert_rejected(rejected, Reason::NotRecorded);
    server.restart().await;
    eventually("the database is back", PATIENCE, async || {
        system.client.clone().update_profile(request.clone()).await.is_ok()
    })
    .await;
    assert_eq!(database.accounts().await, stored(&system.redis, &[bob]).await);
}

// As after a call that failed with NOT_RECORDED: the account is there, and its caller repeats the call.
#[tokio::test]
async fn a_repeated_registration_or_import_waits_until_the_account_is_recorded() {
    let database = Database::postgres().await;
    let system = start(Topology::Single, &database, &["--durability=recorded"]).await;
    let Database::Postgres(server) = &database else { unreachable!() };
    server.kill();
    // This process does not wait for the database.
    let (_, accounts) = accounts_with_hold(&system.redis, Duration::ZERO).await;
    let request = registration("ann");
    let made = accounts.register(RegistrationRequest {
        request: request.request_id.clone(),
        name: Name::parse("name", &request.name).unwrap(),
        email: email("ann"),
        password: Password::parse_new("password", &request.password).unwrap(),
        display_name: String::new(),
    });
    let ann = made.await.unwrap().id.get();

    let rejected = system.client.clone().register(request.clone()).await;
    assert_rejected(rejected, Reason::NotRecorded);
    let import = pb::ImportUsersRequest {
        names: vec!["ann".to_owned()],
        email_domain: "example.org".to_owned(),
        ..Default::default()
    };
    let rejected = system.client.clone().import_users(import.clone()).await;
    assert_rejected(rejected, Reason::NotRecorded);
    assert_eq!(database.accounts().await.len(), 0);

    server.restart().await;
    eventually("the database is back", PATIENCE, async || {
        system.client.clone().register(request.clone()).await.is_ok()
    })
    .await;
    assert_eq!(database.accounts().await, stored(&system.redis, &[ann]).await);
    let imported = system.client.clone().import_users(import).await.unwrap().into_inner();
    assert_eq!((imported.user_ids, imported.created), (vec![ann], 0));
}

#[tokio::test]
async fn ids_are_not_issued_again() {
    let database = Database::sqlite();
    let system = start(Topology::Single, &database, &[]).await;
    // As if ids had been issued four minutes from now.
    let later = SystemTime::now() + Duration::from_secs(4 * 60);
    let mut admin = system.redis.nodes()[0].admin().await;
    let mut set = redis::pipe();
    for partition in Partition::all() {
        let tick = microblog_domain::Stamp::first_at(later, partition).get() >> 12 << 2;
        set.set(format!("user:{{{partition}}}:clock"), tick).ignore();
    }
    let () = set.query_async(&mut admin).await.unwrap();
    let mut ids = Vec::new();
    for batch in 0..3 {
        ids.extend(import(&system, (0..500).map(|i| format!("user{batch}_{i}"))).await);
    }
    database.has(&system.redis, &ids).await;
    cmd("FLUSHALL").exec_async(&mut admin).await.unwrap();
    restore(&system).await;
    let mut newest = BTreeMap::new();
    for &id in &ids {
        let newest = newest.entry(Partition::of_id(id)).or_default();
        *newest = id.max(*newest);
    }
    for id in import(&system, (0..500).map(|i| format!("new{i}"))).await {
        assert!(newest.get(&Partition::of_id(id)).is_none_or(|&newest| id > newest), "{id}");
    }
}

/// A change of the accounts, by a number that selects one.
#[derive(Clone, Copy, Debug)]
enum Step {
    Register(u8),
    Update(u8),
    ChangePassword(u8),
    Login(u8),
    Logout(u8),
    Delete(u8),
    Confirm(u8),
    Record,
}

const NAMES: u8 = 6;

fn step() -> impl Strategy<Value = Step> {
    let which = 0..NAMES;
    prop_oneof![
        4 => which.clone().prop_map(Step::Register),
        2 => which.clone().prop_map(Step::Update),
        1 => which.clone().prop_map(Step::ChangePassword),
        2 => which.clone().prop_map(Step::Login),
        1 => which.clone().prop_map(Step::Logout),
        2 => which.clone().prop_map(Step::Delete),
        1 => which.prop_map(Step::Confirm),
        1 => Just(Step::Record),
    ]
}

/// What callers can see: the accounts, the sessions, and the names that are free.
#[derive(Debug, PartialEq)]
struct View {
    accounts: BTreeMap<u64, String>,
    sessions: BTreeSet<String>,
    free: Vec<u8>,
}

struct World {
    accounts: Accounts,
    store: Store,
    recorder: Recorder<AccountTables>,
    hold: Duration,
    made: BTreeSet<UserId>,
    deleted: Vec<UserId>,
    tokens: Vec<(UserId, String)>,
    // Accounts of which a session has ended.
    ended: BTreeSet<UserId>,
    count: usize,
}

fn name(which: u8) -> Name {
    Name::parse("name", &format!("name{which}")).unwrap()
}

impl World {
    async fn new(redis: &Redis, database: &Database, hold: Duration) -> Self {
        let (accounts, store, recorder) = recorder(redis, database, hold).await;
        recorder.run().await.unwrap();
        Self {
            accounts,
            store,
            recorder,
            hold,
            made: BTreeSet::new(),
            deleted: Vec::new(),
            tokens: Vec::new(),
            ended: BTreeSet::new(),
            count: 0,
        }
    }

    async fn take(&mut self, step: Step) {
        self.count += 1;
        let owner = match step {
            Step::Register(which) => return self.register(which).await,
            Step::Record => return self.recorder.run().await.unwrap(),
            Step::Confirm(which) => {
                if let Some(&id) = self.deleted.get(usize::from(which)) {
                    self.accounts.confirm_deletion(id).await.unwrap();
                }
                return;
            }
            Step::Update(which)
            | Step::ChangePassword(which)
            | Step::Login(which)
            | Step::Logout(which)
            | Step::Delete(which) => self.accounts.get_by_name(&name(which)).await,
        };
        let Ok(owner) = owner else { return };
        let (id, record) = (owner.id, self.accounts.get_own(owner.id).await.unwrap());
        match step {
            Step::Update(_) => {
                let changes = [(ProfileField::Bio, format!("bio {}", self.count))];
                self.store.update(id, &changes).await.unwrap();
            }
            Step::ChangePassword(_) => {
                let new = Hash::stored(format!("hash {}", self.count));
                self.store.change_password(id, &record.password, &new).await.unwrap();
                self.ended.insert(id);
            }
            Step::Login(_) => {
                let token = Token::issue(id).unwrap();
                let address = record.address().unwrap();
                let end = SystemTime::now() + Duration::from_secs(3_600);
                let open = self.store.open_session(
                    id,
                    &address,
                    &record.password,
                    token.fingerprint(),
                    end,
                );
                assert!(open.await.unwrap());
                self.tokens.push((id, token.reveal()));
            }
            Step::Logout(_) => {
                if let Some((_, token)) = self.tokens.iter().find(|(of, _)| *of == id) {
                    self.accounts.logout(token).await.unwrap();
                    self.ended.insert(id);
                }
            }
            Step::Delete(_) => {
                self.store.delete(id, &record.password, self.hold).await.unwrap();
                self.deleted.insert(0, id);
            }
            Step::Register(_) | Step::Confirm(_) | Step::Record => unreachable!(),
        }
    }

    async fn register(&mut self, which: u8) {
        // Half of them are accounts of another system.
        if which % 2 == 1 {
            let id = format!("Id{which}");
            let external = ExternalId::parse(("issuer", "sso"), ("external_id", &id)).unwrap();
            let (name, display_name) = (name(which), String::new());
            let request = EnsureRequest { external, name, display_name };
            match self.accounts.ensure(request).await {
                Ok(ensured) => self.made.extend([ensured.user.id]),
                Err(Error::NameTaken) => {}
                Err(error) => panic!("{error:?}"),
            }
            return;
        }
        let email = Email::parse("email", &format!("address{which}@example.org")).unwrap();
        let entries = vec![ImportEntry { name: name(which), email }];
        let imported = self.accounts.import(entries, None).await.unwrap();
        self.made.extend(imported.ids.into_iter().flatten());
    }

    async fn view(&self) -> View {
        let (mut accounts, mut sessions, mut free) = Default::default();
        for &id in &self.made {
            match self.accounts.get_own(id).await {
                Ok(record) => {
                    let password = record.password.as_str();
                    let text = format!("{:?} {} {password}", record.user, record.address);
                    BTreeMap::insert(&mut accounts, id.get(), text);
                }
                Err(Error::UserNotFound) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
        for (_, token) in &self.tokens {
            if self.accounts.authenticate(token).await.is_ok() {
                BTreeSet::insert(&mut sessions, token.clone());
            }
        }
        for which in 0..NAMES {
            if self.accounts.is_free(&name(which)).await.unwrap() {
                Vec::push(&mut free, which);
            }
        }
        View { accounts, sessions, free }
    }

    /// Recovers the partitions of which Redis lacks changes.
    async fn recover(&self) {
        self.recorder.run().await.unwrap();
        self.recorder.recover_lost().await.unwrap();
        self.recorder.run().await.unwrap();
    }

    async fn assert_valid(&self, accounts: usize) {
        let mut checked = 0;
        for partition in Partition::all() {
            let report = self.accounts.verify(partition).await.unwrap();
            assert!(report.violations.is_empty(), "{:?}", report.violations);
            assert!(report.pending.is_empty(), "{:?}", report.pending);
            checked += report.checked;
        }
        assert_eq!(checked, accounts as u64);
    }
}

/// Takes steps, copies Redis, takes further steps, puts the copy back in some partitions, and
/// recovers.
async fn assert_recovered(
    redis: &Redis,
    is_held: bool,
    before: Vec<Step>,
    after: Vec<Step>,
    lost: [bool; 4],
) {
    let mut admin = redis.nodes()[0].admin().await;
    cmd("FLUSHALL").exec_async(&mut admin).await.unwrap();
    let database = Database::sqlite();
    let hold = if is_held { Duration::from_secs(3_600) } else { Duration::ZERO };
    let mut world = World::new(redis, &database, hold).await;
    for step in before {
        world.take(step).await;
    }
    let older = copy(redis).await;
    let (sessions, ()) = (world.view().await.sessions, world.ended.clear());
    for step in after {
        world.take(step).await;
    }
    world.recorder.run().await.unwrap();
    let expected = world.view().await;
    let is_lost = |partition: u16| lost[usize::from(partition % 4)];
    roll_back(redis, &older, is_lost).await;
    world.recover().await;
    let View { accounts, sessions: alive, free } = world.view().await;
    assert_eq!((&accounts, &free), (&expected.accounts, &expected.free));
    assert!(alive.is_subset(&expected.sessions), "an ended session lives");
    for (of, token) in &world.tokens {
        let is_untouched = !world.ended.contains(of) && accounts.contains_key(&of.get());
        let is_alive = alive.contains(token);
        assert!(is_alive || !is_untouched || !sessions.contains(token), "a session is lost");
    }
    world.assert_valid(accounts.len()).await;
    // Each free name has one new account.
    let made = world.made.clone();
    for &which in &free {
        world.register(which).await;
    }
    assert_eq!(world.made.len(), made.len() + free.len(), "an id is issued again");
    world.assert_valid(accounts.len() + free.len()).await;
    world.recorder.run().await.unwrap();
    let ids: Vec<u64> = world.view().await.accounts.into_keys().collect();
    assert_eq!(database.accounts().await, stored(redis, &ids).await);
}

#[test]
fn any_changes_survive_the_loss_of_any_partitions() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let redis = runtime.block_on(Redis::start(Topology::Single));
    let steps = || vec(step(), 0..30);
    let lost = any::<[bool; 4]>();
    let mut runner = TestRunner::new(ProptestConfig { cases: 12, ..ProptestConfig::default() });
    let case = (any::<bool>(), steps(), steps(), lost);
    let done = runner.run(&case, |(is_held, before, after, lost)| {
        runtime.block_on(assert_recovered(&redis, is_held, before, after, lost));
        Ok(())
    });
    done.unwrap();
}
