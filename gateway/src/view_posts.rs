//! A post as its viewers see it, and the lists of what belongs to it. Whoever its author blocks sees
//! neither; the account of an author that is gone takes both with it.

use microblog_domain::{Fields, Invalid, PostId};
use microblog_proto::{gateway, post::CommentOrder};
use tonic::Status;

use crate::{
    pages::{Page, PageRequest},
    people::{Host, Visit},
    present, refusal,
    rpc::Gateway,
    skeleton::{Comments, Likers, Listing, Reposts},
    viewer::Token,
};

impl Gateway {
    /// Shows a post. Up to 6 calls, 3 without a token: user.Authenticate ∥ post.GetPost, then
    /// user.BatchGetUsers ∥ relation.BatchGetRelations ∥ post.BatchGetLiked (only about what
    /// somebody likes) ∥ user.BatchResolveNames (not where nobody is mentioned).
    pub(crate) async fn view_post(
        &self,
        token: Option<Token>,
        request: gateway::ViewPostRequest,
    ) -> Result<gateway::ViewPostResponse, Status> {
        let (viewer, post) = tokio::join!(self.viewer_if_any(token), self.post(request.post_id));
        let (viewer, post) = (viewer?, post?);
        let visit = Visit::of(viewer).at(Host::Author(post.author_id));
        let scene = self.scene(visit, std::slice::from_ref(&post)).await?;
        let post = refusal::sent(present::post(post, &scene))?;
        Ok(gateway::ViewPostResponse { post: Some(post) })
    }

    /// Shows who likes a post. 5 calls, 3 without a token, for a page that is full at once:
    /// user.Authenticate ∥ post.GetPost ∥ post.ListLikers, then user.BatchGetUsers ∥
    /// relation.BatchGetRelations. Each of up to 4 further rounds costs 3 (2) more: up to 17 (11).
    pub(crate) async fn view_likers(
        &self,
        token: Option<Token>,
        request: gateway::ViewLikersRequest,
    ) -> Result<gateway::ViewLikersResponse, Status> {
        let gateway::ViewLikersRequest { post_id, page_size, page_token } = request;
        let mut fields = Fields::default();
        let post = fields.read(PostId::parse("post_id", post_id));
        let (post, page) = PageRequest::parse(fields, post, page_size, page_token)?;
        let Page { entries: users, next_page_token } =
            self.view_list_of(post, Likers(post), token, page).await?;
        Ok(gateway::ViewLikersResponse { users, next_page_token })
    }

    /// Shows the comments on a post. Up to 6 calls, 4 without a token, for a page that is full at
    /// once: user.Authenticate ∥ post.GetPost ∥ post.ListComments, then user.BatchGetUsers ∥
    /// relation.BatchGetRelations ∥ user.BatchResolveNames (not where nobody is mentioned). Each of
    /// up to 4 further rounds costs up to 4 (3) more: up to 22 (16).
    pub(crate) async fn view_comments(
        &self,
        token: Option<Token>,
        request: gateway::ViewCommentsRequest,
    ) -> Result<gateway::ViewCommentsResponse, Status> {
        let gateway::ViewCommentsRequest { post_id, order, page_size, page_token } = request;
        let mut fields = Fields::default();
        let post = fields.read(PostId::parse("post_id", post_id));
        let others = post.zip(fields.read(self::order(order)));
        let ((post, order), page) = PageRequest::parse(fields, others, page_size, page_token)?;
        let Page { entries: comments, next_page_token } =
            self.view_list_of(post, Comments { post, order }, token, page).await?;
        Ok(gateway::ViewCommentsResponse { comments, next_page_token })
    }

    /// Shows the reposts of a post. Up to 7 calls, 4 without a token, for a page that is full at
    /// once: user.Authenticate ∥ post.GetPost ∥ post.ListReposts, then user.BatchGetUsers ∥
    /// relation.BatchGetRelations ∥ post.BatchGetLiked (only about what somebody likes) ∥
    /// user.BatchResolveNames (not where nobody is mentioned). Each of up to 4 further rounds costs
    /// up to 5 (3) more: up to 27 (16).
    pub(crate) async fn view_reposts(
        &self,
        token: Option<Token>,
        request: gateway::ViewRepostsRequest,
    ) -> Result<gateway::ViewRepostsResponse, Status> {
        let gateway::ViewRepostsRequest { post_id, page_size, page_token } = request;
        let mut fields = Fields::default();
        let post = fields.read(PostId::parse("post_id", post_id));
        let (post, page) = PageRequest::parse(fields, post, page_size, page_token)?;
        let Page { entries: posts, next_page_token } =
            self.view_list_of(post, Reposts(post), token, page).await?;
        Ok(gateway::ViewRepostsResponse { posts, next_page_token })
    }

    /// Shows a list of what belongs to a post: to whom, is known only when the list has been read.
    /// Of several faults, the viewer's is told first, then the post's, then the list's, then that
    /// the viewer is kept out.
    async fn view_list_of<L: Listing>(
        &self,
        post: PostId,
        list: L,
        token: Option<Token>,
        page: PageRequest,
    ) -> Result<Page<L::Shown>, Status> {
        let (viewer, post, first) = tokio::join!(
            self.viewer_if_any(token),
            self.post(post.get()),
            list.slice(self, page.size, page.token)
        );
        let (viewer, post, first) = (viewer?, post?, first?);
        let visit = Visit::of(viewer).at(Host::Author(post.author_id));
        self.fill(&list, visit, page.size, first).await
    }
}

/// Reads in which order comments are asked for.
fn order(order: i32) -> Result<CommentOrder, Invalid> {
    let unknown = |_| Invalid::new("order", "must be one of the orders");
    CommentOrder::try_from(order).map_err(unknown)
}
