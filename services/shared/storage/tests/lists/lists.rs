//! A service of lists: a list is an account's, and its members are accounts.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::future::{BoxFuture, FutureExt as _};
use microblog_domain::Partition;
use microblog_keyspace::{
    Config, Keyspace, Library,
    redis::{Cmd, Value, cmd},
};
use microblog_record::{
    self as record, Database, Migration,
    sql::{number, read},
};
use microblog_storage::{
    Cache, Change, Contents, Created, Decided, EntryKeys, EntryLimits, FeedRow, Found, Group, Head,
    History, Item, ItemRevision, Loaded, Part, Patch, Reader, Record, Round, Tables, Token,
    Transaction, Trust, Verifier, View, Writer,
    cache::library,
    entry::HEADER,
    feed::feed,
    transaction::{history_columns, row_history},
};
use microblog_testkit::{Database as Server, PATIENCE, Store, Topology};
use sqlx::{AssertSqlSafe, any::AnyRow};

/// A member that the tables reject.
pub(crate) const REJECTED: u64 = 1_313;

static MIGRATIONS: [Migration; 2] = [
    feed(1),
    (
        2,
        "lists",
        "CREATE TABLE lists (id BIGINT NOT NULL PRIMARY KEY, revision BIGINT NOT NULL, \
             newest BIGINT NOT NULL); \
         CREATE TABLE members (list BIGINT NOT NULL, member BIGINT NOT NULL CHECK (member <> 1313), \
             time_ms BIGINT NOT NULL, PRIMARY KEY (list, member));",
    ),
];

/// A member to add to a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Add {
    pub(crate) list: u64,
    pub(crate) member: u64,
}

pub(crate) struct Lists;

#[derive(Clone, Copy)]
struct List {
    before: u64,
    revision: u64,
    newest: u64,
}

impl Group for Lists {
    type Call = Add;
    /// Whether the member was added.
    type Outcome = bool;

    fn run<'a>(
        &'a self,
        transaction: &'a mut Transaction,
        calls: &'a [Add],
    ) -> BoxFuture<'a, Result<Decided<bool>, sqlx::Error>> {
        run(transaction, calls).boxed()
    }
}

async fn run(transaction: &mut Transaction, calls: &[Add]) -> Result<Decided<bool>, sqlx::Error> {
    let ids: BTreeSet<u64> = calls.iter().map(|call| call.list).collect();
    let mut lists = lock(transaction, &ids).await?;
    let mut members = members(transaction, &ids).await?;
    let (mut outcomes, mut added) = (Vec::new(), BTreeMap::<u64, Vec<Record>>::new());
    for &Add { list: id, member } in calls {
        let is_new = members.insert((id, member));
        outcomes.push(is_new);
        let now = transaction.now_ms();
        if let Some(list) = lists.get_mut(&id).filter(|_| is_new) {
            list.newest = now.max(list.newest + 1);
            list.revision = list.before + 1;
            added.entry(id).or_default().push(Record { time_ms: list.newest, id: member });
        }
    }
    let mut feed = Vec::new();
    for (&id, records) in &added {
        let List { revision, newest, .. } = lists[&id];
        let mut text =
            format!("UPDATE lists SET revision = {revision}, newest = {newest} WHERE id = {id}");
        for Record { time_ms, id: member } in records {
            text += &format!("; INSERT INTO members VALUES ({id}, {member}, {time_ms})");
            let items = vec![ItemRevision { kind: "list".into(), id, revision }];
            feed.push(FeedRow { items, change: format!("add {id} {member}") });
        }
        sqlx::raw_sql(AssertSqlSafe(text)).execute(transaction.connection()).await?;
    }
    let history = transaction.history().clone();
    let (mut changes, mut created) = (Vec::new(), Vec::new());
    for (&id, &List { before, revision, .. }) in &lists {
        let records = added.get(&id).map(|records| Record::write_all(records.iter().copied()));
        let (keys, limits, front) = (keys(&history, id), ListItem.limits(), b"list");
        match (before, records) {
            (0, Some(records)) => {
                let contents = Contents { front: (*front).into(), records };
                created.push(Created { keys, revision, contents, limits });
            }
            (before, records) => {
                let patch = |added| Patch { front: front.into(), added, removed: Vec::new() };
                let patch = records.map(patch);
                changes.push(Change { keys, before, after: revision, patch, limits });
            }
        }
    }
    Ok(Decided { outcomes, changes, created, feed, has_others: false })
}

// Locks the lists, and makes those that are missing.
async fn lock(
    transaction: &mut Transaction,
    ids: &BTreeSet<u64>,
) -> Result<BTreeMap<u64, List>, sqlx::Error> {
    for id in ids {
        let make = "INSERT INTO lists VALUES ($1, 0, 0) ON CONFLICT (id) DO NOTHING";
        sqlx::query(make).bind(number(*id)).execute(transaction.connection()).await?;
    }
    let lock = if transaction.is_sqlite() { "" } else { "FOR NO KEY UPDATE" };
    let all = join(ids);
    let text =
        format!("SELECT id, revision, newest FROM lists WHERE id IN ({all}) ORDER BY id {lock}");
    let rows = sqlx::query(AssertSqlSafe(text)).fetch_all(transaction.connection()).await?;
    let list = |row: &AnyRow| {
        let (revision, newest) = (read(row, 1)?, read(row, 2)?);
        Ok((read(row, 0)?, List { before: revision, revision, newest }))
    };
    rows.iter().map(list).collect()
}

async fn members(
    transaction: &mut Transaction,
    ids: &BTreeSet<u64>,
) -> Result<BTreeSet<(u64, u64)>, sqlx::Error> {
    let text = format!("SELECT list, member FROM members WHERE list IN ({})", join(ids));
    let rows = sqlx::query(AssertSqlSafe(text)).fetch_all(transaction.connection()).await?;
    rows.iter().map(|row| Ok((read(row, 0)?, read(row, 1)?))).collect()
}

fn join(ids: &BTreeSet<u64>) -> String {
    ids.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

pub(crate) fn keys(history: &History, id: u64) -> EntryKeys {
    EntryKeys::new("rel", "list", history, Partition::of_id(id), id)
}

/// A list as an item.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ListItem;

impl Item for ListItem {
    const PREFIX: &'static str = "rel";
    const LIBRARY: Library = library("rel");
    const SMALL: &'static [Self] = &[Self];

    fn kind(self) -> &'static str {
        "list"
    }

    fn limits(self) -> EntryLimits {
        EntryLimits { without_set: 48, ..EntryLimits::without_sets(1_000_000) }
    }

    fn load(self, database: &Database, id: u64) -> BoxFuture<'_, Result<Loaded, record::Error>> {
        database.read("SELECT lists", load(database, id))
    }
}

async fn load(database: &Database, id: u64) -> Result<Loaded, sqlx::Error> {
    let history = history_columns(database.is_embedded());
    let text = format!(
        "SELECT {history}, lists.revision, members.time_ms, members.member FROM (SELECT 1 AS one) AS o \
         LEFT JOIN lists ON lists.id = {id} LEFT JOIN members ON members.list = lists.id \
         ORDER BY members.time_ms"
    );
    let rows = sqlx::query(AssertSqlSafe(text)).fetch_all(database.readers()).await?;
    let first = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    let history = row_history(database, first, 0)?;
    let record =
        |row: &AnyRow| Some(Record { time_ms: read(row, 4).ok()?, id: read(row, 5).ok()? });
    let records = Record::write_all(rows.iter().filter_map(record));
    let contents = Contents { front: (*b"list").into(), records };
    Ok(Loaded { history, revision: read(first, 3).unwrap_or_default(), contents })
}

/// The ids of the members, oldest first.
pub(crate) struct Members;

impl View for Members {
    type Output = Vec<u64>;

    fn commands(&self, keys: &EntryKeys) -> Vec<Cmd> {
        vec![cmd("GET").arg(&keys.entry).take()]
    }

    fn of_entry(&self, replies: Vec<Value>) -> Result<Found<Vec<u64>>, microblog_keyspace::Error> {
        let reply = replies.into_iter().next().unwrap_or(Value::Nil);
        let entry: Vec<u8> = microblog_keyspace::decode::<Option<_>>(reply)?.unwrap_or_default();
        Ok(match Head::read(&entry) {
            Some(head) => Found::Whole(ids(&entry[HEADER + head.front..])),
            None => Found::Missing,
        })
    }

    fn of_item(&self, contents: &Contents) -> Vec<u64> {
        ids(&contents.records)
    }
}

fn ids(records: &[u8]) -> Vec<u64> {
    Record::read_all(records).map(|record| record.id).collect()
}

/// A process of the service.
pub(crate) struct Process {
    pub(crate) database: Database,
    pub(crate) tables: Tables,
    pub(crate) cache: Cache,
    pub(crate) keyspace: Keyspace,
    pub(crate) writer: Writer<Lists>,
    pub(crate) reader: Reader<ListItem>,
    pub(crate) trust: Trust,
}

impl Process {
    pub(crate) async fn start(server: &Server, redis: &Store) -> Self {
        Self::start_at(server, Config::at(redis.url("admin"))).await
    }

    /// Starts a process with the Redis at an address.
    pub(crate) async fn start_at(server: &Server, redis: Config) -> Self {
        let config = <DatabaseFlags as clap::Parser>::parse_from(["test", &server.flag()]);
        let database = Database::open(&config.database).unwrap();
        let tables = Tables::new(database.clone(), &MIGRATIONS);
        tables.database().await.unwrap();
        let keyspace = Keyspace::open(&redis, ListItem::LIBRARY).unwrap();
        keyspace.ready().await.unwrap();
        let cache = Cache::new(keyspace.clone());
        let trust = Trust::start(tables.clone(), keyspace.clone(), "rel");
        let writer = Writer::start(Lists, tables.clone(), cache.clone(), trust.clone());
        let reader = Reader::new(tables.clone(), keyspace.clone(), trust.clone());
        Self { database, tables, cache, keyspace, writer, reader, trust }
    }

    pub(crate) fn verifier(&self) -> Verifier {
        Verifier::new(self.tables.clone(), self.keyspace.clone(), "rel")
    }

    pub(crate) async fn read(&self, id: u64) -> Vec<u64> {
        let part = Part { item: ListItem, id, view: Members };
        self.reader.read(&part).await.unwrap()
    }

    /// Does rounds of a verifier until one of them has marked all primaries. Returns that round.
    pub(crate) async fn verified(&self, verifier: &mut Verifier) -> Round {
        let primaries = self.keyspace.partitions_by_primary().await.unwrap().len();
        let mut last = Ok(Round::default());
        let verified = async {
            loop {
                last = verifier.round().await;
                match &last {
                    Ok(round) if round.marked == primaries => return *round,
                    _ => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        };
        let verified = tokio::time::timeout(PATIENCE, verified).await;
        verified.unwrap_or_else(|_| panic!("no round marks all primaries: {last:?}"))
    }

    /// Waits until the primary of a list is trusted.
    pub(crate) async fn trusted(&self, id: u64) {
        let trusted = async {
            while self.trust.of(Partition::of_id(id)).is_none() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, trusted).await.unwrap();
    }

    /// Returns the revision of a list, and its members, oldest first.
    pub(crate) async fn stored(&self, id: u64) -> (u64, Vec<Record>) {
        let revision = format!("SELECT COALESCE(MAX(revision), 0) FROM lists WHERE id = {id}");
        let members =
            format!("SELECT time_ms, member FROM members WHERE list = {id} ORDER BY time_ms");
        let record =
            |row: &AnyRow| Record { time_ms: read(row, 0).unwrap(), id: read(row, 1).unwrap() };
        let [revision, members] = [self.rows(revision).await, self.rows(members).await];
        (read(&revision[0], 0).unwrap(), members.iter().map(record).collect())
    }

    async fn rows(&self, text: String) -> Vec<AnyRow> {
        sqlx::query(AssertSqlSafe(text)).fetch_all(self.database.writers()).await.unwrap()
    }

    pub(crate) async fn keys(&self, id: u64) -> EntryKeys {
        let columns = history_columns(self.database.is_embedded());
        let rows = self.rows(format!("SELECT {columns}")).await;
        keys(&row_history(&self.database, &rows[0], 0).unwrap(), id)
    }

    /// Loads the entry of a list.
    pub(crate) async fn load(&self, id: u64) {
        let (revision, members) = self.stored(id).await;
        let contents = Contents { front: (*b"list").into(), records: Record::write_all(members) };
        let keys = self.keys(id).await;
        assert!(self.cache.lease(&keys, Token(1)).await.unwrap());
        let limits = ListItem.limits();
        assert!(self.cache.install(&keys, Token(1), revision, &contents, limits).await.unwrap());
    }

    /// Returns the revision of a list and its members as the cache has them.
    pub(crate) async fn cached(&self, id: u64) -> Option<(u64, Vec<Record>)> {
        let get = cmd("GET").arg(self.keys(id).await.entry).take();
        let entry: Option<Vec<u8>> = self.keyspace.query(get).await.unwrap();
        let entry = entry?;
        let head = Head::read(&entry).unwrap();
        Some((head.revision, Record::read_all(&entry[HEADER + head.front..]).collect()))
    }
}

#[derive(clap::Parser)]
struct DatabaseFlags {
    #[command(flatten)]
    database: record::Config,
}

/// Databases and caches that production uses: each database with one topology.
pub(crate) async fn layouts() -> [(Server, Store); 2] {
    [
        (Server::sqlite(), Store::start(Topology::Cluster).await),
        (Server::postgres().await, Store::start(Topology::Single).await),
    ]
}
