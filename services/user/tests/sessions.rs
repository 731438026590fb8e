//! Sessions and failed log-ins, as the store counts them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod harness;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use harness::{PASSWORD, System, accounts, register};
use microblog_domain::UserId;
use microblog_proto::user as pb;
use microblog_testkit::{Store as Redis, Topology};
use microblog_user::{
    Accounts, Email, Fingerprint, Hash, Login, Token,
    store::{Attempt, SESSIONS_MAX, Store},
};

/// An account whose sessions a store opens without a log-in.
struct Account {
    id: UserId,
    email: Email,
    password: Hash,
    store: Store,
    /// What reads over the same store.
    accounts: Accounts,
}

impl Account {
    async fn register(system: &System) -> Self {
        let (store, accounts) = accounts(&system.redis).await;
        let id = UserId::new(register(&system.client, "ann").await.id).unwrap();
        let record = accounts.get_own(id).await.unwrap();
        let email = Email::parse("email", &record.email).unwrap();
        Self { id, email, password: record.password, store, accounts }
    }

    async fn open(&self, token: Fingerprint, end: SystemTime) {
        let opened = self.store.open_session(self.id, &self.email, &self.password, token, end);
        assert!(opened.await.unwrap());
    }
}

#[tokio::test]
async fn of_too_many_sessions_the_one_that_would_end_first_ends() {
    let system = System::start(Topology::Single).await;
    let ann = Account::register(&system).await;
    let mut tokens = Vec::new();
    for i in 0..=SESSIONS_MAX as u64 {
        let token = Token::issue(ann.id).unwrap();
        let end = SystemTime::now() + Duration::from_secs(100 + i);
        // Twice, as when an answer was lost.
        for _ in 0..2 {
            ann.open(token.fingerprint(), end).await;
        }
        tokens.push(token.reveal());
    }
    assert!(harness::authenticate(&system.client, &tokens[0]).await.is_err());
    for token in &tokens[1..] {
        assert_eq!(harness::authenticate(&system.client, token).await.unwrap(), ann.id.get());
    }
    let end = SystemTime::now() + Duration::from_secs(100);
    let late = Token::issue(ann.id).unwrap().fingerprint();
    let wrong = Hash::none();
    let opened = ann.store.open_session(ann.id, &ann.email, &wrong, late, end);
    assert!(!opened.await.unwrap());
}

const ROUNDS: u64 = 200;

// Each has a connection and a memory of its own, as replicas have.
#[tokio::test]
async fn what_one_ends_another_does_not_remember() {
    for topology in [Topology::Single, Topology::Cluster] {
        let system = System::start_without_jobs(topology, &[]).await;
        let ann = Account::register(&system).await;
        let (id, other) = (ann.id, &ann.accounts);
        let kept = Token::issue(id).unwrap();
        let end = SystemTime::now() + Duration::from_secs(100);
        ann.open(kept.fingerprint(), end).await;
        if let Redis::Single(server) = &system.redis {
            server.reset_commandstats().await;
        }
        for round in 0..ROUNDS {
            let token = Token::issue(id).unwrap();
            let (text, kept) = (token.reveal(), kept.reveal());
            assert!(other.authenticate(&text).await.is_err(), "{round}: not opened yet");
            ann.open(token.fingerprint(), end).await;
            for _ in ["read", "remembered"] {
                assert_eq!(other.authenticate(&text).await.unwrap().0, id, "{round}");
            }
            system.client.clone().logout(pb::LogoutRequest { token: text.clone() }).await.unwrap();
            assert!(other.authenticate(&text).await.is_err(), "{round}: ended");
            assert_eq!(other.authenticate(&kept).await.unwrap().0, id, "{round}");
        }
        if let Redis::Single(server) = &system.redis {
            // Beside those of the function that opens one: two changes for five looks.
            let reads = server.commandstats().await.get("zrange").copied().unwrap_or_default();
            assert!(reads - ROUNDS < 4 * ROUNDS, "{reads}: nothing is remembered");
        }
        // All at once, with the password; and with the account.
        let new_password = "another one than that".to_owned();
        let change = pb::ChangePasswordRequest {
            user_id: id.get(),
            current_password: PASSWORD.to_owned(),
            new_password: new_password.clone(),
        };
        system.client.clone().change_password(change).await.unwrap();
        assert!(other.authenticate(&kept.reveal()).await.is_err());
        let last = harness::login(&system.client, "ann", &new_password).await.unwrap();
        assert_eq!(other.authenticate(&last).await.unwrap().0, id);
        let delete = pb::DeleteUserRequest { user_id: id.get(), password: new_password };
        system.client.clone().delete_user(delete).await.unwrap();
        assert!(other.authenticate(&last).await.is_err());
    }
}

#[tokio::test]
async fn a_session_that_is_remembered_ends_in_time() {
    let system = System::start(Topology::Single).await;
    let ann = Account::register(&system).await;
    let token = Token::issue(ann.id).unwrap();
    // As it is kept: in whole milliseconds.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let end = UNIX_EPOCH + Duration::from_millis(now + 1500);
    ann.open(token.fingerprint(), end).await;
    // Which keeps the key.
    let longer = Token::issue(ann.id).unwrap();
    ann.open(longer.fingerprint(), end + Duration::from_secs(100)).await;
    let text = token.reveal();
    // However long that takes, what was asked after its end is refused, and nothing before.
    let mut was_refused = false;
    while !was_refused {
        let before = SystemTime::now();
        was_refused = ann.accounts.authenticate(&text).await.is_err();
        let after = SystemTime::now();
        assert!(!was_refused || after >= end, "refused before its end");
        assert!(was_refused || before < end, "taken after its end");
    }
}

#[tokio::test]
async fn five_attempts_are_free_and_others_have_to_wait() {
    let redis = Redis::start(Topology::Single).await;
    let (store, _) = accounts(&redis).await;
    let email = Email::parse("email", "ann@example.org").unwrap();
    for _ in 0..5 {
        assert_eq!(
            store.attempt(&Login::Email(email.clone())).await.unwrap(),
            Attempt::Allowed(None)
        );
    }
    store.forget_attempts(&email).await.unwrap();
    harness::set_failures(&redis, email.as_str(), 11).await;
    assert_eq!(store.attempt(&Login::Email(email.clone())).await.unwrap(), Attempt::Allowed(None));
    let refused = store.attempt(&Login::Email(email.clone())).await.unwrap();
    // 1 s after the fifth failure, and twice as long after each of the next seven.
    assert!(matches!(refused, Attempt::Refused(wait) if wait <= Duration::from_secs(128)));
    store.forget_attempts(&email).await.unwrap();
    assert_eq!(store.attempt(&Login::Email(email.clone())).await.unwrap(), Attempt::Allowed(None));
}
