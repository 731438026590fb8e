//! The services that have a part of the change feed.

use futures::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use microblog_chassis::context::as_system;
use microblog_proto::{
    common::{ChangeKind, FeedPage, FeedQuery},
    post, relation, user,
};
use tonic::{Response, Status, Streaming};

use crate::{errors, state::Peers};

/// A service that has a part of the change feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    User,
    Relation,
    Post,
}

/// The pages of a service.
pub(super) type Pages = BoxStream<'static, Result<FeedPage, Status>>;

impl Source {
    pub(super) const ALL: [Self; 3] = [Self::User, Self::Relation, Self::Post];

    /// Returns the service's name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Relation => "relation",
            Self::Post => "post",
        }
    }

    /// Returns the service that has the changes of a kind.
    pub(super) fn of(kind: ChangeKind) -> Option<Self> {
        match kind {
            ChangeKind::Unspecified => None,
            ChangeKind::Account => Some(Self::User),
            ChangeKind::Follow | ChangeKind::Block | ChangeKind::Mute => Some(Self::Relation),
            ChangeKind::Post | ChangeKind::Repost | ChangeKind::Comment | ChangeKind::Like => {
                Some(Self::Post)
            }
        }
    }

    /// Opens the stream of a service. One call. The stream has no end: what is behind the last page of a
    /// snapshot, and an early end, is an error.
    pub(super) async fn open(self, peers: &Peers, query: FeedQuery) -> Result<Pages, Status> {
        let query = Some(query);
        as_system(async {
            match self {
                Self::User => {
                    let request = user::StreamChangesRequest { query };
                    pages(peers.user().stream_changes(request), |response| response.page).await
                }
                Self::Relation => {
                    let request = relation::StreamChangesRequest { query };
                    pages(peers.relation().stream_changes(request), |response| response.page).await
                }
                Self::Post => {
                    let request = post::StreamChangesRequest { query };
                    pages(peers.post().stream_changes(request), |response| response.page).await
                }
            }
        })
        .await
    }
}

async fn pages<R: Send + 'static>(
    opening: impl Future<Output = Result<Response<Streaming<R>>, Status>>,
    page: fn(R) -> Option<FeedPage>,
) -> Result<Pages, Status> {
    let responses = errors::stream(opening, &[]).await?;
    let page = move |response: Result<R, Status>| match response {
        Ok(response) => errors::required(page(response)),
        Err(status) => Err(errors::map(status, &[])),
    };
    let ended = stream::iter([Err(errors::unavailable())]);
    Ok(responses.map(page).chain(ended).boxed())
}
