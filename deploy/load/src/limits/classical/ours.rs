//! Our way: one page of the followers, and two look-ups of the page in the viewer's id sets.

use anyhow::Context as _;
use microblog_keyspace::redis::Client;
use microblog_local::remote;
use microblog_proto::relation::{
    BatchGetRelationsRequest, Follow, ForgetUserRequest, ImportFollowsRequest,
    ListFollowersRequest, relation_service_client::RelationServiceClient,
};
use tonic::transport::Channel;

use super::{PAGE, account, per_page};
use crate::system::connect;

/// Follows that one call brings in.
const CHUNK: u64 = 50_000;

/// More than any number of followers that is asked for.
const VIEWER: u64 = 100_000_000;
const LISTED: u64 = 100_000_001;

/// What it costs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ours {
    /// Redis' time for the relations of a page, as the recipes have it.
    pub(crate) relations_us: f64,
    /// Redis' time for a page with its relations.
    pub(crate) page_us: f64,
}

/// Makes a viewer and an account with so many followers each at a relation service, the half of them
/// the same and the viewer following up to `following_max` of the latter, measures pages by the
/// Redis behind it, and has the service forget both. Nobody else should call it meanwhile.
///
/// The service keeps in mind that the two are gone, and they cannot come back: once for each store.
pub(crate) async fn ours(
    relation_url: &str,
    admin: &Client,
    length: u64,
    following_max: u64,
) -> anyhow::Result<Ours> {
    let mut service = RelationServiceClient::new(remote::serving(relation_url).await?);
    let following = length.min(following_max);
    let (viewer, listed) = (account(VIEWER + 2 * length), account(LISTED + 2 * length));
    let measured = async {
        let followers = |target_id, first: u64| {
            (first..first + length).map(move |number| follow(account(number), target_id))
        };
        import(&mut service, followers(listed, 0)).await?;
        import(&mut service, followers(viewer, length / 2)).await?;
        let follows = (0..following).map(|place| place * length / following);
        import(&mut service, follows.map(|number| follow(viewer, account(number)))).await?;
        measure(&service, admin, viewer, listed).await
    };
    let measured = measured.await;
    for user_id in [viewer, listed] {
        service.forget_user(ForgetUserRequest { user_id }).await?;
    }
    let (relations_us, page_us) = measured?;
    Ok(Ours { relations_us, page_us })
}

/// Returns Redis' time for the relations of a page, and for all of it.
async fn measure(
    service: &RelationServiceClient<Channel>,
    admin: &Client,
    viewer_id: u64,
    user_id: u64,
) -> anyhow::Result<(f64, f64)> {
    let mut admin = connect(admin).await?;
    let list = async |page_token: String| {
        let page_size = i32::try_from(PAGE)?;
        let request = ListFollowersRequest { user_id, page_size, page_token, ..Default::default() };
        let page = service.clone().list_followers(request).await?.into_inner();
        let ids = page.edges.iter().map(|edge| edge.user_id).collect::<Vec<_>>();
        anyhow::Ok((ids, page.next_page_token))
    };
    let relations = async |target_ids: Vec<u64>| {
        let request = BatchGetRelationsRequest { viewer_id, target_ids, ..Default::default() };
        anyhow::Ok(service.clone().batch_get_relations(request).await?)
    };
    // Through the list, page by page, and then again.
    let mut token = String::new();
    let page_us = per_page(&mut admin, async |_| {
        let (ids, next) = list(std::mem::take(&mut token)).await?;
        token = next;
        relations(ids).await.map(drop)
    })
    .await?;
    let (ids, _) = list(String::new()).await?;
    let relations_us =
        per_page(&mut admin, async |_| relations(ids.clone()).await.map(drop)).await?;
    Ok((relations_us, page_us))
}

fn follow(follower_id: u64, target_id: u64) -> Follow {
    Follow { follower_id, target_id }
}

async fn import(
    service: &mut RelationServiceClient<Channel>,
    follows: impl Iterator<Item = Follow>,
) -> anyhow::Result<()> {
    let mut follows = follows.peekable();
    while follows.peek().is_some() {
        let follows = follows.by_ref().take(CHUNK as usize).collect();
        let answer = service.import_follows(ImportFollowsRequest { follows }).await;
        let answer = answer.context("cannot bring follows in")?.into_inner();
        let refused = answer.refused_limit + answer.refused_forgotten;
        anyhow::ensure!(refused == 0, "{refused} follows were refused");
    }
    Ok(())
}
