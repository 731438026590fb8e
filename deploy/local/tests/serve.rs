//! `microblog serve`: health of each service, isolation of Redis users, drain, and invalid values. Calls
//! through all layouts are in `rolling`.

#![allow(clippy::unwrap_used, reason = "a test's helper fails with the test")]

use std::{process::Command, time::Duration};

use microblog_proto::{
    post::{CreatePostRequest, post_service_client::PostServiceClient},
    timeline::{GetTimelineRequest, TimelineKind, timeline_service_client::TimelineServiceClient},
};
use microblog_testkit::{Database, PATIENCE, Process, RedisServer, eventually, free_port, redis};
use tonic::transport::Endpoint;

const PROGRAM: &str = env!("CARGO_BIN_EXE_microblog");
const SERVICES: [&str; 4] = ["user", "relation", "post", "timeline"];
const USER: &str = "microblog.user.v1.UserService";
const TIMELINE: &str = "microblog.timeline.v1.TimelineService";
const GATEWAY: &str = "microblog.gateway.v1.GatewayService";

/// All services in one process.
struct Colocated {
    process: Process,
    ports: Vec<(&'static str, u16)>,
    _databases: [Database; 3],
}

impl Colocated {
    /// Starts the services, with these Redis users, without waiting.
    fn spawn(redis: &RedisServer, users: [&str; 4], flags: &[&str]) -> Self {
        let services = ["gateway"].into_iter().chain(SERVICES);
        let ports: Vec<_> = services.map(|service| (service, free_port())).collect();
        let listen = |(service, port): &(&str, u16)| format!("--{service}-listen=127.0.0.1:{port}");
        let url = |(service, user)| format!("--{service}-redis-url={}", redis.url(user));
        let own = ports.iter().map(listen).chain(SERVICES.into_iter().zip(users).map(url));
        let databases = ["user", "relation", "post"].map(|service| (service, Database::sqlite()));
        let flag = |(service, database): &(&str, Database)| {
            format!("--{service}-database-url={}", database.url())
        };
        let own: Vec<_> = own.chain(databases.iter().map(flag)).collect();
        let serve = ["serve", "--services=gateway,user,relation,post,timeline", "--threads=1"];
        let own = own.iter().map(String::as_str);
        let args: Vec<_> = serve.into_iter().chain(own).chain(flags.iter().copied()).collect();
        let process = Process::spawn_services(PROGRAM, &args);
        Self { process, ports, _databases: databases.map(|(_, database)| database) }
    }

    fn endpoint(&self, service: &str) -> Endpoint {
        let (_, port) = self.ports.iter().find(|(name, _)| *name == service).unwrap();
        Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap()
    }

    async fn wait_until_serving(&self, service: &str) {
        eventually("it is serving", PATIENCE, async || {
            self.process.is_service_serving(service).await
        })
        .await;
    }
}

/// Returns the users of all connections of a Redis, except its administrator.
async fn users(redis: &RedisServer) -> Vec<String> {
    let mut list = redis::cmd("CLIENT");
    let list: String = list.arg("LIST").query_async(&mut redis.admin().await).await.unwrap();
    let user = |line: &str| {
        line.split(' ').find_map(|word| word.strip_prefix("user=")).unwrap().to_owned()
    };
    let mut users: Vec<_> = list.lines().map(user).filter(|user| user != "admin").collect();
    users.sort_unstable();
    users.dedup();
    users
}

#[tokio::test]
async fn each_service_has_a_redis_user_of_its_own() {
    let redis = RedisServer::start().await;
    let system = Colocated::spawn(&redis, SERVICES, &[]);
    system.wait_until_serving("").await;
    // A connection is of the default user until it has authenticated.
    eventually("all connections are of the services' users", PATIENCE, async || {
        users(&redis).await == ["post", "relation", "timeline", "user"]
    })
    .await;
}

#[tokio::test]
async fn services_of_a_process_call_each_other_in_both_directions() {
    let redis = RedisServer::start().await;
    // Nothing listens there.
    let nowhere = ["--post-url=http://127.0.0.1:1", "--timeline-url=http://127.0.0.1:1"];
    let system = Colocated::spawn(&redis, SERVICES, &nowhere);
    system.wait_until_serving("").await;
    let mut posts = PostServiceClient::new(system.endpoint("post").connect_lazy());
    let mut timelines = TimelineServiceClient::new(system.endpoint("timeline").connect_lazy());
    let request_id = uuid::Uuid::new_v4().to_string();
    let request = CreatePostRequest { author_id: 4, request_id, text: "to myself".to_owned() };
    let post = posts.create_post(request).await.unwrap().into_inner().post.unwrap();
    let mut home = async || {
        let kind = TimelineKind::Home.into();
        let request = GetTimelineRequest { user_id: 4, kind, ..Default::default() };
        let page = timelines.get_timeline(request).await.unwrap().into_inner();
        page.entries.into_iter().map(|entry| entry.post_id).collect::<Vec<_>>()
    };
    // post delivers to timeline, which asks post for what its keyspace has lost.
    eventually("the post is delivered", PATIENCE, async || home().await == [post.id]).await;
    let mut admin = redis.admin().await;
    let keys: Vec<String> = redis::cmd("KEYS").arg("tl:*").query_async(&mut admin).await.unwrap();
    assert!(keys.len() > 1, "{keys:?}");
    redis::cmd("DEL").arg(keys).exec_async(&mut admin).await.unwrap();
    assert_eq!(home().await, [post.id]);
}

#[tokio::test]
async fn the_redis_user_of_another_service_is_refused() {
    let redis = RedisServer::start().await;
    // The timeline service has the password of post's user.
    let system = Colocated::spawn(&redis, ["user", "relation", "post", "post"], &[]);
    let mut timeline = TimelineServiceClient::new(system.endpoint("timeline").connect_lazy());
    let kind = TimelineKind::Home.into();
    let request = GetTimelineRequest { user_id: 4, kind, ..Default::default() };
    timeline.get_timeline(request).await.unwrap_err();
    eventually("Redis has refused its user", PATIENCE, async || {
        system.process.log().contains("NOPERM")
    })
    .await;
}

#[tokio::test]
async fn health_is_that_of_each_service_and_all_drain() {
    let redis = RedisServer::start().await;
    let system = Colocated::spawn(&redis, SERVICES, &["--drain-delay-ms=2000"]);
    system.wait_until_serving("").await;
    redis.pause();
    eventually("a service without Redis is not serving", PATIENCE, async || {
        !system.process.is_service_serving(TIMELINE).await
    })
    .await;
    assert!(system.process.is_service_serving(GATEWAY).await, "the gateway has no Redis");
    assert!(system.process.is_service_serving(USER).await, "the database answers");
    assert!(!system.process.is_serving().await, "not all are serving");
    redis.resume();
    system.wait_until_serving("").await;
    system.process.terminate();
    eventually("no service is serving", PATIENCE, async || {
        !system.process.is_service_serving(GATEWAY).await
            && !system.process.is_service_serving(TIMELINE).await
    })
    .await;
    let status = system.process.ended(Duration::from_secs(30)).await;
    assert!(status.success(), "{status}: {}", system.process.log());
}

#[test]
fn invalid_services_and_shared_settings_are_rejected() {
    for (flags, variable, expected) in [
        (
            &["--services=users"][..],
            None,
            "possible values: gateway, user, relation, post, timeline",
        ),
        (&["--services="], None, "a value is required"),
        (&["--services=user,"], None, "a value is required"),
        (&[], None, "--services <SERVICES>"),
        (&["--services=user,user"], None, "`--services` has user twice"),
        (
            &["--services=user", "--user-redis-connections=0"],
            None,
            "cannot configure the user service",
        ),
        (&["--services=user"], Some("MICROBLOG_LISTEN"), "set MICROBLOG_USER_LISTEN"),
        (&["--services=user"], Some("MICROBLOG_DATABASE_URL"), "set MICROBLOG_USER_DATABASE_URL"),
    ] {
        let mut command = Command::new(PROGRAM);
        command.arg("serve").args(flags).env_clear();
        command.envs(variable.map(|variable| (variable, "x")));
        let output = command.output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {error}");
        assert!(error.contains(expected), "{flags:?}: {error}");
    }
}
