//! Clocks that jumped ahead: registrations are rejected, and a repair sets the clocks back.

use std::time::{Duration, SystemTime};

use microblog_domain::{Partition, Stamp};
use microblog_keyspace::redis::pipe;
use microblog_proto::{common::ErrorReason, user as pb};
use microblog_testkit::Topology;

use crate::support::{self, Client, System, register};

const TICKS_PER_YEAR: u64 = 365 * 24 * 3_600 * 4_000;

async fn verify(client: &Client, repair: bool) -> (Vec<String>, Vec<String>) {
    let request = pb::VerifyRequest { repair };
    let mut stream = client.clone().verify(request).await.unwrap().into_inner();
    let (mut violations, mut repaired) = (Vec::new(), Vec::new());
    while let Some(message) = stream.message().await.unwrap() {
        violations.extend(message.violations);
        violations.extend(message.pending);
        repaired.extend(message.repaired);
    }
    (violations, repaired)
}

#[tokio::test]
async fn a_repair_sets_clocks_back_and_registrations_succeed() {
    let system = System::start_without_jobs(Topology::Single, &[]).await;
    let ann = register(&system.client, "ann").await.id;
    // Both clocks were a year ahead for a moment.
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap() - Duration::from_millis(Stamp::EPOCH_MS);
    let now = since.as_millis() as u64 * 4;
    let jumped = now + TICKS_PER_YEAR;
    let mut admin = system.redis.nodes()[0].admin().await;
    let mut jump = pipe();
    for partition in Partition::all() {
        let clock = format!("user:{{{partition}}}:clock");
        jump.set(&clock, jumped + 3).ignore();
        jump.set(format!("{clock}:rests"), format!("{now};{jumped}")).ignore();
    }
    jump.exec_async(&mut admin).await.unwrap();

    let request = support::registration("bob");
    support::assert_rejected(
        system.client.clone().register(request).await,
        ErrorReason::ClockAhead,
    );
    let (violations, _) = verify(&system.client, false).await;
    assert_eq!(violations.len(), Partition::all().count());
    assert!(violations[0].starts_with("the clock of partition 0 is 3153"), "{}", violations[0]);

    let (left, repaired) = verify(&system.client, true).await;
    assert_eq!(left, Vec::<String>::new());
    assert_eq!(repaired.len(), 1_001, "as many as a message has, and how many more");
    assert!(repaired[0].starts_with("the clock of partition 0 is set back by 3153"));
    assert_eq!(verify(&system.client, true).await, Default::default());

    let bob = register(&system.client, "bob").await.id;
    assert!(bob > ann && bob >> 12 < now / 4 + 60_000, "{ann} {bob}");
}
