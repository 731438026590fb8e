//! Which entries of the journals change nothing that is recorded: the change feed does not have them.
//!
//! An operation that changes nothing in Redis has an entry if what is recorded may differ, as after a
//! loss. What a source edge was is compared with its row, where the entry says so itself
//! ([`JournalEntry::Still`]): the row may be ahead of the source edge, by entries of the inverse edge.
//! A mute has no inverse edge, so each end of one is compared.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
};

use microblog_domain::UserId;
use microblog_record::{
    WriteTransaction,
    sql::{ROWS_MAX, number, read, read_id, rows, statement},
};
use sqlx::{Row as _, any::AnyRow};

use crate::{
    graph::{Change, Edge, List},
    journal::JournalEntry,
};

/// A list, as its number in the table, and an edge of it.
type Key = (i64, Edge);

/// The newest change of edges: its version, and whether the edge exists.
struct Known(BTreeMap<Key, (u64, bool)>);

/// Returns the indices of the entries that change nothing. Before they are applied.
pub(super) async fn unchanged(
    transaction: &mut WriteTransaction,
    entries: &[JournalEntry],
) -> Result<BTreeSet<usize>, sqlx::Error> {
    let (mut edges, mut forgotten) = (BTreeSet::new(), BTreeSet::new());
    for &entry in entries {
        match entry {
            JournalEntry::Still(list, change) => _ = edges.insert((list as i64, change.edge)),
            JournalEntry::Edge(List::Mutes, change) if !change.exists => {
                edges.insert((List::Mutes as i64, change.edge));
            }
            JournalEntry::Forgotten(user, _) => _ = forgotten.insert(user),
            JournalEntry::Edge(..) | JournalEntry::Forget(..) => {}
        }
    }
    if edges.is_empty() && forgotten.is_empty() {
        return Ok(BTreeSet::new());
    }
    let mut known = Known(read_edges(transaction, &edges.into_iter().collect::<Vec<_>>()).await?);
    for user in forgotten {
        known.0.extend(read_mutes(transaction, user).await?);
    }
    let entries = entries.iter().enumerate();
    Ok(entries.filter(|(_, entry)| !known.apply(**entry)).map(|(index, _)| index).collect())
}

impl Known {
    /// Applies an entry. Returns whether it changes something, if the feed has such entries.
    fn apply(&mut self, entry: JournalEntry) -> bool {
        match entry {
            JournalEntry::Edge(List::Mutes, change) | JournalEntry::Still(List::Mutes, change) => {
                let key = (List::Mutes as i64, change.edge);
                let known = self.0.insert(key, (change.version, change.exists));
                change.exists || known.is_some_and(|(_, exists)| exists)
            }
            JournalEntry::Edge(list, change) => {
                self.raise(list, change);
                true
            }
            JournalEntry::Still(list, change) => {
                let (version, exists) = self.raise(list, change);
                match (version, !exists) < (change.version, !change.exists) {
                    true => exists != change.exists,
                    // The inverse edge, which the feed does not have, may have been recorded first.
                    false => (version, exists) == (change.version, change.exists),
                }
            }
            JournalEntry::Forgotten(user, _) => self.end_mutes(user),
            JournalEntry::Forget(..) => true,
        }
    }

    /// Applies a change of a follow or block, if it is newer than what is known. Returns what was known.
    fn raise(&mut self, list: List, change: Change) -> (u64, bool) {
        let key = (list.source().unwrap_or(list) as i64, change.edge);
        let newest = self.0.entry(key).or_default();
        let known = *newest;
        if (known.0, !known.1) < (change.version, !change.exists) {
            *newest = (change.version, change.exists);
        }
        known
    }

    /// Ends all mutes of an account. Returns whether there were some.
    fn end_mutes(&mut self, user: UserId) -> bool {
        let mut any = false;
        for ((list, edge), (_, exists)) in &mut self.0 {
            if *list == List::Mutes as i64 && edge.from == user {
                any |= mem::replace(exists, false);
            }
        }
        any
    }
}

async fn read_edges(
    transaction: &mut WriteTransaction,
    keys: &[Key],
) -> Result<BTreeMap<Key, (u64, bool)>, sqlx::Error> {
    let mut found = BTreeMap::new();
    for keys in keys.chunks(ROWS_MAX) {
        let text = format!(
            "SELECT kind, source, target, version, ended FROM edges \
             WHERE (partition, kind, source, target) IN (VALUES {})",
            rows(transaction.backend_name(), keys.len(), 4)
        );
        let query = keys.iter().fold(statement(text), |query, (kind, Edge { from, to })| {
            let query = query.bind(i64::from(from.partition().number())).bind(*kind);
            query.bind(number(from.get())).bind(number(to.get()))
        });
        for row in &query.fetch_all(&mut **transaction).await? {
            found.extend([decode(row)?]);
        }
    }
    Ok(found)
}

/// Returns the mutes of an account that have not ended.
async fn read_mutes(
    transaction: &mut WriteTransaction,
    user: UserId,
) -> Result<Vec<(Key, (u64, bool))>, sqlx::Error> {
    const MUTES: &str = "SELECT kind, source, target, version, ended FROM edges \
        WHERE partition = $1 AND kind = $2 AND source = $3 AND ended = 0";
    let query = sqlx::query(MUTES).bind(i64::from(user.partition().number()));
    let query = query.bind(List::Mutes as i64).bind(number(user.get()));
    query.fetch_all(&mut **transaction).await?.iter().map(decode).collect()
}

fn decode(row: &AnyRow) -> Result<(Key, (u64, bool)), sqlx::Error> {
    let edge = Edge { from: read_id(row, 1, UserId::new)?, to: read_id(row, 2, UserId::new)? };
    // One with a damaged version is replaced.
    Ok(((row.try_get(0)?, edge), (read(row, 3).unwrap_or_default(), read(row, 4)? == 0)))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use microblog_record::{Database, Replace, Tables as _};
    use proptest::{collection::vec, prelude::*};
    use tempfile::TempDir;

    use super::*;
    use crate::{
        changes,
        record::{GraphTables, apply},
    };

    /// A database, and the entries that its change feed would have.
    struct Recorded {
        database: Database,
        fed: Vec<String>,
        _directory: TempDir,
    }

    impl Recorded {
        async fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let url = format!("sqlite://{}/relation.db", directory.path().display());
            let config = crate::Config::parse_from(["relation", "--database-url", &url]);
            let database = Database::open(&config.database).unwrap().unwrap();
            database.migrate(GraphTables::MIGRATIONS).await.unwrap();
            Self { database, fed: Vec::new(), _directory: directory }
        }

        /// Records entries in one transaction.
        async fn record(&mut self, texts: &[impl AsRef<str>]) {
            let texts: Vec<_> = texts.iter().map(AsRef::as_ref).collect();
            let entries: Vec<_> =
                texts.iter().map(|text| JournalEntry::parse(text).unwrap()).collect();
            let mut transaction = self.database.begin().await.unwrap();
            let unchanged = unchanged(&mut transaction, &entries).await.unwrap();
            apply(&mut transaction, &entries, Replace::All).await.unwrap();
            transaction.commit().await.unwrap();
            for (index, (text, entry)) in texts.iter().zip(entries).enumerate() {
                if changes::change(&entry).is_some() && !unchanged.contains(&index) {
                    self.fed.push((*text).to_owned());
                }
            }
        }
    }

    #[tokio::test]
    async fn ends_of_nothing_are_no_changes() {
        let mut recorded = Recorded::new().await;
        recorded.record(&["still unfollow 4 8 1", "still unblock 4 8 2", "unmute 4 8 3"]).await;
        recorded.record(&["forgotten 4 4"]).await;
        assert_eq!(recorded.fed, <[&str; 0]>::default());
        let changes = ["mute 4 8 5", "mute 4 12 6", "unmute 4 8 7", "forgotten 4 9"];
        recorded.record(&[&changes[..], &["unmute 4 12 10", "forgotten 4 11"]].concat()).await;
        recorded.record(&["unmute 4 8 12", "forgotten 4 13"]).await;
        assert_eq!(recorded.fed, changes);
    }

    #[tokio::test]
    async fn an_end_of_what_was_recorded_and_lost_is_a_change() {
        for (kind, end) in [("follow", "unfollow"), ("block", "unblock"), ("mute", "unmute")] {
            let mut recorded = Recorded::new().await;
            let still = if kind == "mute" { "" } else { "still " };
            let changes = [format!("{kind} 4 8 1"), format!("{still}{end} 4 8 5")];
            recorded.record(&changes[..1]).await;
            recorded.record(&changes[1..]).await;
            recorded.record(&[format!("{still}{end} 4 8 6")]).await;
            assert_eq!(recorded.fed, changes);
        }
    }

    #[tokio::test]
    async fn a_repaired_edge_is_a_change_if_the_record_differed() {
        let mut recorded = Recorded::new().await;
        recorded.record(&["follow 4 8 1", "followed 4 8 1"]).await;
        // The inverse edge was lost.
        recorded.record(&["followed 4 8 5"]).await;
        recorded.record(&["still follow 4 8 6", "followed 4 8 6"]).await;
        // The source edge was lost. The row has the end from the other journal.
        recorded.record(&["unfollowed 4 8 9"]).await;
        recorded.record(&["still unfollow 4 8 9"]).await;
        // It was recorded as ended.
        recorded.record(&["still follow 4 8 12"]).await;
        assert_eq!(recorded.fed, ["follow 4 8 1", "still unfollow 4 8 9", "still follow 4 8 12"]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Follows, unfollows, and unfollows of nothing, whose inverse edges are recorded at any time.
        #[test]
        fn the_feed_has_each_change_once(
            steps in vec((prop::bool::weighted(0.6), any::<bool>()), 1..30),
            order in vec(any::<bool>(), 60),
            sizes in vec(1..5_usize, 60),
        ) {
            let (mut source, mut inverse, mut expected) = (Vec::new(), Vec::new(), Vec::new());
            let mut follows = false;
            for (version, (changes, is_projected)) in (1..).zip(steps) {
                if changes {
                    follows = !follows;
                    let kind = if follows { "follow" } else { "unfollow" };
                    source.push(format!("{kind} 4 8 {version}"));
                    expected.extend(source.last().cloned());
                    if is_projected {
                        inverse.push(format!("{kind}ed 4 8 {version}"));
                    }
                } else if !follows {
                    source.push(format!("still unfollow 4 8 {version}"));
                }
            }
            let (mut source, mut inverse) = (source.into_iter(), inverse.into_iter());
            let mut merged = Vec::new();
            for is_source in order {
                merged.extend(if is_source { source.next() } else { inverse.next() });
            }
            merged.extend(source.chain(inverse));
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let fed = runtime.block_on(async {
                let (mut recorded, mut rest) = (Recorded::new().await, &merged[..]);
                for size in sizes {
                    let (batch, more) = rest.split_at(size.min(rest.len()));
                    recorded.record(batch).await;
                    rest = more;
                }
                recorded.record(rest).await;
                recorded.fed
            });
            prop_assert_eq!(fed, expected);
        }
    }
}
