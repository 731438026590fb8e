//! The part of the change feed that this service has: follows, blocks and mutes.

use microblog_domain::Partition;
use microblog_proto::common::{self as pb, ChangeKind};
use microblog_record::{
    Database, Error, ExistingPage, RowKey,
    sql::{existing_page, read},
};
use sqlx::any::AnyRow;

use crate::{graph::List, journal::JournalEntry};

/// The kinds of changes.
pub(crate) const KINDS: [ChangeKind; 3] = [ChangeKind::Follow, ChangeKind::Block, ChangeKind::Mute];

/// Returns what an entry of the journal is in the feed. Inverse edges follow from source edges.
pub(crate) fn change(entry: &JournalEntry) -> Option<pb::Change> {
    match entry {
        JournalEntry::Edge(list, change) | JournalEntry::Still(list, change) => Some(pb::Change {
            kind: kind(*list)?.into(),
            ended: !change.exists,
            user_id: change.edge.from.get(),
            target_id: change.edge.to.get(),
            version: change.version,
            ..pb::Change::default()
        }),
        // The mutes of a deleted account go with it, without entries.
        JournalEntry::Forgotten(user, stamp) => Some(pb::Change {
            kind: ChangeKind::Mute.into(),
            ended: true,
            user_id: user.get(),
            version: *stamp,
            ..pb::Change::default()
        }),
        JournalEntry::Forget(..) => None,
    }
}

fn kind(list: List) -> Option<ChangeKind> {
    match list {
        List::Following => Some(ChangeKind::Follow),
        List::Blocks => Some(ChangeKind::Block),
        List::Mutes => Some(ChangeKind::Mute),
        List::Followers | List::Mutuals | List::BlockedBy => None,
    }
}

fn list(kind: ChangeKind) -> Option<List> {
    [List::Following, List::Blocks, List::Mutes]
        .into_iter()
        .find(|&list| self::kind(list) == Some(kind))
}

/// Returns a page of what exists of a kind, one partition after the other, as their index has it.
pub(crate) async fn existing(
    database: &Database,
    kind: ChangeKind,
    [partition, source, target]: RowKey,
) -> Result<ExistingPage, Error> {
    const PAGE: &str = "SELECT source, target, version, ended FROM edges \
        WHERE partition = $1 AND kind = $2 AND (source, target) > ($3, $4) \
        ORDER BY source, target LIMIT $5";
    let Some(list) = list(kind) else { return Ok((Vec::new(), None)) };
    let bound = [partition, list as i64];
    let (changes, next) = existing_page(database, PAGE, bound, [source, target], edge).await?;
    let is_last = partition + 1 == i64::from(Partition::COUNT);
    let next = match next {
        Some([source, target]) => Some([partition, source, target]),
        None => (!is_last).then_some([partition + 1, 0, 0]),
    };
    let of_kind = |change| pb::Change { kind: kind.into(), ..change };
    Ok((changes.into_iter().map(of_kind).collect(), next))
}

fn edge(row: &AnyRow) -> Result<Option<pb::Change>, sqlx::Error> {
    let (user_id, target_id, version) = (read(row, 0)?, read(row, 1)?, read(row, 2)?);
    let edge = pb::Change { user_id, target_id, version, ..pb::Change::default() };
    Ok((read(row, 3)? == 0).then_some(edge))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_feed_has_source_edges_and_ends_of_all_mutes() {
        let change = |entry| change(&JournalEntry::parse(entry).unwrap());
        let edge = |kind: ChangeKind, ended| pb::Change {
            kind: kind.into(),
            ended,
            user_id: 4,
            target_id: 8,
            version: 9,
            ..pb::Change::default()
        };
        for (entry, expected) in [
            ("follow 4 8 9", Some(edge(ChangeKind::Follow, false))),
            ("unfollow 4 8 9", Some(edge(ChangeKind::Follow, true))),
            ("still unfollow 4 8 9", Some(edge(ChangeKind::Follow, true))),
            ("block 4 8 9", Some(edge(ChangeKind::Block, false))),
            ("unmute 4 8 9", Some(edge(ChangeKind::Mute, true))),
            ("forgotten 4 9", Some(pb::Change { target_id: 0, ..edge(ChangeKind::Mute, true) })),
            ("followed 4 8 9", None),
            ("unblocked 4 8 9", None),
            ("forget 4 9", None),
        ] {
            assert_eq!(change(entry), expected, "{entry}");
        }
    }
}
