//! Client of the relation service: the follow graph.

use microblog_chassis::Peer;
use microblog_domain::{BATCH_MAX, UserId};
use microblog_proto::relation::{self, EdgeList, RelationServicePeer, RelationState};
use tonic::Status;

use crate::{error::Error, peer};

/// The largest batch in a message of a followers stream.
const STREAM_BATCH: i32 = 2_000;

/// The relation of a viewer to an author, as the relation service returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ViewerRelation(relation::Relation);

/// The followings of a user.
#[derive(Clone, Debug, Default)]
pub(crate) struct Followings {
    /// The users who are followed.
    pub(crate) authors: Vec<UserId>,
    /// The version of the newest follow, which fan-out on write reaches as all others. 0 if there are none.
    pub(crate) newest: u64,
}

/// A page of an author's followers.
#[derive(Clone, Debug)]
pub(crate) struct Followers {
    /// The followers.
    pub(crate) users: Vec<UserId>,
    /// The token of the next page; empty at the end.
    pub(crate) next_token: String,
}

/// The follow graph.
#[derive(Clone)]
pub(crate) struct Graph {
    relation: RelationServicePeer<Peer>,
}

impl Graph {
    /// Returns a client of a relation service.
    pub(crate) fn new(relation: Peer) -> Self {
        Self { relation: RelationServicePeer::new(relation) }
    }

    /// Returns the relations of a viewer to authors, in their order, and the version of the
    /// viewer's newest follow. Makes one call per 500 authors, concurrently, and at least one.
    pub(crate) async fn relations(
        &self,
        reader: UserId,
        authors: &[UserId],
    ) -> Result<(Vec<ViewerRelation>, u64), Error> {
        let mut chunks: Vec<_> = authors.chunks(BATCH_MAX).collect();
        if chunks.is_empty() {
            chunks.push(&[]);
        }
        let asked = chunks.into_iter().map(|authors| {
            let request = relation::BatchGetRelationsRequest {
                viewer_id: reader.get(),
                target_ids: authors.iter().map(|author| author.get()).collect(),
                include: vec![EdgeList::Blocks.into(), EdgeList::Mutes.into()],
                include_newest_following_version: true,
                ..Default::default()
            };
            call(self.relation.batch_get_relations(request))
        });
        let (mut relations, mut version) = (Vec::with_capacity(authors.len()), u64::MAX);
        for answer in futures::future::try_join_all(asked).await? {
            // The minimum over all responses. The next read handles later follows.
            version = version.min(answer.newest_following_version);
            relations.extend(answer.relations.into_iter().map(ViewerRelation));
        }
        if relations.len() == authors.len() {
            Ok((relations, version))
        } else {
            Err(Error::Relation(Status::internal("response lacks some relations")))
        }
    }

    /// Returns the followings since a version; all of them for version 0. The calls of
    /// [`Self::accounts`].
    pub(crate) async fn followings(&self, user: UserId, since: u64) -> Result<Followings, Error> {
        let (authors, newest) = self.accounts(user, EdgeList::Following, since).await?;
        Ok(Followings { authors, newest })
    }

    /// Returns the mutual followers of a user. The calls of [`Self::accounts`].
    pub(crate) async fn mutuals(&self, user: UserId) -> Result<Vec<UserId>, Error> {
        Ok(self.accounts(user, EdgeList::Mutuals, 0).await?.0)
    }

    // Returns all accounts on a list, and the version of the newest following. One call per 8,000:
    // one call with the default following limit of 5,000.
    async fn accounts(
        &self,
        user: UserId,
        list: EdgeList,
        newer_than_version: u64,
    ) -> Result<(Vec<UserId>, u64), Error> {
        let (mut accounts, mut newest, mut page_token) = (Vec::new(), 0, String::new());
        loop {
            let request = relation::ListEdgeIdsRequest {
                user_id: user.get(),
                list: list.into(),
                newer_than_version,
                page_token,
            };
            let page = call(self.relation.list_edge_ids(request)).await?;
            // Only the first page sets it.
            newest = newest.max(page.newest_version);
            accounts.extend(page.user_ids.into_iter().filter_map(UserId::new));
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return Ok((accounts, newest));
            }
        }
    }

    /// Returns followers of an author from a token on: at least `count`, or all that are left. One
    /// streaming call.
    pub(crate) async fn followers(
        &self,
        author: UserId,
        token: &str,
        count: usize,
    ) -> Result<Followers, Error> {
        let request = relation::StreamFollowersRequest {
            user_id: author.get(),
            batch_size: STREAM_BATCH.min(i32::try_from(count).unwrap_or(STREAM_BATCH)),
            page_token: token.to_owned(),
        };
        let mut batches = call(self.relation.stream_followers(request)).await?;
        let (mut users, mut is_last) = (Vec::new(), false);
        while let Some(batch) =
            peer::with_timeout(batches.message()).await.map_err(Error::Relation)?
        {
            users.extend(batch.user_ids.iter().copied().filter_map(UserId::new));
            is_last = batch.next_page_token.is_empty();
            // Only the trailers follow the last batch. Dropping the stream before would cancel the
            // call.
            if !is_last && users.len() >= count {
                return Ok(Followers { users, next_token: batch.next_page_token });
            }
        }
        if is_last {
            return Ok(Followers { users, next_token: String::new() });
        }
        Err(Error::Relation(Status::unavailable("followers stream ended early")))
    }

    /// Returns the follower count of an author. One call.
    pub(crate) async fn count_followers(&self, author: UserId) -> Result<u64, Error> {
        let request = relation::BatchGetCountsRequest { user_ids: vec![author.get()] };
        let answer = call(self.relation.batch_get_counts(request)).await?;
        Ok(answer.counts.first().map_or(0, |counts| counts.followers))
    }
}

impl ViewerRelation {
    /// Returns the relation of a viewer to themselves.
    pub(crate) fn to_self(reader: UserId) -> Self {
        Self(relation::Relation {
            user_id: reader.get(),
            state: RelationState::Self_.into(),
            ..Default::default()
        })
    }

    /// Returns whether the viewer follows the author.
    pub(crate) fn is_followed(&self) -> bool {
        matches!(self.0.state(), RelationState::Following | RelationState::Mutual)
    }

    /// Returns whether they follow each other.
    pub(crate) fn is_mutual(&self) -> bool {
        self.0.state() == RelationState::Mutual
    }

    /// Returns whether either blocks the other, or the viewer mutes the author.
    pub(crate) fn is_blocked_or_muted(&self) -> bool {
        self.0.blocking || self.0.blocked_by || self.0.muting
    }

    /// Returns the wire type.
    pub(crate) fn relation(&self) -> relation::Relation {
        self.0
    }
}

async fn call<T>(
    answer: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, Error> {
    peer::call(answer).await.map_err(Error::Relation)
}
