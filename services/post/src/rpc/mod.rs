//! The gRPC handlers: decode, call, encode.

mod lists;

use futures::{
    StreamExt as _, TryStreamExt as _,
    stream::{self, BoxStream},
};
use microblog_chassis as chassis;
use microblog_domain::{CommentId, Partition, PostId, UserId};
use microblog_proto::post::{self as pb, post_service_server::PostService};
use tonic::{Request, Response, Status};

use crate::{
    comments::Comments,
    error::Error,
    likes::Likes,
    posts::Posts,
    repair::Repair,
    store::PostCount,
    tiered_store::TieredStore,
    verify::{self, Report},
    wire::{self, NewComment, NewPost, NewRepost},
};

type Answer<T> = Result<Response<T>, Status>;

/// The gRPC service.
#[derive(Clone)]
pub(crate) struct Rpc {
    tiered: TieredStore,
    posts: Posts,
    likes: Likes,
    comments: Comments,
}

impl Rpc {
    pub(crate) fn new(tiered: TieredStore, posts: Posts) -> Self {
        let (likes, comments) = (Likes::new(tiered.clone()), Comments::new(tiered.clone()));
        Self { tiered, posts, likes, comments }
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

    async fn create_post(
        &self,
        request: Request<pb::CreatePostRequest>,
    ) -> Answer<pb::CreatePostResponse> {
        let NewPost { author, request, text } = wire::new_post(request.get_ref())?;
        let create = |rpc: Self| async move { rpc.posts.create(author, request, text).await };
        let post = Some(wire::post(self.write(create).await?));
        Ok(Response::new(pb::CreatePostResponse { post }))
    }

    async fn repost(&self, request: Request<pb::RepostRequest>) -> Answer<pb::RepostResponse> {
        let NewRepost { author, request, reposted, text } = wire::new_repost(request.get_ref())?;
        let repost =
            |rpc: Self| async move { rpc.posts.repost(author, request, reposted, text).await };
        let post = Some(wire::with_root(self.write(repost).await?));
        Ok(Response::new(pb::RepostResponse { post }))
    }

    async fn get_post(&self, request: Request<pb::GetPostRequest>) -> Answer<pb::GetPostResponse> {
        let pb::GetPostRequest { post_id, viewer_id } = request.into_inner();
        let (id, viewer) = wire::both(PostId::parse("post_id", post_id), wire::viewer(viewer_id))?;
        let post = Some(wire::with_root(self.posts.get(id, viewer).await?));
        Ok(Response::new(pb::GetPostResponse { post }))
    }

    async fn batch_get_posts(
        &self,
        request: Request<pb::BatchGetPostsRequest>,
    ) -> Answer<pb::BatchGetPostsResponse> {
        let pb::BatchGetPostsRequest { post_ids, viewer_id } = request.into_inner();
        let (ids, viewer) = wire::both(wire::batch(&post_ids), wire::viewer(viewer_id))?;
        let posts = self.posts.batch(&ids, viewer).await?;
        let posts = posts.into_iter().map(wire::with_root).collect();
        Ok(Response::new(pb::BatchGetPostsResponse { posts }))
    }

    async fn delete_post(
        &self,
        request: Request<pb::DeletePostRequest>,
    ) -> Answer<pb::DeletePostResponse> {
        let pb::DeletePostRequest { author_id, post_id } = request.into_inner();
        let (author, id) =
            wire::both(UserId::parse("author_id", author_id), PostId::parse("post_id", post_id))?;
        self.write(|rpc| async move { rpc.posts.delete(author, id).await }).await?;
        Ok(Response::new(pb::DeletePostResponse {}))
    }

    async fn like(&self, request: Request<pb::LikeRequest>) -> Answer<pb::LikeResponse> {
        let pb::LikeRequest { user_id, post_id } = request.into_inner();
        let (user, id) =
            wire::both(UserId::parse("user_id", user_id), PostId::parse("post_id", post_id))?;
        let like = |rpc: Self| async move { rpc.likes.like(user, id).await };
        let (since, likes) = self.write(like).await?;
        let like = Some(wire::like(user_id, since));
        Ok(Response::new(pb::LikeResponse { like, likes }))
    }

    async fn unlike(&self, request: Request<pb::UnlikeRequest>) -> Answer<pb::UnlikeResponse> {
        let pb::UnlikeRequest { user_id, post_id } = request.into_inner();
        let (user, id) =
            wire::both(UserId::parse("user_id", user_id), PostId::parse("post_id", post_id))?;
        let unlike = |rpc: Self| async move { rpc.likes.unlike(user, id).await };
        let likes = self.write(unlike).await?;
        Ok(Response::new(pb::UnlikeResponse { likes }))
    }

    async fn list_likers(
        &self,
        request: Request<pb::ListLikersRequest>,
    ) -> Answer<pb::ListLikersResponse> {
        Ok(Response::new(self.likers(request.into_inner()).await?))
    }

    async fn batch_get_liked(
        &self,
        request: Request<pb::BatchGetLikedRequest>,
    ) -> Answer<pb::BatchGetLikedResponse> {
        let pb::BatchGetLikedRequest { user_id, post_ids } = request.into_inner();
        let (user, ids) = wire::both(UserId::parse("user_id", user_id), wire::batch(&post_ids))?;
        let liked = self.posts.liked(user, &ids).await?;
        let liked = liked.into_iter().map(PostId::get);
        Ok(Response::new(pb::BatchGetLikedResponse { post_ids: liked.collect() }))
    }

    async fn add_comment(
        &self,
        request: Request<pb::AddCommentRequest>,
    ) -> Answer<pb::AddCommentResponse> {
        let NewComment { author, request, post, text, in_reply_to } =
            wire::new_comment(request.get_ref())?;
        let add = |rpc: Self| async move {
            rpc.comments.add(author, request, post, text, in_reply_to).await
        };
        let comment = Some(wire::comment(self.write(add).await?));
        Ok(Response::new(pb::AddCommentResponse { comment }))
    }

    async fn get_comment(
        &self,
        request: Request<pb::GetCommentRequest>,
    ) -> Answer<pb::GetCommentResponse> {
        let pb::GetCommentRequest { post_id, comment_id } = request.into_inner();
        let (post, id) = wire::both(
            PostId::parse("post_id", post_id),
            CommentId::parse("comment_id", comment_id),
        )?;
        let comment =
            self.tiered.comments(post, &[id]).await?.pop().ok_or(Error::CommentNotFound)?;
        Ok(Response::new(pb::GetCommentResponse { comment: Some(wire::comment(comment)) }))
    }

    async fn delete_comment(
        &self,
        request: Request<pb::DeleteCommentRequest>,
    ) -> Answer<pb::DeleteCommentResponse> {
        let pb::DeleteCommentRequest { user_id, post_id, comment_id } = request.into_inner();
        let ((user, post), id) = wire::three(
            UserId::parse("user_id", user_id),
            PostId::parse("post_id", post_id),
            CommentId::parse("comment_id", comment_id),
        )?;
        let delete = |rpc: Self| async move { rpc.comments.delete(user, post, id).await };
        self.write(delete).await?;
        Ok(Response::new(pb::DeleteCommentResponse {}))
    }

    async fn list_comments(
        &self,
        request: Request<pb::ListCommentsRequest>,
    ) -> Answer<pb::ListCommentsResponse> {
        Ok(Response::new(self.comments_of(request.into_inner()).await?))
    }

    async fn list_reposts(
        &self,
        request: Request<pb::ListRepostsRequest>,
    ) -> Answer<pb::ListRepostsResponse> {
        Ok(Response::new(self.reposts_of(request.into_inner()).await?))
    }

    async fn list_user_posts(
        &self,
        request: Request<pb::ListUserPostsRequest>,
    ) -> Answer<pb::ListUserPostsResponse> {
        Ok(Response::new(self.posts_of(request.into_inner()).await?))
    }

    async fn list_authors_posts(
        &self,
        request: Request<pb::ListAuthorsPostsRequest>,
    ) -> Answer<pb::ListAuthorsPostsResponse> {
        Ok(Response::new(self.posts_of_authors(request.into_inner()).await?))
    }

    async fn batch_get_post_counts(
        &self,
        request: Request<pb::BatchGetPostCountsRequest>,
    ) -> Answer<pb::BatchGetPostCountsResponse> {
        let users = wire::accounts(&request.get_ref().user_ids).map_err(Error::from)?;
        let post_counts = self.tiered.store().post_counts(&users).await.map_err(Error::from)?;
        let count = |(user, posts): (&UserId, PostCount)| pb::PostCount {
            user_id: user.get(),
            posts: posts.total(),
        };
        let counts = users.iter().zip(post_counts).map(count).collect();
        Ok(Response::new(pb::BatchGetPostCountsResponse { counts }))
    }

    async fn list_user_comments(
        &self,
        request: Request<pb::ListUserCommentsRequest>,
    ) -> Answer<pb::ListUserCommentsResponse> {
        Ok(Response::new(self.comments_by(request.into_inner()).await?))
    }

    async fn forget_user(
        &self,
        request: Request<pb::ForgetUserRequest>,
    ) -> Answer<pb::ForgetUserResponse> {
        let user = UserId::parse("user_id", request.into_inner().user_id).map_err(Error::from)?;
        self.write(|rpc| async move { Ok(rpc.tiered.store().forget(user).await?) }).await?;
        Ok(Response::new(pb::ForgetUserResponse {}))
    }

    async fn verify(&self, request: Request<pb::VerifyRequest>) -> Answer<Self::VerifyStream> {
        let pb::VerifyRequest { user_id, repair } = request.into_inner();
        let tiered = self.tiered.clone();
        let repair = repair.then(|| Repair::new(tiered.clone(), self.posts.clone()));
        // The clocks come first, since repairs issue stamps.
        let clocks = match repair {
            Some(_) => Some(tiered.store().repair_clocks().await.map_err(Error::from)?),
            None => None,
        };
        let clocks = clocks.map(|repairs| Ok(Report { repairs, ..Report::default() }));
        let reports = match user_id {
            0 => stream::iter(Partition::all())
                .then(move |partition| {
                    let (tiered, repair) = (tiered.clone(), repair.clone());
                    async move {
                        match &repair {
                            Some(repair) => {
                                verify::repaired_partition(&tiered, repair, partition).await
                            }
                            None => verify::partition(&tiered, partition).await,
                        }
                    }
                })
                .boxed(),
            id => {
                let user = UserId::parse("user_id", id).map_err(Error::from)?;
                let report = async move {
                    match &repair {
                        Some(repair) => verify::repaired_author(&tiered, repair, user).await,
                        None => verify::author(&tiered, user).await,
                    }
                };
                stream::once(report).boxed()
            }
        };
        let reports =
            stream::iter(clocks).chain(reports).map_ok(wire::report).map_err(Status::from);
        Ok(Response::new(reports.boxed()))
    }
}
