//! ViewPost, ViewLikers, ViewComments, ViewReposts: a post and the lists that belong to it.
//!
//! A viewer whom the post's author blocks sees none of them. If the author's account is deleted,
//! the post and its lists are deleted, too.

use microblog_chassis::status;
use microblog_domain::{Fields as _, Invalid, PostId, UserId};
use microblog_proto::{
    gateway::{self, ListedUser, ViewedComment, ViewedPost},
    post::{self, Comment, CommentOrder, Like, Post},
};
use tonic::Status;

use crate::{
    context::{Subject, ViewContext, authenticate_optional_within},
    credentials::Credentials,
    errors,
    hydration::{
        accounts::{AccountEntry, BlockedAccounts, hydrate_authors, listed_accounts},
        mentions::mentioned_names,
        posts::{get_post, hydrate_posts, viewed_posts, viewer_id},
    },
    paging::{Listing, Page, PageRequest, Skeleton, fill_page},
    state::Gateway,
};

/// The fields of the lists' requests that the caller controls.
const FIELDS: errors::Fields = &[("post_id", "post_id"), ("page_token", "page_token")];

/// Shows a post. 3 calls, 2 without a token: post.GetPost, then those of [`hydrate_posts`].
pub(crate) async fn view_post(
    gateway: &Gateway,
    credentials: Option<Credentials>,
    request: gateway::ViewPostRequest,
) -> Result<gateway::ViewPostResponse, Status> {
    authenticate_optional_within(gateway, credentials, |session| async move {
        let context = ViewContext::of(session.as_deref());
        let post = get_post(gateway, context.viewer, request.post_id).await?;
        let context = context.with_subject(Subject::PostAuthor(post.author_id));
        let hydrated = hydrate_posts(gateway, context, std::slice::from_ref(&post)).await?;
        let post = errors::required(hydrated.view(post))?;
        Ok(gateway::ViewPostResponse { post: Some(post) })
    })
    .await
}

/// Shows the accounts that like a post. 4 calls, 3 without a token, for a page that one skeleton
/// fills: post.GetPost ∥ post.ListLikers, then user.BatchGetUsers ∥ relation.BatchGetRelations. Each
/// of up to 4 further skeletons costs 3 (2) more: up to 16 (11).
pub(crate) async fn view_likers(
    gateway: &Gateway,
    credentials: Option<Credentials>,
    request: gateway::ViewLikersRequest,
) -> Result<gateway::ViewLikersResponse, Status> {
    let gateway::ViewLikersRequest { post_id, page_size, page_token } = request;
    let fields = (PostId::parse("post_id", post_id), PageRequest::parse(page_size, page_token));
    let (post, page) = fields.all().map_err(status::invalid)?;
    let page = view_list(gateway, post, |_| Likers(post), credentials, page).await?;
    let Page { entries: users, next_page_token } = page;
    Ok(gateway::ViewLikersResponse { users, next_page_token })
}

/// Shows the comments on a post. 4 calls, 3 without a token, for a page that one skeleton fills:
/// post.GetPost ∥ post.ListComments, then user.BatchGetUsers ∥ relation.BatchGetRelations. Each of up
/// to 4 further skeletons costs 3 (2) more: up to 16 (11).
pub(crate) async fn view_comments(
    gateway: &Gateway,
    credentials: Option<Credentials>,
    request: gateway::ViewCommentsRequest,
) -> Result<gateway::ViewCommentsResponse, Status> {
    let gateway::ViewCommentsRequest { post_id, order, page_size, page_token } = request;
    let order = CommentOrder::try_from(order);
    let order = order.map_err(|_| Invalid::new("order", "must be one of the orders"));
    let (post, page) =
        (PostId::parse("post_id", post_id), PageRequest::parse(page_size, page_token));
    let (post, order, page) = (post, order, page).all().map_err(status::invalid)?;
    let page = view_list(gateway, post, |_| Comments { post, order }, credentials, page).await?;
    let Page { entries: comments, next_page_token } = page;
    Ok(gateway::ViewCommentsResponse { comments, next_page_token })
}

/// Shows the reposts of a post. 4 calls, 3 without a token, for a page that one skeleton fills:
/// post.GetPost ∥ post.ListReposts, then those of [`hydrate_posts`]. Each of up to 4 further skeletons
/// costs 3 (2) more: up to 16 (11).
pub(crate) async fn view_reposts(
    gateway: &Gateway,
    credentials: Option<Credentials>,
    request: gateway::ViewRepostsRequest,
) -> Result<gateway::ViewRepostsResponse, Status> {
    let gateway::ViewRepostsRequest { post_id, page_size, page_token } = request;
    let fields = (PostId::parse("post_id", post_id), PageRequest::parse(page_size, page_token));
    let (post, page) = fields.all().map_err(status::invalid)?;
    let reposts = |viewer| Reposts { post, viewer };
    let page = view_list(gateway, post, reposts, credentials, page).await?;
    let Page { entries: posts, next_page_token } = page;
    Ok(gateway::ViewRepostsResponse { posts, next_page_token })
}

/// Shows a list that belongs to a post. Whether the viewer may see it is known only after it was
/// read. The first of several errors wins: the viewer's, the post's, the list's, then a block.
async fn view_list<L: Listing<Cursor = String>>(
    gateway: &Gateway,
    post: PostId,
    list: impl FnOnce(Option<UserId>) -> L,
    credentials: Option<Credentials>,
    page: PageRequest,
) -> Result<Page<L::Shown>, Status> {
    authenticate_optional_within(gateway, credentials, |session| async move {
        let context = ViewContext::of(session.as_deref());
        let list = list(context.viewer);
        let (post, first) = tokio::join!(
            get_post(gateway, None, post.get()),
            list.skeleton(gateway, page.size, page.token.clone())
        );
        let (post, first) = (post?, first?);
        let context = context.with_subject(Subject::PostAuthor(post.author_id));
        fill_page(gateway, &list, context, page.size, first, page.token).await
    })
    .await
}

/// The accounts that like a post.
struct Likers(PostId);

impl Listing for Likers {
    type Entry = AccountEntry;
    type Shown = ListedUser;
    type Cursor = String;

    async fn skeleton(
        &self,
        gateway: &Gateway,
        size: usize,
        page_token: String,
    ) -> Result<Skeleton<AccountEntry>, Status> {
        let post_id = self.0.get();
        let request = post::ListLikersRequest { post_id, page_size: size as i32, page_token };
        let response = errors::reply(gateway.peers.post().list_likers(request).await, FIELDS)?;
        let entry = |like: Like| AccountEntry { user_id: like.user_id, since: like.liked_at };
        let entries = response.likes.into_iter().map(entry).collect();
        Ok(Skeleton::new(entries, response.next_page_token))
    }

    async fn hydrate(
        &self,
        gateway: &Gateway,
        context: ViewContext<'_>,
        entries: Vec<AccountEntry>,
    ) -> Result<Vec<Option<ListedUser>>, Status> {
        listed_accounts(gateway, context, entries, BlockedAccounts::Omitted).await
    }
}

/// The comments on a post.
struct Comments {
    post: PostId,
    order: CommentOrder,
}

impl Listing for Comments {
    type Entry = Comment;
    type Shown = ViewedComment;
    type Cursor = String;

    async fn skeleton(
        &self,
        gateway: &Gateway,
        size: usize,
        page_token: String,
    ) -> Result<Skeleton<Comment>, Status> {
        let (post_id, order, page_size) = (self.post.get(), self.order.into(), size as i32);
        let request = post::ListCommentsRequest { post_id, order, page_size, page_token };
        let response = errors::reply(gateway.peers.post().list_comments(request).await, FIELDS)?;
        Ok(Skeleton::new(response.comments, response.next_page_token))
    }

    async fn hydrate(
        &self,
        gateway: &Gateway,
        context: ViewContext<'_>,
        comments: Vec<Comment>,
    ) -> Result<Vec<Option<ViewedComment>>, Status> {
        let author_ids = comments.iter().map(|comment| comment.author_id).collect();
        let names = mentioned_names(comments.iter().map(|comment| &comment.entities[..]));
        let authors = hydrate_authors(gateway, context, author_ids, names).await?;
        let visible = comments.into_iter().filter(|comment| !authors.is_hidden(comment.author_id));
        Ok(visible.map(|comment| authors.view_comment(comment)).collect())
    }
}

/// The reposts of a post.
struct Reposts {
    post: PostId,
    viewer: Option<UserId>,
}

impl Listing for Reposts {
    type Entry = Post;
    type Shown = ViewedPost;
    type Cursor = String;

    async fn skeleton(
        &self,
        gateway: &Gateway,
        size: usize,
        page_token: String,
    ) -> Result<Skeleton<Post>, Status> {
        let (post_id, viewer_id) = (self.post.get(), viewer_id(self.viewer));
        let page_size = size as i32;
        let request = post::ListRepostsRequest { post_id, viewer_id, page_size, page_token };
        let response = errors::reply(gateway.peers.post().list_reposts(request).await, FIELDS)?;
        Ok(Skeleton::new(response.posts, response.next_page_token))
    }

    async fn hydrate(
        &self,
        gateway: &Gateway,
        context: ViewContext<'_>,
        posts: Vec<Post>,
    ) -> Result<Vec<Option<ViewedPost>>, Status> {
        let viewed = viewed_posts(gateway, context, posts).await?;
        Ok(viewed.into_iter().map(Some).collect())
    }
}
