//! What the timeline service asks the relation service: who follows whom. Knows no timeline.

use std::time::Duration;

use microblog_chassis::{Peer, context};
use microblog_domain::{BATCH_MAX, UserId};
use microblog_proto::relation::{self, Edge, RelationServicePeer, RelationState};
use tokio::time::timeout;
use tonic::Status;

use crate::error::Error;

/// The most entries of a list that relation returns at once.
const PAGE_MAX: i32 = 200;

/// The most followers that one message of a stream has.
const STREAM_BATCH: i32 = 2_000;

/// For one answer: a peer that hangs must not stop a worker for ever, and a call has its own
/// deadline beside it.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// How an author stands to a reader: all that the relation service says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing(relation::Relation);

/// Followings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Followings {
    /// Who is followed.
    pub(crate) authors: Vec<UserId>,
    /// Up to which version the follows are settled: those who are followed know of it, and what they
    /// post from then on is brought to the follower. 0 if there are none.
    pub(crate) settled: u64,
}

/// Some followers of an author.
#[derive(Clone, Debug)]
pub(crate) struct Followers {
    /// Who follows.
    pub(crate) users: Vec<UserId>,
    /// From where to go on; empty at the end.
    pub(crate) next_token: String,
}

/// The follow graph.
#[derive(Clone, Debug)]
pub(crate) struct Graph {
    relation: RelationServicePeer<Peer>,
}

impl Graph {
    /// Returns the graph that a relation service knows.
    pub(crate) fn new(relation: Peer) -> Self {
        Self { relation: RelationServicePeer::new(relation) }
    }

    /// Returns how authors stand to a reader, in their order, and the version of the reader's
    /// newest follow. One call for each 500 authors, all at once; one if there are none.
    pub(crate) async fn standings(
        &self,
        reader: UserId,
        authors: &[UserId],
    ) -> Result<(Vec<Standing>, u64), Error> {
        let mut chunks: Vec<_> = authors.chunks(BATCH_MAX).collect();
        if chunks.is_empty() {
            chunks.push(&[]);
        }
        let asked = chunks.into_iter().map(|authors| {
            let request = relation::BatchGetRelationsRequest {
                viewer_id: reader.get(),
                target_ids: authors.iter().map(|author| author.get()).collect(),
                include_blocks: true,
                include_mutes: true,
                include_newest_following_version: true,
            };
            in_time(self.relation.batch_get_relations(request))
        });
        let (mut standings, mut version) = (Vec::with_capacity(authors.len()), u64::MAX);
        for answer in futures::future::try_join_all(asked).await? {
            // Of several, the oldest: what it does not reflect, the next read will.
            version = version.min(answer.newest_following_version);
            standings.extend(answer.relations.into_iter().map(Standing));
        }
        if standings.len() == authors.len() {
            Ok((standings, version))
        } else {
            Err(Error::Relation(Status::internal("not a relation to everybody asked about")))
        }
    }

    /// Returns whom a user has followed since a version; all for 0. One call for each 200.
    pub(crate) async fn followings(&self, user: UserId, since: u64) -> Result<Followings, Error> {
        let (mut followings, mut page_token) = (Followings::default(), String::new());
        loop {
            let request = relation::ListFollowingRequest {
                user_id: user.get(),
                page_size: PAGE_MAX,
                page_token,
                newer_than_version: since,
                ..Default::default()
            };
            let page = in_time(self.relation.list_following(request)).await?;
            // On the first page alone.
            followings.settled = followings.settled.max(page.settled_version);
            followings.authors.extend(users(&page.edges));
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return Ok(followings);
            }
        }
    }

    /// Returns whom a user follows and is followed by. One call for each 200.
    pub(crate) async fn mutuals(&self, user: UserId) -> Result<Vec<UserId>, Error> {
        let (mut mutuals, mut page_token) = (Vec::new(), String::new());
        loop {
            let request = relation::ListMutualsRequest {
                user_id: user.get(),
                page_size: PAGE_MAX,
                page_token,
            };
            let page = in_time(self.relation.list_mutuals(request)).await?;
            mutuals.extend(users(&page.edges));
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return Ok(mutuals);
            }
        }
    }

    /// Returns followers of an author from a place in their list on: at least `count`, or all that
    /// there are. One streaming call.
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
        let mut batches = in_time(self.relation.stream_followers(request)).await?;
        let (mut users, mut is_last) = (Vec::new(), false);
        while let Some(batch) = timely(batches.message()).await? {
            users.extend(batch.user_ids.iter().copied().filter_map(UserId::new));
            is_last = batch.next_page_token.is_empty();
            // Behind the last batch nothing comes but how the call ended, which who leaves before
            // that has cancelled.
            if !is_last && users.len() >= count {
                return Ok(Followers { users, next_token: batch.next_page_token });
            }
        }
        if is_last {
            return Ok(Followers { users, next_token: String::new() });
        }
        Err(Error::Relation(Status::unavailable("a stream of followers ended before its end")))
    }

    /// Returns how many follow an author. One call.
    pub(crate) async fn count_followers(&self, author: UserId) -> Result<u64, Error> {
        let request = relation::BatchGetCountsRequest { user_ids: vec![author.get()] };
        let answer = in_time(self.relation.batch_get_counts(request)).await?;
        Ok(answer.counts.first().map_or(0, |counts| counts.followers))
    }
}

impl Standing {
    /// How readers stand to themselves, as the relation service has it.
    pub(crate) fn own(reader: UserId) -> Self {
        Self(relation::Relation {
            user_id: reader.get(),
            state: RelationState::Self_.into(),
            blocking: false,
            blocked_by: false,
            muting: false,
        })
    }

    /// Returns whether the reader follows the author.
    pub(crate) fn is_followed(&self) -> bool {
        matches!(self.0.state(), RelationState::Following | RelationState::Mutual)
    }

    /// Returns whether they follow each other.
    pub(crate) fn is_mutual(&self) -> bool {
        self.0.state() == RelationState::Mutual
    }

    /// Returns whether one has blocked the other, or the reader has muted the author.
    pub(crate) fn is_apart(&self) -> bool {
        self.0.blocking || self.0.blocked_by || self.0.muting
    }

    /// Returns it as it is said.
    pub(crate) fn relation(&self) -> relation::Relation {
        self.0
    }
}

fn users(edges: &[Edge]) -> impl Iterator<Item = UserId> {
    edges.iter().filter_map(|edge| UserId::new(edge.user_id))
}

async fn in_time<T>(
    answer: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, Error> {
    Ok(timely(answer).await?.into_inner())
}

async fn timely<T>(answer: impl Future<Output = Result<T, Status>>) -> Result<T, Error> {
    let late = |_| Err(Status::unavailable("no answer in time"));
    // So that what is told is who does not answer.
    let remaining = context::remaining().map_or(ANSWER_MAX, |remaining| remaining.mul_f64(0.8));
    timeout(ANSWER_MAX.min(remaining), answer).await.unwrap_or_else(late).map_err(Error::Relation)
}
