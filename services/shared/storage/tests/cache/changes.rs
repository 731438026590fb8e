//! What a change does to an entry.

use microblog_storage::{Applied, Change, Contents, EntryLimits, Patch, Token, entry::RECORD};
use microblog_testkit::Topology;

use crate::support::{System, change, contents, keys, limits};

const TOPOLOGIES: [Topology; 2] = [Topology::Single, Topology::Cluster];

#[tokio::test]
async fn a_change_is_put_on_the_revision_before_it_alone() {
    for topology in TOPOLOGIES {
        let system = System::start(topology).await;
        system.load(4, 7, &contents([1, 2])).await;
        assert_eq!(system.apply(change(4, 7, 8, Some(contents([3])))).await, Applied::Put);
        assert_eq!(system.entry(&keys(4)).await, Some((8, contents([1, 2, 3]))));
        // A repeated one, and an older one.
        for (before, after) in [(7, 8), (5, 6)] {
            let again = change(4, before, after, Some(contents([9])));
            assert_eq!(system.apply(again).await, Applied::Newer);
        }
        assert_eq!(system.entry(&keys(4)).await, Some((8, contents([1, 2, 3]))));
        // One is missing between them.
        let gap = change(4, 9, 10, Some(contents([5])));
        assert_eq!(system.apply(gap).await, Applied::Deleted);
        assert_eq!(system.entry(&keys(4)).await, None);
        assert_eq!(system.apply(change(4, 10, 11, Some(contents([6])))).await, Applied::Absent);
    }
}

#[tokio::test]
async fn a_change_that_cannot_be_put_deletes_what_is_older() {
    let system = System::start(Topology::Single).await;
    for (id, before, after, applied) in [
        (4, 6, 8, Applied::Deleted),
        (8, 7, 8, Applied::Deleted),
        // Nothing changed: the entry has that revision.
        (12, 7, 7, Applied::Newer),
        // Nothing changed, and the entry is older.
        (16, 8, 8, Applied::Deleted),
    ] {
        system.load(id, 7, &contents([1])).await;
        assert_eq!(system.apply(change(id, before, after, None)).await, applied, "{id}");
        let is_there = system.entry(&keys(id)).await.is_some();
        assert_eq!(is_there, applied == Applied::Newer, "{id}");
    }
}

#[tokio::test]
async fn a_long_list_has_a_set() {
    let system = System::start(Topology::Cluster).await;
    system.load(4, 1, &contents(0..48)).await;
    assert_eq!(system.set(&keys(4)).await, None);
    assert_eq!(system.apply(change(4, 1, 2, Some(contents([48])))).await, Applied::Put);
    assert_eq!(system.set(&keys(4)).await.map(|ids| ids.len()), Some(49));
    assert_eq!(system.apply(change(4, 2, 3, Some(contents([49, 50])))).await, Applied::Put);
    assert_eq!(system.set(&keys(4)).await.map(|ids| ids.len()), Some(51));
}

fn removal(id: u64, records: usize, removed: impl IntoIterator<Item = u64>) -> Change {
    let Contents { front, .. } = contents([]);
    let removed = removed.into_iter().map(|time| 1_000 + time * 4).collect();
    let patch = Some(Patch { front: front.to_vec(), added: Vec::new(), removed });
    Change { patch, limits: limits(records), ..change(id, 1, 2, None) }
}

/// Redis may evict any key. A page of the list is read without the set.
#[tokio::test]
async fn a_set_that_was_evicted_stays_away() {
    let system = System::start(Topology::Single).await;
    for count in [60, 200] {
        for (what, next, left) in [
            ("a removal", removal(4, 1_000, [5]), count - 1),
            ("an addition", change(4, 1, 2, Some(contents([count]))), count + 1),
            ("another front", change(4, 1, 2, Some(contents([]))), count),
        ] {
            system.cache.remove(&[keys(4)]).await.unwrap();
            system.load(4, 1, &contents(0..count)).await;
            system.delete(&keys(4).set).await;
            assert_eq!(system.apply(next).await, Applied::Put, "{what}, {count} records");
            let (revision, contents) = system.entry(&keys(4)).await.unwrap();
            let records = contents.records.len() / RECORD;
            assert_eq!((revision, records), (2, left as usize), "{what}, {count} records");
            assert_eq!(system.set(&keys(4)).await, None, "{what}, {count} records");
        }
    }
}

/// A service has the counts of an item before the rest of its front, which never changes.
#[tokio::test]
async fn a_change_replaces_the_beginning_of_a_longer_front() {
    let system = System::start(Topology::Single).await;
    let times: Vec<u64> = (0..400).collect();
    for records in [&[][..], &[1, 2], &times] {
        for (front, expected) in
            [("34", "34-text"), ("56-next", "56-next"), ("7890-longer", "7890-longer")]
        {
            for (added, removed) in [(None, None), (Some(500), None), (Some(500), Some(1))] {
                let removed = removed.filter(|time| records.contains(time));
                let case = format!("{} records, {front}, {added:?}, {removed:?}", records.len());
                system.cache.remove(&[keys(4)]).await.unwrap();
                let front_of = |text: &str| text.as_bytes().to_vec();
                let loaded = contents(records.iter().copied());
                let loaded = Contents { front: front_of("12-text").into(), ..loaded };
                system.load(4, 1, &loaded).await;
                let patch = Patch {
                    front: front_of(front),
                    added: contents(added).records,
                    removed: removed.map(|time| 1_000 + time * 4).into_iter().collect(),
                };
                let change = Change { patch: Some(patch), ..change(4, 1, 2, None) };
                assert_eq!(system.apply(change).await, Applied::Put, "{case}");
                let left = records.iter().copied().filter(|time| Some(*time) != removed);
                let expected =
                    Contents { front: front_of(expected).into(), ..contents(left.chain(added)) };
                assert_eq!(system.entry(&keys(4)).await, Some((2, expected)), "{case}");
            }
        }
    }
}

/// The kinds of a service have limits of their own.
#[tokio::test]
async fn an_entry_of_a_kind_without_sets_has_none() {
    let system = System::start(Topology::Single).await;
    let without = EntryLimits::without_sets(100);
    for (limits, has_set) in [(limits(100), true), (without, false)] {
        system.cache.remove(&[keys(4)]).await.unwrap();
        assert!(system.lease(4, 1).await);
        let loaded = contents(0..60);
        let installed = system.cache.install(&keys(4), Token(1), 1, &loaded, limits).await.unwrap();
        assert!(installed && system.set(&keys(4)).await.is_some() == has_set, "{limits:?}");
        let next = Change { limits, ..change(4, 1, 2, Some(contents([60]))) };
        assert_eq!(system.apply(next).await, Applied::Put);
        let ids = system.set(&keys(4)).await.map(|ids| ids.len());
        assert_eq!(ids, has_set.then_some(61), "{limits:?}");
        // Both are cut alike.
        let many = Change { limits, ..change(4, 2, 3, Some(contents(61..130))) };
        assert_eq!(system.apply(many).await, Applied::Put);
        let entry = system.entry(&keys(4)).await;
        let records = entry.map(|(_, contents)| contents.records.len() / RECORD);
        assert_eq!(records, Some(110), "{limits:?}");
    }
}

/// What comes in the place of a removed record is not known if older ones may be missing.
#[tokio::test]
async fn a_record_that_is_not_there_or_has_one_behind_it_ends_the_entry() {
    let system = System::start(Topology::Single).await;
    for (count, records_max, removed, left) in [
        (60, 100, 5..6, Some(59)),
        (49, 100, 5..6, Some(48)),
        (1, 100, 0..1, Some(0)),
        (60, 60, 5..6, None),
        (60, 61, 5..6, Some(59)),
        (60, 100, 60..61, None),
        // There are more than the newest.
        (64, 60, 5..9, Some(60)),
        (64, 60, 5..10, None),
        // An older one.
        (64, 60, 100..101, Some(64)),
        (60, 100, 5..21, Some(44)),
        (60, 100, 5..22, None),
    ] {
        system.cache.remove(&[keys(4)]).await.unwrap();
        system.load(4, 1, &contents(0..count)).await;
        let case = format!("{count} records, at most {records_max}, {removed:?} removed");
        let applied = system.apply(removal(4, records_max, removed)).await;
        assert_eq!(applied, if left.is_some() { Applied::Put } else { Applied::Deleted }, "{case}");
        let entry = system.entry(&keys(4)).await;
        let found = entry.map(|(_, contents)| contents.records.len() / RECORD);
        assert_eq!(found, left, "{case}");
        let set = system.set(&keys(4)).await.map(|set| set.len());
        assert_eq!(set, left.filter(|&left| left > 48), "{case}");
    }
}

#[tokio::test]
async fn a_collected_change_that_cannot_be_put_ends_the_entry() {
    let system = System::start(Topology::Single).await;
    let remove =
        Patch { front: contents([]).front.to_vec(), added: Vec::new(), removed: vec![1_021] };
    for changes in [1, 2] {
        assert!(system.lease(4, 7).await);
        let remove = Change { patch: Some(remove.clone()), ..change(4, 1, 2, None) };
        let add = change(4, 2, 3, Some(contents([9])));
        for change in [remove, add].into_iter().take(changes) {
            assert_eq!(system.apply(change).await, Applied::Collected);
        }
        assert!(!system.install(4, 7, 1, &contents([1, 2])).await, "{changes} changes");
        assert_eq!(system.entry(&keys(4)).await, None);
    }
}

#[tokio::test]
async fn a_set_without_its_entry_goes_with_the_next_change() {
    let system = System::start(Topology::Single).await;
    system.load(4, 1, &contents(0..100)).await;
    system.delete(&keys(4).entry).await;
    assert_eq!(system.apply(change(4, 1, 2, Some(contents([100])))).await, Applied::Absent);
    assert_eq!(system.set(&keys(4)).await, None);
}

#[tokio::test]
async fn a_list_keeps_its_newest_records() {
    let system = System::start(Topology::Single).await;
    let limited = |before, times: std::ops::Range<u64>| {
        let mut change = change(4, before, before + 1, Some(contents(times)));
        change.limits = limits(100);
        change
    };
    system.load(4, 1, &contents(0..100)).await;
    assert_eq!(system.apply(limited(1, 100..120)).await, Applied::Put);
    assert_eq!(system.entry(&keys(4)).await, Some((2, contents(0..120))));
    assert_eq!(system.apply(limited(2, 120..121)).await, Applied::Put);
    assert_eq!(system.entry(&keys(4)).await, Some((3, contents(11..121))));
    assert_eq!(system.set(&keys(4)).await.map(|ids| ids.len()), Some(110));
    // Some may end before older ones would be needed.
    for revision in 3..13 {
        let end = removal(4, 100, [123 - revision]);
        let end = Change { before: revision, after: revision + 1, ..end };
        assert_eq!(system.apply(end).await, Applied::Put);
    }
    assert_eq!(system.entry(&keys(4)).await, Some((13, contents(11..111))));
    let end = Change { before: 13, after: 14, ..removal(4, 100, [110]) };
    assert_eq!(system.apply(end).await, Applied::Deleted);
}

#[tokio::test]
async fn removed_entries_and_leases_are_gone() {
    let system = System::start(Topology::Cluster).await;
    let ids = [4, 8, 12, 16];
    for id in ids {
        system.load(id, 1, &contents(0..60)).await;
    }
    let all: Vec<_> = ids.into_iter().map(keys).collect();
    system.cache.remove(&all).await.unwrap();
    for keys in &all {
        assert_eq!((system.entry(keys).await, system.set(keys).await), (None, None));
    }
}
