//! Sessions and failed log-ins at the level of the store.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use microblog_domain::UserId;
use microblog_proto::{common::ErrorReason as Reason, user as pb};
use microblog_testkit::{Store as Redis, Topology, eventually};
use microblog_user::{
    Accounts, Address, Fingerprint, Hash, Login, Token,
    store::{Attempt, SESSIONS_MAX, Store},
};

use crate::support::{self, PASSWORD, PATIENCE, System, accounts, assert_rejected, register};

/// An account whose sessions a store opens without a log-in.
struct Account {
    id: UserId,
    address: Address,
    password: Hash,
    store: Store,
    /// Readers of the same store.
    accounts: Accounts,
}

impl Account {
    async fn register(system: &System) -> Self {
        let (store, accounts) = accounts(&system.redis).await;
        let id = UserId::new(register(&system.client, "ann").await.id).unwrap();
        let record = accounts.get_own(id).await.unwrap();
        let address = record.address().unwrap();
        Self { id, address, password: record.password, store, accounts }
    }

    async fn open(&self, token: Fingerprint, end: SystemTime) {
        let opened = self.store.open_session(self.id, &self.address, &self.password, token, end);
        assert!(opened.await.unwrap());
    }
}

#[tokio::test]
async fn the_session_that_expires_first_is_evicted() {
    let system = System::start(Topology::Single).await;
    let ann = Account::register(&system).await;
    let mut tokens = Vec::new();
    for i in 0..=SESSIONS_MAX as u64 {
        let token = Token::issue(ann.id).unwrap();
        let end = SystemTime::now() + Duration::from_secs(100 + i);
        // Twice, as after a lost response.
        for _ in 0..2 {
            ann.open(token.fingerprint(), end).await;
        }
        tokens.push(token.reveal());
    }
    assert!(support::authenticate(&system.client, &tokens[0]).await.is_err());
    for token in &tokens[1..] {
        assert_eq!(support::authenticate(&system.client, token).await.unwrap(), ann.id.get());
    }
    let end = SystemTime::now() + Duration::from_secs(100);
    let late = Token::issue(ann.id).unwrap().fingerprint();
    let wrong = Hash::none();
    let opened = ann.store.open_session(ann.id, &ann.address, &wrong, late, end);
    assert!(!opened.await.unwrap());
}

const ROUNDS: u64 = 200;

// Each has its own connection and client-side cache, like replicas.
#[tokio::test]
async fn ended_sessions_are_invalidated_in_other_replicas() {
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
            for _ in ["read", "cached"] {
                assert_eq!(other.authenticate(&text).await.unwrap().0, id, "{round}");
            }
            system.client.clone().logout(pb::LogoutRequest { token: text.clone() }).await.unwrap();
            assert!(other.authenticate(&text).await.is_err(), "{round}: ended");
            assert_eq!(other.authenticate(&kept).await.unwrap().0, id, "{round}");
        }
        if let Redis::Single(server) = &system.redis {
            // Besides those of the function that opens a session: two changes for five reads.
            let reads = server.commandstats().await.get("zrange").copied().unwrap_or_default();
            assert!(reads - ROUNDS < 4 * ROUNDS, "{reads}: nothing is cached");
        }
        // All sessions end, with a new password or the account's deletion.
        let new_password = "another one than that".to_owned();
        let change = pb::ChangePasswordRequest {
            user_id: id.get(),
            current_password: PASSWORD.to_owned(),
            new_password: new_password.clone(),
        };
        system.client.clone().change_password(change).await.unwrap();
        assert!(other.authenticate(&kept.reveal()).await.is_err());
        let last = support::login(&system.client, "ann", &new_password).await.unwrap();
        assert_eq!(other.authenticate(&last).await.unwrap().0, id);
        let delete = pb::DeleteUserRequest { user_id: id.get(), password: new_password };
        system.client.clone().delete_user(delete).await.unwrap();
        assert!(other.authenticate(&last).await.is_err());
    }
}

#[tokio::test]
async fn a_cached_session_expires() {
    let system = System::start(Topology::Single).await;
    let ann = Account::register(&system).await;
    let token = Token::issue(ann.id).unwrap();
    // As stored: in whole milliseconds.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let end = UNIX_EPOCH + Duration::from_millis(now + 1500);
    ann.open(token.fingerprint(), end).await;
    // It keeps the key alive.
    let longer = Token::issue(ann.id).unwrap();
    ann.open(longer.fingerprint(), end + Duration::from_secs(100)).await;
    let text = token.reveal();
    // On a machine of any speed: reads that start after the expiry are rejected, those before
    // succeed.
    let mut was_rejected = false;
    while !was_rejected {
        let before = SystemTime::now();
        was_rejected = ann.accounts.authenticate(&text).await.is_err();
        let after = SystemTime::now();
        assert!(!was_rejected || after >= end, "rejected before its expiry");
        assert!(was_rejected || before < end, "accepted after its expiry");
    }
}

#[tokio::test]
async fn a_batch_of_users_authenticates_a_session() {
    let system = System::start(Topology::Single).await;
    let ann = Account::register(&system).await;
    let bob = register(&system.client, "bob").await.id;
    let batch = async |session_token: &str| {
        let (user_ids, session_token) = (vec![bob], session_token.to_owned());
        let request = pb::BatchGetUsersRequest { user_ids, session_token, ..Default::default() };
        let answer = system.client.clone().batch_get_users(request).await?.into_inner();
        assert_eq!(answer.users[0].id, bob);
        Ok(answer.session_user_id)
    };
    let [token, short, unknown] = [(); 3].map(|()| Token::issue(ann.id).unwrap());
    ann.open(token.fingerprint(), SystemTime::now() + Duration::from_secs(100)).await;
    ann.open(short.fingerprint(), SystemTime::now() + Duration::from_millis(300)).await;
    let [token, short, unknown] = [token, short, unknown].map(|token| token.reveal());

    assert_eq!(batch("").await.unwrap(), 0, "no session");
    assert_eq!(batch(&token).await.unwrap(), ann.id.get());
    for invalid in [&unknown, " ", "?", &token[1..], &format!("{token} "), &"x".repeat(1 << 20)] {
        assert_rejected(batch(invalid).await, Reason::TokenInvalid);
    }
    eventually("it expires", PATIENCE, async || batch(&short).await.is_err()).await;
    assert_rejected(batch(&short).await, Reason::TokenInvalid);
    system.client.clone().logout(pb::LogoutRequest { token: token.clone() }).await.unwrap();
    assert_rejected(batch(&token).await, Reason::TokenInvalid);
}

#[tokio::test]
async fn attempts_are_throttled_after_the_fifth_failure() {
    let redis = Redis::start(Topology::Single).await;
    let (store, _) = accounts(&redis).await;
    let address = Address::stored("ann@example.org").unwrap();
    for _ in 0..5 {
        assert_eq!(
            store.attempt(&Login::Address(address.clone())).await.unwrap(),
            Attempt::Allowed(None)
        );
    }
    store.reset_attempts(&address).await.unwrap();
    support::set_failures(&redis, address.as_str(), 11).await;
    assert_eq!(
        store.attempt(&Login::Address(address.clone())).await.unwrap(),
        Attempt::Allowed(None)
    );
    let throttled = store.attempt(&Login::Address(address.clone())).await.unwrap();
    // 1 s after the fifth failure, doubled for each of the next seven.
    assert!(matches!(throttled, Attempt::Throttled(wait) if wait <= Duration::from_secs(128)));
    store.reset_attempts(&address).await.unwrap();
    assert_eq!(
        store.attempt(&Login::Address(address.clone())).await.unwrap(),
        Attempt::Allowed(None)
    );
}
