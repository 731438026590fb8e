//! The gRPC handlers: decode, call, encode.

use futures::{StreamExt as _, TryStreamExt as _, stream::BoxStream};
use microblog_chassis as chassis;
use microblog_domain::{
    BATCH_MAX, CommentId, Order, PageSize, PostId, Scope, UserId, deduplicated,
};
use microblog_proto::post::{self as pb, post_service_server::PostService};
use microblog_record::stream_changes;
use microblog_storage::{Record, changes::FeedChanges};
use tonic::{Request, Response, Status};

use crate::{
    changes::PostChanges,
    error::Error,
    lists::{List, Page, from_token},
    post::Post,
    posts::Posts,
    verify,
    wire::{self, NewComment, NewPost, NewRepost},
};

type RpcResult<T> = Result<Response<T>, Status>;

/// The gRPC service.
#[derive(Clone)]
pub(crate) struct Rpc {
    posts: Posts,
}

impl Rpc {
    pub(crate) fn new(posts: Posts) -> Self {
        Self { posts }
    }

    async fn posts_on(
        &self,
        page: &Page<Record>,
        viewer: Option<UserId>,
    ) -> Result<Vec<Post>, Error> {
        let posts = self.posts.posts(&page.posts(), viewer).await?;
        Ok(posts.into_iter().flatten().collect())
    }

    // Returns whether the root of a post's reposts is deleted. All reposts have the same root: the
    // post, or the post's own root.
    async fn is_root_deleted(&self, id: PostId, reposts: &[Post]) -> Result<bool, Error> {
        let root = reposts.first().and_then(|post| post.content.origin).map(|origin| origin.root);
        match root.filter(|&root| root != id) {
            Some(root) => Ok(!self.posts.exists(root).await?),
            None => Ok(false),
        }
    }

    // Completes a write even if the caller cancels the call.
    async fn write<T, F>(&self, work: impl FnOnce(Self) -> F) -> Result<T, Status>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let work = work(self.clone());
        chassis::mutate(async move { work.await.map_err(Status::from) }).await
    }
}

#[tonic::async_trait]
impl PostService for Rpc {
    type VerifyStream = BoxStream<'static, Result<pb::VerifyResponse, Status>>;
    type StreamChangesStream = BoxStream<'static, Result<pb::StreamChangesResponse, Status>>;

    async fn create_post(
        &self,
        request: Request<pb::CreatePostRequest>,
    ) -> RpcResult<pb::CreatePostResponse> {
        let NewPost { author, request, text } = wire::new_post(request.get_ref())?;
        let create = |rpc: Self| async move { rpc.posts.create(author, request, text).await };
        let post = Some(wire::post(self.write(create).await?));
        Ok(Response::new(pb::CreatePostResponse { post }))
    }

    async fn repost(&self, request: Request<pb::RepostRequest>) -> RpcResult<pb::RepostResponse> {
        let NewRepost { author, request, reposted, text } = wire::new_repost(request.get_ref())?;
        let repost =
            |rpc: Self| async move { rpc.posts.repost(author, request, reposted, text).await };
        let post = Some(wire::with_root(self.write(repost).await?));
        Ok(Response::new(pb::RepostResponse { post }))
    }

    async fn get_post(
        &self,
        request: Request<pb::GetPostRequest>,
    ) -> RpcResult<pb::GetPostResponse> {
        let pb::GetPostRequest { post_id, viewer_id } = request.into_inner();
        let (id, viewer) = wire::all((PostId::parse("post_id", post_id), wire::viewer(viewer_id)))?;
        let post = Some(wire::with_root(self.posts.get(id, viewer).await?));
        Ok(Response::new(pb::GetPostResponse { post }))
    }

    async fn batch_get_posts(
        &self,
        request: Request<pb::BatchGetPostsRequest>,
    ) -> RpcResult<pb::BatchGetPostsResponse> {
        let pb::BatchGetPostsRequest { post_ids, viewer_id, allow_partial } = request.into_inner();
        let (ids, viewer) = wire::all((wire::batch(&post_ids), wire::viewer(viewer_id)))?;
        let posts = self.posts.batch(&ids, viewer).await?;
        let mut posts: Vec<_> = posts.into_iter().map(wire::with_root).collect();
        let bytes_max = if allow_partial { wire::BATCH_BYTES_MAX } else { usize::MAX };
        let remaining = posts.split_off(wire::fitting(&posts, bytes_max));
        Ok(Response::new(pb::BatchGetPostsResponse {
            posts,
            remaining_ids: remaining.into_iter().map(|post| post.id).collect(),
        }))
    }

    async fn delete_post(
        &self,
        request: Request<pb::DeletePostRequest>,
    ) -> RpcResult<pb::DeletePostResponse> {
        let pb::DeletePostRequest { author_id, post_id } = request.into_inner();
        let (author, id) =
            wire::all((UserId::parse("author_id", author_id), PostId::parse("post_id", post_id)))?;
        self.write(|rpc| async move { rpc.posts.delete(author, id).await }).await?;
        Ok(Response::new(pb::DeletePostResponse {}))
    }

    async fn like(&self, request: Request<pb::LikeRequest>) -> RpcResult<pb::LikeResponse> {
        let pb::LikeRequest { user_id, post_id } = request.into_inner();
        let (user, id) =
            wire::all((UserId::parse("user_id", user_id), PostId::parse("post_id", post_id)))?;
        let like = |rpc: Self| async move { rpc.posts.like(user, id).await };
        let (since, likes) = self.write(like).await?;
        let like = Some(wire::like(user_id, since));
        Ok(Response::new(pb::LikeResponse { like, likes }))
    }

    async fn unlike(&self, request: Request<pb::UnlikeRequest>) -> RpcResult<pb::UnlikeResponse> {
        let pb::UnlikeRequest { user_id, post_id } = request.into_inner();
        let (user, id) =
            wire::all((UserId::parse("user_id", user_id), PostId::parse("post_id", post_id)))?;
        let unlike = |rpc: Self| async move { rpc.posts.unlike(user, id).await };
        let likes = self.write(unlike).await?;
        Ok(Response::new(pb::UnlikeResponse { likes }))
    }

    async fn list_likers(
        &self,
        request: Request<pb::ListLikersRequest>,
    ) -> RpcResult<pb::ListLikersResponse> {
        let request = request.into_inner();
        let (id, size) = wire::all((
            PostId::parse("post_id", request.post_id),
            PageSize::parse(request.page_size),
        ))?;
        let scope = Scope::new("ListLikers").with(request.post_id);
        let after = from_token(scope, &request.page_token).map_err(Error::from)?;
        let page = self.posts.page(List::Likers(id), after, size.get()).await?;
        let next_page_token = page.next_token(scope);
        Ok(Response::new(pb::ListLikersResponse {
            likes: wire::likes(&page.entries),
            next_page_token,
        }))
    }

    async fn batch_get_liked(
        &self,
        request: Request<pb::BatchGetLikedRequest>,
    ) -> RpcResult<pb::BatchGetLikedResponse> {
        let pb::BatchGetLikedRequest { user_id, post_ids } = request.into_inner();
        let (user, ids) = wire::all((UserId::parse("user_id", user_id), wire::batch(&post_ids)))?;
        let liked = self.posts.liked(user, &ids).await?;
        let liked = liked.into_iter().map(PostId::get);
        Ok(Response::new(pb::BatchGetLikedResponse { post_ids: liked.collect() }))
    }

    async fn add_comment(
        &self,
        request: Request<pb::AddCommentRequest>,
    ) -> RpcResult<pb::AddCommentResponse> {
        let NewComment { author, request, post, text, in_reply_to } =
            wire::new_comment(request.get_ref())?;
        let add = |rpc: Self| async move {
            rpc.posts.comment(author, request, post, text, in_reply_to).await
        };
        let comment = Some(wire::comment(self.write(add).await?));
        Ok(Response::new(pb::AddCommentResponse { comment }))
    }

    async fn get_comment(
        &self,
        request: Request<pb::GetCommentRequest>,
    ) -> RpcResult<pb::GetCommentResponse> {
        let pb::GetCommentRequest { post_id, comment_id } = request.into_inner();
        let (post, id) = wire::all((
            PostId::parse("post_id", post_id),
            CommentId::parse("comment_id", comment_id),
        ))?;
        let comment = self.posts.comments(&[(post, id)]).await?.pop();
        let comment = comment.ok_or(Error::CommentNotFound)?;
        Ok(Response::new(pb::GetCommentResponse { comment: Some(wire::comment(comment)) }))
    }

    async fn batch_get_comments(
        &self,
        request: Request<pb::BatchGetCommentsRequest>,
    ) -> RpcResult<pb::BatchGetCommentsResponse> {
        let pb::BatchGetCommentsRequest { comments, allow_partial } = request.into_inner();
        let keys = deduplicated(&wire::comment_keys(&comments)?);
        let comments = self.posts.comments(&keys).await?;
        let mut comments: Vec<_> = comments.into_iter().map(wire::comment).collect();
        let fitting = if allow_partial {
            wire::fitting(&comments, wire::BATCH_BYTES_MAX)
        } else {
            comments.len()
        };
        let remaining = comments.split_off(fitting).into_iter();
        let key = |it: pb::Comment| pb::CommentKey { post_id: it.post_id, comment_id: it.id };
        Ok(Response::new(pb::BatchGetCommentsResponse {
            comments,
            remaining: remaining.map(key).collect(),
        }))
    }

    async fn delete_comment(
        &self,
        request: Request<pb::DeleteCommentRequest>,
    ) -> RpcResult<pb::DeleteCommentResponse> {
        let pb::DeleteCommentRequest { user_id, post_id, comment_id } = request.into_inner();
        let (user, post, id) = wire::all((
            UserId::parse("user_id", user_id),
            PostId::parse("post_id", post_id),
            CommentId::parse("comment_id", comment_id),
        ))?;
        let delete = |rpc: Self| async move { rpc.posts.delete_comment(user, post, id).await };
        self.write(delete).await?;
        Ok(Response::new(pb::DeleteCommentResponse {}))
    }

    async fn list_comments(
        &self,
        request: Request<pb::ListCommentsRequest>,
    ) -> RpcResult<pb::ListCommentsResponse> {
        let request = request.into_inner();
        let (id, order, size) = wire::all((
            PostId::parse("post_id", request.post_id),
            wire::order(request.order),
            PageSize::parse(request.page_size),
        ))?;
        let order_number = u64::from(order == Order::Newest);
        let scope = Scope::new("ListComments").with(request.post_id).with(order_number);
        let after = from_token(scope, &request.page_token).map_err(Error::from)?;
        let mut page = self.posts.comments_on(id, order, after, size.get()).await?;
        let comments = wire::comments(&mut page);
        Ok(Response::new(pb::ListCommentsResponse {
            comments,
            next_page_token: page.next_token(scope),
        }))
    }

    async fn list_reposts(
        &self,
        request: Request<pb::ListRepostsRequest>,
    ) -> RpcResult<pb::ListRepostsResponse> {
        let request = request.into_inner();
        let (id, viewer, size) = wire::all((
            PostId::parse("post_id", request.post_id),
            wire::viewer(request.viewer_id),
            PageSize::parse(request.page_size),
        ))?;
        let scope = Scope::new("ListReposts").with(request.post_id);
        let after = from_token(scope, &request.page_token).map_err(Error::from)?;
        let mut page = self.posts.page(List::Reposts(id), after, size.get()).await?;
        let posts = self.posts_on(&page, viewer).await?;
        let root_deleted = self.is_root_deleted(id, &posts).await?;
        let post = |post| pb::Post { root_deleted, ..wire::post(post) };
        let mut posts = posts.into_iter().map(post).collect();
        wire::fit(&mut page, &mut posts);
        Ok(Response::new(pb::ListRepostsResponse {
            posts,
            next_page_token: page.next_token(scope),
        }))
    }

    async fn list_user_posts(
        &self,
        request: Request<pb::ListUserPostsRequest>,
    ) -> RpcResult<pb::ListUserPostsResponse> {
        let request = request.into_inner();
        let (author, viewer, size, before) = wire::all((
            UserId::parse("author_id", request.author_id),
            wire::viewer(request.viewer_id),
            PageSize::parse(request.page_size),
            wire::before(request.before_id),
        ))?;
        let scope = Scope::new("ListUserPosts").with(request.author_id).with(request.before_id);
        let begin = before.map(|id| Record { time_ms: 0, id: id.get() });
        let after = from_token(scope, &request.page_token).map_err(Error::from)?.or(begin);
        let mut page = self.posts.page(List::PostsOf(author), after, size.get()).await?;
        let posts = self.posts_on(&page, viewer).await?;
        let posts = self.posts.with_roots(posts, viewer).await?;
        let mut posts = posts.into_iter().map(wire::with_root).collect();
        wire::fit(&mut page, &mut posts);
        Ok(Response::new(pb::ListUserPostsResponse {
            posts,
            next_page_token: page.next_token(scope),
        }))
    }

    async fn list_authors_posts(
        &self,
        request: Request<pb::ListAuthorsPostsRequest>,
    ) -> RpcResult<pb::ListAuthorsPostsResponse> {
        let request = request.into_inner();
        let (authors, viewer, size, before, after) = wire::all((
            UserId::parse_list("author_ids", &request.author_ids, BATCH_MAX),
            wire::viewer(request.viewer_id),
            PageSize::parse(request.page_size),
            wire::before(request.before_id),
            wire::after(request.after_id),
        ))?;
        let newest = self.posts.newest_of(&authors, before, after, size.get()).await?;
        let posts = self.posts.batch(&newest.ids, viewer).await?;
        let mut posts: Vec<_> = posts.into_iter().map(wire::with_root).collect();
        let fitting = wire::fitting(&posts, wire::PAGE_BYTES_MAX);
        let mut next_before_id = newest.next.map_or(0, PostId::get);
        if fitting < posts.len() {
            posts.truncate(fitting);
            next_before_id = posts.last().map_or(0, |last| last.id);
        }
        Ok(Response::new(pb::ListAuthorsPostsResponse { posts, next_before_id }))
    }

    async fn batch_get_post_counts(
        &self,
        request: Request<pb::BatchGetPostCountsRequest>,
    ) -> RpcResult<pb::BatchGetPostCountsResponse> {
        let user_ids = request.into_inner().user_ids;
        let users = wire::accounts(&user_ids).map_err(Error::from)?;
        let post_counts = self.posts.post_counts(&users).await?;
        let count = |(user, posts): (&UserId, u64)| pb::PostCount { user_id: user.get(), posts };
        let counts = users.iter().zip(post_counts).map(count);
        let unknown = |user_id| pb::PostCount { user_id, ..Default::default() };
        let counts = UserId::answers(&user_ids, counts, unknown);
        Ok(Response::new(pb::BatchGetPostCountsResponse { counts }))
    }

    async fn list_user_comments(
        &self,
        request: Request<pb::ListUserCommentsRequest>,
    ) -> RpcResult<pb::ListUserCommentsResponse> {
        let request = request.into_inner();
        let (author, size) = wire::all((
            UserId::parse("author_id", request.author_id),
            PageSize::parse(request.page_size),
        ))?;
        let scope = Scope::new("ListUserComments").with(request.author_id);
        let after = from_token(scope, &request.page_token).map_err(Error::from)?;
        let mut page = self.posts.comments_by(author, after, size.get()).await?;
        let comments = wire::comments(&mut page);
        Ok(Response::new(pb::ListUserCommentsResponse {
            comments,
            next_page_token: page.next_token(scope),
        }))
    }

    async fn import_posts(
        &self,
        request: Request<pb::ImportPostsRequest>,
    ) -> RpcResult<pb::ImportPostsResponse> {
        let posts = wire::imported(&request.into_inner().posts)?;
        let import = |rpc: Self| async move { rpc.posts.import(posts).await };
        let [created, unchanged, rejected] = self.write(import).await?;
        Ok(Response::new(pb::ImportPostsResponse { created, unchanged, rejected }))
    }

    async fn list_liked_posts(
        &self,
        request: Request<pb::ListLikedPostsRequest>,
    ) -> RpcResult<pb::ListLikedPostsResponse> {
        let request = request.into_inner();
        let (user, size) = wire::all((
            UserId::parse("user_id", request.user_id),
            PageSize::parse(request.page_size),
        ))?;
        let scope = Scope::new("ListLikedPosts").with(request.user_id);
        let after = from_token(scope, &request.page_token).map_err(Error::from)?;
        let page = self.posts.liked_by(user, after, size.get()).await?;
        Ok(Response::new(pb::ListLikedPostsResponse {
            posts: page.entries.iter().map(wire::liked_post).collect(),
            next_page_token: page.next_token(scope),
        }))
    }

    async fn forget_user(
        &self,
        request: Request<pb::ForgetUserRequest>,
    ) -> RpcResult<pb::ForgetUserResponse> {
        let user = UserId::parse("user_id", request.into_inner().user_id).map_err(Error::from)?;
        self.write(|rpc| async move { rpc.posts.forget(user).await }).await?;
        Ok(Response::new(pb::ForgetUserResponse {}))
    }

    async fn redeliver_posts(
        &self,
        request: Request<pb::RedeliverPostsRequest>,
    ) -> RpcResult<pb::RedeliverPostsResponse> {
        let since = wire::redelivered_since(request.into_inner())?;
        let redeliver = |rpc: Self| async move { rpc.posts.delivery.redeliver(since).await };
        self.write(redeliver).await?;
        Ok(Response::new(pb::RedeliverPostsResponse {}))
    }

    async fn verify(&self, request: Request<pb::VerifyRequest>) -> RpcResult<Self::VerifyStream> {
        let user = match request.into_inner().user_id {
            0 => None,
            id => Some(UserId::parse("user_id", id).map_err(Error::from)?),
        };
        let reports = verify::reports(self.posts.clone(), user);
        Ok(Response::new(reports.map_ok(wire::report).map_err(Status::from).boxed()))
    }

    async fn stream_changes(
        &self,
        request: Request<pb::StreamChangesRequest>,
    ) -> RpcResult<Self::StreamChangesStream> {
        let query = request.into_inner().query.unwrap_or_default();
        let changes = FeedChanges::<PostChanges>::new(self.posts.tables.clone());
        let pages = stream_changes(changes, query).await?;
        let response = |page| pb::StreamChangesResponse { page: Some(page) };
        Ok(Response::new(pages.map_ok(response).boxed()))
    }
}
