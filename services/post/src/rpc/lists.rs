//! The handlers of lists. A page's cursor is (score, member).

use microblog_domain::{BATCH_MAX, CommentId, FieldErrors, PageSize, PostId, Scope, UserId};
use microblog_keyspace::{Entry, Page};
use microblog_proto::post as pb;

use prost::Message;

use super::Rpc;
use crate::{
    error::Error,
    post::{Post, WithRoot},
    store::{List, post_ids},
    wire,
};

impl Rpc {
    pub(super) async fn likers(
        &self,
        request: pb::ListLikersRequest,
    ) -> Result<pb::ListLikersResponse, Error> {
        let (id, size) = wire::both(
            PostId::parse("post_id", request.post_id),
            PageSize::parse(request.page_size),
        )?;
        let scope = Scope::new("ListLikers").with(request.post_id);
        let after = Entry::from_token(scope, &request.page_token)?;
        let page = self.tiered.list(List::Likers, id, after, size.get()).await?;
        let next_page_token = page.next_token(scope);
        Ok(pb::ListLikersResponse { likes: wire::likes(&page.entries), next_page_token })
    }

    pub(super) async fn comments_of(
        &self,
        request: pb::ListCommentsRequest,
    ) -> Result<pb::ListCommentsResponse, Error> {
        let ((id, order), size) = wire::three(
            PostId::parse("post_id", request.post_id),
            wire::order(request.order),
            PageSize::parse(request.page_size),
        )?;
        let order_number = u64::from(order == microblog_keyspace::Order::Newest);
        let scope = Scope::new("ListComments").with(request.post_id).with(order_number);
        let after = Entry::from_token(scope, &request.page_token)?;
        let mut page = self.tiered.list(List::Comments(order), id, after, size.get()).await?;
        let ids: Vec<_> =
            page.entries.iter().filter_map(|entry| CommentId::new(entry.member)).collect();
        let comments = self.tiered.comments(id, &ids).await?;
        let mut comments = comments.into_iter().map(wire::comment).collect();
        fit(&mut page, &mut comments, |comment| comment.id);
        Ok(pb::ListCommentsResponse { comments, next_page_token: page.next_token(scope) })
    }

    pub(super) async fn reposts_of(
        &self,
        request: pb::ListRepostsRequest,
    ) -> Result<pb::ListRepostsResponse, Error> {
        let ((id, viewer), size) = wire::three(
            PostId::parse("post_id", request.post_id),
            wire::viewer(request.viewer_id),
            PageSize::parse(request.page_size),
        )?;
        let scope = Scope::new("ListReposts").with(request.post_id);
        let after = Entry::from_token(scope, &request.page_token)?;
        let mut page = self.tiered.list(List::Reposts, id, after, size.get()).await?;
        let posts = self.posts_on(&page, viewer).await?;
        let root_deleted = self.is_root_deleted(id, &posts).await?;
        let post = |post| pb::Post { root_deleted, ..wire::post(post) };
        let mut posts = posts.into_iter().map(post).collect();
        fit(&mut page, &mut posts, |post| post.id);
        Ok(pb::ListRepostsResponse { posts, next_page_token: page.next_token(scope) })
    }

    pub(super) async fn posts_of(
        &self,
        request: pb::ListUserPostsRequest,
    ) -> Result<pb::ListUserPostsResponse, Error> {
        let mut fields = FieldErrors::default();
        let author = fields.read(UserId::parse("author_id", request.author_id));
        let view = fields.read(wire::viewer(request.viewer_id));
        let size = fields.read(PageSize::parse(request.page_size));
        let before = fields.read(wire::before(request.before_id));
        let read = author.zip(view).zip(size).zip(before);
        let (((author, viewer), size), before) = fields.finish(read).map_err(Error::Invalid)?;
        let scope = Scope::new("ListUserPosts").with(request.author_id).with(request.before_id);
        let begin = before.map(|id| Entry { member: id.get(), score: id.get() });
        let after = Entry::from_token(scope, &request.page_token)?.or(begin);
        let mut page = self.tiered.posts_of(author, after, size.get()).await?;
        let posts = self.posts_on(&page, viewer).await?;
        let posts: Vec<WithRoot> = self.posts.with_roots(posts, viewer).await?;
        let mut posts = posts.into_iter().map(wire::with_root).collect();
        fit(&mut page, &mut posts, |post| post.id);
        Ok(pb::ListUserPostsResponse { posts, next_page_token: page.next_token(scope) })
    }

    pub(super) async fn posts_of_authors(
        &self,
        request: pb::ListAuthorsPostsRequest,
    ) -> Result<pb::ListAuthorsPostsResponse, Error> {
        let mut fields = FieldErrors::default();
        let authors = fields.read(UserId::parse_list("author_ids", &request.author_ids, BATCH_MAX));
        let view = fields.read(wire::viewer(request.viewer_id));
        let size = fields.read(PageSize::parse(request.page_size));
        let before = fields.read(wire::before(request.before_id));
        let read = authors.zip(view).zip(size).zip(before);
        let (((authors, viewer), size), before) = fields.finish(read).map_err(Error::Invalid)?;
        let newest = self.tiered.newest_of(&authors, before, size.get()).await?;
        let posts = self.posts.batch(&newest.ids, viewer).await?;
        let mut posts: Vec<_> = posts.into_iter().map(wire::with_root).collect();
        let fitting = fitting(&posts);
        let mut next_before_id = newest.next.map_or(0, PostId::get);
        if fitting < posts.len() {
            posts.truncate(fitting);
            next_before_id = posts.last().map_or(0, |last| last.id);
        }
        Ok(pb::ListAuthorsPostsResponse { posts, next_before_id })
    }

    pub(super) async fn comments_by(
        &self,
        request: pb::ListUserCommentsRequest,
    ) -> Result<pb::ListUserCommentsResponse, Error> {
        let (author, size) = wire::both(
            UserId::parse("author_id", request.author_id),
            PageSize::parse(request.page_size),
        )?;
        let scope = Scope::new("ListUserComments").with(request.author_id);
        let after = Entry::from_token(scope, &request.page_token)?;
        let below = after.and_then(|entry| CommentId::new(entry.member));
        let comments = self.tiered.archive()?.comments_by(author, below, size.get() + 1).await?;
        let entry = |id: u64| Entry { member: id, score: id };
        let entries = comments.iter().take(size.get()).map(|comment| entry(comment.id.get()));
        let mut page = Page { entries: entries.collect(), more: comments.len() > size.get() };
        let comments = comments.into_iter().take(size.get());
        let mut comments = comments.map(wire::comment).collect();
        fit(&mut page, &mut comments, |comment| comment.id);
        Ok(pb::ListUserCommentsResponse { comments, next_page_token: page.next_token(scope) })
    }

    async fn posts_on(&self, page: &Page, viewer: Option<UserId>) -> Result<Vec<Post>, Error> {
        let posts = self.tiered.posts(&post_ids(&page.entries), viewer).await?;
        Ok(posts.into_iter().flatten().collect())
    }

    // Returns whether the root of a post's reposts is deleted. All reposts have the same root: the
    // post, or the post's own root.
    async fn is_root_deleted(&self, id: PostId, reposts: &[Post]) -> Result<bool, Error> {
        let root = reposts.first().and_then(|post| post.content.origin).map(|origin| origin.root);
        match root.filter(|&root| root != id) {
            Some(root) => match self.tiered.exist(&[root]).await {
                Ok(exist) => Ok(exist != [true]),
                // The root may be in the archive, which is unavailable.
                Err(error) if error.is_outage() => Ok(false),
                Err(error) => Err(error),
            },
            None => Ok(false),
        }
    }
}

/// The most bytes of a page's entries: half of gRPC's default limit of a received message (4 MiB).
/// Pages rarely reach it, since texts are rarely as long as allowed.
const PAGE_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Truncates a page that is too large for one message; the next page begins there.
fn fit<T: Message>(page: &mut Page, entries: &mut Vec<T>, id: impl Fn(&T) -> u64) {
    let kept = fitting(entries);
    if let Some(cut) = entries.get(kept).map(id) {
        let place = page.entries.iter().position(|entry| entry.member == cut);
        page.entries.truncate(place.unwrap_or_default());
        page.more = true;
        entries.truncate(kept);
    }
}

// Returns how many entries fit into one message. A single one always fits.
fn fitting<T: Message>(entries: &[T]) -> usize {
    let mut bytes = 0;
    let fits = |entry: &&T| {
        bytes += entry.encoded_len();
        bytes <= PAGE_BYTES_MAX
    };
    entries.iter().take_while(fits).count()
}
