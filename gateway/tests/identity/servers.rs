//! A system of separate servers on the network with common identity keys.

use std::{
    future::pending,
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use clap::Parser as _;
use microblog_chassis::{
    Config, Peer, Service, Worker,
    identity::{Identity, KeyFile, Signer},
    serve,
};
use microblog_domain::UserId;
use microblog_gateway::{Limits, Peers};
use microblog_proto::{
    gateway::{self, gateway_service_client::GatewayServiceClient},
    post::post_service_client::PostServiceClient,
    relation::relation_service_client::RelationServiceClient,
    timeline::timeline_service_client::TimelineServiceClient,
    user::user_service_client::UserServiceClient,
};
use microblog_testkit::{Files, PATIENCE, Store, Topology, eventually};
use tempfile::NamedTempFile;
use tonic::{
    Request,
    service::interceptor::InterceptedService,
    transport::{Channel, Endpoint},
};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

pub(crate) const PASSWORD: &str = "correct horse battery";
pub(crate) const SOON: Duration = PATIENCE;

const KEY: &str = "Pkkp6mPtnvoLtkqr4Xk39HUI1i6dRMuYVAh/J5lJoLQ=";

/// Whether the gateway calls services over the network or within the process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Calls {
    Remote,
    Inside,
}

/// A client of a service that sends a signed identity.
pub(crate) type As = InterceptedService<Channel, Signer>;

pub(crate) struct Servers {
    pub(crate) gateway: Channel,
    pub(crate) user: Channel,
    pub(crate) relation: Channel,
    pub(crate) post: Channel,
    pub(crate) timeline: Channel,
    pub(crate) notice: Channel,
    /// The transport from the gateway to the services.
    pub(crate) peers: Peers,
    keys: NamedTempFile,
    _callers: NamedTempFile,
    /// The databases, with the change feeds that the notice service follows.
    _databases: Files,
    _store: Store,
}

/// Two service callers with the secret `secret`: one acts for its own accounts, one for all.
const CALLERS: &str = r#"{"callers": [
    {
        "name": "own",
        "secrets_sha256": ["2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"],
        "methods": ["EnsureUser", "BatchResolveExternalIds", "Publish", "ViewHome"],
        "issuers": ["sso"],
        "acts_for": "own"
    },
    {
        "name": "any",
        "secrets_sha256": ["2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"],
        "methods": ["Publish", "ViewHome"],
        "acts_for": "anybody"
    }
]}"#;

/// Returns a request of a service caller for an account, or for itself.
pub(crate) fn by_caller<T>(name: &str, viewer: Option<u64>, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let credentials = format!("Caller {name}:secret").parse().unwrap();
    request.metadata_mut().insert("authorization", credentials);
    if let Some(viewer) = viewer {
        request.metadata_mut().insert("microblog-viewer", viewer.to_string().parse().unwrap());
    }
    request
}

/// An account with a session.
pub(crate) struct Member {
    pub(crate) id: u64,
    pub(crate) token: String,
}

impl Servers {
    pub(crate) async fn start(calls: Calls) -> Self {
        let store = Store::start(Topology::Single).await;
        let keys = NamedTempFile::new().unwrap();
        std::fs::write(keys.path(), KEY).unwrap();
        let flag = format!("--identity-key-file={}", keys.path().display());
        let url = |user: &str| format!("--redis-url={}", store.url(user));
        let databases = Files::new();
        let database = |service: &str| {
            let path = databases.path(&format!("{service}.db"));
            format!("--database-url=sqlite://{}", path.display())
        };

        let config =
            microblog_user::Config::parse_from(["user", &flag, &url("user"), &database("user")]);
        let chassis = config.chassis.clone();
        let service = microblog_user::service(&config, Worker::ONLY).await.unwrap();
        let (user, user_peer) = start(service, &chassis, calls);

        let config = microblog_relation::Config::parse_from([
            "relation",
            &flag,
            &url("relation"),
            &database("relation"),
        ]);
        let service = microblog_relation::service(&config, Worker::ONLY).await.unwrap();
        let (relation, relation_peer) = start(service, &chassis, calls);

        let config = microblog_timeline::Config::parse_from(["timeline", &flag, &url("timeline")]);
        let service =
            microblog_timeline::service(&config, relation_peer.clone(), None, Worker::ONLY);
        let (timeline, timeline_peer) = start(service.await.unwrap(), &chassis, calls);

        let config = microblog_post::Config::parse_from([
            "post",
            &flag,
            &url("post"),
            &database("post"),
            "--posts-per-minute=0",
        ]);
        let delivery = Some(timeline_peer.clone());
        let service = microblog_post::service(&config, delivery, Worker::ONLY).await.unwrap();
        let (post, post_peer) = start(service, &chassis, calls);

        let config = microblog_notice::Config::parse_from([
            "notice",
            &flag,
            &url("notice"),
            &database("notice"),
        ]);
        let peers = microblog_notice::Peers {
            user: user_peer.clone(),
            relation: relation_peer.clone(),
            post: post_peer.clone(),
        };
        let service = microblog_notice::service(&config, peers, Worker::ONLY).await.unwrap();
        let (notice, notice_peer) = start(service, &chassis, calls);

        let callers = NamedTempFile::new().unwrap();
        std::fs::write(callers.path(), CALLERS).unwrap();
        let callers_flag = format!("--callers-file={}", callers.path().display());
        let config = microblog_gateway::Config::parse_from(["gateway", &flag, &callers_flag]);
        let peers = Peers {
            user: user_peer,
            relation: relation_peer,
            post: post_peer,
            timeline: timeline_peer,
            notice: notice_peer,
        };
        let limits = Limits::new(&config.limits);
        let service = microblog_gateway::service(&config, limits, peers.clone(), Worker::ONLY);
        let (gateway, _) = start(service, &chassis, calls);
        let (_callers, _databases, _store) = (callers, databases, store);
        let servers = Self {
            gateway,
            user,
            relation,
            post,
            timeline,
            notice,
            peers,
            keys,
            _callers,
            _databases,
            _store,
        };
        servers.ready().await;
        servers
    }

    async fn ready(&self) {
        let services = [&self.user, &self.relation, &self.post, &self.timeline, &self.notice];
        for channel in services.into_iter().chain([&self.gateway]) {
            let mut health = HealthClient::new(channel.clone());
            eventually("the server serves", SOON, async || {
                let answer = health.check(HealthCheckRequest::default()).await;
                answer.is_ok_and(|it| it.into_inner().status() == ServingStatus::Serving)
            })
            .await;
        }
    }

    /// Returns a client of a service with this identity.
    pub(crate) fn signed(&self, service: &Channel, identity: Identity) -> As {
        let keys = KeyFile::open(self.keys.path()).unwrap();
        InterceptedService::new(service.clone(), Signer::new(Some(keys), identity))
    }

    /// Returns a client of a service without an identity.
    pub(crate) fn unsigned(service: &Channel) -> As {
        InterceptedService::new(service.clone(), Signer::new(None, Identity::Anonymous))
    }

    pub(crate) fn gateway(&self) -> GatewayServiceClient<Channel> {
        GatewayServiceClient::new(self.gateway.clone())
    }

    pub(crate) fn user(&self, identity: Identity) -> UserServiceClient<As> {
        UserServiceClient::new(self.signed(&self.user, identity))
    }

    pub(crate) fn relation(&self, identity: Identity) -> RelationServiceClient<As> {
        RelationServiceClient::new(self.signed(&self.relation, identity))
    }

    pub(crate) fn post(&self, identity: Identity) -> PostServiceClient<As> {
        PostServiceClient::new(self.signed(&self.post, identity))
    }

    pub(crate) fn timeline(&self, identity: Identity) -> TimelineServiceClient<As> {
        TimelineServiceClient::new(self.signed(&self.timeline, identity))
    }

    /// Registers an account and logs in.
    pub(crate) async fn join(&self, name: &str) -> Member {
        let email = format!("{name}@example.com");
        let registration = gateway::RegisterRequest {
            request_id: uuid::Uuid::new_v4().to_string(),
            email: email.clone(),
            name: name.to_owned(),
            password: PASSWORD.to_owned(),
            display_name: String::new(),
        };
        self.gateway().register(registration).await.unwrap();
        let login = gateway::LoginRequest { login: email, password: PASSWORD.to_owned() };
        let session = self.gateway().login(login).await.unwrap().into_inner();
        Member { id: session.user.unwrap().id, token: session.token }
    }
}

impl Member {
    /// Returns a request with this session's token.
    pub(crate) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let token = format!("Bearer {}", self.token).parse().unwrap();
        request.metadata_mut().insert("authorization", token);
        request
    }

    pub(crate) fn identity(&self) -> Identity {
        Identity::User(UserId::new(self.id).unwrap())
    }
}

/// Serves a service for the duration of the test. Returns the channel for tests, and the peer for
/// other services.
fn start(service: Service, config: &Config, calls: Calls) -> (Channel, Peer) {
    let inside = Peer::local(&service, config);
    let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let config = config.clone();
    let url = format!("http://{address}");
    let remote = Peer::remote(&url, &config).unwrap();
    tokio::spawn(async move { serve(listener, service, &config, pending()).await });
    let channel = Endpoint::from_shared(url).unwrap().connect_lazy();
    (channel, if calls == Calls::Remote { remote } else { inside })
}
