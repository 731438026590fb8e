//! A whole system in the test process, and its accounts.
//!
//! The gateway and the services call each other within the process; with `MICROBLOG_TEST_CALLS=remote`, over the
//! network, as in separate processes.

use std::{env, future::pending, net::TcpListener};

use clap::Parser as _;
use microblog_chassis::{Peer, Service, Worker, serve};
use microblog_gateway::{Config, Limits, Peers};
use microblog_proto::{
    gateway::{self, UserRef, gateway_service_client::GatewayServiceClient, user_ref::Ref},
    post::{self, post_service_client::PostServiceClient},
    relation::{self, relation_service_client::RelationServiceClient},
    timeline::timeline_service_client::TimelineServiceClient,
    user::{self, user_service_client::UserServiceClient},
};
use microblog_testkit::{Database, PATIENCE, Store, Topology, eventually, redis};
use tokio::task::JoinSet;
use tonic::Request;

use crate::call_recorder::CallRecorder;

pub(crate) const PASSWORD: &str = "correct horse battery";

/// The accounts or follows of one import: a call has a deadline, also on a busy machine.
const IMPORTED_AT_ONCE: usize = 1_000;

/// Which background jobs run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Jobs {
    /// All of them.
    Run,
    /// All but those of the gateway, whose calls would be recorded.
    OfServices,
    /// None, so that only the test causes changes, but those of the services with databases, which let their
    /// caches answer. Of these, post also delivers again what calls could not deliver.
    Rest,
}

/// Further flags of the services.
#[derive(Clone, Copy, Default)]
pub(crate) struct Flags<'a> {
    pub(crate) user: &'a [&'a str],
    pub(crate) relation: &'a [&'a str],
    /// None: no rate limits.
    pub(crate) post: &'a [&'a str],
    pub(crate) timeline: &'a [&'a str],
}

pub(crate) struct System {
    pub(crate) store: Store,
    pub(crate) peers: Peers,
    /// Between the gateway and its peers.
    pub(crate) recorder: CallRecorder,
    gateway: Peer,
    _jobs: JoinSet<()>,
}

/// An account with a session.
pub(crate) struct Member {
    pub(crate) id: u64,
    pub(crate) token: String,
}

impl System {
    /// Starts a system on a single redis-server.
    pub(crate) async fn start() -> Self {
        Self::start_on(Topology::Single, Jobs::Run, Flags::default()).await
    }

    /// Starts a system without the gateway's jobs.
    pub(crate) async fn of_services() -> Self {
        Self::start_on(Topology::Single, Jobs::OfServices, Flags::default()).await
    }

    /// Waits until the services answer from their caches.
    pub(crate) async fn caches(&self, member: &Member) {
        let mut admin = self.store.nodes()[0].admin().await;
        eventually("the caches are trusted", PATIENCE, async || {
            let request = relation::BatchGetCountsRequest { user_ids: vec![member.id] };
            self.relation().batch_get_counts(request).await.unwrap();
            let request = user::AuthenticateRequest { token: member.token.clone() };
            self.user().authenticate(request).await.unwrap();
            let request = post::ListUserPostsRequest { author_id: member.id, ..Default::default() };
            self.post().list_user_posts(request).await.unwrap();
            let mut is_cached = true;
            for keys in ["rel:*:following:*", "usr:*:sessions:*", "pst:*:author:*"] {
                let keys = redis::cmd("KEYS").arg(format!("{keys}:{}", member.id)).take();
                let keys: Vec<String> = keys.query_async(&mut admin).await.unwrap();
                is_cached &= !keys.is_empty();
            }
            is_cached
        })
        .await;
    }

    /// Starts a system with further flags for its services.
    pub(crate) async fn start_on(topology: Topology, jobs: Jobs, flags: Flags<'_>) -> Self {
        let store = Store::start(topology).await;
        let (recorder, mut running) = (CallRecorder::default(), JoinSet::new());
        let user = user_service(&store.url("user"), flags.user).await;
        let relation = relation_service(&store.url("relation"), flags.relation).await;
        // Calls between services are not recorded.
        let of_cached = if jobs == Jobs::Rest { Jobs::OfServices } else { jobs };
        let accounts = peer(without_jobs(&user), jobs, &mut running);
        let mut ready = vec![user.ready.clone(), relation.ready.clone()];
        let user = peer(recorder.on(user), of_cached, &mut running);
        let graph = peer(without_jobs(&relation), jobs, &mut running);
        let relation = peer(recorder.on(relation), of_cached, &mut running);
        let timeline =
            timeline_service(&store.url("timeline"), flags.timeline, graph.clone()).await;
        let delivery = peer(without_jobs(&timeline), jobs, &mut running);
        let timeline = peer(recorder.on(timeline), jobs, &mut running);
        let post = post_service(&store.url("post"), flags.post, Some(delivery)).await;
        ready.push(post.ready.clone());
        let posts = peer(without_jobs(&post), jobs, &mut running);
        let post = peer(recorder.on(post), of_cached, &mut running);
        let notice = notice_service(&store.url("notice"), [accounts, graph, posts]).await;
        let notice = peer(recorder.on(notice), jobs, &mut running);
        // A new cluster may need some time.
        for ready in ready {
            eventually("the store is ready", PATIENCE, async || ready().await).await;
        }
        let peers = Peers { user, relation, post, timeline, notice };
        let service = gateway_service(&config(), peers.clone(), Worker::ONLY);
        let own_jobs = if jobs == Jobs::Run { Jobs::Run } else { Jobs::Rest };
        let gateway = local(service, own_jobs, &mut running);
        Self { store, peers, recorder, gateway, _jobs: running }
    }

    pub(crate) fn gateway(&self) -> GatewayServiceClient<Peer> {
        GatewayServiceClient::new(self.gateway.clone())
    }

    pub(crate) fn user(&self) -> UserServiceClient<Peer> {
        UserServiceClient::new(self.peers.user.clone())
    }

    pub(crate) fn relation(&self) -> RelationServiceClient<Peer> {
        RelationServiceClient::new(self.peers.relation.clone())
    }

    pub(crate) fn post(&self) -> PostServiceClient<Peer> {
        PostServiceClient::new(self.peers.post.clone())
    }

    pub(crate) fn timeline(&self) -> TimelineServiceClient<Peer> {
        TimelineServiceClient::new(self.peers.timeline.clone())
    }

    /// Registers an account and logs in.
    pub(crate) async fn join(&self, name: &str) -> Member {
        let registration = registration(name);
        let user = self.gateway().register(registration).await.unwrap().into_inner().user.unwrap();
        let login = gateway::LoginRequest { login: email(name), password: PASSWORD.to_owned() };
        let session = self.gateway().login(login).await.unwrap().into_inner();
        assert_eq!(session.user.unwrap(), user);
        Member { id: user.id, token: session.token }
    }

    /// Creates accounts `<prefix>0`, `<prefix>1`, … without log-in, and returns their ids.
    pub(crate) async fn crowd(&self, prefix: &str, size: usize) -> Vec<u64> {
        let names: Vec<String> = (0..size).map(|i| format!("{prefix}{i}")).collect();
        let mut ids = Vec::new();
        for names in names.chunks(IMPORTED_AT_ONCE) {
            let request = user::ImportUsersRequest {
                names: names.to_vec(),
                email_domain: "example.org".to_owned(),
                password: String::new(),
            };
            ids.extend(self.user().import_users(request).await.unwrap().into_inner().user_ids);
        }
        ids
    }

    /// Creates follows from (follower, target) pairs.
    pub(crate) async fn follows(&self, follows: impl IntoIterator<Item = (u64, u64)>) {
        let follow = |(follower_id, target_id)| relation::Follow { follower_id, target_id };
        let follows: Vec<_> = follows.into_iter().map(follow).collect();
        let mut created = 0;
        for follows in follows.chunks(IMPORTED_AT_ONCE) {
            let request = relation::ImportFollowsRequest { follows: follows.to_vec() };
            created += self.relation().import_follows(request).await.unwrap().into_inner().created;
        }
        assert_eq!(created, follows.len() as u64);
    }

    /// Returns a page of an account's followers, as a viewer sees it.
    pub(crate) async fn followers(
        &self,
        viewer: Option<&Member>,
        of: u64,
        page_size: i32,
        page_token: &str,
    ) -> gateway::ViewFollowersResponse {
        let (user, page_token) = (by_id(of), page_token.to_owned());
        let request =
            gateway::ViewFollowersRequest { user, page_size, page_token, ..Default::default() };
        let request = match viewer {
            Some(viewer) => viewer.request(request),
            None => Request::new(request),
        };
        self.gateway().view_followers(request).await.unwrap().into_inner()
    }
}

impl Member {
    /// Returns a request with this session's token.
    pub(crate) fn request<T>(&self, message: T) -> Request<T> {
        with_token(&self.token, message)
    }
}

pub(crate) fn with_token<T>(token: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    request
}

pub(crate) fn by_id(id: u64) -> Option<UserRef> {
    Some(UserRef { r#ref: Some(Ref::Id(id)) })
}

pub(crate) fn by_name(name: &str) -> Option<UserRef> {
    Some(UserRef { r#ref: Some(Ref::Name(name.to_owned())) })
}

pub(crate) fn email(name: &str) -> String {
    format!("{name}@example.com")
}

pub(crate) fn registration(name: &str) -> gateway::RegisterRequest {
    gateway::RegisterRequest {
        request_id: uuid::Uuid::new_v4().to_string(),
        email: email(name),
        name: name.to_owned(),
        password: PASSWORD.to_owned(),
        display_name: String::new(),
    }
}

/// Returns the names on a page, in order.
pub(crate) fn names(users: &[gateway::ListedUser]) -> Vec<&str> {
    users.iter().map(|listed| listed.user.as_ref().unwrap().name.as_str()).collect()
}

/// Returns the ids on a page, in order.
pub(crate) fn ids(users: &[gateway::ListedUser]) -> Vec<u64> {
    users.iter().map(|listed| listed.user.as_ref().unwrap().id).collect()
}

/// Returns the gateway's configuration without rate limits and heartbeats.
pub(crate) fn config() -> Config {
    configured(&[])
}

/// Returns the same with further flags.
pub(crate) fn configured(flags: &[&str]) -> Config {
    const UNLIMITED: [&str; 14] = [
        "--follows-per-minute=0",
        "--likes-per-minute=0",
        "--post-calls-per-minute=0",
        "--comment-calls-per-minute=0",
        "--change-calls-per-minute=0",
        "--logins-per-minute=0",
        "--registrations-per-hour=0",
        "--availability-checks-per-minute=0",
        "--password-calls-per-minute=0",
        "--registrations-per-hour-total=0",
        "--availability-checks-per-minute-total=0",
        "--max-watches-per-viewer=0",
        "--max-change-streams-per-caller=0",
        "--watch-heartbeat-ms=0",
    ];
    let name = |flag: &str| flag.split('=').next().map(str::to_owned);
    let is_set = |own: &&str| flags.iter().any(|flag| name(flag) == name(own));
    let own = UNLIMITED.iter().copied().filter(|own| !is_set(own));
    let args = ["gateway"].into_iter().chain(own).chain(flags.iter().copied());
    Config::try_parse_from(args).unwrap()
}

/// Returns a gateway with its own rate limits.
pub(crate) fn gateway_service(config: &Config, peers: Peers, worker: Worker) -> Service {
    microblog_gateway::service(config, Limits::new(&config.limits), peers, worker)
}

/// Starts a user service, with a database of its own unless the flags name one.
pub(crate) async fn user_service(redis_url: &str, flags: &[&str]) -> Service {
    let config = microblog_user::Config::try_parse_from(with_database("user", redis_url, flags));
    microblog_user::service(&config.unwrap(), Worker::ONLY).await.unwrap()
}

/// Starts a relation service, with a database of its own unless the flags name one.
pub(crate) async fn relation_service(redis_url: &str, flags: &[&str]) -> Service {
    let args = with_database("relation", redis_url, flags);
    let config = microblog_relation::Config::try_parse_from(args);
    microblog_relation::service(&config.unwrap(), Worker::ONLY).await.unwrap()
}

/// Returns the arguments of a service that needs a database, which stays for as long as the test.
fn with_database(service: &str, redis_url: &str, flags: &[&str]) -> Vec<String> {
    let own = Database::sqlite();
    let mut args = vec![service.to_owned(), format!("--redis-url={redis_url}")];
    if !flags.contains(&"--database-url") {
        args.push(own.flag());
    }
    args.extend(flags.iter().map(|&flag| flag.to_owned()));
    tokio::spawn(async move {
        let _database = own;
        pending::<()>().await;
    });
    args
}

pub(crate) async fn timeline_service(redis_url: &str, flags: &[&str], relation: Peer) -> Service {
    let args = ["timeline", "--redis-url", redis_url].into_iter().chain(flags.iter().copied());
    let config = microblog_timeline::Config::try_parse_from(args).unwrap();
    microblog_timeline::service(&config, relation, None, Worker::ONLY).await.unwrap()
}

pub(crate) async fn notice_service(redis_url: &str, peers: [Peer; 3]) -> Service {
    let config = microblog_notice::Config::try_parse_from(with_database("notice", redis_url, &[]));
    let [user, relation, post] = peers;
    let peers = microblog_notice::Peers { user, relation, post };
    microblog_notice::service(&config.unwrap(), peers, Worker::ONLY).await.unwrap()
}

/// Starts a post service, with a database of its own unless the flags name one; without rate limits unless
/// there are flags.
pub(crate) async fn post_service(
    redis_url: &str,
    flags: &[&str],
    timeline: Option<Peer>,
) -> Service {
    const UNLIMITED: &[&str] = &["--posts-per-minute=0", "--comments-per-minute=0"];
    let flags = if flags.is_empty() { UNLIMITED } else { flags };
    let config = microblog_post::Config::try_parse_from(with_database("post", redis_url, flags));
    microblog_post::service(&config.unwrap(), timeline, Worker::ONLY).await.unwrap()
}

/// Returns a peer that calls a service within the process, and starts the service's jobs.
fn local(mut service: Service, jobs: Jobs, running: &mut JoinSet<()>) -> Peer {
    let background = std::mem::take(&mut service.background);
    if jobs != Jobs::Rest {
        for job in background {
            running.spawn(job);
        }
    }
    Peer::local(&service, &config().chassis)
}

/// Returns a peer that calls a service in the way that the tests run with, and starts the service's
/// jobs.
fn peer(mut service: Service, jobs: Jobs, running: &mut JoinSet<()>) -> Peer {
    match env::var("MICROBLOG_TEST_CALLS").as_deref() {
        Err(env::VarError::NotPresent) => local(service, jobs, running),
        Ok("remote") => {
            if jobs == Jobs::Rest {
                service.background.clear();
            }
            let config = config().chassis;
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            let peer = Peer::remote(&url, &config).unwrap();
            running
                .spawn(async move { serve(listener, service, &config, pending()).await.unwrap() });
            peer
        }
        other => panic!("MICROBLOG_TEST_CALLS must be `remote` or not set: {other:?}"),
    }
}

/// Returns the same service for other callers.
fn without_jobs(service: &Service) -> Service {
    Service {
        name: service.name,
        routes: service.routes.clone(),
        handler: service.handler.clone(),
        web: service.web.clone(),
        ready: service.ready.clone(),
        background: Vec::new(),
    }
}
