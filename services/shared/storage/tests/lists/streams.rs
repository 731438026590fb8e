//! Streams of the feed as changes for callers.

use futures::{
    FutureExt as _, TryStreamExt as _,
    future::{BoxFuture, ready},
    stream::BoxStream,
};
use microblog_chassis::status;
use microblog_proto::common::{Change, ChangeKind, ErrorReason, FeedPage, FeedPosition, FeedQuery};
use microblog_record::{Database, Error, ExistingPage, RowKey, stream_changes};
use microblog_storage::changes::{FeedChanges, FeedTexts};
use microblog_testkit::{Database as Server, PATIENCE, Store, Topology};
use sqlx::AssertSqlSafe;
use tokio::time::timeout;
use tonic::{Code, Status};

use crate::lists::{Add, Process};

/// The texts of the lists' feed: each addition is a follow.
struct Texts;

impl FeedTexts for Texts {
    const KINDS: &'static [ChangeKind] = &[ChangeKind::Follow, ChangeKind::Like];

    fn parse(text: &str) -> Option<Option<Change>> {
        let (list, member) = text.strip_prefix("add ")?.split_once(' ')?;
        let (user_id, target_id) = (list.parse().ok()?, member.parse().ok()?);
        let kind = ChangeKind::Follow.into();
        Some(Some(Change { kind, user_id, target_id, ..Change::default() }))
    }

    fn existing(
        _: &Database,
        _: ChangeKind,
        _: RowKey,
    ) -> BoxFuture<'_, Result<ExistingPage, Error>> {
        ready(Ok((Vec::new(), None))).boxed()
    }
}

type Pages = BoxStream<'static, Result<FeedPage, Status>>;

struct Feed {
    process: Process,
    _server: Server,
    _redis: Store,
}

impl Feed {
    async fn start(server: Server) -> Self {
        let redis = Store::start(Topology::Single).await;
        let process = Process::start(&server, &redis).await;
        Self { process, _server: server, _redis: redis }
    }

    async fn add(&self, member: u64) {
        assert!(self.process.writer.write(Add { list: 4, member }).await.unwrap());
    }

    async fn pages(&self, kind: ChangeKind, after: Option<FeedPosition>) -> Pages {
        let query = FeedQuery { kinds: vec![kind.into()], after, ..FeedQuery::default() };
        let changes = FeedChanges::<Texts>::new(self.process.tables.clone());
        stream_changes(changes, query).await.unwrap()
    }
}

async fn page(pages: &mut Pages) -> Result<FeedPage, Status> {
    // It comes in time, and the stream has no end.
    timeout(PATIENCE, pages.try_next()).await.unwrap().map(Option::unwrap)
}

async fn servers() -> [Server; 2] {
    [Server::sqlite(), Server::postgres().await]
}

#[tokio::test]
async fn an_idle_stream_has_messages_and_other_kinds_only_move_the_position() {
    for server in servers().await {
        let feed = Feed::start(server).await;
        let mut pages = feed.pages(ChangeKind::Like, None).await;
        let first = page(&mut pages).await.unwrap();
        feed.add(8).await;
        feed.add(12).await;
        let next = page(&mut pages).await.unwrap();
        assert_eq!(next.changes, []);
        assert!(next.position.unwrap().sequence > first.position.unwrap().sequence);
        assert!(next.is_end && next.recorded_at.is_some());
        let idle = page(&mut pages).await.unwrap();
        assert_eq!((idle.changes, idle.position), (Vec::new(), next.position));
        assert!(idle.recorded_at.unwrap().seconds >= next.recorded_at.unwrap().seconds);
    }
}

#[tokio::test]
async fn a_missing_row_ends_the_position_behind_it() {
    for server in servers().await {
        let feed = Feed::start(server).await;
        let mut positions = Vec::new();
        let mut pages = feed.pages(ChangeKind::Follow, None).await;
        page(&mut pages).await.unwrap();
        for member in [8, 12, 16] {
            feed.add(member).await;
            positions.push(page(&mut pages).await.unwrap().position.unwrap());
        }
        let delete = format!("DELETE FROM feed WHERE position = {}", positions[0].sequence);
        let delete = sqlx::query(AssertSqlSafe(delete));
        delete.execute(feed.process.database.writers()).await.unwrap();
        let mut ended = feed.pages(ChangeKind::Follow, Some(positions[0])).await;
        let status = page(&mut ended).await.unwrap_err();
        assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
        assert_eq!(status::reason_of(&status), Some(ErrorReason::CursorExpired));
        let mut others = feed.pages(ChangeKind::Follow, Some(positions[1])).await;
        assert_eq!(page(&mut others).await.unwrap().changes[0].target_id, 16);
    }
}
