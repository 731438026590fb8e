//! Brings a follow graph into a running microblog: accounts first, then follows, by the import
//! calls of their services. All of it can be repeated, so calls that fail in passing are.

use std::time::Duration;

use anyhow::anyhow;
use futures::{StreamExt as _, TryStreamExt as _, future, stream};
use microblog_proto::{
    relation::{
        Follow, ImportFollowsRequest, ImportFollowsResponse,
        relation_service_client::RelationServiceClient,
    },
    user::{ImportUsersRequest, ImportUsersResponse, user_service_client::UserServiceClient},
};
use tonic::Status;

use crate::{
    edges::EdgeList,
    keys::{Keys, Signed},
    progress::Progress,
    remote::{self, CALL_TIMEOUT, RELATION_URL, USER_URL},
};

const USERS_PER_CALL: usize = 5_000;
// The more follows of the same target go in one call, the less each costs the store; but a call on
// a busy machine must end within the time that a service gives a write.
const FOLLOWS_PER_CALL: usize = 50_000;
// Calls in flight, each over a connection of its own: while one is encoded or sorted, the store
// works on another.
const LANES: usize = 2;

/// Where a graph goes, and what its new accounts get.
#[derive(Debug, clap::Args)]
pub struct Target {
    /// Where the user service listens.
    #[arg(long, value_name = "URL", default_value = USER_URL, env = "MICROBLOG_USER_URL")]
    pub user_url: String,
    /// Where the relation service listens.
    #[arg(long, value_name = "URL", default_value = RELATION_URL, env = "MICROBLOG_RELATION_URL")]
    pub relation_url: String,
    /// One password for all new accounts, 8 to 128 characters; without it nobody can log in to
    /// them.
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        env = "MICROBLOG_IMPORT_PASSWORD",
        hide_env_values = true
    )]
    pub password: String,
    /// The e-mail address of a new account is NAME@DOMAIN.
    #[arg(long, value_name = "DOMAIN", default_value = "import.invalid")]
    pub email_domain: String,
    /// What the two believe its caller by.
    #[command(flatten)]
    pub keys: Keys,
}

/// What became of the accounts.
pub struct Users {
    /// Their ids, in the order of the list's names; 0 for one that could not be created.
    pub ids: Vec<u64>,
    /// How many were made.
    pub created: u64,
    /// How many could not be.
    pub refused: u64,
    /// How long it took.
    pub took: Duration,
}

/// What became of the follows.
pub struct Follows {
    /// What the relation service says.
    pub outcome: ImportFollowsResponse,
    /// How many it was told.
    pub sent: u64,
    /// Left out, because one of their accounts could not be created.
    pub dropped: u64,
    /// How long it took.
    pub took: Duration,
}

/// Makes sure that every name of the list has an account.
pub async fn users(list: &EdgeList, target: &Target) -> anyhow::Result<Users> {
    let channels = channels(&target.user_url, &target.keys).await?;
    let names: Vec<&str> = list.names().collect();
    let progress = Progress::start("accounts", names.len() as u64);
    let calls =
        names.chunks(USERS_PER_CALL).zip(channels.iter().cycle()).map(async |(names, channel)| {
            let response = import_users(channel, names, target).await?;
            progress.add(names.len() as u64);
            Ok(response)
        });
    let responses: Vec<ImportUsersResponse> = stream::iter(calls)
        .buffered(LANES)
        .try_collect()
        .await
        .map_err(|status| failed("accounts", &status))?;
    let created = responses.iter().map(|response| u64::from(response.created)).sum();
    let ids: Vec<u64> = responses.into_iter().flat_map(|response| response.user_ids).collect();
    if ids.len() != names.len() {
        return Err(anyhow!("{} names, but {} ids for them", names.len(), ids.len()));
    }
    let refused = ids.iter().filter(|&&id| id == 0).count() as u64;
    Ok(Users { ids, created, refused, took: progress.finish() })
}

async fn import_users(
    channel: &Signed,
    names: &[&str],
    target: &Target,
) -> Result<ImportUsersResponse, Status> {
    let message = ImportUsersRequest {
        names: names.iter().map(|&name| name.to_owned()).collect(),
        email_domain: target.email_domain.clone(),
        password: target.password.clone(),
    };
    remote::repeatedly(async || {
        let request = remote::request(message.clone(), CALL_TIMEOUT);
        Ok(UserServiceClient::new(channel.clone()).import_users(request).await?.into_inner())
    })
    .await
}

/// Brings in the follows of a list, given the ids of its names.
pub async fn follows(list: &EdgeList, ids: &[u64], target: &Target) -> anyhow::Result<Follows> {
    let channels = channels(&target.relation_url, &target.keys).await?;
    let (lanes, dropped) = lanes(list, ids);
    let sent = lanes.iter().map(|lane| lane.len() as u64).sum();
    let progress = Progress::start("follows", sent);
    let calls = lanes.iter().zip(&channels).map(|(lane, channel)| send(channel, lane, &progress));
    let outcomes =
        future::try_join_all(calls).await.map_err(|status| failed("follows", &status))?;
    let outcome = outcomes.into_iter().fold(ImportFollowsResponse::default(), sum);
    Ok(Follows { outcome, sent, dropped, took: progress.finish() })
}

/// Deals the follows out, those of one follower to one lane, so that they stay in order although
/// several calls are under way.
fn lanes(list: &EdgeList, ids: &[u64]) -> (Vec<Vec<Follow>>, u64) {
    let mut lanes = vec![Vec::new(); LANES];
    let mut dropped = 0;
    for edge in &list.edges {
        let follower_id = ids[edge.follower as usize];
        let target_id = ids[edge.target as usize];
        if follower_id == 0 || target_id == 0 {
            dropped += 1;
        } else {
            lanes[edge.follower as usize % LANES].push(Follow { follower_id, target_id });
        }
    }
    (lanes, dropped)
}

async fn send(
    channel: &Signed,
    lane: &[Follow],
    progress: &Progress,
) -> Result<ImportFollowsResponse, Status> {
    let mut outcome = ImportFollowsResponse::default();
    for follows in lane.chunks(FOLLOWS_PER_CALL) {
        let response = remote::repeatedly(async || {
            let message = ImportFollowsRequest { follows: follows.to_vec() };
            let request = remote::request(message, CALL_TIMEOUT);
            let mut client = RelationServiceClient::new(channel.clone());
            Ok(client.import_follows(request).await?.into_inner())
        });
        outcome = sum(outcome, response.await?);
        progress.add(follows.len() as u64);
    }
    Ok(outcome)
}

fn sum(a: ImportFollowsResponse, b: ImportFollowsResponse) -> ImportFollowsResponse {
    ImportFollowsResponse {
        created: a.created + b.created,
        unchanged: a.unchanged + b.unchanged,
        refused_self: a.refused_self + b.refused_self,
        refused_blocked: a.refused_blocked + b.refused_blocked,
        refused_limit: a.refused_limit + b.refused_limit,
        refused_forgotten: a.refused_forgotten + b.refused_forgotten,
    }
}

async fn channels(url: &str, keys: &Keys) -> anyhow::Result<Vec<Signed>> {
    // The first tells people when nothing is there, before calls are repeated in vain.
    let mut channels = vec![keys.sign(remote::serving(url).await?)];
    for _ in 1..LANES {
        channels.push(keys.sign(remote::channel(url)?));
    }
    Ok(channels)
}

fn failed(what: &str, status: &Status) -> anyhow::Error {
    anyhow!("{}", remote::told(status))
        .context(format!("importing {what} failed; run it again to go on from there"))
}
