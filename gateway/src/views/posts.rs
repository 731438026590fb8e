//! ViewPosts: posts that the caller names, as ViewPost shows them.

use microblog_chassis::status;
use microblog_domain::{IdMap, IdSet, PageSize, PostId};
use microblog_proto::{
    gateway::{self, WithheldPost, WithheldReason},
    post,
};
use tonic::Status;

use crate::{
    context::{ViewContext, authenticate_optional_within},
    credentials::Principal,
    errors,
    hydration::{
        accounts::HydratedAccounts,
        posts::{viewed_posts_unless, viewer_id},
    },
    paging::{PAGE_BYTES_MAX, fitting},
    state::Gateway,
};

/// The most posts of a request: as many as a page has.
const POSTS_MAX: usize = PageSize::MAX;

/// Shows posts, and to service callers why others are not shown. 3 calls, 2 without a token:
/// post.BatchGetPosts, then user.BatchGetUsers ∥ relation.BatchGetRelations. The post service reads all
/// of the posts, whether they fit or not.
pub(crate) async fn view_posts(
    gateway: &Gateway,
    principal: Principal,
    request: gateway::ViewPostsRequest,
) -> Result<gateway::ViewPostsResponse, Status> {
    let gateway::ViewPostsRequest { post_ids: requested, unasked } = request;
    let ids = PostId::parse_list("post_ids", &requested, POSTS_MAX)
        .map_err(|invalid| status::invalid([invalid]))?;
    let rule =
        if unasked { HydratedAccounts::hidden_reason } else { HydratedAccounts::blocked_reason };
    let explains = principal.caller.is_some();
    authenticate_optional_within(gateway, principal.credentials, |session| async move {
        let context = ViewContext::of(session.as_deref());
        let viewer_id = viewer_id(context.viewer);
        let post_ids = ids.into_iter().map(PostId::get).collect();
        let request = post::BatchGetPostsRequest { post_ids, viewer_id, allow_partial: true };
        let response = gateway.peers.post().batch_get_posts(request).await;
        let post::BatchGetPostsResponse { posts, remaining_ids } = errors::reply(response, &[])?;
        let (posts, hidden) = viewed_posts_unless(gateway, context, posts, rule).await?;
        let mut response =
            gateway::ViewPostsResponse { posts, remaining_ids, ..Default::default() };
        if explains {
            response.withheld = withheld(&requested, &response, &hidden);
        }
        Ok(fitted(response))
    })
    .await
}

/// Returns the requested posts that a response does not have, with the reasons of hidden ones. All
/// others do not exist.
fn withheld(
    requested: &[u64],
    response: &gateway::ViewPostsResponse,
    hidden: &[WithheldPost],
) -> Vec<WithheldPost> {
    let gateway::ViewPostsResponse { posts, remaining_ids, .. } = response;
    let shown = posts.iter().filter_map(|viewed| Some(viewed.post.as_ref()?.id));
    let mut seen: IdSet<u64> = shown.chain(remaining_ids.iter().copied()).collect();
    let hidden: IdMap<u64, WithheldReason> =
        hidden.iter().map(|hidden| (hidden.id, hidden.reason())).collect();
    let missing = requested.iter().copied().filter(|id| seen.insert(*id));
    missing
        .map(|id| {
            let reason = hidden.get(&id).copied().unwrap_or(WithheldReason::Gone);
            WithheldPost { id, reason: reason.into() }
        })
        .collect()
}

/// Returns a response with as many of its first posts as it has room for, at least one. The others are
/// among those that remain, before those that the post service had no room for.
fn fitted(mut response: gateway::ViewPostsResponse) -> gateway::ViewPostsResponse {
    let cut = response.posts.split_off(fitting(&response.posts, PAGE_BYTES_MAX));
    let ids = cut.into_iter().filter_map(|viewed| Some(viewed.post?.id));
    response.remaining_ids.splice(..0, ids);
    response
}

#[cfg(test)]
mod tests {
    use microblog_proto::{gateway::ViewedPost, post::Post};
    use prost::Message as _;

    use super::*;
    use crate::paging::RESPONSE_BYTES_MAX;

    fn viewed(id: u64, bytes: usize) -> ViewedPost {
        let post = Post { id, text: "a".repeat(bytes), ..Post::default() };
        ViewedPost { post: Some(post), ..ViewedPost::default() }
    }

    fn fitted_ids(bytes: usize) -> (Vec<u64>, Vec<u64>) {
        let response = fitted(gateway::ViewPostsResponse {
            posts: (1..=200).map(|id| viewed(id, bytes)).collect(),
            remaining_ids: (201..=300).collect(),
            ..Default::default()
        });
        assert!(response.encoded_len() < RESPONSE_BYTES_MAX);
        let shown = response.posts.into_iter().map(|viewed| viewed.post.unwrap().id);
        (shown.collect(), response.remaining_ids)
    }

    #[test]
    fn posts_beyond_the_room_of_a_response_remain_in_order() {
        for bytes in [100, 20_000] {
            let (shown, remaining) = fitted_ids(bytes);
            assert_eq!(shown, (1..=200).collect::<Vec<_>>());
            assert_eq!(remaining, (201..=300).collect::<Vec<_>>());
        }
        let (shown, remaining) = fitted_ids(30_000);
        assert!((130..140).contains(&shown.len()), "{}", shown.len());
        assert_eq!([shown, remaining].concat(), (1..=300).collect::<Vec<_>>());
    }
}
