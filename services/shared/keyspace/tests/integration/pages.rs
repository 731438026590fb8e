//! Pages of a sorted set against a model: no duplicates and no gaps, in both orders, with equal
//! scores, and while entries are added and removed between pages.

use std::collections::{BTreeMap, BTreeSet};

use microblog_keyspace::{Entry, Keyspace, Order, Range, redis};
use microblog_testkit::{RedisServer, Store, Topology};
use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{TestCaseResult, TestRunner},
};

use crate::support::{USER, key, open};

/// A change before a page is read.
#[derive(Clone, Debug)]
enum Change {
    Add(u64, u64),
    Remove(u64),
}

#[derive(Clone, Debug)]
struct Case {
    // member → score
    start: BTreeMap<u64, u64>,
    changes: Vec<Vec<Change>>,
    order: Order,
    above: Option<u64>,
    count: usize,
}

fn cases() -> impl Strategy<Value = Case> {
    // Few scores, so that many entries share one; members whose lexicographic order differs from the
    // numeric one.
    let (member, score) = (1..400_u64, prop_oneof![0..3_u64, 0..40_u64]);
    let entries = prop_oneof![4 => 0..60_usize, 1 => 100..300_usize];
    let entries =
        entries.prop_flat_map(|count| vec((1..400_u64, prop_oneof![0..3_u64, 0..40_u64]), count));
    let change = prop_oneof![
        (member.clone(), score).prop_map(|(member, score)| Change::Add(member, score)),
        member.prop_map(Change::Remove),
    ];
    let changes = prop_oneof![Just(Vec::new()), vec(vec(change, 0..4), 0..20)];
    let order = prop_oneof![Just(Order::Newest), Just(Order::Oldest)];
    (entries, changes, order, prop::option::of(0..40_u64), 1..8_usize).prop_map(
        |(start, changes, order, above, count)| {
            let start = start.into_iter().collect();
            Case { start, changes, order, above, count }
        },
    )
}

// The model: the page after `after`, in the order of Redis.
fn expected(model: &BTreeMap<u64, u64>, case: &Case, after: Option<Entry>) -> (Vec<Entry>, bool) {
    let position = |entry: &Entry| (entry.score, entry.member.to_string());
    let mut entries: Vec<Entry> = model
        .iter()
        .map(|(&member, &score)| Entry { member, score })
        .filter(|entry| case.above.is_none_or(|above| entry.score > above))
        .collect();
    entries.sort_by_key(position);
    if case.order == Order::Newest {
        entries.reverse();
    }
    entries.retain(|entry| {
        after.is_none_or(|after| match case.order {
            Order::Newest => position(entry) < position(&after),
            Order::Oldest => position(entry) > position(&after),
        })
    });
    let more = entries.len() > case.count;
    entries.truncate(case.count);
    (entries, more)
}

async fn change(keyspace: &Keyspace, key: &str, change: &Change, model: &mut BTreeMap<u64, u64>) {
    let mut command = match change {
        Change::Add(..) => redis::cmd("ZADD"),
        Change::Remove(_) => redis::cmd("ZREM"),
    };
    command.arg(key);
    match *change {
        Change::Add(member, score) => {
            model.insert(member, score);
            command.arg(score).arg(member);
        }
        Change::Remove(member) => {
            model.remove(&member);
            command.arg(member);
        }
    }
    keyspace.query::<()>(command).await.unwrap();
}

async fn check(keyspace: &Keyspace, case: &Case) -> TestCaseResult {
    let key = key(1, "pages");
    let mut clear = redis::cmd("UNLINK");
    clear.arg(&key);
    keyspace.query::<()>(clear).await.unwrap();
    let mut model = BTreeMap::new();
    for (&member, &score) in &case.start {
        change(keyspace, &key, &Change::Add(member, score), &mut model).await;
    }
    let (mut after, mut seen) = (None, BTreeSet::new());
    for page in 0.. {
        for step in case.changes.get(page).into_iter().flatten() {
            change(keyspace, &key, step, &mut model).await;
        }
        let range = Range { order: case.order, after, above: case.above, count: case.count };
        let read = keyspace.page(&key, range).await.unwrap();
        let (entries, more) = expected(&model, case, after);
        prop_assert_eq!(&read.entries, &entries, "page {} after {:?}", page, after);
        prop_assert_eq!(read.more, more);
        for entry in &read.entries {
            prop_assert!(seen.insert((entry.member, entry.score)), "twice: {:?}", entry);
        }
        after = read.entries.last().copied().or(after);
        if !more {
            break;
        }
    }
    Ok(())
}

#[test]
fn pages_agree_with_a_model() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = runtime.block_on(RedisServer::start());
    let keyspace = open(server.url(USER));
    let mut runner = TestRunner::new(ProptestConfig { cases: 200, ..ProptestConfig::default() });
    let outcome = runner.run(&cases(), |case| runtime.block_on(check(&keyspace, &case)));
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

#[tokio::test]
async fn thousands_of_entries_with_one_score_are_paged_on_a_cluster() {
    let store = Store::start(Topology::Cluster).await;
    let keyspace = open(store.url(USER));
    let key = key(9, "ties");
    let mut add = redis::cmd("ZADD");
    add.arg(&key);
    (1..=5000_u64).for_each(|member| {
        add.arg(7).arg(member);
    });
    keyspace.query::<()>(add).await.unwrap();
    let (mut after, mut seen) = (None, BTreeSet::new());
    loop {
        let range = Range { order: Order::Newest, after, above: None, count: 200 };
        let page = keyspace.page(&key, range).await.unwrap();
        assert!(page.entries.iter().all(|entry| seen.insert(entry.member)));
        after = page.entries.last().copied();
        if !page.more {
            break;
        }
    }
    assert_eq!(seen.len(), 5000);
}

#[tokio::test]
async fn page_of_a_long_list_is_one_command() {
    let server = RedisServer::start().await;
    let keyspace = open(server.url(USER));
    let key = key(1, "long");
    for start in (0..100_000_u64).step_by(10_000) {
        let mut add = redis::cmd("ZADD");
        add.arg(&key);
        (start..start + 10_000).for_each(|member| {
            add.arg(member).arg(member);
        });
        keyspace.query::<()>(add).await.unwrap();
    }
    server.reset_commandstats().await;
    let mut after = None;
    for _ in 0..10 {
        let range = Range { order: Order::Newest, after, above: None, count: 50 };
        let page = keyspace.page(&key, range).await.unwrap();
        assert_eq!(page.entries.len(), 50);
        after = page.entries.last().copied();
    }
    assert_eq!(after, Some(Entry { member: 99_500, score: 99_500 }));
    assert_eq!(server.commandstats().await["zrange"], 10);
}
