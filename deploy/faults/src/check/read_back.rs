//! Reads everything that the clients wrote back through the gateway. Without a viewer, so that no
//! block or mute hides anything, except what only its owner can read.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Result, anyhow};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use microblog_local::remote;
use microblog_proto::{
    gateway::{
        CountUnreadRequest, ListedUser, LoginRequest, RootState, UserRef, ViewBlocksRequest,
        ViewCommentsRequest, ViewFollowersRequest, ViewFollowingRequest, ViewHomeRequest,
        ViewLikersRequest, ViewMutesRequest, ViewNoticesRequest, ViewPostRequest, ViewUserRequest,
        ViewUserTimelineRequest, ViewedNotice, ViewedPost,
        gateway_service_client::GatewayServiceClient, user_ref::Ref,
    },
    relation::Counts,
};
use tonic::{Code, Request, Status, transport::Channel};

use crate::{
    load::PASSWORD,
    model::{Model, Subject},
};

const PAGE: i32 = 200;
const CONCURRENT: usize = 8;
const TIMEOUT: Duration = Duration::from_secs(30);

type Gateway = GatewayServiceClient<Channel>;

/// An account, its lists and its posts.
pub(super) struct Account {
    pub(super) id: u64,
    pub(super) bio: String,
    pub(super) counts: Counts,
    pub(super) post_count: u64,
    pub(super) following: Vec<u64>,
    pub(super) followers: Vec<u64>,
    pub(super) blocks: Vec<u64>,
    pub(super) mutes: Vec<u64>,
    /// Its own posts.
    pub(super) posts: Vec<Post>,
    /// The posts of its home timeline.
    pub(super) home: Vec<u64>,
    /// Its notices, if they are checked.
    pub(super) notices: Vec<ViewedNotice>,
    /// How many of its notices are unread.
    pub(super) unread: u64,
}

/// A post with its lists.
pub(super) struct Post {
    pub(super) id: u64,
    pub(super) text: String,
    pub(super) root_id: u64,
    pub(super) root_state: RootState,
    pub(super) likes: u64,
    pub(super) comment_count: u64,
    pub(super) reposts: u64,
    pub(super) likers: Vec<u64>,
    /// The ids and texts.
    pub(super) comments: Vec<(u64, String)>,
}

/// Everything that is stored.
pub(super) struct World {
    /// By their names.
    pub(super) accounts: BTreeMap<String, Account>,
    /// The posts of the model that can be read by their ids.
    pub(super) readable: BTreeSet<u64>,
}

impl World {
    /// Reads all accounts that the model may have.
    pub(super) async fn read(gateway: &str, model: &Model, with_notices: bool) -> Result<Self> {
        let gateway = GatewayServiceClient::new(remote::channel(gateway)?);
        let names = model.subjects().filter_map(|subject| match subject {
            Subject::Account(name) => Some(name.clone()),
            _ => None,
        });
        let names: BTreeSet<String> = names.collect();
        let accounts = stream::iter(names).map(|name| account(gateway.clone(), name, with_notices));
        let accounts: Vec<_> = accounts.buffer_unordered(CONCURRENT).try_collect().await?;
        let ids: Vec<u64> = model.posts.values().map(|post| post.id).collect();
        let posts = stream::iter(ids).map(|id| readable(gateway.clone(), id));
        let readable: Vec<_> = posts.buffer_unordered(CONCURRENT).try_collect().await?;
        Ok(Self {
            accounts: accounts.into_iter().flatten().collect(),
            readable: readable.into_iter().flatten().collect(),
        })
    }
}

/// Returns the id of a post if it can be read.
async fn readable(gateway: Gateway, post_id: u64) -> Result<Option<u64>> {
    let call = || {
        let mut gateway = gateway.clone();
        async move { gateway.view_post(remote::request(ViewPostRequest { post_id }, TIMEOUT)).await }
    };
    match remote::retry(call).await {
        Err(status) if status.code() == Code::NotFound => Ok(None),
        answer => answer.map(|_| Some(post_id)).map_err(|status| failed("ViewPost", &status)),
    }
}

async fn account(
    gateway: Gateway,
    name: String,
    with_notices: bool,
) -> Result<Option<(String, Account)>> {
    let request = ViewUserRequest { user: by_name(&name) };
    let call = || {
        let (mut gateway, request) = (gateway.clone(), request.clone());
        async move { gateway.view_user(remote::request(request, TIMEOUT)).await }
    };
    let view = match remote::retry(call).await {
        Err(status) if status.code() == Code::NotFound => return Ok(None),
        answer => answer.map_err(|status| failed("ViewUser", &status))?.into_inner(),
    };
    let (user, counts) = (view.user.unwrap_or_default(), view.counts.unwrap_or_default());
    let token = login(&gateway, &name).await?;
    let of = || by_name(&name);
    let following = pages("ViewFollowing", async |page_token| {
        let request =
            ViewFollowingRequest { user: of(), page_size: PAGE, page_token, ..Default::default() };
        let page = gateway.clone().view_following(Request::new(request)).await?.into_inner();
        Ok((ids(page.users), page.next_page_token))
    });
    let followers = pages("ViewFollowers", async |page_token| {
        let request =
            ViewFollowersRequest { user: of(), page_size: PAGE, page_token, ..Default::default() };
        let page = gateway.clone().view_followers(Request::new(request)).await?.into_inner();
        Ok((ids(page.users), page.next_page_token))
    });
    let blocks = pages("ViewBlocks", async |page_token| {
        let request = as_viewer(&token, ViewBlocksRequest { page_size: PAGE, page_token })?;
        let page = gateway.clone().view_blocks(request).await?.into_inner();
        Ok((ids(page.users), page.next_page_token))
    });
    let mutes = pages("ViewMutes", async |page_token| {
        let request = as_viewer(&token, ViewMutesRequest { page_size: PAGE, page_token })?;
        let page = gateway.clone().view_mutes(request).await?.into_inner();
        Ok((ids(page.users), page.next_page_token))
    });
    let home = pages("ViewHome", async |page_token| {
        let request = ViewHomeRequest { page_size: PAGE, page_token, ..Default::default() };
        let page = gateway.clone().view_home(as_viewer(&token, request)?).await?.into_inner();
        let posts = page.posts.into_iter().filter_map(|viewed| viewed.post);
        Ok((posts.map(|post| post.id).collect(), page.next_page_token))
    });
    let (notices, unread) =
        if with_notices { notices(&gateway, &token).await? } else { (Vec::new(), 0) };
    let account = Account {
        notices,
        unread,
        id: user.id,
        bio: user.bio,
        counts,
        post_count: view.posts.unwrap_or_default(),
        following: following.await?,
        followers: followers.await?,
        blocks: blocks.await?,
        mutes: mutes.await?,
        posts: posts(&gateway, &name).await?,
        home: home.await?,
    };
    Ok(Some((name, account)))
}

/// Returns the notices of an account, and how many are unread.
async fn notices(gateway: &Gateway, token: &str) -> Result<(Vec<ViewedNotice>, u64)> {
    let notices = pages("ViewNotices", async |page_token| {
        let request = ViewNoticesRequest { page_size: PAGE, page_token, ..Default::default() };
        let page = gateway.clone().view_notices(as_viewer(token, request)?).await?.into_inner();
        Ok((page.notices, page.next_page_token))
    });
    let notices = notices.await?;
    let count = || {
        let (mut gateway, request) =
            (gateway.clone(), as_viewer(token, CountUnreadRequest::default()));
        async move { gateway.count_unread(request?).await }
    };
    let counts = remote::retry(count).await.map_err(|status| failed("CountUnread", &status))?;
    let counts = counts.into_inner().counts;
    Ok((notices, counts.into_iter().map(|unread| u64::from(unread.count)).sum()))
}

async fn posts(gateway: &Gateway, name: &str) -> Result<Vec<Post>> {
    let posts = pages("ViewUserTimeline", async |page_token| {
        let user = by_name(name);
        let request =
            ViewUserTimelineRequest { user, page_size: PAGE, page_token, ..Default::default() };
        let page = gateway.clone().view_user_timeline(Request::new(request)).await?.into_inner();
        Ok((page.posts, page.next_page_token))
    });
    let mut read = Vec::new();
    for viewed in posts.await? {
        read.push(post(gateway, viewed).await?);
    }
    Ok(read)
}

async fn post(gateway: &Gateway, viewed: ViewedPost) -> Result<Post> {
    let root_state = viewed.root_state();
    let post = viewed.post.unwrap_or_default();
    let post_id = post.id;
    let likers = pages("ViewLikers", async |page_token| {
        let request = ViewLikersRequest { post_id, page_size: PAGE, page_token };
        let page = gateway.clone().view_likers(Request::new(request)).await?.into_inner();
        Ok((ids(page.users), page.next_page_token))
    });
    let comments = pages("ViewComments", async |page_token| {
        let request =
            ViewCommentsRequest { post_id, page_size: PAGE, page_token, ..Default::default() };
        let page = gateway.clone().view_comments(Request::new(request)).await?.into_inner();
        let comments = page.comments.into_iter().filter_map(|viewed| viewed.comment);
        Ok((comments.map(|comment| (comment.id, comment.text)).collect(), page.next_page_token))
    });
    Ok(Post {
        id: post.id,
        text: post.text,
        root_id: post.root_id,
        root_state,
        likes: post.likes,
        comment_count: post.comments,
        reposts: post.reposts,
        likers: likers.await?,
        comments: comments.await?,
    })
}

/// Reads all pages of a list, and repeats a read after a transient error.
async fn pages<T>(
    what: &str,
    read: impl AsyncFn(String) -> Result<(Vec<T>, String), Status>,
) -> Result<Vec<T>> {
    let (mut all, mut token) = (Vec::new(), String::new());
    loop {
        let page = remote::retry(|| read(token.clone())).await;
        let (entries, next) = page.map_err(|status| failed(what, &status))?;
        all.extend(entries);
        if next.is_empty() {
            return Ok(all);
        }
        token = next;
    }
}

/// Logs in, and returns the token.
pub(crate) async fn login(gateway: &Gateway, name: &str) -> Result<String> {
    let login = format!("{name}@example.org");
    let call = || {
        let (login, password) = (login.clone(), PASSWORD.to_owned());
        let mut gateway = gateway.clone();
        async move { gateway.login(remote::request(LoginRequest { login, password }, TIMEOUT)).await }
    };
    let answer = remote::retry(call).await.map_err(|status| failed("Login", &status))?;
    Ok(answer.into_inner().token)
}

/// Returns a request of a viewer.
pub(crate) fn as_viewer<T>(token: &str, message: T) -> Result<Request<T>, Status> {
    let mut request = remote::request(message, TIMEOUT);
    let bearer = format!("Bearer {token}").parse();
    let bearer = bearer.map_err(|_| Status::invalid_argument("the token is not ASCII"))?;
    request.metadata_mut().insert("authorization", bearer);
    Ok(request)
}

fn by_name(name: &str) -> Option<UserRef> {
    Some(UserRef { r#ref: Some(Ref::Name(name.to_owned())) })
}

fn ids(users: Vec<ListedUser>) -> Vec<u64> {
    users.into_iter().filter_map(|listed| Some(listed.user?.id)).collect()
}

fn failed(what: &str, status: &Status) -> anyhow::Error {
    anyhow!("{what} fails: {}", remote::error_message(status))
}
