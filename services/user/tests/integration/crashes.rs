//! A process that stops or stalls between two steps leaves no name or address taken.

use std::time::Duration;

use microblog_domain::Partition;
use microblog_testkit::{Store as Redis, Topology, eventually};
use microblog_user::{
    Accounts, ClaimOwner, Draft, Hash, IdentifierKind, Login, Name, Password, Registration, Store,
    Sweeper, User, import::ImportEntry, registration::RegistrationRequest,
};

use crate::support::{self, PASSWORD, PATIENCE, accounts, draft, on_each_store};

on_each_store! {
    an_interrupted_registration_leaves_no_claims
    an_interrupted_sweep_is_continued
    a_stalled_registration_cannot_continue_after_its_abort
    an_interrupted_deletion_frees_the_name
    an_interrupted_deletion_holds_the_name
}

async fn register_directly(accounts: &Accounts, name: &str) -> User {
    let (Draft { name, request, .. }, email) = (draft(name), support::email(name));
    let password = Password::parse_new("password", PASSWORD).unwrap();
    let display_name = String::new();
    let application = RegistrationRequest { request, name, email, password, display_name };
    accounts.register(application).await.unwrap()
}

/// Sweeps with a stale time of zero: all registrations count as stale.
async fn sweep(accounts: &Accounts) -> usize {
    Sweeper::new(accounts.clone(), Duration::ZERO).sweep().await.unwrap()
}

async fn assert_free(accounts: &Accounts, name: &str, is_free: bool) {
    assert_eq!(accounts.is_free(&draft(name).name).await.unwrap(), is_free);
}

async fn assert_checked(accounts: &Accounts, expected: u64) {
    let mut checked = 0;
    for partition in Partition::all() {
        let findings = accounts.verify(partition).await.unwrap();
        assert!(findings.violations.is_empty(), "{:?}", findings.violations);
        assert!(findings.pending.is_empty(), "{:?}", findings.pending);
        checked += findings.checked;
    }
    assert_eq!(checked, expected);
}

/// Runs so many steps of a registration.
async fn begin(store: &Store, name: &str, steps: usize) -> Vec<Registration> {
    let registrations = store.create(&[draft(name)]).await.unwrap();
    for kind in [IdentifierKind::Name, IdentifierKind::Address].into_iter().take(steps - 1) {
        let mine = ClaimOwner::Account(registrations[0].id);
        assert_eq!(store.claim(kind, &registrations).await.unwrap(), [mine]);
    }
    registrations
}

async fn an_interrupted_registration_leaves_no_claims(topology: Topology) {
    let redis = Redis::start(topology).await;
    let (store, accounts) = accounts(&redis).await;
    for steps in 1..=3 {
        let name = format!("stops_after_{steps}");
        begin(&store, &name, steps).await;
        assert_eq!(store.registrations().await.unwrap().len(), 1);
        assert_eq!(sweep(&accounts).await, 1);
        assert_free(&accounts, &name, true).await;
        register_directly(&accounts, &name).await;
        assert_free(&accounts, &name, false).await;
    }
    assert_eq!(sweep(&accounts).await, 0);
    assert_checked(&accounts, 3).await;
}

async fn an_interrupted_sweep_is_continued(topology: Topology) {
    let redis = Redis::start(topology).await;
    let (store, accounts) = accounts(&redis).await;
    for steps in 1..=2 {
        let name = format!("swept_{steps}");
        let ids = [begin(&store, &name, 3).await[0].id];
        let aborted = store.abort(&ids).await.unwrap();
        assert_eq!(aborted.len(), 1);
        // It cannot be activated any more, and its claims are stale.
        assert_eq!(store.activate(&ids).await.unwrap(), [false]);
        assert_free(&accounts, &name, true).await;
        if steps == 2 {
            store.release(&aborted, Duration::ZERO).await.unwrap();
        }
        let user = register_directly(&accounts, &name).await;
        assert_eq!(sweep(&accounts).await, 1);
        assert!(store.registrations().await.unwrap().is_empty());
        assert_eq!(accounts.get(user.id).await.unwrap(), user);
    }
    assert_checked(&accounts, 2).await;
}

async fn a_stalled_registration_cannot_continue_after_its_abort(topology: Topology) {
    let redis = Redis::start(topology).await;
    let (store, accounts) = accounts(&redis).await;
    for steps in 1..=3 {
        let name = format!("stalls_after_{steps}");
        let stalled = begin(&store, &name, steps).await;
        assert_eq!(sweep(&accounts).await, 1);
        // The stalled process continues. Its new claims are stale.
        for kind in [IdentifierKind::Name, IdentifierKind::Address].into_iter().skip(steps - 1) {
            store.claim(kind, &stalled).await.unwrap();
        }
        assert_free(&accounts, &name, true).await;
        let user = register_directly(&accounts, &name).await;
        assert_eq!(store.activate(&[stalled[0].id]).await.unwrap(), [false]);
        store.release(&stalled, Duration::ZERO).await.unwrap();
        store.drop_registrations(&[stalled[0].id]).await.unwrap();
        assert_eq!(accounts.get_by_name(&stalled[0].name).await.unwrap(), user);
        assert!(accounts.get(stalled[0].id).await.is_err());
    }
    // In the other order: an activated registration is not aborted.
    let ids = [begin(&store, "in_time", 3).await[0].id];
    assert_eq!(store.activate(&ids).await.unwrap(), [true]);
    assert!(store.abort(&ids).await.unwrap().is_empty());
    store.drop_registrations(&ids).await.unwrap();
    assert_eq!(store.activate(&ids).await.unwrap(), [true], "repeated after a lost answer");
    assert_checked(&accounts, 4).await;
}

async fn an_interrupted_deletion_frees_the_name(topology: Topology) {
    let redis = Redis::start(topology).await;
    let (store, accounts) = accounts(&redis).await;
    for steps in 1..=2 {
        let user = register_directly(&accounts, "ann").await;
        let record = accounts.get_own(user.id).await.unwrap();
        assert!(
            !store.delete(user.id, &Hash::none(), Duration::ZERO).await.unwrap(),
            "another password"
        );
        for _ in 0..2 {
            assert!(store.delete(user.id, &record.password, Duration::ZERO).await.unwrap());
        }
        let deleted = store.deleted(user.id).await.unwrap().unwrap();
        if steps == 2 {
            store.release(&[deleted.claims], Duration::ZERO).await.unwrap();
        }
        assert_free(&accounts, "ann", true).await;
        let again = register_directly(&accounts, "ann").await;
        assert_eq!(accounts.deletions(20).await.unwrap(), [user.id]);
        // Its remaining steps do not affect the new owner.
        for _ in 0..2 {
            accounts.confirm_deletion(user.id).await.unwrap();
        }
        assert!(accounts.deletions(20).await.unwrap().is_empty());
        assert!(store.read(&[user.id]).await.unwrap()[0].is_none());
        assert_eq!(accounts.get_by_name(&deleted_name()).await.unwrap(), again);
        assert_checked(&accounts, 1).await;
        let record = accounts.get_own(again.id).await.unwrap();
        store.delete(again.id, &record.password, Duration::ZERO).await.unwrap();
        accounts.confirm_deletion(again.id).await.unwrap();
    }
    assert_checked(&accounts, 0).await;
}

fn deleted_name() -> Name {
    Name::parse("name", "ann").unwrap()
}

#[tokio::test]
async fn ids_grow_though_the_clock_goes_back() {
    let redis = Redis::start(Topology::Single).await;
    let (store, _) = accounts(&redis).await;
    // As if ids had been issued four minutes from now.
    let now = std::time::SystemTime::now();
    let later = now + Duration::from_secs(4 * 60);
    let since_epoch = later.duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    let tick = (since_epoch - microblog_domain::Stamp::EPOCH_MS) * 4;
    let mut admin = redis.nodes()[0].admin().await;
    for partition in Partition::all() {
        let mut set = microblog_testkit::redis::cmd("SET");
        set.arg(format!("user:{{{partition}}}:clock")).arg(tick);
        set.query_async::<()>(&mut admin).await.unwrap();
    }
    let drafts: Vec<_> = (0..4000).map(|i| draft(&format!("user{i}"))).collect();
    let mut last = std::collections::HashMap::new();
    for drafts in drafts.chunks(1000) {
        for registration in store.create(drafts).await.unwrap() {
            let id = registration.id;
            assert!(id.created_at() >= later - Duration::from_millis(1), "{id}");
            let before = last.insert(id.partition(), id);
            assert!(before.is_none_or(|before| before < id), "{before:?} then {id}");
        }
    }
}

#[tokio::test]
async fn a_registration_is_not_aborted_early() {
    let redis = Redis::start(Topology::Single).await;
    let (store, accounts) = accounts(&redis).await;
    // Aborts after three seconds.
    let mut slow = Sweeper::new(accounts.clone(), Duration::from_secs(2));
    begin(&store, "slow", 2).await;
    assert_eq!(slow.sweep().await.unwrap(), 0);
    assert_eq!(slow.sweep().await.unwrap(), 0);
    // Meanwhile the name is taken.
    assert_free(&accounts, "slow", false).await;
    eventually("it is aborted in the end", PATIENCE, async || slow.sweep().await.unwrap() == 1)
        .await;
    assert_free(&accounts, "slow", true).await;
}

#[tokio::test]
async fn a_damaged_registration_does_not_block_the_sweeper() {
    let redis = Redis::start(Topology::Single).await;
    let (store, accounts) = accounts(&redis).await;
    let mut admin = redis.nodes()[0].admin().await;
    for (name, damage) in [
        ("odd", &["HSET", "draft", "\n\u{3}a b"][..]),
        ("short", &["HSET", "draft", "short"]),
        ("torn", &["HDEL", "email"]),
    ] {
        let id = begin(&store, name, 3).await[0].id;
        let mut command = microblog_testkit::redis::cmd(damage[0]);
        command.arg(format!("user:{{{}}}:profile:{id}", id.partition())).arg(&damage[1..]);
        command.query_async::<()>(&mut admin).await.unwrap();
    }
    begin(&store, "sound", 3).await;
    assert_eq!(sweep(&accounts).await, 1);
    assert_free(&accounts, "sound", true).await;
    assert_eq!(sweep(&accounts).await, 0);
}

#[tokio::test]
async fn a_deletion_is_confirmed_in_any_state_of_the_account() {
    let redis = Redis::start(Topology::Single).await;
    let (_, accounts) = accounts(&redis).await;
    let password = Password::parse_given("password", PASSWORD).unwrap();
    let mut admin = redis.nodes()[0].admin().await;
    for damage in [&["HSET", "draft", "ann"][..], &["HDEL", "email"], &["DEL"]] {
        let user = register_directly(&accounts, "ann").await;
        accounts.delete(user.id, Some(&password)).await.unwrap();
        let mut command = microblog_testkit::redis::cmd(damage[0]);
        let profile = format!("user:{{{}}}:profile:{}", user.id.partition(), user.id);
        command.arg(profile).arg(&damage[1..]);
        command.query_async::<()>(&mut admin).await.unwrap();
        assert_eq!(accounts.deletions(20).await.unwrap(), [user.id]);
        accounts.confirm_deletion(user.id).await.unwrap();
        assert!(accounts.deletions(20).await.unwrap().is_empty(), "{damage:?}");
    }
    assert_checked(&accounts, 0).await;
}

async fn an_interrupted_deletion_holds_the_name(topology: Topology) {
    let redis = Redis::start(topology).await;
    let hold = Duration::from_secs(3600);
    let (store, accounts) = support::accounts_with_hold(&redis, hold).await;
    for steps in 1..=2 {
        let name = format!("ann{steps}");
        let user = register_directly(&accounts, &name).await;
        let record = accounts.get_own(user.id).await.unwrap();
        assert!(store.delete(user.id, &record.password, hold).await.unwrap());
        let deleted = store.deleted(user.id).await.unwrap().unwrap();
        if steps == 2 {
            store.release(&[deleted.claims], hold).await.unwrap();
        }
        for _ in 0..2 {
            assert_free(&accounts, &name, false).await;
            let rival = begin(&store, &name, 1).await;
            let person =
                ImportEntry { name: rival[0].name.clone(), email: support::email("other") };
            let imported = accounts.import(vec![person], None).await.unwrap();
            assert_eq!((imported.ids, imported.created), (vec![None], 0));
            assert_eq!(sweep(&accounts).await, 1);
            accounts.confirm_deletion(user.id).await.unwrap();
        }
    }
    assert_checked(&accounts, 0).await;
}

#[tokio::test]
async fn a_confirmed_deletion_removes_the_failure_counter() {
    let redis = Redis::start(Topology::Single).await;
    let (store, accounts) = accounts(&redis).await;
    let user = register_directly(&accounts, "ann").await;
    let record = accounts.get_own(user.id).await.unwrap();
    // Interrupted after its first step.
    assert!(store.delete(user.id, &record.password, Duration::ZERO).await.unwrap());
    store.attempt(&Login::Address(draft("ann").address)).await.unwrap();
    accounts.confirm_deletion(user.id).await.unwrap();
    let mut admin = redis.nodes()[0].admin().await;
    let mut counted = microblog_testkit::redis::cmd("EXISTS");
    counted.arg(support::attempts("ann@example.org"));
    assert_eq!(counted.query_async::<u64>(&mut admin).await.unwrap(), 0);
}
