//! Servers that answer UNAVAILABLE, and how often they are asked again.

use std::time::Instant;

use futures::future::join_all;
use tonic::{Code, Status};

use crate::{
    caller::{Kind, ONCE, READ, WRITE, call, eager, named},
    replica::{Hosts, Replica, hosts},
    support::eventually,
};

fn unavailable() -> Status {
    Status::unavailable("the store does not answer")
}

#[tokio::test]
async fn what_one_cannot_answer_another_one_can() {
    let [fails, works] = hosts();
    let fails = Replica::start_with(fails, |_| async { Err(unavailable()) });
    let works = Replica::start(works);
    let peer = named(&Hosts::new(&[fails.address, works.address]), &eager());
    eventually("both are asked", async || {
        let _ = call(&peer, Kind::Halting).await;
        fails.calls() > 0 && works.calls() > 0
    })
    .await;
    for _ in 0..40 {
        call(&peer, Kind::Read).await.unwrap();
        call(&peer, Kind::Write).await.unwrap();
    }
    assert!(!fails.calls_of(READ).is_empty() && !fails.calls_of(WRITE).is_empty());
    let mut failed = 0;
    for _ in 0..40 {
        match call(&peer, Kind::Once).await {
            Ok(_) => {}
            Err((_, status)) => {
                assert_eq!(status.message(), "the store does not answer");
                failed += 1;
            }
        }
    }
    assert_eq!(fails.calls_of(ONCE).len(), failed);
    assert_eq!(works.calls_of(ONCE).len(), 40 - failed);
    assert!(failed > 0);
}

#[tokio::test]
async fn other_refusals_are_not_asked_for_twice() {
    let replicas = hosts::<2>().map(|address| {
        Replica::start_with(address, |_| async { Err(Status::not_found("nobody")) })
    });
    let names = Hosts::new(&replicas.each_ref().map(|replica| replica.address));
    let peer = named(&names, &eager());
    for _ in 0..50 {
        let (_, status) = call(&peer, Kind::Read).await.unwrap_err();
        assert_eq!(status.code(), Code::NotFound);
    }
    assert_eq!(replicas.iter().map(Replica::calls).sum::<usize>(), 50);
}

#[tokio::test]
async fn the_only_server_is_not_asked_twice() {
    let [address] = hosts();
    let only = Replica::start_with(address, |_| async { Err(unavailable()) });
    let peer = named(&Hosts::new(&[address]), &eager());
    for _ in 0..20 {
        call(&peer, Kind::Read).await.unwrap_err();
    }
    assert_eq!(only.calls(), 20);
}

#[tokio::test]
async fn of_what_all_refuse_a_tenth_is_asked_again() {
    const CALLS: usize = 5_000;
    // In each of the ten seconds for which a call counts: a busy machine takes longer than ten.
    const FLOOR: usize = 100;
    let started = Instant::now();
    let replicas =
        hosts::<2>().map(|address| Replica::start_with(address, |_| async { Err(unavailable()) }));
    let names = Hosts::new(&replicas.each_ref().map(|replica| replica.address));
    let peer = named(&names, &eager());
    for _ in 0..CALLS / 50 {
        for called in join_all((0..50).map(|_| call(&peer, Kind::Read))).await {
            assert_eq!(called.unwrap_err().1.code(), Code::Unavailable);
        }
    }
    let seen: usize = replicas.iter().map(Replica::calls).sum();
    let again = seen - CALLS;
    let spans = 2 + started.elapsed().as_secs() as usize / 10;
    assert!(again <= CALLS / 10 + spans * FLOOR, "{again} in {spans} times ten seconds");
    assert!(again >= CALLS / 10, "{again}");
}
