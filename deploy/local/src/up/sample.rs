//! The demo graph in a running microblog, and what its accounts post: made once, through the
//! services' calls, and only where nothing else is stored.

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
        GetUserByNameRequest, UpdateProfileRequest, VerifyRequest,
        user_service_client::UserServiceClient,
    },
};
use tonic::{Code, Request, Status};

pub(super) use self::graph::Sample;
use self::posts::Planned;
use super::{announce, services::SERVERS};
use crate::{
    graph::Target,
    keys::{Keys, Signed},
    remote::{self, CALL_TIMEOUT},
};

/// The password of every account of the demo graph.
pub(super) const PASSWORD: &str = "demo-password";
/// Their e-mail addresses are `<name>@demo.invalid`.
const EMAIL_DOMAIN: &str = "demo.invalid";

const CALLS_AT_ONCE: usize = 16;

type Users = UserServiceClient<Signed>;
type Posts = PostServiceClient<Signed>;

/// Makes the demo graph unless something is stored already, and tells how to look at it. The mark
/// is a file that is there once the graph is complete: until then, it is gone on with.
pub(super) async fn ensure(port_base: u16, mark: &Path, keys: &Keys) -> anyhow::Result<()> {
    let sample = Sample::generate()?;
    let [_, user_url, relation_url, post_url, ..] =
        SERVERS.each_ref().map(|server| server.url(port_base));
    let users = Users::new(keys.sign(remote::channel(&user_url)?));
    let posts = Posts::new(keys.sign(remote::channel(&post_url)?));
    if !mark.exists() {
        if account(&users, &sample.star).await?.is_none() && !empty(users.clone()).await? {
            println!("\nAccounts are stored already: no demo graph is made.");
            return Ok(());
        }
        let target = Target {
            user_url,
            relation_url,
            password: PASSWORD.to_owned(),
            email_domain: EMAIL_DOMAIN.to_owned(),
            keys: keys.clone(),
        };
        let ids = people(&users, &sample, &target).await?;
        for planned in posts::plan(&sample) {
            publish(&posts, &planned, &ids).await?;
        }
        fs::write(mark, "").context("cannot note that it is complete")?;
    }
    let post_id = talk_of(&users, &posts, &sample.star).await?;
    announce::sample(port_base, &sample, post_id);
    Ok(())
}

/// Makes the accounts and their follows, and returns the ids of the accounts.
async fn people(users: &Users, sample: &Sample, target: &Target) -> anyhow::Result<Vec<u64>> {
    let ids = crate::graph::users(&sample.list, target).await?.ids;
    stream::iter(sample.list.names().zip(ids.iter().copied()))
        .map(async |(name, user_id)| {
            let message = UpdateProfileRequest {
                user_id,
                display_name: Some(graph::display_name(name)),
                ..Default::default()
            };
            users.clone().update_profile(remote::request(message, CALL_TIMEOUT)).await
        })
        .buffer_unordered(CALLS_AT_ONCE)
        .try_for_each(async |_| Ok(()))
        .await?;
    crate::graph::follows(&sample.list, &ids, target).await?;
    Ok(ids)
}

/// Makes a post with all that belongs to it. What an earlier run made within 24 hours is not made again.
async fn publish(posts: &Posts, planned: &Planned, ids: &[u64]) -> anyhow::Result<()> {
    let Planned { said, likers, comments, reposts } = planned;
    let mut client = posts.clone();
    let message = CreatePostRequest {
        author_id: ids[said.author],
        request_id: said.request_id(),
        text: said.text.clone(),
    };
    let answer = client.create_post(remote::request(message, CALL_TIMEOUT)).await?;
    let post_id = answer.into_inner().post.context("no post came back")?.id;
    // Each answers the one before, and each repeats the one before.
    let (mut in_reply_to_id, mut reposted_id) = (0, post_id);
    for said in comments {
        let message = AddCommentRequest {
            author_id: ids[said.author],
            request_id: said.request_id(),
            post_id,
            text: said.text.clone(),
            in_reply_to_id,
        };
        let answer = client.add_comment(remote::request(message, CALL_TIMEOUT)).await?;
        in_reply_to_id = answer.into_inner().comment.context("no comment came back")?.id;
    }
    for said in reposts {
        let message = RepostRequest {
            author_id: ids[said.author],
            request_id: said.request_id(),
            post_id: reposted_id,
            text: said.text.clone(),
        };
        let answer = client.repost(remote::request(message, CALL_TIMEOUT)).await?;
        reposted_id = answer.into_inner().post.context("no repost came back")?.id;
    }
    stream::iter(likers)
        .map(async |&liker| {
            let message = LikeRequest { user_id: ids[liker], post_id };
            posts.clone().like(remote::request(message, CALL_TIMEOUT)).await
        })
        .buffer_unordered(CALLS_AT_ONCE)
        .try_for_each(async |_| Ok(()))
        .await?;
    Ok(())
}

/// Returns the account that has a name.
async fn account(users: &Users, name: &str) -> Result<Option<u64>, Status> {
    let request = GetUserByNameRequest { name: name.to_owned() };
    match users.clone().get_user_by_name(remote::request(request, CALL_TIMEOUT)).await {
        Ok(answer) => Ok(answer.into_inner().user.map(|user| user.id)),
        Err(status) if status.code() == Code::NotFound => Ok(None),
        Err(status) => Err(status),
    }
}

/// Returns the newest post with comments, and no repost, of the account that has a name.
async fn talk_of(users: &Users, posts: &Posts, name: &str) -> Result<Option<u64>, Status> {
    let Some(author_id) = account(users, name).await? else { return Ok(None) };
    let request = ListUserPostsRequest { author_id, ..Default::default() };
    let answer = posts.clone().list_user_posts(remote::request(request, CALL_TIMEOUT)).await?;
    let newest_first = answer.into_inner().posts;
    let found = newest_first.iter().find(|post| post.root_id == 0 && post.comments > 0);
    Ok(found.map(|post| post.id))
}

/// Returns whether there is no account at all.
async fn empty(mut users: Users) -> Result<bool, Status> {
    // The check goes through the partitions: the first that has an account is enough.
    let mut answers = users.verify(Request::new(VerifyRequest::default())).await?.into_inner();
    while let Some(answer) = answers.message().await? {
        if answer.users_checked > 0 {
            return Ok(false);
        }
    }
    Ok(true)
}
