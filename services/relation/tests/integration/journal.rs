//! The change journal: each change has an entry, and a change of a partition that has lost changes is
//! rejected before it writes.

use microblog_proto::{common::ErrorReason, relation as pb};
use microblog_relation::JournalEntry;
use microblog_testkit::{Topology, redis};
use tonic::Code;

use crate::support::{self, FOLLOWING, NONE, System, id, user};

async fn admin(system: &System) -> redis::aio::MultiplexedConnection {
    support::admin_of(&system.redis, &key()).await
}

fn key() -> String {
    format!("rel:{{{}}}:journal", user(1).partition())
}

async fn texts(system: &System) -> Vec<String> {
    let entries = support::journal_texts(&system.redis, user(1).partition()).await;
    // The stamp differs each time.
    let kind = |text: String| text.rsplit_once(' ').map_or(text.clone(), |(kind, _)| kind.into());
    entries.into_iter().map(|(_, text)| kind(text)).collect()
}

async fn started(topology: Topology) -> System {
    let system = System::start_without_jobs(topology).await;
    support::open_journal(&system.redis, user(1).partition()).await;
    system
}

#[tokio::test]
async fn every_change_has_an_entry_and_an_unchanged_edge_has_none() {
    for topology in [Topology::Single, Topology::Cluster] {
        let system = started(topology).await;
        let (one, two) = (id(1), id(2));
        let mut client = system.client.clone();
        let mute = pb::MuteRequest { user_id: one, target_id: two };
        let unmute = pb::UnmuteRequest { user_id: one, target_id: two };
        for _ in 0..2 {
            system.follow(one, two).await.unwrap();
        }
        for _ in 0..2 {
            system.unfollow(one, two).await.unwrap();
        }
        system.follow(one, two).await.unwrap();
        system.follow(two, one).await.unwrap();
        for _ in 0..2 {
            system.block(one, two).await.unwrap();
            client.mute(mute).await.unwrap();
        }
        let unblock = pb::UnblockRequest { user_id: one, target_id: two };
        for _ in 0..2 {
            client.unblock(unblock).await.unwrap();
            client.unmute(unmute).await.unwrap();
        }
        system.follow(one, two).await.unwrap();
        // Ends the follow in the partition of the blocked account.
        system.block(two, one).await.unwrap();
        system.store.forget(user(1)).await.unwrap();
        system.store.forget(user(1)).await.unwrap();
        let edge = |kind: &str| format!("{kind} {one} {two}");
        let inverse = |kind: &str| format!("{kind} {two} {one}");
        let expected = [
            edge("follow"),
            edge("unfollow"),
            // An end of what does not exist: it may have been recorded and lost.
            edge("still unfollow"),
            edge("follow"),
            inverse("followed"),
            edge("block"),
            edge("unfollow"),
            inverse("unfollowed"),
            edge("mute"),
            edge("unblock"),
            edge("unmute"),
            edge("still unblock"),
            edge("unmute"),
            edge("follow"),
            inverse("blocked"),
            edge("unfollow"),
            format!("forget {one}"),
        ];
        let found = texts(&system).await;
        assert_eq!(found[0], "opened");
        assert_eq!(found[1..], expected);
        let versions = support::journal_texts(&system.redis, user(1).partition()).await;
        let numbers: Vec<_> = versions.iter().map(|(version, _)| version.number()).collect();
        assert!(numbers.iter().copied().eq(0..numbers.len() as u64), "{numbers:?}");
    }
}

#[tokio::test]
async fn a_removed_account_has_an_entry() {
    let system = started(Topology::Single).await;
    system.follow(id(1), id(2)).await.unwrap();
    system.store.forget(user(1)).await.unwrap();
    microblog_relation::forget_marked(&system.store).await.unwrap();
    let journal = support::journal(&system.redis, user(1).partition()).await;
    assert!(matches!(journal.last(), Some(JournalEntry::Forgotten(of, _)) if *of == user(1)));
}

#[tokio::test]
async fn without_a_journal_changes_are_not_recorded() {
    let system = System::start_without_jobs(Topology::Single).await;
    assert_eq!(system.follow(id(1), id(2)).await.unwrap(), FOLLOWING);
    assert_eq!(system.unfollow(id(1), id(2)).await.unwrap(), NONE);
    assert_eq!(texts(&system).await, Vec::<String>::new());
}

/// Returns all that Redis knows of the journal, if there is one.
async fn contents(system: &System) -> Option<redis::Value> {
    let read = redis::cmd("XINFO").arg("STREAM").arg(key()).arg("FULL").take();
    read.query_async(&mut admin(system).await).await.ok()
}

/// Follows, then rolls the journal back in a way, and follows again.
async fn follow_after(rollback: redis::Cmd) -> (System, Result<i32, tonic::Status>) {
    let system = started(Topology::Single).await;
    for target in 2..5 {
        system.follow(id(1), id(target)).await.unwrap();
    }
    let mut admin = admin(&system).await;
    let () = rollback.query_async(&mut admin).await.unwrap();
    let followed = system.follow(id(1), id(5)).await;
    (system, followed)
}

#[tokio::test]
async fn a_change_of_a_partition_that_lost_changes_is_rejected() {
    let restored = |entries: &str| {
        // As in a copy of Redis that lacks the newest entries.
        let script = format!("redis.call('DEL', KEYS[1]) {entries} return 1");
        redis::cmd("EVAL").arg(script).arg(1).arg(key()).take()
    };
    let add = |version: &str| format!("redis.call('XADD', KEYS[1], '{version}', 'c', 'x')");
    // But for a journal that is not there, the first call has added `recovering`.
    for (name, entries) in [
        ("no journal", String::new()),
        ("one entry lost", [add("1-0"), add("1-1"), add("1-2")].join(" ")),
        ("all entries lost", add("1-0")),
        ("an older epoch", add("0-9")),
    ] {
        let (system, followed) = follow_after(restored(&entries)).await;
        support::assert_rejected(followed, Code::Unavailable, ErrorReason::Recovering);
        let before = contents(&system).await;
        for _ in 0..3 {
            let again = system.follow(id(1), id(6)).await;
            support::assert_rejected(again, Code::Unavailable, ErrorReason::Recovering);
        }
        assert_eq!(contents(&system).await, before, "{name}");
        let expected = 1 + entries.matches("XADD").count();
        assert_eq!(texts(&system).await.len(), if entries.is_empty() { 0 } else { expected });
        assert_eq!(system.counts(id(1)).await.0, 3, "{name}: nothing was changed");
    }
}

#[tokio::test]
async fn a_later_epoch_is_accepted() {
    let later = redis::cmd("XADD").arg(key()).arg("7-0").arg("c").arg("recovered").take();
    let (system, followed) = follow_after(later).await;
    assert_eq!(followed.unwrap(), FOLLOWING);
    let versions = support::journal_texts(&system.redis, user(1).partition()).await;
    assert_eq!(versions.last().unwrap().0, "7-1".parse().unwrap());
}
