//! Delivery of posts to followers by a real `microblog up`, also across a kill and a loss of its data.

use std::{collections::BTreeSet, time::Duration};

use futures::{StreamExt as _, stream};
use microblog_proto::gateway::{
    LoginRequest, PublishRequest, UserRef, ViewHomeRequest, ViewUserTimelineRequest,
    gateway_service_client::GatewayServiceClient, user_ref::Ref,
};
use microblog_testkit::{PATIENCE, redis};
use nix::sys::signal::Signal;
use tonic::{
    Request, Status,
    transport::{Channel, Endpoint},
};

use crate::launcher::{Launcher, eventually, run};

const PASSWORD: &str = "opensesame";
const FOLLOWERS: [&str; 3] = ["bob", "cleo", "dan"];
const STOP: Duration = PATIENCE;
// Longer than a step of a fan-out counts as abandoned that a killed process had begun.
const ARRIVAL: Duration = PATIENCE;
const POSTS: u32 = 50;
const AT_ONCE: usize = 8;
const ENOUGH: usize = 20;

#[test]
fn published_posts_reach_every_follower_across_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut launcher = Launcher::start(&data, &[]);
    let follows: String = FOLLOWERS.iter().map(|name| format!("{name} ada\n")).collect();
    import(&launcher, &follows);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // Only accounts with a home timeline receive posts by fan-out.
        for name in FOLLOWERS {
            assert!(Reader::log_in(&launcher, name).await.home().await.unwrap().is_empty());
        }
    });
    let published = runtime.block_on(publish_until_killed(&launcher));
    launcher.ended(STOP);
    assert!(published.len() >= ENOUGH, "{published:?}");

    let launcher = Launcher::start(&data, &[]);
    for name in FOLLOWERS {
        let reader = runtime.block_on(Reader::log_in(&launcher, name));
        eventually(&format!("{name} sees each post, once"), ARRIVAL, || {
            let home = runtime.block_on(reader.home()).unwrap();
            // A post without an acknowledgement may exist or not, for all followers alike.
            let made = runtime.block_on(reader.posts_of("ada")).unwrap();
            assert!(published.iter().all(|post| made.contains(post)), "{made:?}");
            home == made && home.is_sorted_by(|a, b| a > b)
        });
    }
    launcher.verified();
    runtime.block_on(survives_a_loss(&launcher));
}

/// Deletes all data of the timeline service, which no delivery brings back.
async fn survives_a_loss(launcher: &Launcher) {
    let mut admin = launcher.admin();
    let keys: Vec<String> = redis::cmd("KEYS").arg("tl:*").query(&mut admin).unwrap();
    redis::cmd("DEL").arg(keys).exec(&mut admin).unwrap();
    for name in FOLLOWERS {
        let reader = Reader::log_in(launcher, name).await;
        assert_eq!(reader.home().await.unwrap(), reader.posts_of("ada").await.unwrap());
    }
}

/// Publishes several posts concurrently as ada, kills the launcher in between, and returns the
/// acknowledged posts.
async fn publish_until_killed(launcher: &Launcher) -> BTreeSet<u64> {
    let ada = Reader::log_in(launcher, "ada").await;
    let mut answers = stream::iter(0..POSTS).map(|n| ada.publish(n)).buffer_unordered(AT_ONCE);
    let mut published = BTreeSet::new();
    while let Some(answer) = answers.next().await {
        published.extend(answer.ok());
        if published.len() == ENOUGH {
            launcher.signal(Signal::SIGKILL);
        }
    }
    published
}

/// Imports follows between accounts with a password.
fn import(launcher: &Launcher, follows: &str) {
    let urls = ["--user-url", &launcher.url(1), "--relation-url", &launcher.url(2)];
    let ended = run(&[&["import", "-", "--password", PASSWORD], &urls[..]].concat(), follows);
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

/// A logged-in account.
struct Reader {
    client: GatewayServiceClient<Channel>,
    token: String,
}

impl Reader {
    async fn log_in(launcher: &Launcher, name: &str) -> Self {
        let channel = Endpoint::from_shared(launcher.url(0)).unwrap().connect().await.unwrap();
        let mut client = GatewayServiceClient::new(channel);
        let email = format!("{name}@import.invalid");
        let request = LoginRequest { login: email, password: PASSWORD.to_owned() };
        let token = client.login(request).await.unwrap().into_inner().token;
        Self { client, token }
    }

    async fn publish(&self, n: u32) -> Result<u64, Status> {
        let request_id = format!("7c2d9b1e-53a4-4f0e-9a7e-{n:012x}");
        let message = PublishRequest { request_id, text: format!("post {n}") };
        let answer = self.client.clone().publish(self.request(message)).await?.into_inner();
        Ok(answer.post.unwrap().id)
    }

    /// Returns the posts of the home timeline, in order.
    async fn home(&self) -> Result<Vec<u64>, Status> {
        let message = ViewHomeRequest { page_size: 200, ..Default::default() };
        let answer = self.client.clone().view_home(self.request(message)).await?.into_inner();
        Ok(answer.posts.into_iter().map(|viewed| viewed.post.unwrap().id).collect())
    }

    /// Returns the posts of an account, in the order of its timeline.
    async fn posts_of(&self, name: &str) -> Result<Vec<u64>, Status> {
        let user = Some(UserRef { r#ref: Some(Ref::Name(name.to_owned())) });
        let message = ViewUserTimelineRequest { user, page_size: 200, ..Default::default() };
        let answer = self.client.clone().view_user_timeline(self.request(message)).await?;
        Ok(answer.into_inner().posts.into_iter().map(|viewed| viewed.post.unwrap().id).collect())
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let bearer = format!("Bearer {}", self.token).parse().unwrap();
        request.metadata_mut().insert("authorization", bearer);
        request
    }
}
