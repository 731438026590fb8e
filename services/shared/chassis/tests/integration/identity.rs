//! Caller identity: propagated between servers; unsigned identities are rejected.

use std::{fs, sync::Arc};

use futures::{FutureExt as _, StreamExt as _, stream};
use microblog_chassis::{
    Config, Peer, Service, context,
    identity::{HEADER, Identity, KeyFile, Signer},
    mutate,
};
use microblog_domain::UserId;
use microblog_proto::user::{
    GetUserByNameRequest, VerifyRequest, VerifyResponse, user_service_client::UserServiceClient,
};
use tempfile::NamedTempFile;
use tokio::sync::mpsc;
use tonic::{Code, Request, Status};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::support::{Server, Stub, code_and_reason, config, get, request};

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const OTHER: &str = "101112131415161718191a1b1c1d1e1f000102030405060708090a0b0c0d0e0f";

fn keys(text: &str) -> KeyFile {
    let file = NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    KeyFile::open(file.path()).unwrap()
}

fn with_keys() -> Config {
    Config { identity_key_file: Some(keys(KEY)), ..config() }
}

fn user(id: u64) -> UserId {
    UserId::new(id).unwrap()
}

/// A service that responds with the identity of the call.
fn identity_stub() -> Stub {
    Stub::new().get(|_| async { Ok(current_identity()) })
}

fn current_identity() -> String {
    format!("{:?}", context::identity())
}

/// Calls a server with an identity signed by a key.
async fn call_as(server: &Server, key: &str, identity: Identity) -> Result<String, Status> {
    let signer = Signer::new(Some(keys(key)), identity);
    let mut client = UserServiceClient::with_interceptor(server.channel(), signer);
    let answer = client.get_user_by_name(GetUserByNameRequest::default()).await?;
    Ok(answer.into_inner().user.unwrap().name)
}

/// A server whose handler calls a peer that responds with the identity.
fn relay<F>(work: impl Fn(Peer) -> F + Clone + Send + Sync + 'static) -> (Server, Server)
where
    F: Future<Output = Result<String, Status>> + Send + 'static,
{
    let inner = Server::start(identity_stub().service(), with_keys());
    let peer = Peer::remote(&inner.url(), &with_keys()).unwrap();
    let outer = Stub::new().get(move |_| work(peer.clone()));
    (Server::start(outer.service(), with_keys()), inner)
}

#[tokio::test]
async fn signed_identity_is_accepted() {
    let server = Server::start(identity_stub().service(), with_keys());
    for identity in [Identity::Anonymous, Identity::User(user(7)), Identity::System] {
        assert_eq!(call_as(&server, KEY, identity).await.unwrap(), format!("{identity:?}"));
    }
}

#[tokio::test]
async fn unsigned_identity_is_rejected() {
    let assert_rejected = |status: Status| {
        let expected = (Code::Unauthenticated, "ERROR_REASON_IDENTITY_INVALID".to_owned());
        assert_eq!(code_and_reason(&status), expected, "{status:?}");
        assert!(!status.message().contains("AAAA"), "{status:?}");
    };
    let reached = Stub::new().get(|_| async { panic!("no handler is reached") });
    let server = Server::start(reached.service(), with_keys());
    assert_rejected(call_as(&server, OTHER, Identity::System).await.unwrap_err());
    assert_rejected(server.client().get_user_by_name(request(None)).await.unwrap_err());
    let long = "A".repeat(4096);
    for headers in [vec!["v1.system.99999999999.AAAA"], vec![""], vec!["a", "b"], vec![&long]] {
        let mut request = request(None);
        for header in headers {
            request.metadata_mut().append(HEADER, header.parse().unwrap());
        }
        assert_rejected(server.client().get_user_by_name(request).await.unwrap_err());
    }
    let mut health = HealthClient::new(server.channel());
    health.check(HealthCheckRequest::default()).await.unwrap();
}

#[tokio::test]
async fn identity_is_propagated_to_remote_peers() {
    let (outer, _inner) = relay(|peer| async { get(peer, "").await });
    for identity in [Identity::Anonymous, Identity::User(user(7)), Identity::System] {
        assert_eq!(call_as(&outer, KEY, identity).await.unwrap(), format!("{identity:?}"));
    }
}

#[tokio::test]
async fn act_for_changes_the_identity_of_later_calls() {
    let (outer, _inner) = relay(|peer| async {
        let first = get(peer.clone(), "").await?;
        context::act_for(user(7));
        let written = peer.clone();
        let second = mutate(async { get(written, "").await }).await?;
        let third = context::as_system(get(peer.clone(), "")).await?;
        let by_hand = tokio::spawn(get(peer.clone(), "")).await.unwrap()?;
        Ok([first, second, third, by_hand, get(peer, "").await?].join(" "))
    });
    let seen = call_as(&outer, KEY, Identity::Anonymous).await.unwrap();
    assert_eq!(seen, "Anonymous User(UserId(7)) System Anonymous User(UserId(7))");
}

#[tokio::test]
async fn identity_is_propagated_to_local_peers() {
    let local = Peer::local(&identity_stub().service(), &with_keys());
    let outer = Stub::new().get(move |_| {
        let local = local.clone();
        async move {
            let first = get(local.clone(), "").await?;
            context::act_for(user(7));
            Ok([first, get(local, "").await?].join(" "))
        }
    });
    let outer = Server::start(outer.service(), with_keys());
    assert_eq!(call_as(&outer, KEY, Identity::System).await.unwrap(), "System User(UserId(7))");
}

#[tokio::test]
async fn stream_keeps_the_identity_set_by_its_handler() {
    let stub = Stub::new().verify(|| {
        context::act_for(user(7));
        let answer =
            || VerifyResponse { violations: vec![current_identity()], ..VerifyResponse::default() };
        stream::repeat_with(move || Ok(answer())).take(2).boxed()
    });
    let server = Server::start(stub.service(), with_keys());
    let signer = Signer::new(Some(keys(KEY)), Identity::Anonymous);
    let mut client = UserServiceClient::with_interceptor(server.channel(), signer);
    let mut answers = client.verify(VerifyRequest::default()).await.unwrap().into_inner();
    for _ in 0..2 {
        let answer = answers.message().await.unwrap().unwrap();
        assert_eq!(answer.violations, ["User(UserId(7))"]);
    }
}

#[tokio::test]
async fn background_jobs_act_as_the_system() {
    let inner = Server::start(identity_stub().service(), with_keys());
    let peer = Peer::remote(&inner.url(), &with_keys()).unwrap();
    let (sender, mut received) = mpsc::unbounded_channel();
    let job = async move {
        let _ = sender.send(get(peer, "").await);
        std::future::pending().await
    };
    let service = Service { background: vec![job.boxed()], ..Stub::new().service() };
    let _server = Server::start(service, with_keys());
    assert_eq!(received.recv().await.unwrap().unwrap(), "System");
}

#[tokio::test]
async fn without_keys_identities_are_neither_sent_nor_checked() {
    let headers = Stub::new().get(|request: Request<GetUserByNameRequest>| async move {
        Ok(format!("{} {}", current_identity(), request.metadata().contains_key(HEADER)))
    });
    let inner = Server::start(headers.service(), config());
    let peer = Arc::new(inner.peer());
    let outer = Stub::new().get(move |_| {
        context::act_for(user(7));
        let peer = Peer::clone(&peer);
        async move { get(peer, "").await }
    });
    let outer = Server::start(outer.service(), config());
    assert_eq!(call_as(&outer, OTHER, Identity::System).await.unwrap(), "Anonymous false");
}
