//! What clients act on: accounts that follow each other, sessions of some of them, and posts.

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
    services::{self, Services, TEXT, told},
    system::Urls,
};

/// Passwords are hashed slowly, two at a time.
const LOGINS: usize = 4;

const POSTS: usize = 64;

/// Of all accounts.
pub(crate) const PASSWORD: &str = "correct horse battery";

/// How much there is, beside the graph.
#[derive(Clone, Debug, clap::Args)]
// The group would have the name of the command's own.
#[group(skip)]
pub(crate) struct Args {
    /// How many accounts log in and call, chosen at random
    #[arg(long, value_name = "COUNT", default_value_t = 256)]
    pub(crate) viewers: usize,
    /// Each account has made 0 to so many posts
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    pub(crate) posts: u64,
}

/// An account that is logged in.
pub(crate) struct Session {
    pub(crate) account: u64,
    authorization: MetadataValue<Ascii>,
}

impl Session {
    /// Returns a request in the account's name.
    pub(crate) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("authorization", self.authorization.clone());
        request
    }
}

/// What clients act on. None of its lists is empty.
pub(crate) struct World {
    pub(crate) accounts: Vec<u64>,
    /// Whom each follow is of: who has more followers is there more often.
    pub(crate) followed: Vec<u64>,
    pub(crate) sessions: Vec<Session>,
    pub(crate) posts: Vec<u64>,
    /// What other choices begin with.
    pub(crate) seed: u64,
}

impl World {
    /// Brings a graph into a system, logs accounts in and publishes; the same choices for the same
    /// seed. Accounts and follows that are there already stay.
    pub(crate) async fn make(
        urls: &Urls,
        list: &EdgeList,
        args: &Args,
        seed: u64,
    ) -> anyhow::Result<Self> {
        ensure!(!list.edges.is_empty(), "the graph has no follows");
        ensure!(args.viewers > 0 && args.posts > 0, "--viewers and --posts must not be 0");
        let target = services::import_target(urls, PASSWORD);
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

    /// Returns how many follow those whom somebody follows.
    pub(crate) fn followers(&self) -> HashMap<u64, usize> {
        let mut counts = HashMap::new();
        for &followed in &self.followed {
            *counts.entry(followed).or_default() += 1;
        }
        counts
    }
}

async fn log_in(gateway_url: &str, viewers: &[(&str, u64)]) -> anyhow::Result<Vec<Session>> {
    let gateway = GatewayServiceClient::new(remote::serving(gateway_url).await?);
    let progress = Progress::start("log-ins", viewers.len() as u64);
    let session = async |&(name, account): &(&str, u64)| {
        let login = LoginRequest { login: name.to_owned(), password: PASSWORD.to_owned() };
        let answer = remote::repeatedly(async || gateway.clone().login(login.clone()).await).await;
        let token =
            told(answer).with_context(|| format!("cannot log {name} in"))?.into_inner().token;
        progress.add(1);
        anyhow::Ok(Session { account, authorization: format!("Bearer {token}").parse()? })
    };
    let sessions = viewers.iter().map(session);
    let sessions = stream::iter(sessions).buffered(LOGINS).try_collect().await?;
    progress.finish();
    Ok(sessions)
}

async fn publish(
    urls: &Urls,
    accounts: &[u64],
    most: u64,
    random: &mut SmallRng,
) -> anyhow::Result<Vec<u64>> {
    let services = Services::of(urls).await?;
    let mut authors: Vec<u64> = Vec::new();
    for &account in accounts {
        authors.extend((0..random.random_range(0..=most)).map(|_| account));
    }
    // At least one, so that there is something to like.
    authors.push(accounts[0]);
    // As people post: not all of one after the other.
    authors.shuffle(random);
    let progress = Progress::start("posts", authors.len() as u64);
    let publish = async |&author: &u64| {
        let post = told(services.publish(author, TEXT).await)?;
        progress.add(1);
        anyhow::Ok(post)
    };
    let posts = stream::iter(authors.iter().map(publish));
    let posts = posts.buffer_unordered(POSTS).try_collect().await?;
    progress.finish();
    Ok(posts)
}
