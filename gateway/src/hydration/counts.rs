//! Hydration of counts: the lengths of accounts' lists, and the numbers of their posts.

use microblog_chassis::status;
use microblog_domain::IdMap;
use microblog_proto::{post, relation};
use tonic::Status;

use crate::{errors, state::Gateway};

/// Hydration state of counts.
pub(crate) struct HydratedCounts {
    counts: IdMap<u64, relation::Counts>,
    /// `None` while the post service is unavailable: accounts are shown without these numbers.
    posts: Option<IdMap<u64, u64>>,
}

/// Returns the counts of accounts. Two calls at once: relation.BatchGetCounts,
/// post.BatchGetPostCounts.
pub(crate) async fn hydrate_counts(
    gateway: &Gateway,
    user_ids: Vec<u64>,
) -> Result<HydratedCounts, Status> {
    let (relation, post) = (gateway.peers.relation(), gateway.peers.post());
    let (counts, posts) = tokio::join!(
        relation.batch_get_counts(relation::BatchGetCountsRequest { user_ids: user_ids.clone() }),
        post.batch_get_post_counts(post::BatchGetPostCountsRequest { user_ids }),
    );
    let counts = errors::reply(counts, &[])?.counts;
    let posts = match posts {
        Ok(posts) => Some(posts.into_inner().counts),
        Err(status) if status::is_service_unavailable(&status) => None,
        Err(status) => return Err(errors::map(status, &[])),
    };
    let by_user = |posts: Vec<post::PostCount>| {
        posts.into_iter().map(|count| (count.user_id, count.posts)).collect()
    };
    Ok(HydratedCounts {
        counts: counts.into_iter().map(|counts| (counts.user_id, counts)).collect(),
        posts: posts.map(by_user),
    })
}

impl HydratedCounts {
    /// Returns the lengths of an account's lists, and the number of its posts if it is known.
    pub(crate) fn of(&self, id: u64) -> Result<(relation::Counts, Option<u64>), Status> {
        let counts = errors::required(self.counts.get(&id).copied())?;
        let posts = self.posts.as_ref().map(|posts| errors::required(posts.get(&id).copied()));
        Ok((counts, posts.transpose()?))
    }
}
