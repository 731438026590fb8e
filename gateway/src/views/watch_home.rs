//! WatchHome: a stream of new posts in the viewer's home timeline. Each message is checked against the
//! follow graph when it is made: an author may have been unfollowed since the post was delivered.

use microblog_domain::{IdSet, UserId};
use microblog_proto::{
    gateway::{self, ViewedPost, WatchHomeResponse},
    relation::RelationState,
    timeline::{self, Entry, WatchHomeTimelineResponse},
};
use tonic::{Response, Status, Streaming};

use crate::{
    context::ViewContext,
    credentials::Credentials,
    hydration::posts::{ENTRIES_PER_MESSAGE, hydrate_entries},
    state::Gateway,
    watch::{Messages, Watched, watch},
};

/// The method's name.
pub(crate) const METHOD: &str = "WatchHome";

/// The stream of WatchHome.
pub(crate) type HomeUpdates = Messages<WatchHomeResponse>;

/// Streams the new posts of the viewer's home timeline. The calls of [`watch`]: it opens
/// timeline.WatchHomeTimeline. The hydration of a message costs post.BatchGetPosts, then
/// user.BatchGetUsers ∥ relation.BatchGetRelations, and up to 7 more if a post with suppressed reposts is
/// not shown; as many again for each repost by an account that is no longer followed.
pub(crate) async fn watch_home(
    gateway: &Gateway,
    credentials: Credentials,
    request: gateway::WatchHomeRequest,
) -> Result<HomeUpdates, Status> {
    watch::<Home>(gateway, credentials, request.since_token).await
}

/// The viewer's home timeline.
struct Home;

impl Watched for Home {
    const METHOD: &'static str = METHOD;
    const ENTRIES_MAX: usize = ENTRIES_PER_MESSAGE;

    type Update = WatchHomeTimelineResponse;
    type Entry = Entry;
    type Message = WatchHomeResponse;

    async fn open(
        gateway: &Gateway,
        viewer: UserId,
        since_token: String,
    ) -> Result<Response<Streaming<WatchHomeTimelineResponse>>, Status> {
        let user_id = viewer.get();
        let request = timeline::WatchHomeTimelineRequest { user_id, since_token };
        gateway.peers.timeline().watch_home_timeline(request).await
    }

    fn split(update: WatchHomeTimelineResponse) -> (Vec<Entry>, String) {
        (update.entries, update.since_token)
    }

    async fn message(
        gateway: &Gateway,
        viewer: UserId,
        entries: Vec<Entry>,
        since_token: String,
    ) -> Result<WatchHomeResponse, Status> {
        let posts = followed_posts(gateway, viewer, &entries).await?;
        Ok(WatchHomeResponse { posts, since_token })
    }

    fn heartbeat(since_token: String) -> WatchHomeResponse {
        WatchHomeResponse { posts: Vec::new(), since_token }
    }
}

/// Returns the posts of entries as the viewer sees them now, from authors that the viewer follows. If an
/// author is no longer followed, a suppressed repost may be by one who is.
async fn followed_posts(
    gateway: &Gateway,
    viewer: UserId,
    entries: &[Entry],
) -> Result<Vec<ViewedPost>, Status> {
    let context = ViewContext::new(Some(viewer));
    let mut shown = hydrate_entries(gateway, context, entries).await?;
    loop {
        let (mut slots, mut suppressed) = (Vec::new(), Vec::new());
        for (slot, (entry, viewed)) in entries.iter().zip(&mut shown).enumerate() {
            let Some(post) = viewed.take_if(|viewed| !is_followed(viewer, viewed)) else {
                continue;
            };
            if let Some(entry) = suppressed_after(entry, &post) {
                slots.push(slot);
                suppressed.push(entry);
            }
        }
        if suppressed.is_empty() {
            return Ok(distinct(shown));
        }
        let others = hydrate_entries(gateway, context, &suppressed).await?;
        for (slot, other) in slots.into_iter().zip(others) {
            shown[slot] = other;
        }
    }
}

/// Returns whether the viewer follows the author of a post, or is the author.
fn is_followed(viewer: UserId, viewed: &ViewedPost) -> bool {
    let Some(author) = &viewed.author else { return false };
    let is_own = author.user.as_ref().is_some_and(|user| user.id == viewer.get());
    is_own || matches!(author.relation(), RelationState::Following | RelationState::Mutual)
}

/// Returns an entry of the suppressed reposts that come after a post in an entry; `None` if none
/// do.
fn suppressed_after(entry: &Entry, post: &ViewedPost) -> Option<Entry> {
    let id = post.post.as_ref()?.id;
    let mut ids = std::iter::once(entry.post_id).chain(entry.stand_in_ids.iter().copied());
    ids.find(|&other| other == id)?;
    let post_id = ids.next()?;
    Some(Entry { post_id, stand_in_ids: ids.collect(), ..Entry::default() })
}

/// Returns the posts without repetitions.
fn distinct(shown: Vec<Option<ViewedPost>>) -> Vec<ViewedPost> {
    let mut seen = IdSet::default();
    let is_first =
        |viewed: &ViewedPost| viewed.post.as_ref().is_some_and(|post| seen.insert(post.id));
    shown.into_iter().flatten().filter(is_first).collect()
}

#[cfg(test)]
mod tests {
    use microblog_proto::post::Post;

    use super::*;

    fn viewed(id: u64) -> ViewedPost {
        ViewedPost { post: Some(Post { id, ..Post::default() }), ..ViewedPost::default() }
    }

    #[test]
    fn the_suppressed_reposts_after_a_post_are_next() {
        let entry = Entry { post_id: 5, stand_in_ids: vec![6, 7, 8], ..Entry::default() };
        let rest = |id| {
            suppressed_after(&entry, &viewed(id)).map(|entry| (entry.post_id, entry.stand_in_ids))
        };
        assert_eq!(rest(5), Some((6, vec![7, 8])));
        assert_eq!(rest(7), Some((8, vec![])));
        assert_eq!([rest(8), rest(9)], [None, None]);
    }

    #[test]
    fn a_message_has_each_post_once() {
        let shown = vec![Some(viewed(5)), None, Some(viewed(5)), Some(viewed(4))];
        assert_eq!(distinct(shown), [viewed(5), viewed(4)]);
    }
}
