//! Service discovery: endpoints are added and removed.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use microblog_chassis::Peer;
use microblog_testkit::WAIT_TIMEOUT;
use tokio::sync::Semaphore;
use tonic::Code;

use crate::{
    caller::{Kind, Load, call, frequent_refresh, peer_at},
    replica::{FakeResolver, Replica, hosts},
    support::{config, eventually},
};

#[tokio::test]
async fn added_endpoint_gets_calls() {
    let [first, second] = hosts();
    let replicas = [first, second].map(Replica::start);
    let names = FakeResolver::new(&[first]);
    let peer = peer_at(&names, &frequent_refresh());
    for _ in 0..100 {
        call(&peer, Kind::NotIdempotent).await.unwrap();
    }
    assert_eq!(replicas[1].calls(), 0);
    names.set(Some(&[second, first]));
    eventually("it gets calls", async || {
        call(&peer, Kind::NotIdempotent).await.unwrap();
        replicas[1].calls() > 0
    })
    .await;
}

#[tokio::test]
async fn removed_endpoint_finishes_its_calls_and_gets_no_more() {
    let [stays, goes] = hosts();
    let stays = Replica::start(stays);
    let (gate, held) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let mut goes = Replica::start_with(goes, {
        let (gate, held) = (gate.clone(), held.clone());
        move |_| {
            let (gate, held) = (gate.clone(), held.clone());
            async move {
                held.add_permits(1);
                gate.acquire().await.unwrap().forget();
                Ok(())
            }
        }
    });
    let names = FakeResolver::new(&[goes.address]);
    let peer = peer_at(&names, &frequent_refresh());
    let slow = tokio::spawn({
        let peer = peer.clone();
        async move { call(&peer, Kind::NotIdempotent).await }
    });
    held.acquire().await.unwrap().forget();
    names.set(Some(&[stays.address]));
    // Calls to the removed endpoint also block.
    eventually("calls go elsewhere", async || {
        let called = call(&peer, Kind::NotIdempotent);
        tokio::time::timeout(Duration::from_millis(500), called).await.is_ok()
    })
    .await;
    let before = goes.calls();
    // Enough concurrent calls to reach each endpoint.
    for called in join_all((0..100).map(|_| call(&peer, Kind::NotIdempotent))).await {
        called.unwrap();
    }
    assert_eq!(goes.calls(), before);
    assert!(!slow.is_finished(), "it is under way");
    gate.add_permits(1);
    slow.await.unwrap().expect("it ends as it should");
    // No connection delays the drain, which ends before its timeout.
    tokio::time::timeout(WAIT_TIMEOUT, goes.stop()).await.expect("it drains");
}

#[tokio::test]
async fn calls_are_balanced_across_endpoints() {
    let replicas = hosts::<3>().map(Replica::start);
    let names = FakeResolver::new(&replicas.each_ref().map(|replica| replica.address));
    let peer = peer_at(&names, &frequent_refresh());
    let load = Load::start(&peer, &[Kind::NotIdempotent], 10);
    eventually("many calls are made", async || load.made() > 3_000).await;
    assert_eq!(load.end().await.len(), 0);
    let calls = replicas.each_ref().map(Replica::calls);
    assert!(calls.iter().all(|&calls| calls > 500), "{calls:?}");
}

#[tokio::test]
async fn failed_resolution_keeps_the_known_endpoints() {
    let [first, second] = hosts();
    let replica = Replica::start(first);
    let names = FakeResolver::new(&[first]);
    let peer = peer_at(&names, &frequent_refresh());
    call(&peer, Kind::NotIdempotent).await.unwrap();
    for unknown in [None, Some(&[][..])] {
        names.set(unknown);
        let lookups = names.lookups();
        eventually("the name is resolved", async || {
            call(&peer, Kind::NotIdempotent).await.unwrap();
            names.lookups() > lookups + 3
        })
        .await;
    }
    // Resolution recovers.
    drop(replica);
    let _replica = Replica::start(second);
    names.set(Some(&[second]));
    eventually("it is found", async || call(&peer, Kind::NotIdempotent).await.is_ok()).await;
}

#[tokio::test]
async fn losing_all_endpoints_triggers_a_refresh() {
    let [first, second] = hosts();
    let mut replica = Replica::start(first);
    let names = FakeResolver::new(&[first]);
    let mut rarely = config();
    rarely.peer_refresh_ms = 3_600_000;
    let peer = peer_at(&names, &rarely);
    call(&peer, Kind::NotIdempotent).await.unwrap();
    let _other = Replica::start(second);
    names.set(Some(&[second]));
    replica.kill().await;
    eventually("it is found", async || call(&peer, Kind::NotIdempotent).await.is_ok()).await;
}

#[tokio::test]
async fn unresolved_name_is_unavailable_until_it_resolves() {
    let [address] = hosts();
    let names = FakeResolver::default();
    let peer = peer_at(&names, &frequent_refresh());
    let (_, status) = call(&peer, Kind::NotIdempotent).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    let _replica = Replica::start(address);
    names.set(Some(&[address]));
    eventually("it is found", async || call(&peer, Kind::NotIdempotent).await.is_ok()).await;
}

#[tokio::test]
async fn each_url_is_an_endpoint() {
    let replicas = hosts::<2>().map(Replica::start);
    let urls = replicas.each_ref().map(|replica| format!("http://{}", replica.address));
    let peer = Peer::remote(&urls.join(","), &config()).unwrap();
    eventually("both get calls", async || {
        call(&peer, Kind::NotIdempotent).await.unwrap();
        replicas.iter().all(|replica| replica.calls() > 0)
    })
    .await;
}

#[tokio::test]
async fn system_resolver_resolves_localhost() {
    let replica = Replica::start(hosts::<1>().map(|host| ([127, 0, 0, 1], host.port()).into())[0]);
    let url = format!("http://localhost:{}", replica.address.port());
    let peer = Peer::remote(&url, &config()).unwrap();
    call(&peer, Kind::NotIdempotent).await.unwrap();
}
