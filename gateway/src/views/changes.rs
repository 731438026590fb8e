//! The change feed, merged from the streams of three services. The gateway reads them only when the
//! caller's connection asks for the next message.

mod sources;

use std::{collections::VecDeque, mem, time::Instant};

use futures::{
    StreamExt as _, TryStreamExt as _, future,
    stream::{self, BoxStream, SelectAll},
};
use microblog_chassis::{self as chassis, status};
use microblog_domain::{Invalid, Scope};
use microblog_proto::{
    common::{ChangeKind, FeedPage, FeedPosition, FeedQuery},
    gateway::{SnapshotRequest, SnapshotResponse, WatchRequest, WatchResponse},
};
use tokio::time::{timeout, timeout_at};
use tonic::Status;

use self::sources::{Pages, Source};
use crate::{
    callers::{AuthenticatedCaller, CHECK_INTERVAL, caller_invalid, not_allowed},
    errors,
    limits::WatchPermit,
    state::Gateway,
};

/// The names of the methods in `--callers-file`.
pub(crate) const WATCH: &str = "ChangeService.Watch";
pub(crate) const SNAPSHOT: &str = "ChangeService.Snapshot";

const KINDS: [ChangeKind; 8] = [
    ChangeKind::Account,
    ChangeKind::Follow,
    ChangeKind::Block,
    ChangeKind::Mute,
    ChangeKind::Post,
    ChangeKind::Repost,
    ChangeKind::Comment,
    ChangeKind::Like,
];

/// The streams of the methods.
pub(crate) type Changes = BoxStream<'static, Result<WatchResponse, Status>>;
pub(crate) type SnapshotPages = BoxStream<'static, Result<SnapshotResponse, Status>>;

/// Streams changes. One call of each service that has some of the kinds.
pub(crate) async fn watch(
    gateway: &Gateway,
    caller: AuthenticatedCaller,
    request: WatchRequest,
) -> Result<Changes, Status> {
    let kinds = Kinds::parse(&request.kinds, &caller)?;
    let cursor = kinds.read_cursor(&request.cursor)?;
    let permit = gateway.limits.acquire_change_stream(caller.name())?;
    chassis::context::watch()?;
    let sources = kinds.open(gateway, &cursor, false).await?;
    let tagged =
        |(source, pages): (Source, Pages)| pages.map_ok(move |page| (source, page)).boxed();
    let watch = Watch {
        right: Right {
            gateway: gateway.clone(),
            caller,
            method: WATCH,
            checked_at: Instant::now(),
        },
        pages: stream::select_all(sources.into_iter().map(tagged)),
        kinds,
        cursor,
        _permit: permit,
    };
    Ok(stream::try_unfold(watch, Watch::step).boxed())
}

/// Streams what exists, of one service after the other. One call of each service that has some of the
/// kinds.
pub(crate) async fn snapshot(
    gateway: &Gateway,
    caller: AuthenticatedCaller,
    request: SnapshotRequest,
) -> Result<SnapshotPages, Status> {
    let kinds = Kinds::parse(&request.kinds, &caller)?;
    let permit = gateway.limits.acquire_change_stream(caller.name())?;
    chassis::context::watch()?;
    let cursor = Cursor::default();
    let sources = kinds.open(gateway, &cursor, true).await?.into();
    let right =
        Right { gateway: gateway.clone(), caller, method: SNAPSHOT, checked_at: Instant::now() };
    let snapshot = Snapshot { right, kinds, sources, cursor, is_done: false, _permit: permit };
    Ok(stream::try_unfold(snapshot, Snapshot::step).boxed())
}

/// The right of a caller to a stream.
struct Right {
    gateway: Gateway,
    caller: AuthenticatedCaller,
    method: &'static str,
    checked_at: Instant,
}

impl Right {
    /// Checks, if it is due, that the caller still may have a stream of these kinds.
    fn check(&mut self, kinds: &Kinds) -> Result<(), Status> {
        if self.checked_at.elapsed() >= CHECK_INTERVAL {
            let callers = self.gateway.callers.as_ref().ok_or_else(caller_invalid)?;
            self.caller = callers.current(&self.caller, self.method, None)?;
            kinds.check(&self.caller)?;
            self.checked_at = Instant::now();
        }
        Ok(())
    }
}

/// An open Watch.
struct Watch {
    right: Right,
    kinds: Kinds,
    pages: SelectAll<BoxStream<'static, Result<(Source, FeedPage), Status>>>,
    cursor: Cursor,
    /// Counts the stream towards the caller's limit while it is open.
    _permit: WatchPermit<String>,
}

impl Watch {
    /// Returns the next message.
    async fn step(mut self) -> Result<Option<(WatchResponse, Self)>, Status> {
        loop {
            let page = timeout(CHECK_INTERVAL, self.pages.try_next()).await;
            self.right.check(&self.kinds)?;
            let Ok(page) = page else { continue };
            let (source, page) = page?.ok_or_else(errors::unavailable)?;
            self.cursor.set(source, &page)?;
            // Earlier changes are from before the stream begins.
            if self.cursor.has_all(&self.kinds) {
                let caller = self.right.caller.name();
                self.right.gateway.feed_metrics.sent(caller, source.name(), &page);
                let cursor = self.kinds.cursor(&self.cursor);
                return Ok(Some((WatchResponse { changes: page.changes, cursor }, self)));
            }
        }
    }
}

/// An open Snapshot.
struct Snapshot {
    right: Right,
    kinds: Kinds,
    /// The services that have more.
    sources: VecDeque<(Source, Pages)>,
    cursor: Cursor,
    is_done: bool,
    _permit: WatchPermit<String>,
}

impl Snapshot {
    /// Returns the next message.
    async fn step(mut self) -> Result<Option<(SnapshotResponse, Self)>, Status> {
        let heartbeat_at = self.right.gateway.heartbeat_at();
        while let Some((source, pages)) = self.sources.front_mut() {
            self.right.check(&self.kinds)?;
            let page = match heartbeat_at {
                Some(at) => timeout_at(at, pages.try_next()).await,
                None => Ok(pages.try_next().await),
            };
            // A service may find nothing for long among what has ended.
            let Ok(page) = page else {
                return Ok(Some((SnapshotResponse::default(), self)));
            };
            let page = page?.ok_or_else(errors::unavailable)?;
            if page.position.is_some() {
                self.cursor.set(*source, &page)?;
            }
            if page.is_end {
                self.sources.pop_front();
            }
            if !page.changes.is_empty() {
                let (changes, cursor) = (page.changes, String::new());
                return Ok(Some((SnapshotResponse { changes, cursor }, self)));
            }
        }
        if mem::replace(&mut self.is_done, true) {
            return Ok(None);
        }
        let cursor = self.kinds.cursor(&self.cursor);
        Ok(Some((SnapshotResponse { changes: Vec::new(), cursor }, self)))
    }
}

/// The kinds of changes of a call.
struct Kinds(Vec<ChangeKind>);

impl Kinds {
    /// Parses the field `kinds`, in the order of their numbers; empty for all that the caller may see.
    fn parse(kinds: &[i32], caller: &AuthenticatedCaller) -> Result<Self, Status> {
        let asked = |kind: &ChangeKind| kinds.contains(&i32::from(*kind));
        if kinds.is_empty() {
            let may_see =
                |kind: &ChangeKind| caller.may_see_private_changes() || !is_private(*kind);
            return Ok(Self(KINDS.into_iter().filter(may_see).collect()));
        }
        let is_unknown = |kind: &i32| KINDS.iter().all(|known| i32::from(*known) != *kind);
        if let Some(index) = kinds.iter().position(is_unknown) {
            let field = format!("kinds[{index}]");
            return Err(status::invalid([Invalid::new(field, "is not a kind of changes")]));
        }
        let kinds = Self(KINDS.into_iter().filter(asked).collect());
        kinds.check(caller)?;
        Ok(kinds)
    }

    /// Checks that a caller may see the kinds.
    fn check(&self, caller: &AuthenticatedCaller) -> Result<(), Status> {
        if self.0.iter().copied().any(is_private) && !caller.may_see_private_changes() {
            return Err(not_allowed(format!("{} may not see blocks and mutes", caller.name())));
        }
        Ok(())
    }

    /// Returns the services that have some of the kinds.
    fn sources(&self) -> impl Iterator<Item = Source> {
        let has = |source: &Source| self.0.iter().any(|&kind| Source::of(kind) == Some(*source));
        Source::ALL.into_iter().filter(has)
    }

    /// Opens the streams of these services, each behind its position in a cursor.
    async fn open(
        &self,
        gateway: &Gateway,
        cursor: &Cursor,
        snapshot: bool,
    ) -> Result<Vec<(Source, Pages)>, Status> {
        let open = async |source: Source| {
            let kinds = self.0.iter().map(|&kind| kind.into()).collect();
            let query = FeedQuery { kinds, after: cursor.of(source), snapshot, from_start: false };
            Ok::<_, Status>((source, source.open(&gateway.peers, query).await?))
        };
        future::try_join_all(self.sources().map(open)).await
    }

    // A cursor has no meaning for other kinds: changes of them before it may have been left out.
    fn scope(&self) -> Scope {
        self.0.iter().fold(Scope::new(WATCH), |scope, &kind| scope.with(kind as u64))
    }

    fn cursor(&self, cursor: &Cursor) -> String {
        let of = |source| cursor.of(source).map_or([0; 2], |at| [at.sequence, at.token]);
        let [user, relation, post] = Source::ALL.map(of);
        self.scope().token_of(&[user, relation, post].concat())
    }

    fn read_cursor(&self, cursor: &str) -> Result<Cursor, Status> {
        let numbers = self.scope().read::<6>(cursor);
        let numbers = numbers.map_err(|error| status::token("cursor", error))?;
        let Some(numbers) = numbers else { return Ok(Cursor::default()) };
        let (positions, _) = numbers.as_chunks::<2>();
        let position = |source: Source| {
            let [sequence, token] = positions[source as usize];
            Some(FeedPosition { sequence, token })
        };
        Ok(Cursor(Source::ALL.map(position)))
    }
}

/// Returns whether other accounts must not know of these changes.
fn is_private(kind: ChangeKind) -> bool {
    matches!(kind, ChangeKind::Block | ChangeKind::Mute)
}

/// The positions in the feeds of the services; `None` where none is known yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Cursor([Option<FeedPosition>; 3]);

impl Cursor {
    fn of(&self, source: Source) -> Option<FeedPosition> {
        self.0[source as usize]
    }

    fn set(&mut self, source: Source, page: &FeedPage) -> Result<(), Status> {
        self.0[source as usize] = Some(errors::required(page.position)?);
        Ok(())
    }

    fn has_all(&self, kinds: &Kinds) -> bool {
        kinds.sources().all(|source| self.of(source).is_some())
    }
}
