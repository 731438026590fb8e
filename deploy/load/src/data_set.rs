//! The data set of a benchmark: accounts with follows, sessions of some accounts, and posts.

use std::collections::HashMap;

use anyhow::{Context as _, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use microblog_local::{edges::EdgeList, graph, progress::Progress, remote};
use microblog_proto::gateway::{LoginRequest, gateway_service_client::GatewayServiceClient};
use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng, seq::SliceRandom as _};
use tonic::{
    Request,
    metadata::{Ascii, MetadataValue},
};

use crate::{
    service_clients::{self, ServiceClients, TEXT, status_to_error},
    system::Urls,
};

/// Password hashing is slow, and the server runs two hashes at a time.
const LOGINS_IN_FLIGHT: usize = 4;

const POSTS_IN_FLIGHT: usize = 64;

/// The password of all accounts.
pub(crate) const PASSWORD: &str = "correct horse battery";

/// Size of the data set, in addition to the graph.
#[derive(Clone, Debug, clap::Args)]
// Without `skip`, clap gives the group the name of the command's own group.
#[group(skip)]
pub(crate) struct Args {
    /// Number of randomly chosen accounts that log in and call
    #[arg(long, value_name = "COUNT", default_value_t = 256)]
    pub(crate) viewers: usize,
    /// Maximum number of posts per account; uniform from 0
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    pub(crate) posts: u64,
}

/// A session of an account.
#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) account: u64,
    authorization: MetadataValue<Ascii>,
}

impl Session {
    /// Returns a request with the session's token.
    pub(crate) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("authorization", self.authorization.clone());
        request
    }
}

/// The data set. No list is empty.
#[derive(Clone)]
pub(crate) struct DataSet {
    pub(crate) accounts: Vec<u64>,
    /// The followed account of each follow. An account occurs once per follower.
    pub(crate) followed: Vec<u64>,
    pub(crate) sessions: Vec<Session>,
    pub(crate) posts: Vec<u64>,
    /// Seed of the clients' random numbers.
    pub(crate) seed: u64,
}

impl DataSet {
    /// Imports a graph, logs accounts in and publishes posts. The same seed makes the same choices.
    /// Existing accounts and follows stay.
    pub(crate) async fn create(
        urls: &Urls,
        list: &EdgeList,
        args: &Args,
        seed: u64,
    ) -> anyhow::Result<Self> {
        ensure!(!list.edges.is_empty(), "the graph has no follows");
        ensure!(args.viewers > 0 && args.posts > 0, "--viewers and --posts must not be 0");
        let target = service_clients::import_target(urls, PASSWORD);
        let ids = graph::users(list, &target).await?.ids;
        ensure!(!ids.contains(&0), "accounts of these names exist, with other e-mail addresses");
        graph::follows(list, &ids, &target).await?;
        let followed = list.edges.iter().map(|edge| ids[edge.target as usize]).collect();
        let mut random = SmallRng::seed_from_u64(seed);
        let names = list.names().zip(ids.iter().copied());
        let mut viewers: Vec<(&str, u64)> = names.collect();
        viewers.shuffle(&mut random);
        viewers.truncate(args.viewers);
        let sessions = log_in(&urls.gateway, &viewers).await?;
        let posts = publish(urls, &ids, args.posts, &mut random).await?;
        Ok(Self { accounts: ids, followed, sessions, posts, seed })
    }

    /// Returns the number of followers of each followed account.
    pub(crate) fn followers(&self) -> HashMap<u64, usize> {
        let mut counts = HashMap::new();
        for &followed in &self.followed {
            *counts.entry(followed).or_default() += 1;
        }
        counts
    }
}

async fn log_in(gateway_url: &str, viewers: &[(&str, u64)]) -> anyhow::Result<Vec<Session>> {
    let gateway = GatewayServiceClient::new(remote::connect(gateway_url).await?);
    let progress = Progress::start("log-ins", viewers.len() as u64);
    let session = async |&(name, account): &(&str, u64)| {
        let login = LoginRequest { login: name.to_owned(), password: PASSWORD.to_owned() };
        let answer = remote::retry(async || gateway.clone().login(login.clone()).await).await;
        let token = status_to_error(answer)
            .with_context(|| format!("cannot log {name} in"))?
            .into_inner()
            .token;
        progress.add(1);
        anyhow::Ok(Session { account, authorization: format!("Bearer {token}").parse()? })
    };
    let sessions = viewers.iter().map(session);
    let sessions = stream::iter(sessions).buffered(LOGINS_IN_FLIGHT).try_collect().await?;
    progress.finish();
    Ok(sessions)
}

async fn publish(
    urls: &Urls,
    accounts: &[u64],
    posts_max: u64,
    random: &mut SmallRng,
) -> anyhow::Result<Vec<u64>> {
    let services = ServiceClients::connect(urls).await?;
    let mut authors: Vec<u64> = Vec::new();
    for &account in accounts {
        authors.extend((0..random.random_range(0..=posts_max)).map(|_| account));
    }
    // At least one post, for the scenario `like`.
    authors.push(accounts[0]);
    // Interleaves the authors.
    authors.shuffle(random);
    let progress = Progress::start("posts", authors.len() as u64);
    let publish = async |&author: &u64| {
        let post = status_to_error(services.publish(author, TEXT).await)?;
        progress.add(1);
        anyhow::Ok(post)
    };
    let posts = stream::iter(authors.iter().map(publish));
    let posts = posts.buffer_unordered(POSTS_IN_FLIGHT).try_collect().await?;
    progress.finish();
    Ok(posts)
}
