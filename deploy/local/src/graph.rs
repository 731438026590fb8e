//! Imports a follow graph into a running microblog: first accounts, then follows. Uses the
//! idempotent import calls of the services, and retries transient errors.

use std::{cell::Cell, time::Duration};

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
    keys::{Keys, SignedChannel},
    progress::Progress,
    remote::{self, CALL_TIMEOUT, RELATION_URL, USER_URL},
};

const USERS_PER_CALL: usize = 5_000;
// The upper bound is the services' deadline for writes on a busy machine.
const FOLLOWS_PER_CALL: usize = 5_000;
// Concurrent calls, each on its own connection: the client encodes one while the store runs the
// other.
const CONNECTIONS: usize = 2;

/// The services to import a graph into.
#[derive(clap::Args)]
pub struct Target {
    /// The user service.
    #[command(flatten)]
    pub accounts: Accounts,
    /// URL of the relation service.
    #[arg(long, value_name = "URL", default_value = RELATION_URL, env = "MICROBLOG_RELATION_URL")]
    pub relation_url: String,
}

/// The user service, and the properties of new accounts.
#[derive(clap::Args)]
pub struct Accounts {
    /// URL of the user service.
    #[arg(long, value_name = "URL", default_value = USER_URL, env = "MICROBLOG_USER_URL")]
    pub user_url: String,
    /// Password of all new accounts, 8 to 128 characters. Without it, log-in to them is impossible.
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        env = "MICROBLOG_IMPORT_PASSWORD",
        hide_env_values = true
    )]
    pub password: String,
    /// Domain of the e-mail addresses of new accounts: NAME@DOMAIN.
    #[arg(long, value_name = "DOMAIN", default_value = "import.invalid")]
    pub email_domain: String,
    /// Identity keys of the services.
    #[command(flatten)]
    pub keys: Keys,
}

/// The result of the account import.
pub struct Users {
    /// Account ids in the order of the names; 0 if an account could not be created.
    pub ids: Vec<u64>,
    /// Number of created accounts.
    pub created: u64,
    /// Number of accounts that existed before, or that an attempt created whose answer is missing.
    pub unclear: u64,
    /// Number of accounts that could not be created.
    pub rejected: u64,
    /// Duration of the import.
    pub took: Duration,
}

/// The result of the follow import.
pub struct Follows {
    /// The sum of the relation service's responses, without what is unclear.
    pub outcome: ImportFollowsResponse,
    /// Number of follows that existed before, or that an attempt created whose answer is missing.
    pub unclear: u64,
    /// Number of follows sent.
    pub sent: u64,
    /// Number of follows that were omitted, because an account could not be created.
    pub dropped: u64,
    /// Duration of the import.
    pub took: Duration,
}

/// Creates the accounts of a list that do not exist.
pub async fn users(list: &EdgeList, target: &Target) -> anyhow::Result<Users> {
    accounts(&list.names().collect::<Vec<_>>(), &target.accounts).await
}

/// Creates the accounts that do not exist.
pub async fn accounts(names: &[&str], target: &Accounts) -> anyhow::Result<Users> {
    let channels = channels(&target.user_url, &target.keys).await?;
    let progress = Progress::start("accounts", names.len() as u64);
    let calls =
        names.chunks(USERS_PER_CALL).zip(channels.iter().cycle()).map(async |(names, channel)| {
            let is_unclear = Cell::new(false);
            let response = import_users(channel, names, target, &is_unclear).await?;
            progress.add(names.len() as u64);
            let existing = response.user_ids.iter().filter(|&&id| id != 0).count() as u64;
            let existing = existing.saturating_sub(response.created.into());
            Ok((response, if is_unclear.get() { existing } else { 0 }))
        });
    let responses: Vec<(ImportUsersResponse, u64)> = stream::iter(calls)
        .buffered(CONNECTIONS)
        .try_collect()
        .await
        .map_err(|status| import_error("accounts", &status))?;
    let created = responses.iter().map(|(response, _)| u64::from(response.created)).sum();
    let unclear = responses.iter().map(|(_, unclear)| unclear).sum();
    let ids: Vec<u64> = responses.into_iter().flat_map(|(response, _)| response.user_ids).collect();
    if ids.len() != names.len() {
        return Err(anyhow!(
            "the user service returned {1} ids for {0} names",
            names.len(),
            ids.len()
        ));
    }
    let rejected = ids.iter().filter(|&&id| id == 0).count() as u64;
    Ok(Users { ids, created, unclear, rejected, took: progress.finish() })
}

async fn import_users(
    channel: &SignedChannel,
    names: &[&str],
    target: &Accounts,
    is_unclear: &Cell<bool>,
) -> Result<ImportUsersResponse, Status> {
    let message = ImportUsersRequest {
        names: names.iter().map(|&name| name.to_owned()).collect(),
        email_domain: target.email_domain.clone(),
        password: target.password.clone(),
    };
    retry(is_unclear, async || {
        let request = remote::request(message.clone(), CALL_TIMEOUT);
        Ok(UserServiceClient::new(channel.clone()).import_users(request).await?.into_inner())
    })
    .await
}

/// Imports the follows of a list. `ids` are the ids of its names.
pub async fn follows(list: &EdgeList, ids: &[u64], target: &Target) -> anyhow::Result<Follows> {
    let channels = channels(&target.relation_url, &target.accounts.keys).await?;
    let (partitions, dropped) = partitions(list, ids);
    let sent = partitions.iter().map(|partition| partition.len() as u64).sum();
    let progress = Progress::start("follows", sent);
    let calls = partitions
        .iter()
        .zip(&channels)
        .map(|(partition, channel)| send(channel, partition, &progress));
    let outcomes =
        future::try_join_all(calls).await.map_err(|status| import_error("follows", &status))?;
    let (outcome, unclear) = outcomes.into_iter().fold(Default::default(), sum);
    Ok(Follows { outcome, unclear, sent, dropped, took: progress.finish() })
}

/// Partitions the follows by follower. Follows of one follower stay in order although several calls
/// run concurrently.
fn partitions(list: &EdgeList, ids: &[u64]) -> (Vec<Vec<Follow>>, u64) {
    let mut partitions = vec![Vec::new(); CONNECTIONS];
    let mut dropped = 0;
    for edge in &list.edges {
        let follower_id = ids[edge.follower as usize];
        let target_id = ids[edge.target as usize];
        if follower_id == 0 || target_id == 0 {
            dropped += 1;
        } else {
            partitions[edge.follower as usize % CONNECTIONS]
                .push(Follow { follower_id, target_id });
        }
    }
    (partitions, dropped)
}

async fn send(
    channel: &SignedChannel,
    partition: &[Follow],
    progress: &Progress,
) -> Result<(ImportFollowsResponse, u64), Status> {
    let mut outcome = Default::default();
    let mut is_waiting = false;
    for follows in partition.chunks(FOLLOWS_PER_CALL) {
        let is_unclear = Cell::new(false);
        let mut response = loop {
            match import_follows(channel, follows, &is_unclear).await {
                // However long: the database commits more slowly than follows are sent.
                Err(status) if remote::reason(&status) == "OVERLOADED" => {
                    if !is_waiting {
                        progress.note(&format!("waiting: {}", status.message()));
                    }
                    is_waiting = true;
                }
                response => break response?,
            }
        };
        is_waiting = false;
        let unclear = if is_unclear.get() { std::mem::take(&mut response.unchanged) } else { 0 };
        outcome = sum(outcome, (response, unclear));
        progress.add(follows.len() as u64);
    }
    Ok(outcome)
}

async fn import_follows(
    channel: &SignedChannel,
    follows: &[Follow],
    is_unclear: &Cell<bool>,
) -> Result<ImportFollowsResponse, Status> {
    retry(is_unclear, async || {
        let message = ImportFollowsRequest { follows: follows.to_vec() };
        let request = remote::request(message, CALL_TIMEOUT);
        Ok(RelationServiceClient::new(channel.clone()).import_follows(request).await?.into_inner())
    })
    .await
}

/// Makes an idempotent call, and retries transient errors. Notes whether an attempt failed: it may have
/// created what the answer counts as existing.
pub async fn retry<T>(
    is_unclear: &Cell<bool>,
    call: impl AsyncFn() -> Result<T, Status>,
) -> Result<T, Status> {
    remote::retry(async || {
        let answer = call().await;
        is_unclear.set(is_unclear.get() || answer.is_err());
        answer
    })
    .await
}

fn sum(
    (a, a_unclear): (ImportFollowsResponse, u64),
    (b, b_unclear): (ImportFollowsResponse, u64),
) -> (ImportFollowsResponse, u64) {
    let outcome = ImportFollowsResponse {
        created: a.created + b.created,
        unchanged: a.unchanged + b.unchanged,
        rejected_self: a.rejected_self + b.rejected_self,
        rejected_blocked: a.rejected_blocked + b.rejected_blocked,
        rejected_limit: a.rejected_limit + b.rejected_limit,
        rejected_deleted: a.rejected_deleted + b.rejected_deleted,
    };
    (outcome, a_unclear + b_unclear)
}

/// Returns a few channels to a service, which must be serving.
pub async fn channels(url: &str, keys: &Keys) -> anyhow::Result<Vec<SignedChannel>> {
    // The first channel is checked, for a helpful error before any retries.
    let mut channels = vec![keys.sign(remote::connect(url).await?)];
    for _ in 1..CONNECTIONS {
        channels.push(keys.sign(remote::channel(url)?));
    }
    Ok(channels)
}

/// Returns the error of an import.
pub fn import_error(what: &str, status: &Status) -> anyhow::Error {
    anyhow!("{}", remote::error_message(status))
        .context(format!("import of {what} failed; run it again to continue"))
}
