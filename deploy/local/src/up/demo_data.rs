//! The demo data set: a follow graph and posts, created once through the services, if nothing else
//! is stored.

mod graph;
mod posts;

use std::{fs, path::Path};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use microblog_proto::{
    post::{
        AddCommentRequest, CreatePostRequest, LikeRequest, ListUserPostsRequest, RepostRequest,
        post_service_client::PostServiceClient,
    },
    user::{
        GetUserByNameRequest, ProfileChanges, UpdateProfileRequest, VerifyRequest,
        user_service_client::UserServiceClient,
    },
};
use tonic::{Code, Request, Status};

pub(super) use self::graph::DemoGraph;
use self::posts::Planned;
use crate::{
    graph::{Accounts, Target},
    keys::{Keys, SignedChannel},
    remote::{self, CALL_TIMEOUT},
    services::SERVERS,
};

/// The password of all demo accounts.
pub(super) const PASSWORD: &str = "demo-password";
/// The domain of the demo accounts' e-mail addresses.
const EMAIL_DOMAIN: &str = "demo.invalid";

const CALLS_IN_FLIGHT: usize = 16;

type Users = UserServiceClient<SignedChannel>;
type Posts = PostServiceClient<SignedChannel>;

/// Creates the demo graph and returns it with a post to show, or returns `None` if other data are
/// stored. The file `mark` exists when the graph is complete; without it, the creation continues.
pub(super) async fn ensure(
    port_base: u16,
    mark: &Path,
    keys: &Keys,
) -> anyhow::Result<Option<(DemoGraph, Option<u64>)>> {
    let graph = DemoGraph::generate()?;
    let [_, user_url, relation_url, post_url, ..] = SERVERS.map(|server| server.url(port_base));
    let users = Users::new(keys.sign(remote::channel(&user_url)?));
    let posts = Posts::new(keys.sign(remote::channel(&post_url)?));
    if !mark.exists() {
        if account(&users, &graph.most_followed).await?.is_none()
            && !has_no_accounts(users.clone()).await?
        {
            println!("\nOther accounts exist: not creating the demo graph.");
            return Ok(None);
        }
        let accounts = Accounts {
            user_url,
            password: PASSWORD.to_owned(),
            email_domain: EMAIL_DOMAIN.to_owned(),
            keys: keys.clone(),
        };
        let target = Target { accounts, relation_url };
        let ids = import_graph(&users, &graph, &target).await?;
        for planned in posts::plan(&graph) {
            create_post(&posts, &planned, &ids).await?;
        }
        fs::write(mark, "").context("cannot write the completion mark")?;
    }
    let post_id = post_with_comments(&users, &posts, &graph.most_followed).await?;
    Ok(Some((graph, post_id)))
}

/// Creates the accounts and their follows, and returns the accounts' ids.
async fn import_graph(
    users: &Users,
    graph: &DemoGraph,
    target: &Target,
) -> anyhow::Result<Vec<u64>> {
    let ids = crate::graph::users(&graph.list, target).await?.ids;
    stream::iter(graph.list.names().zip(ids.iter().copied()))
        .map(async |(name, user_id)| {
            let display_name = Some(graph::display_name(name));
            let changes = ProfileChanges { display_name, ..Default::default() };
            let message = UpdateProfileRequest { user_id, changes: Some(changes) };
            users.clone().update_profile(remote::request(message, CALL_TIMEOUT)).await
        })
        .buffer_unordered(CALLS_IN_FLIGHT)
        .try_for_each(async |_| Ok(()))
        .await?;
    crate::graph::follows(&graph.list, &ids, target).await?;
    Ok(ids)
}

/// Creates a post with its comments and reposts. Request ids make this idempotent for 24 hours.
async fn create_post(posts: &Posts, planned: &Planned, ids: &[u64]) -> anyhow::Result<()> {
    let Planned { post, likers, comments, reposts } = planned;
    let mut client = posts.clone();
    let message = CreatePostRequest {
        author_id: ids[post.author],
        request_id: post.request_id(),
        text: post.text.clone(),
    };
    let answer = client.create_post(remote::request(message, CALL_TIMEOUT)).await?;
    let post_id = answer.into_inner().post.context("response has no post")?.id;
    // Each comment answers the previous one, and each repost repeats the previous one.
    let (mut in_reply_to_id, mut reposted_id) = (0, post_id);
    for comment in comments {
        let message = AddCommentRequest {
            author_id: ids[comment.author],
            request_id: comment.request_id(),
            post_id,
            text: comment.text.clone(),
            in_reply_to_id,
        };
        let answer = client.add_comment(remote::request(message, CALL_TIMEOUT)).await?;
        in_reply_to_id = answer.into_inner().comment.context("response has no comment")?.id;
    }
    for repost in reposts {
        let message = RepostRequest {
            author_id: ids[repost.author],
            request_id: repost.request_id(),
            post_id: reposted_id,
            text: repost.text.clone(),
        };
        let answer = client.repost(remote::request(message, CALL_TIMEOUT)).await?;
        reposted_id = answer.into_inner().post.context("response has no repost")?.id;
    }
    stream::iter(likers)
        .map(async |&liker| {
            let message = LikeRequest { user_id: ids[liker], post_id };
            posts.clone().like(remote::request(message, CALL_TIMEOUT)).await
        })
        .buffer_unordered(CALLS_IN_FLIGHT)
        .try_for_each(async |_| Ok(()))
        .await?;
    Ok(())
}

/// Returns the id of the account with a name.
async fn account(users: &Users, name: &str) -> Result<Option<u64>, Status> {
    let request = GetUserByNameRequest { name: name.to_owned() };
    match users.clone().get_user_by_name(remote::request(request, CALL_TIMEOUT)).await {
        Ok(answer) => Ok(answer.into_inner().user.map(|user| user.id)),
        Err(status) if status.code() == Code::NotFound => Ok(None),
        Err(status) => Err(status),
    }
}

/// Returns the account's newest post that has comments and is no repost.
async fn post_with_comments(
    users: &Users,
    posts: &Posts,
    name: &str,
) -> Result<Option<u64>, Status> {
    let Some(author_id) = account(users, name).await? else { return Ok(None) };
    let request = ListUserPostsRequest { author_id, ..Default::default() };
    let answer = posts.clone().list_user_posts(remote::request(request, CALL_TIMEOUT)).await?;
    let newest_first = answer.into_inner().posts;
    let found = newest_first.iter().find(|post| post.root_id == 0 && post.comments > 0);
    Ok(found.map(|post| post.id))
}

/// Returns whether there are no accounts.
async fn has_no_accounts(mut users: Users) -> Result<bool, Status> {
    // The check streams one message per partition: stop at the first account.
    let mut answers = users.verify(Request::new(VerifyRequest::default())).await?.into_inner();
    while let Some(answer) = answers.message().await? {
        if answer.users_checked > 0 {
            return Ok(false);
        }
    }
    Ok(true)
}
