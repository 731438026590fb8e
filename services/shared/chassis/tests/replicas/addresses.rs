//! Addresses that come and go.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use microblog_chassis::Peer;
use microblog_testkit::PATIENCE;
use tokio::sync::Semaphore;
use tonic::Code;

use crate::{
    caller::{Kind, Load, call, eager, named},
    replica::{Hosts, Replica, hosts},
    support::{config, eventually},
};

#[tokio::test]
async fn an_address_that_is_added_gets_calls() {
    let [first, second] = hosts();
    let replicas = [first, second].map(Replica::start);
    let names = Hosts::new(&[first]);
    let peer = named(&names, &eager());
    for _ in 0..100 {
        call(&peer, Kind::Once).await.unwrap();
    }
    assert_eq!(replicas[1].calls(), 0);
    names.set(Some(&[second, first]));
    eventually("it gets calls", async || {
        call(&peer, Kind::Once).await.unwrap();
        replicas[1].calls() > 0
    })
    .await;
}

#[tokio::test]
async fn an_address_that_is_gone_ends_its_calls_and_gets_no_more() {
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
    let names = Hosts::new(&[goes.address]);
    let peer = named(&names, &eager());
    let slow = tokio::spawn({
        let peer = peer.clone();
        async move { call(&peer, Kind::Once).await }
    });
    held.acquire().await.unwrap().forget();
    names.set(Some(&[stays.address]));
    // What goes there is held as well.
    eventually("calls go elsewhere", async || {
        let called = call(&peer, Kind::Once);
        tokio::time::timeout(Duration::from_millis(500), called).await.is_ok()
    })
    .await;
    let before = goes.calls();
    // So many at once that each address had some.
    for called in join_all((0..100).map(|_| call(&peer, Kind::Once))).await {
        called.unwrap();
    }
    assert_eq!(goes.calls(), before);
    assert!(!slow.is_finished(), "it is under way");
    gate.add_permits(1);
    slow.await.unwrap().expect("it ends as it should");
    // No connection holds it up, so that it ends long before its drain would be cut off.
    tokio::time::timeout(PATIENCE, goes.stop()).await.expect("it drains");
}

#[tokio::test]
async fn all_addresses_get_their_share() {
    let replicas = hosts::<3>().map(Replica::start);
    let names = Hosts::new(&replicas.each_ref().map(|replica| replica.address));
    let peer = named(&names, &eager());
    let load = Load::start(&peer, &[Kind::Once], 10);
    eventually("many calls are made", async || load.made() > 3_000).await;
    assert_eq!(load.end().await.len(), 0);
    let calls = replicas.each_ref().map(Replica::calls);
    assert!(calls.iter().all(|&calls| calls > 500), "{calls:?}");
}

#[tokio::test]
async fn a_name_that_cannot_be_looked_up_keeps_its_addresses() {
    let [first, second] = hosts();
    let replica = Replica::start(first);
    let names = Hosts::new(&[first]);
    let peer = named(&names, &eager());
    call(&peer, Kind::Once).await.unwrap();
    for unknown in [None, Some(&[][..])] {
        names.set(unknown);
        let asked = names.asked();
        eventually("it is looked up", async || {
            call(&peer, Kind::Once).await.unwrap();
            names.asked() > asked + 3
        })
        .await;
    }
    // And then it can be again.
    drop(replica);
    let _replica = Replica::start(second);
    names.set(Some(&[second]));
    eventually("it is found", async || call(&peer, Kind::Once).await.is_ok()).await;
}

#[tokio::test]
async fn a_name_is_looked_up_at_once_when_no_address_answers() {
    let [first, second] = hosts();
    let mut replica = Replica::start(first);
    let names = Hosts::new(&[first]);
    let mut rarely = config();
    rarely.peer_refresh_ms = 3_600_000;
    let peer = named(&names, &rarely);
    call(&peer, Kind::Once).await.unwrap();
    let _other = Replica::start(second);
    names.set(Some(&[second]));
    replica.kill().await;
    eventually("it is found", async || call(&peer, Kind::Once).await.is_ok()).await;
}

#[tokio::test]
async fn a_name_that_nobody_knows_yet_is_unavailable_and_found_later() {
    let [address] = hosts();
    let names = Hosts::default();
    let peer = named(&names, &eager());
    let (_, status) = call(&peer, Kind::Once).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    let _replica = Replica::start(address);
    names.set(Some(&[address]));
    eventually("it is found", async || call(&peer, Kind::Once).await.is_ok()).await;
}

#[tokio::test]
async fn several_urls_are_several_addresses() {
    let replicas = hosts::<2>().map(Replica::start);
    let urls = replicas.each_ref().map(|replica| format!("http://{}", replica.address));
    let peer = Peer::remote(&urls.join(","), &config()).unwrap();
    eventually("both get calls", async || {
        call(&peer, Kind::Once).await.unwrap();
        replicas.iter().all(|replica| replica.calls() > 0)
    })
    .await;
}

#[tokio::test]
async fn the_systems_names_are_looked_up() {
    let replica = Replica::start(hosts::<1>().map(|host| ([127, 0, 0, 1], host.port()).into())[0]);
    let url = format!("http://localhost:{}", replica.address.port());
    let peer = Peer::remote(&url, &config()).unwrap();
    call(&peer, Kind::Once).await.unwrap();
}
