//! The services that have a part of the change feed.

use std::time::Duration;

use futures::{StreamExt as _, stream::BoxStream};
use microblog_chassis::{context::as_system, status};
use microblog_proto::{
    common::{ChangeKind, ErrorReason, FeedPage, FeedPosition, FeedQuery},
    post, relation, user,
};
use tokio::time::timeout;
use tonic::{Code, Response, Status, Streaming};

use crate::{errors, state::Peers};

/// How long a service has to open its stream.
const OPENING_MAX: Duration = Duration::from_secs(10);

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

    /// Opens the stream of a service. One call. It has no end, unless it is a snapshot, which ends with
    /// a page that says so; an earlier end is an error.
    pub(super) async fn open(self, peers: &Peers, query: FeedQuery) -> Result<Pages, Status> {
        let is_snapshot = query.snapshot;
        let query = Some(query);
        // A stream has no deadline, and its connection may be at its limit of streams.
        let opened = timeout(
            OPENING_MAX,
            as_system(async {
                Ok(match self {
                    Self::User => {
                        let request = user::StreamChangesRequest { query };
                        pages(peers.user().stream_changes(request).await, |response| response.page)?
                    }
                    Self::Relation => {
                        let request = relation::StreamChangesRequest { query };
                        pages(peers.relation().stream_changes(request).await, |response| {
                            response.page
                        })?
                    }
                    Self::Post => {
                        let request = post::StreamChangesRequest { query };
                        pages(peers.post().stream_changes(request).await, |response| response.page)?
                    }
                })
            }),
        );
        let pages: Pages = opened.await.unwrap_or_else(|_elapsed| Err(unavailable()))?;
        if is_snapshot { Ok(pages) } else { Ok(pages.chain(ended()).boxed()) }
    }
}

fn pages<R: Send + 'static>(
    response: Result<Response<Streaming<R>>, Status>,
    page: fn(R) -> Option<FeedPage>,
) -> Result<Pages, Status> {
    let pages = errors::reply(response, &[])?;
    let page = move |response: Result<R, Status>| match response {
        Ok(response) => errors::required(page(response)),
        Err(status) => Err(errors::map(status, &[])),
    };
    Ok(pages.map(page).boxed())
}

fn ended() -> Pages {
    futures::stream::once(async { Err(unavailable()) }).boxed()
}

/// Returns the error for a service whose stream has ended.
pub(super) fn unavailable() -> Status {
    let text = "a service does not answer";
    status::with_reason(Code::Unavailable, ErrorReason::PeerUnavailable, text)
}

/// Returns the numbers of a position, for a cursor.
pub(super) fn numbers(position: &FeedPosition) -> [u64; 2] {
    [position.sequence, position.token]
}
