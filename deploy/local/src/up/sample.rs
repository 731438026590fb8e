//! The demo graph in a running microblog: made once, through the services' calls, and only where
//! nothing else is stored.

mod graph;

use std::{fs, path::Path};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use microblog_proto::user::{
    GetUserByNameRequest, UpdateProfileRequest, VerifyRequest,
    user_service_client::UserServiceClient,
};
use tonic::{Code, Request, Status, transport::Channel};

pub(super) use self::graph::Sample;
use super::{announce, services::SERVERS};
use crate::{
    load::{self, Target},
    remote::{self, CALL_TIMEOUT},
};

/// The password of every account of the demo graph.
pub(super) const PASSWORD: &str = "demo-password";
/// Their e-mail addresses are `<name>@demo.invalid`.
pub(super) const EMAIL_DOMAIN: &str = "demo.invalid";

const CALLS_AT_ONCE: usize = 16;

type Client = UserServiceClient<Channel>;

/// Makes the demo graph unless something is stored already, and tells how to look at it. The mark
/// is a file that is there once the graph is complete: until then, it is gone on with.
pub(super) async fn ensure(port_base: u16, mark: &Path) -> anyhow::Result<()> {
    let sample = Sample::generate()?;
    if !mark.exists() {
        let [_, user_url, relation_url, _] = SERVERS.each_ref().map(|server| server.url(port_base));
        let client = Client::new(remote::channel(&user_url)?);
        if !begun(client.clone(), &sample).await? && !empty(client.clone()).await? {
            println!("\nAccounts are stored already: no demo graph is made.");
            return Ok(());
        }
        let target = Target {
            user_url,
            relation_url,
            password: PASSWORD.to_owned(),
            email_domain: EMAIL_DOMAIN.to_owned(),
        };
        make(client, &sample, &target).await?;
        fs::write(mark, "").context("cannot note that it is complete")?;
    }
    announce::sample(port_base, &sample);
    Ok(())
}

async fn make(client: Client, sample: &Sample, target: &Target) -> anyhow::Result<()> {
    let users = load::users(&sample.list, target).await?;
    stream::iter(sample.list.names().zip(users.ids.iter().copied()))
        .map(async |(name, user_id)| {
            let message = UpdateProfileRequest {
                user_id,
                display_name: Some(graph::display_name(name)),
                ..Default::default()
            };
            client.clone().update_profile(remote::request(message, CALL_TIMEOUT)).await
        })
        .buffer_unordered(CALLS_AT_ONCE)
        .try_for_each(async |_| Ok(()))
        .await?;
    load::follows(&sample.list, &users.ids, target).await?;
    Ok(())
}

/// Returns whether an earlier run got as far as making accounts.
async fn begun(mut client: Client, sample: &Sample) -> Result<bool, Status> {
    let request = GetUserByNameRequest { name: sample.star.clone() };
    match client.get_user_by_name(remote::request(request, CALL_TIMEOUT)).await {
        Ok(_) => Ok(true),
        Err(status) if status.code() == Code::NotFound => Ok(false),
        Err(status) => Err(status),
    }
}

/// Returns whether there is no account at all.
async fn empty(mut client: Client) -> Result<bool, Status> {
    // The check goes through the partitions: the first that has an account is enough.
    let mut answers = client.verify(Request::new(VerifyRequest {})).await?.into_inner();
    while let Some(answer) = answers.message().await? {
        if answer.users_checked > 0 {
            return Ok(false);
        }
    }
    Ok(true)
}
