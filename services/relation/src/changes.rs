//! The changes of the follow graph in the feed, and in the part of the change feed that this service has.

use futures::future::{BoxFuture, FutureExt as _};
use microblog_domain::UserId;
use microblog_proto::common::{self as pb, ChangeKind};
use microblog_record::{
    Database, Error, ExistingPage, RowKey,
    sql::{existing_page, read},
};
use microblog_storage::changes::FeedTexts;
use sqlx::{AssertSqlSafe, any::AnyRow};

use crate::{
    graph::{Edge, EdgeKind},
    steps::{Event, Step},
};

/// Returns what the feed has of a change: a verb, the accounts, and the version.
pub(crate) fn text(Event { step, time_ms, .. }: &Event) -> String {
    let of_edge = |verb: &str, edge: &Edge| {
        let (Edge { from, to }, version) = (edge, edge.version(*time_ms));
        format!("{verb} {from} {to} {version}")
    };
    match step {
        Step::Create(kind, edge) => of_edge(verbs(*kind)[0], edge),
        Step::End(kind, edge) => of_edge(verbs(*kind)[1], edge),
        Step::Delete(user) => format!("delete {user}"),
        Step::Deleted(user) => format!("deleted {user}"),
    }
}

/// Returns the verbs of the creation and the end of an edge.
const fn verbs(kind: EdgeKind) -> [&'static str; 2] {
    match kind {
        EdgeKind::Follow => ["follow", "unfollow"],
        EdgeKind::Block => ["block", "unblock"],
        EdgeKind::Mute => ["mute", "unmute"],
    }
}

/// Returns the change of a text of the feed. The outer `None` is for one of a newer version of the service,
/// the inner one for what is no change for callers.
fn parse(text: &str) -> Option<Option<pb::Change>> {
    let words: Vec<&str> = text.split(' ').collect();
    match words[..] {
        ["delete" | "deleted", user] => id(user).map(|_| None),
        [verb, from, to, version] => {
            let of_verb = |kind: &EdgeKind| verbs(*kind).contains(&verb);
            let kind = EdgeKind::ALL.into_iter().find(of_verb)?;
            let (from, to, version) = (id(from)?, id(to)?, version.parse().ok()?);
            let ended = verb == verbs(kind)[1];
            Some(Some(change(kind, ended, Edge { from, to }, version)))
        }
        _ => None,
    }
}

fn id(text: &str) -> Option<UserId> {
    UserId::new(text.parse().ok()?)
}

fn change(kind: EdgeKind, ended: bool, Edge { from, to }: Edge, version: u64) -> pb::Change {
    pb::Change {
        kind: change_kind(kind).into(),
        ended,
        user_id: from.get(),
        target_id: to.get(),
        version,
        ..pb::Change::default()
    }
}

const fn change_kind(kind: EdgeKind) -> ChangeKind {
    match kind {
        EdgeKind::Follow => ChangeKind::Follow,
        EdgeKind::Block => ChangeKind::Block,
        EdgeKind::Mute => ChangeKind::Mute,
    }
}

/// The changes of the follow graph.
pub(crate) struct GraphChanges;

impl FeedTexts for GraphChanges {
    const KINDS: &'static [ChangeKind] = &[ChangeKind::Follow, ChangeKind::Block, ChangeKind::Mute];

    fn parse(text: &str) -> Option<Option<pb::Change>> {
        parse(text)
    }

    fn existing(
        database: &Database,
        kind: ChangeKind,
        after: RowKey,
    ) -> BoxFuture<'_, Result<ExistingPage, Error>> {
        existing(database, kind, after).boxed()
    }
}

/// Returns a page of the edges of a kind.
async fn existing(
    database: &Database,
    kind: ChangeKind,
    [source, target, _]: RowKey,
) -> Result<ExistingPage, Error> {
    let of_kind = |of: &EdgeKind| change_kind(*of) == kind;
    let Some(edges) = EdgeKind::ALL.into_iter().find(of_kind) else {
        return Ok((Vec::new(), None));
    };
    let table = edges.table();
    let text = format!(
        "SELECT source, target, since FROM {table} WHERE (source, target) > ($1, $2) \
         ORDER BY source, target LIMIT $3"
    );
    let (mut changes, next) =
        existing_page(database, AssertSqlSafe(text), [source, target], edge).await?;
    changes.iter_mut().for_each(|change| change.kind = kind.into());
    Ok((changes, next.map(|[source, target]| [source, target, 0])))
}

fn edge(row: &AnyRow) -> Result<Option<pb::Change>, sqlx::Error> {
    let edge = crate::tables::read_edge(row, 0)?;
    let version = edge.version(read(row, 2)?);
    Ok(Some(change(EdgeKind::Follow, false, edge, version)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_read_as_it_was_written() {
        let edge = Edge { from: UserId::new(4).unwrap(), to: UserId::new(8).unwrap() };
        let time_ms = 1_800_000_000_000;
        let event = |step| Event { step, time_ms, items: Vec::new() };
        for kind in EdgeKind::ALL {
            for (step, ended) in [(Step::Create(kind, edge), false), (Step::End(kind, edge), true)]
            {
                let expected = change(kind, ended, edge, edge.version(time_ms));
                assert_eq!(parse(&text(&event(step))), Some(Some(expected)));
            }
        }
        for step in [Step::Delete(edge.from), Step::Deleted(edge.to)] {
            assert_eq!(parse(&text(&event(step))), Some(None));
        }
        for text in ["", "follow", "follow 4 8", "follow 0 8 9", "bless 4 8 9", "delete x"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
