//! Loads, and changes that are applied meanwhile.

use microblog_storage::Applied;
use microblog_testkit::Topology;

use crate::support::{System, change, contents, keys};

#[tokio::test]
async fn there_is_one_lease_and_none_on_an_entry() {
    let system = System::start(Topology::Cluster).await;
    assert!(!system.install(4, 1, 1, &contents([1])).await, "without a lease");
    assert!(system.lease(4, 1).await);
    assert!(!system.lease(4, 2).await);
    assert!(!system.install(4, 2, 1, &contents([1])).await);
    assert!(system.install(4, 1, 1, &contents([1])).await);
    assert!(!system.lease(4, 3).await);
    assert!(!system.install(4, 1, 1, &contents([1])).await, "the lease has ended");
}

#[tokio::test]
async fn changes_during_a_load_are_not_lost() {
    let system = System::start(Topology::Single).await;
    // The loader has read revision 2: the first change is in it.
    assert!(system.lease(4, 1).await);
    for (before, time) in [(1, 20), (2, 30), (3, 40)] {
        let change = change(4, before, before + 1, Some(contents([time])));
        assert_eq!(system.apply(change).await, Applied::Collected);
    }
    assert!(system.install(4, 1, 2, &contents([10, 20])).await);
    assert_eq!(system.entry(&keys(4)).await, Some((4, contents([10, 20, 30, 40]))));
}

#[tokio::test]
async fn a_load_that_lacks_a_change_installs_nothing() {
    let system = System::start(Topology::Single).await;
    let loaded = contents([10]);
    assert!(system.lease(4, 1).await);
    // The change to revision 3 did not come here.
    let later = system.apply(change(4, 3, 4, Some(contents([40])))).await;
    assert_eq!(later, Applied::Collected);
    assert!(!system.install(4, 1, 2, &loaded).await);

    assert!(system.lease(4, 2).await);
    assert_eq!(system.apply(change(4, 2, 3, None)).await, Applied::Absent);
    assert!(!system.install(4, 2, 2, &loaded).await, "the change cannot be put in place");

    assert!(system.lease(4, 3).await);
    for before in 2..100 {
        system.apply(change(4, before, before + 1, Some(contents([before])))).await;
    }
    assert!(!system.install(4, 3, 2, &loaded).await, "too many changes");

    assert!(system.lease(4, 4).await);
    system.cache.remove(&[keys(4)]).await.unwrap();
    assert!(!system.install(4, 4, 2, &loaded).await, "the entry was removed");
}
