//! The lists of accounts as items: how they are loaded, and what the front of an entry has.

use std::collections::{BTreeSet, HashMap};

use futures::future::BoxFuture;
use microblog_domain::UserId;
use microblog_keyspace::Library;
use microblog_record::{
    Database, Error, number_rows,
    sql::{number, read, statement},
};
use microblog_storage::{
    Contents, EntryLimits, Item, Loaded, Record, library,
    transaction::{history_columns, row_history},
};
use sqlx::any::AnyRow;

use crate::{
    graph::{Counts, List},
    tables::{packed, read_entry, read_packed},
};

/// The most records of an entry: the newest of a longer list. It may have a fifth more until it is cut. A
/// list that is no longer than that is whole in its entry.
pub(crate) const RECORDS_MAX: usize = 10_000;

/// The most records of an entry without a set.
pub(crate) const SMALL: usize = 48;

/// The front of an entry: lengths of lists of the account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Front([u32; Front::COUNTS]);

impl Front {
    const COUNTS: usize = 4;
    /// The length in bytes.
    pub(crate) const BYTES: usize = 4 * Self::COUNTS;

    /// Returns the lists whose lengths the entry of a list has: its own, and those which a viewer's relation
    /// to others needs, so that empty lists need not be looked at.
    pub(crate) const fn lists(list: List) -> &'static [List] {
        match list {
            List::Following => &[List::Following, List::Mutuals, List::Blocks, List::Mutes],
            List::Followers => &[List::Followers, List::BlockedBy],
            List::Mutuals => &[List::Mutuals],
            List::Blocks => &[List::Blocks],
            List::BlockedBy => &[List::BlockedBy],
            List::Mutes => &[List::Mutes],
        }
    }

    /// Returns the front of the entry of a list.
    pub(crate) fn of(list: List, length: impl Fn(List) -> u64) -> Self {
        let mut counts = [0; Self::COUNTS];
        for (count, &list) in counts.iter_mut().zip(Self::lists(list)) {
            *count = u32::try_from(length(list)).unwrap_or(u32::MAX);
        }
        Self(counts)
    }

    /// Returns the length of a list, by the front of the entry of `of`; 0 if it does not have it.
    pub(crate) fn length(self, of: List, list: List) -> usize {
        let at = Self::lists(of).iter().position(|&known| known == list);
        at.map_or(0, |at| self.0[at] as usize)
    }

    /// Returns the length of the list of the entry.
    pub(crate) fn entries(self) -> usize {
        self.0[0] as usize
    }

    /// Writes the bytes.
    pub(crate) fn write(self) -> Vec<u8> {
        self.0.iter().flat_map(|count| count.to_be_bytes()).collect()
    }

    /// Reads the bytes; `None` if there are too few.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let (counts, _) = bytes.get(..Self::BYTES)?.as_chunks::<4>();
        let mut front = Self::default();
        for (count, bytes) in front.0.iter_mut().zip(counts) {
            *count = u32::from_be_bytes(*bytes);
        }
        Some(front)
    }
}

impl Item for List {
    const PREFIX: &'static str = "rel";
    const LIBRARY: Library = library("relation");
    // Parts of them are read.
    const SMALL: &'static [Self] = &[];

    fn kind(self) -> &'static str {
        self.name()
    }

    fn limits(self) -> EntryLimits {
        EntryLimits { without_set: SMALL, ..EntryLimits::without_sets(RECORDS_MAX) }
    }

    fn load(self, database: &Database, id: u64) -> BoxFuture<'_, Result<Loaded, Error>> {
        database.read("SELECT accounts", load(database, self, id))
    }
}

/// Returns the statement that loads the entry of a list of an account, its parameter. It has one row: a
/// column of revision and lengths, one of the entries, and the history.
pub(crate) fn load_text(list: List, is_embedded: bool) -> String {
    let history = history_columns(is_embedded);
    let revision = format!("COALESCE(accounts.{}_revision, 0)", list.name());
    let lengths = Front::lists(list).iter();
    let lengths = lengths.map(|list| format!("COALESCE(accounts.{}, 0)", list.name()));
    let columns = [revision].into_iter().chain(lengths);
    let (numbers, rows) = (packed(columns), list.rows());
    let entry = packed(["peer", "since"]);
    format!(
        "SELECT {numbers}, COALESCE(entries, ''), {history} \
         FROM (SELECT string_agg({entry}, ' ') AS entries FROM (SELECT peer, since FROM {rows} \
         WHERE owner = $1 ORDER BY since DESC LIMIT {RECORDS_MAX}) AS newest) AS list \
         LEFT JOIN accounts ON accounts.id = $1"
    )
}

// One statement, so that all is of one snapshot.
async fn load(database: &Database, list: List, id: u64) -> Result<Loaded, sqlx::Error> {
    let is_embedded = database.is_embedded();
    let query = statement(load_text(list, is_embedded)).bind(number(id));
    let row = query.fetch_one(database.readers()).await?;
    let history = row_history(database, &row, 2)?;
    let malformed = || sqlx::Error::Decode("malformed list".into());
    let (fronts, numbers) = (Front::lists(list), read_packed(&row, 0)?);
    let (revision, lengths) = numbers.split_first().ok_or_else(malformed)?;
    if lengths.len() != fronts.len() {
        return Err(malformed());
    }
    let length = |list: List| {
        let at = fronts.iter().position(|&known| known == list);
        at.and_then(|at| lengths.get(at)).copied().unwrap_or_default()
    };
    let front = Front::of(list, length).write().into();
    let entries = read_packed(&row, 1)?;
    let (entries, []) = entries.as_chunks() else { return Err(malformed()) };
    let record = |&[id, time_ms]: &[u64; 2]| {
        let id = UserId::new(id).ok_or_else(malformed)?.get();
        Ok(Record { id, time_ms })
    };
    let mut records = entries.iter().map(record).collect::<Result<Vec<_>, sqlx::Error>>()?;
    records.sort_unstable();
    let contents = Contents { front, records: Record::write_all(records) };
    Ok(Loaded { history, revision: *revision, contents })
}

/// Returns the statement that reads a page of a list behind a position. Its parameters are the account,
/// the position as time and peer, and the number of entries.
pub(crate) fn page_text(list: List, is_newest_first: bool) -> String {
    let (rows, (order, behind)) = (
        list.rows(),
        match is_newest_first {
            true => ("DESC", '<'),
            false => ("ASC", '>'),
        },
    );
    format!(
        "SELECT peer, since FROM {rows} WHERE owner = $1 AND (since, peer) {behind} ($2, $3) \
         ORDER BY since {order}, peer {order} LIMIT $4"
    )
}

/// Returns the statement that reads the entries of an account's lists that are peers of a set: the list,
/// peer and time. Its parameters are the account and the peers. Each is looked up by its own key, so the time
/// does not depend on the lengths of the lists.
pub(crate) fn among_text(lists: &[List], is_embedded: bool) -> String {
    let peers = number_rows::table(is_embedded, 2, 1);
    let select = |list: &List| {
        let (number, rows) = (*list as usize, list.rows());
        format!(
            "SELECT {number} AS list, column1 AS peer, \
             (SELECT since FROM {rows} WHERE owner = $1 AND peer = column1) AS since FROM {peers}"
        )
    };
    let entries = lists.iter().map(select).collect::<Vec<_>>().join(" UNION ALL ");
    format!("SELECT list, peer, since FROM ({entries}) AS entries WHERE since IS NOT NULL")
}

/// Reads the entries of an account's lists that are peers of a set, in any order, in one statement.
pub(crate) async fn among(
    database: &Database,
    lists: &[List],
    id: u64,
    peers: &[u64],
) -> Result<Vec<(List, Record)>, Error> {
    if peers.is_empty() {
        return Ok(Vec::new());
    }
    let is_embedded = database.is_embedded();
    let query = statement(among_text(lists, is_embedded)).bind(number(id));
    let distinct: BTreeSet<u64> = peers.iter().copied().collect();
    let query = number_rows::bind_column(query, is_embedded, distinct);
    let read = async {
        let rows = query.fetch_all(database.readers()).await?;
        let entry = |row: &AnyRow| {
            let number: u64 = read(row, 0)?;
            let list = lists.iter().find(|&&list| list as u64 == number);
            let list = list.ok_or_else(|| sqlx::Error::Decode("unknown list".into()))?;
            Ok((*list, read_entry(row, 1)?))
        };
        rows.iter().map(entry).collect()
    };
    database.read("SELECT edges", read).await
}

/// Returns the statement that reads the lengths of lists of accounts, its parameter.
pub(crate) fn counts_text(is_embedded: bool) -> String {
    let is_one = number_rows::contains(is_embedded, "id", 1);
    format!("SELECT id, following, followers, mutuals FROM accounts WHERE {is_one}")
}

/// Reads the lengths of the lists of accounts, by id. Those without a row have no lists.
pub(crate) async fn counts_of(
    database: &Database,
    ids: &[u64],
) -> Result<HashMap<u64, Counts>, Error> {
    let is_embedded = database.is_embedded();
    let query = statement(counts_text(is_embedded));
    let query = number_rows::bind_column(query, is_embedded, ids.iter().copied());
    let read = async {
        let rows = query.fetch_all(database.readers()).await?;
        let counts = |row: &AnyRow| {
            let (following, followers) = (read(row, 1)?, read(row, 2)?);
            Ok((read(row, 0)?, Counts { following, followers, mutuals: read(row, 3)? }))
        };
        rows.iter().map(counts).collect()
    };
    database.read("SELECT accounts", read).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_front_has_the_lengths_of_its_lists() {
        for list in List::ALL {
            let front = Front::of(list, |list| 7 + list as u64);
            let read = Front::read(&front.write()).unwrap();
            assert_eq!(read, front);
            assert_eq!(Front::lists(list)[0], list);
            for of in List::ALL {
                let expected = if Front::lists(list).contains(&of) { 7 + of as usize } else { 0 };
                assert_eq!(read.length(list, of), expected, "{of:?} in {list:?}");
            }
        }
        assert_eq!(Front::read(&[0; Front::BYTES - 1]), None);
        assert_eq!(
            Front::of(List::Blocks, |_| u64::MAX).length(List::Blocks, List::Blocks),
            u32::MAX as usize
        );
    }
}
