//! Graceful shutdown of replicas.

use std::time::Duration;

use crate::{
    caller::{Kind, Load, call, frequent_refresh, peer_at},
    replica::{FakeResolver, Replica, hosts},
    support::eventually,
};

const ALL: [Kind; 3] = [Kind::Read, Kind::Write, Kind::NotIdempotent];

#[tokio::test]
async fn rolling_restart_fails_no_call() {
    let addresses = hosts::<3>();
    let mut replicas = addresses.map(|address| {
        Replica::start_with(address, |_| async {
            tokio::time::sleep(Duration::from_millis(3)).await;
            Ok(())
        })
    });
    let peer = peer_at(&FakeResolver::new(&addresses), &frequent_refresh());
    let load = Load::start(&peer, &ALL, 10);
    eventually("calls are made", async || load.made() > 500).await;
    for turn in 0..9 {
        let replica = &mut replicas[turn % addresses.len()];
        replica.stop().await;
        let made = load.made();
        eventually("calls are made by the others", async || load.made() > made + 100).await;
        replica.start_again();
        let calls = replica.calls();
        eventually("it is back", async || replica.calls() > calls + 50).await;
    }
    let failures = load.end().await;
    assert!(failures.is_empty(), "{}: {:?}", failures.len(), failures.first());
    let seen: usize = replicas.iter().map(Replica::calls).sum();
    let mut marks: Vec<String> = Vec::new();
    for method in [crate::caller::READ, crate::caller::WRITE, crate::caller::NOT_IDEMPOTENT] {
        marks.extend(replicas.iter().flat_map(|replica| replica.calls_of(method)));
    }
    marks.sort_unstable();
    marks.dedup();
    assert_eq!(marks.len(), seen, "a call was sent twice");
}

#[tokio::test]
async fn scaling_up_and_down_fails_no_call() {
    let addresses = hosts::<4>();
    let mut first = Replica::start(addresses[0]);
    let names = FakeResolver::new(&addresses[..1]);
    let peer = peer_at(&names, &frequent_refresh());
    let load = Load::start(&peer, &ALL, 10);
    let mut others: Vec<Replica> = Vec::new();
    for count in 2..=4 {
        let other = Replica::start(addresses[count - 1]);
        names.set(Some(&addresses[..count]));
        eventually("it gets calls", async || other.calls() > 20).await;
        others.push(other);
    }
    // As on Kubernetes: the name drops an address while its server stops.
    names.set(Some(&addresses[1..]));
    first.stop().await;
    others[0].stop().await;
    names.set(Some(&addresses[2..]));
    let made = load.made();
    eventually("calls are made", async || load.made() > made + 300).await;
    let failures = load.end().await;
    assert!(failures.is_empty(), "{}: {:?}", failures.len(), failures.first());
}

#[tokio::test]
async fn long_drain_fails_no_call() {
    let [drains, stays] = hosts();
    let mut drains = Replica::start_with(drains, |method| async move {
        // Longer than the other calls take.
        let time = if method == crate::caller::WRITE { 1_500 } else { 0 };
        tokio::time::sleep(Duration::from_millis(time)).await;
        Ok(())
    });
    let names = FakeResolver::new(&[drains.address]);
    let peer = peer_at(&names, &frequent_refresh());
    let slow = tokio::spawn({
        let peer = peer.clone();
        async move { call(&peer, Kind::Write).await }
    });
    eventually("it is under way", async || drains.calls() == 1).await;
    let _stays = Replica::start(stays);
    names.set(Some(&[drains.address, stays]));
    let load = Load::start(&peer, &[Kind::NotIdempotent], 10);
    // Meanwhile the kernel accepts connections that the server does not serve.
    drains.stop().await;
    let made = load.made();
    eventually("calls are made", async || load.made() > made + 100).await;
    let failures = load.end().await;
    assert!(failures.is_empty(), "{}: {:?}", failures.len(), failures.first());
    slow.await.unwrap().expect("it came to its end");
}
