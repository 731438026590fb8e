//! Reads of lists: from the cache, and what it does not have from the database.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
};

use microblog_domain::{Order, Scope, TokenError, UserId};
use microblog_record::{self as record, Database, sql::number};
use microblog_storage::{Part, ReadError, Reader, Record, Tables};
use sqlx::AssertSqlSafe;

use crate::{
    graph::{Counts, Include, List, ListSet, Relation, State},
    items::{RECORDS_MAX, among, counts_of, page_text},
    tables::read_entry,
    views::{ListPart, ListView},
};

/// The most lists that are loaded for lengths. More of them are read in one statement.
const LOADED_COUNTS_MAX: usize = 8;

/// Selects the entries of a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    /// The order.
    pub(crate) order: Order,
    /// Only entries behind this one, which may have been removed.
    pub(crate) after: Option<Record>,
    /// Only entries that are newer than this time, in Unix ms.
    pub(crate) newer_than_ms: Option<u64>,
    /// The maximum number of entries.
    pub(crate) count: usize,
}

impl Range {
    /// Returns the newest entries behind one, or the newest ones.
    pub(crate) fn newest(after: Option<Record>, count: usize) -> Self {
        Self { order: Order::Newest, after, newer_than_ms: None, count }
    }

    fn has(&self, entry: &Record) -> bool {
        let is_behind = |after: Record| match self.order {
            Order::Newest => *entry < after,
            Order::Oldest => *entry > after,
        };
        self.after.is_none_or(is_behind)
            && self.newer_than_ms.is_none_or(|time| entry.time_ms > time)
    }
}

/// A page of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Page {
    /// The entries in order.
    pub(crate) entries: Vec<Record>,
    /// Whether more entries follow.
    pub(crate) more: bool,
}

impl Page {
    /// Returns the token of the next page; empty at the end.
    pub(crate) fn next_token(&self, scope: Scope) -> String {
        let last = self.entries.last().filter(|_| self.more);
        last.map_or_else(String::new, |last| token(*last, scope))
    }
}

/// Returns the token of the page behind an entry.
pub(crate) fn token(Record { time_ms, id }: Record, scope: Scope) -> String {
    scope.token([time_ms, id])
}

/// Reads the entry that a page begins behind; `None` for the first page.
pub(crate) fn from_token(scope: Scope, token: &str) -> Result<Option<Record>, TokenError> {
    let position = scope.read(token)?;
    Ok(position.map(|[time_ms, id]| Record { time_ms, id }))
}

/// Returns the accounts of entries.
pub(crate) fn ids(entries: &[Record]) -> Vec<UserId> {
    entries.iter().filter_map(|entry| UserId::new(entry.id)).collect()
}

/// The lists of all accounts. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Lists {
    reader: Reader<List>,
    tables: Tables,
    following_limit: usize,
}

impl Lists {
    pub(crate) fn new(reader: Reader<List>, tables: Tables, following_limit: u32) -> Self {
        Self { reader, tables, following_limit: following_limit as usize }
    }

    /// Returns the most accounts that an account may follow.
    pub(crate) fn following_limit(&self) -> usize {
        self.following_limit
    }

    /// Returns the database.
    pub(crate) async fn database(&self) -> Result<&Database, record::Error> {
        self.tables.database().await
    }

    /// Returns the tables.
    pub(crate) fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Returns the reader of the cache.
    pub(crate) fn reader(&self) -> &Reader<List> {
        &self.reader
    }

    /// Returns the relations of a viewer to targets, in their order, and the time of the viewer's newest
    /// follow, in Unix ms, if it is requested (0 if there is none).
    ///
    /// One round trip if the cache has the lists of the viewer. Private lists that are empty are in the cache
    /// of no one.
    pub(crate) async fn relations(
        &self,
        viewer: UserId,
        targets: &[UserId],
        include: Include,
    ) -> Result<(Vec<Relation>, u64), ReadError> {
        if !self.reader.is_trusted(viewer.get()) {
            return self.relations_of_database(viewer, targets, include).await;
        }
        let members = ListView::Members(targets);
        let following = if include.following_since { ListView::All } else { members };
        let part = |item, view| Part { item, id: viewer.get(), view };
        let mut parts = Vec::with_capacity(6);
        if !targets.is_empty() {
            parts.extend([part(List::Following, following), part(List::Followers, members)]);
            parts.extend(include.lists.iter().map(|list| part(list, members)));
        }
        if include.newest_following {
            parts.push(part(List::Following, ListView::Newest(1)));
        }
        let mut found = self.reader.peek(&parts).await;
        let mut newest_ms = 0;
        if include.newest_following
            && let (Some(part), found) = (parts.pop(), found.pop().flatten())
        {
            let newest = self.found(&part, found).await?;
            newest_ms = newest.records.last().map_or(0, |newest| newest.time_ms);
        }
        let mut memberships = Vec::with_capacity(parts.len());
        for (at, (part, found)) in parts.iter().zip(found).enumerate() {
            // The first two have the lengths of the private lists.
            let is_empty = at >= 2 && length(&memberships, part.item) == 0;
            let found = match found {
                None if is_empty => {
                    ListPart { members: vec![false; targets.len()], ..Default::default() }
                }
                found => self.found(part, found).await?,
            };
            memberships.push((part.item, found));
        }
        let mut since = HashMap::new();
        if let (true, Some((_, following))) = (include.following_since, memberships.first_mut()) {
            since = following.records.iter().map(|record| (record.id, record.time_ms)).collect();
            following.members =
                targets.iter().map(|target| since.contains_key(&target.get())).collect();
        }
        for (list, part) in &mut memberships {
            let older = self.among_older(*list, viewer, targets, part).await?;
            if *list == List::Following {
                since.extend(older.into_iter().map(|record| (record.id, record.time_ms)));
            }
        }
        let on = |at: usize, list: List| {
            let lists = memberships.iter().find(|(of, _)| *of == list);
            lists.and_then(|(_, part)| part.members.get(at)).is_some_and(|&is_member| is_member)
        };
        let since_ms = |at: usize| since.get(&targets[at].get()).copied().unwrap_or_default();
        Ok((relations(viewer, targets, include, on, since_ms), newest_ms))
    }

    // Looks the targets up in the database.
    async fn relations_of_database(
        &self,
        viewer: UserId,
        targets: &[UserId],
        include: Include,
    ) -> Result<(Vec<Relation>, u64), ReadError> {
        let ids: Vec<u64> = targets.iter().map(|target| target.get()).collect();
        let lists = [List::Following, List::Followers].into_iter().chain(include.lists.iter());
        let lists: Vec<List> = lists.collect();
        let read = async |database: &Database| among(database, &lists, viewer.get(), &ids).await;
        let records = match ids.is_empty() {
            true => Vec::new(),
            false => self.reader.bypass(read).await?,
        };
        let time = |(list, record): (List, Record)| ((list, record.id), record.time_ms);
        let found: HashMap<(List, u64), u64> = records.into_iter().map(time).collect();
        let mut newest_ms = 0;
        if include.newest_following {
            let range = Range::newest(None, 1);
            let newest = self.page_of_database(List::Following, viewer, range).await?;
            newest_ms = newest.entries.first().map_or(0, |newest| newest.time_ms);
        }
        let time = |at: usize, list: List| found.get(&(list, ids[at])).copied();
        let on = |at: usize, list: List| time(at, list).is_some();
        let since_ms = |at: usize| time(at, List::Following).unwrap_or_default();
        Ok((relations(viewer, targets, include, on, since_ms), newest_ms))
    }

    /// Returns the lengths of users' lists, in their order: in one round trip to each primary if the cache has
    /// the lists.
    pub(crate) async fn counts(&self, users: &[UserId]) -> Result<Vec<Counts>, ReadError> {
        let part = |user: &UserId| {
            [List::Following, List::Followers].map(|item| Part {
                item,
                id: user.get(),
                view: ListView::Lengths,
            })
        };
        let parts: Vec<_> = users.iter().flat_map(part).collect();
        let mut found = self.reader.peek(&parts).await;
        let missing = |at: &usize| found[*at].is_none();
        let missing: Vec<usize> = (0..parts.len()).filter(missing).collect();
        let is_trusted = missing.first().is_none_or(|at| self.reader.is_trusted(parts[*at].id));
        // Some are loaded, so that the cache has those that are asked for often.
        if is_trusted && missing.len() <= LOADED_COUNTS_MAX {
            let missing_parts: Vec<_> = missing.iter().map(|&at| parts[at]).collect();
            let loaded = self.reader.read_all(&missing_parts).await?;
            for (at, part) in missing.into_iter().zip(loaded) {
                found[at] = Some(part);
            }
        }
        let counts = |pair: &[Option<ListPart>; 2]| {
            let [Some(following), Some(followers)] = pair else { return None };
            Some(Counts {
                following: following.front.entries() as u64,
                followers: followers.front.entries() as u64,
                mutuals: following.front.length(List::Following, List::Mutuals) as u64,
            })
        };
        let counts: Vec<_> = found.as_chunks::<2>().0.iter().map(counts).collect();
        let unknown = users.iter().zip(&counts).filter(|(_, counts)| counts.is_none());
        let unknown: Vec<u64> = unknown.map(|(user, _)| user.get()).collect();
        let read = async |database: &Database| counts_of(database, &unknown).await;
        let others = match unknown.is_empty() {
            true => HashMap::new(),
            false => self.reader.bypass(read).await?,
        };
        let other = |user: &UserId| others.get(&user.get()).copied().unwrap_or_default();
        let counts = users.iter().zip(counts);
        Ok(counts.map(|(user, counts)| counts.unwrap_or_else(|| other(user))).collect())
    }

    /// Returns the lengths of two lists of follows.
    pub(crate) async fn lengths(
        &self,
        lists: [(List, UserId); 2],
    ) -> Result<[usize; 2], ReadError> {
        if lists.iter().any(|(_, user)| !self.reader.is_trusted(user.get())) {
            let users = lists.map(|(_, user)| user);
            let counts = self.counts(&users).await?;
            let length = |at: usize| match (lists[at].0, counts.get(at)) {
                (List::Following, Some(counts)) => counts.following as usize,
                (List::Followers, Some(counts)) => counts.followers as usize,
                _ => 0,
            };
            return Ok([length(0), length(1)]);
        }
        let parts =
            lists.map(|(item, user)| Part { item, id: user.get(), view: ListView::Lengths });
        let read = self.reader.read_all(&parts).await?;
        let length = |at: usize| read.get(at).map_or(0, |part| part.front.entries());
        Ok([length(0), length(1)])
    }

    /// Returns which accounts are on a list.
    pub(crate) async fn contains(
        &self,
        list: List,
        user: UserId,
        accounts: &[UserId],
    ) -> Result<Vec<bool>, ReadError> {
        if accounts.is_empty() {
            return Ok(Vec::new());
        }
        if !self.reader.is_trusted(user.get()) {
            let found = self.entries_of(list, user, accounts).await?;
            let found: HashSet<u64> = found.into_iter().map(|entry| entry.id).collect();
            return Ok(accounts.iter().map(|account| found.contains(&account.get())).collect());
        }
        let view = ListView::Members(accounts);
        let mut part = self.reader.read(&Part { item: list, id: user.get(), view }).await?;
        self.among_older(list, user, accounts, &mut part).await?;
        Ok(part.members)
    }

    /// Returns the entries of a list that are of accounts, newest first.
    pub(crate) async fn entries_of(
        &self,
        list: List,
        user: UserId,
        accounts: &[UserId],
    ) -> Result<Vec<Record>, ReadError> {
        if !self.reader.is_trusted(user.get()) {
            let ids: Vec<u64> = accounts.iter().map(|account| account.get()).collect();
            let mut entries = self.among(list, user, &ids).await?;
            entries.sort_unstable_by_key(|entry| Reverse(*entry));
            return Ok(entries);
        }
        let part = Part { item: list, id: user.get(), view: ListView::All };
        let ListPart { front, records, .. } = self.reader.read(&part).await?;
        let times: HashMap<u64, u64> =
            records.into_iter().map(|record| (record.id, record.time_ms)).collect();
        let entry = |account: &UserId| {
            let id = account.get();
            times.get(&id).map(|&time_ms| Record { time_ms, id })
        };
        let mut part = ListPart { front, ..ListPart::default() };
        part.members = accounts.iter().map(|account| times.contains_key(&account.get())).collect();
        let mut entries: Vec<_> = accounts.iter().filter_map(entry).collect();
        entries.extend(self.among_older(list, user, accounts, &mut part).await?);
        entries.sort_unstable_by_key(|entry| Reverse(*entry));
        Ok(entries)
    }

    /// Returns a page of a list.
    pub(crate) async fn page(
        &self,
        list: List,
        user: UserId,
        range: Range,
    ) -> Result<Page, ReadError> {
        let Range { order, after, count, .. } = range;
        if !self.reader.is_trusted(user.get()) {
            return self.page_of_database(list, user, range).await;
        }
        let view = match (order, after) {
            (Order::Newest, None) => ListView::Newest(count.saturating_add(1)),
            (Order::Oldest, None) => ListView::Oldest(count.saturating_add(1)),
            (_, Some(_)) => ListView::All,
        };
        let part = self.reader.read(&Part { item: list, id: user.get(), view }).await?;
        let is_whole = part.front.entries() <= RECORDS_MAX;
        if !is_whole && order == Order::Oldest {
            return self.page_of_database(list, user, range).await;
        }
        let oldest_ms = part.records.first().map_or(0, |oldest| oldest.time_ms);
        let mut entries: Vec<_> =
            part.records.into_iter().filter(|entry| range.has(entry)).collect();
        if order == Order::Newest {
            entries.reverse();
        }
        let more = entries.len() > count;
        entries.truncate(count);
        let has_all = is_whole || range.newer_than_ms.is_some_and(|time| oldest_ms <= time);
        match more || has_all {
            true => Ok(Page { entries, more }),
            false => self.page_of_database(list, user, range).await,
        }
    }

    /// Returns a page of a list, newest first, as the database has it.
    pub(crate) async fn page_of_database(
        &self,
        list: List,
        user: UserId,
        range: Range,
    ) -> Result<Page, ReadError> {
        let is_newest_first = range.order == Order::Newest;
        let behind = range.after.unwrap_or(match is_newest_first {
            true => Record { time_ms: i64::MAX as u64, id: 0 },
            false => Record { time_ms: 0, id: 0 },
        });
        let count = range.count.saturating_add(1);
        let read = async |database: &Database| {
            let read = async {
                let query = sqlx::query(AssertSqlSafe(page_text(list, is_newest_first)))
                    .bind(number(user.get()))
                    .bind(number(behind.time_ms))
                    .bind(number(behind.id))
                    .bind(i64::try_from(count).unwrap_or(i64::MAX));
                let rows = query.fetch_all(database.readers()).await?;
                rows.iter().map(|row| read_entry(row, 0)).collect::<Result<Vec<_>, _>>()
            };
            database.read("SELECT edges", read).await
        };
        let mut entries = self.reader.bypass(read).await?;
        let read = entries.len();
        entries.retain(|entry| range.newer_than_ms.is_none_or(|time| entry.time_ms > time));
        let more = entries.len() == read && read == count;
        entries.truncate(range.count);
        Ok(Page { entries, more })
    }

    // Looks accounts up in a list of the database.
    async fn among(
        &self,
        list: List,
        user: UserId,
        accounts: &[u64],
    ) -> Result<Vec<Record>, ReadError> {
        let read = async |database: &Database| among(database, &[list], user.get(), accounts).await;
        let found = self.reader.bypass(read).await?;
        Ok(found.into_iter().map(|(_, record)| record).collect())
    }

    async fn found(
        &self,
        part: &Part<List, ListView<'_>>,
        found: Option<ListPart>,
    ) -> Result<ListPart, ReadError> {
        match found {
            Some(found) => Ok(found),
            None => self.reader.read(part).await,
        }
    }

    // Looks up the accounts that are not among the newest entries of a long list, which the cache has, and
    // notes them in `part`. Returns their entries.
    async fn among_older(
        &self,
        list: List,
        user: UserId,
        accounts: &[UserId],
        part: &mut ListPart,
    ) -> Result<Vec<Record>, ReadError> {
        if part.front.entries() <= RECORDS_MAX {
            return Ok(Vec::new());
        }
        let is_unknown = |at: &usize| part.members.get(*at) == Some(&false);
        let unknown: Vec<u64> =
            (0..accounts.len()).filter(is_unknown).map(|at| accounts[at].get()).collect();
        if unknown.is_empty() {
            return Ok(Vec::new());
        }
        let older = self.among(list, user, &unknown).await?;
        for (is_member, account) in part.members.iter_mut().zip(accounts) {
            *is_member |= older.iter().any(|record| record.id == account.get());
        }
        Ok(older)
    }
}

// Returns the relations of a viewer to targets. `on` returns whether the target at an index is on a list of
// the viewer, `since_ms` since when the viewer follows it.
fn relations(
    viewer: UserId,
    targets: &[UserId],
    include: Include,
    on: impl Fn(usize, List) -> bool,
    since_ms: impl Fn(usize) -> u64,
) -> Vec<Relation> {
    let relation = |(at, &target): (usize, &UserId)| {
        let state = match target == viewer {
            true => State::Own,
            false => State::of(on(at, List::Following), on(at, List::Followers)),
        };
        let lists: ListSet = include.lists.iter().filter(|&list| on(at, list)).collect();
        let is_asked = include.following_since && state.is_following();
        let following_since_ms = if is_asked { since_ms(at) } else { 0 };
        Relation { target, state, lists, following_since_ms }
    };
    targets.iter().enumerate().map(relation).collect()
}

// Returns the length of a private list, by the fronts of those of follows.
fn length(memberships: &[(List, ListPart)], list: List) -> usize {
    memberships.iter().map(|(of, part)| part.front.length(*of, list)).max().unwrap_or_default()
}
