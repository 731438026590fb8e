//! Sessions and failed log-ins, as the store counts them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod harness;

use std::time::Duration;

use harness::{accounts, register};
use microblog_testkit::{Store as Redis, Topology};
use microblog_user::{
    Email, Hash, Token,
    store::{Attempt, SESSIONS_MAX},
};

#[tokio::test]
async fn of_too_many_sessions_the_one_that_would_end_first_ends() {
    let system = harness::System::start(Topology::Single).await;
    let (store, accounts) = accounts(&system.redis).await;
    let ann = register(&system.client, "ann").await;
    let id = microblog_domain::UserId::new(ann.id).unwrap();
    let record = accounts.get_own(id).await.unwrap();
    let email = Email::parse("email", &record.email).unwrap();
    let mut tokens = Vec::new();
    for i in 0..=SESSIONS_MAX as u64 {
        let token = Token::issue(id).unwrap();
        let end = std::time::SystemTime::now() + Duration::from_secs(100 + i);
        // Twice, as when an answer was lost.
        for _ in 0..2 {
            let opened =
                store.open_session(id, &email, &record.password, token.fingerprint(), end).await;
            assert!(opened.unwrap());
        }
        tokens.push(token.reveal());
    }
    assert!(harness::authenticate(&system.client, &tokens[0]).await.is_err());
    for token in &tokens[1..] {
        assert_eq!(harness::authenticate(&system.client, token).await.unwrap(), ann.id);
    }
    let end = std::time::SystemTime::now() + Duration::from_secs(100);
    let late = Token::issue(id).unwrap().fingerprint();
    assert!(!store.open_session(id, &email, &Hash::none(), late, end).await.unwrap());
}

#[tokio::test]
async fn five_attempts_are_free_and_others_have_to_wait() {
    let redis = Redis::start(Topology::Single).await;
    let (store, _) = accounts(&redis).await;
    let email = Email::parse("email", "ann@example.org").unwrap();
    for _ in 0..5 {
        assert_eq!(store.attempt(&email).await.unwrap(), Attempt::Allowed(None));
    }
    store.forget_attempts(&email).await.unwrap();
    harness::set_failures(&redis, email.as_str(), 11).await;
    assert_eq!(store.attempt(&email).await.unwrap(), Attempt::Allowed(None));
    let refused = store.attempt(&email).await.unwrap();
    // 1 s after the fifth failure, and twice as long after each of the next seven.
    assert!(matches!(refused, Attempt::Refused(wait) if wait <= Duration::from_secs(128)));
    store.forget_attempts(&email).await.unwrap();
    assert_eq!(store.attempt(&email).await.unwrap(), Attempt::Allowed(None));
}
