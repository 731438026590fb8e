//! The plans of the statements of calls and jobs: each finds its rows by their keys, in tables of any size.

use microblog_record::Database;
use microblog_storage::{Tables, transaction::make_accounts_text};
use microblog_testkit::PostgresServer;
use sqlx::AssertSqlSafe;

use super::*;
use crate::{
    deletion,
    lists::{self, List},
    partitions, posts,
    tables::MIGRATIONS,
};

const TABLES: [&str; 10] = [
    "accounts",
    "posts",
    "texts",
    "likes",
    "comments",
    "reposts",
    "requests",
    "undelivered",
    "deleted_posts",
    "deletions",
];

/// The partitioned tables.
const PARTITIONED: [&str; 5] = ["posts", "texts", "likes", "comments", "reposts"];

/// The years of the partitions. That of the last one stays empty, and has no statistics.
const YEARS: [u64; 3] = [19, 20, 21];

/// The most parameters of a statement.
const PARAMETERS: usize = 11;

#[derive(clap::Parser)]
struct Flags {
    #[command(flatten)]
    database: microblog_record::Config,
}

async fn open(url: &str) -> Database {
    let flags = <Flags as clap::Parser>::parse_from(["test", "--database-url", url]);
    let database = Database::open(&flags.database).unwrap();
    Tables::new(database.clone(), &MIGRATIONS).database().await.unwrap();
    database
}

/// A statement, and how it finds its rows.
struct Statement {
    text: String,
    /// The tables that it reads, each with the columns by which it finds rows: the first ones of an index.
    keys: &'static str,
    /// What its plan may have all the same: `Sort`, `Filter` or `Join Filter`.
    excused: &'static str,
}

/// The statements of calls, and those of jobs that are functions.
fn statements(database: &Database) -> Vec<Statement> {
    let is_embedded = database.is_embedded();
    let mut all = of_groups(is_embedded);
    all.extend(of_reads(database));
    all.extend(of_jobs());
    if !is_embedded {
        all.extend(of_functions());
    }
    all
}

fn of_groups(is_embedded: bool) -> Vec<Statement> {
    type Text = fn(bool) -> String;
    type Write = fn(bool, usize) -> String;
    let make = |is_sqlite| make_accounts_text(is_sqlite, ACCOUNT.len());
    let alone: &[(Text, &'static str, &'static str)] = &[
        // Of the keys that are given.
        (make, "accounts: id", "Sort"),
        (lock_accounts_text, "accounts: id", ""),
        (origins_text, "posts: id", ""),
        (lock_posts_text, "posts: id", ""),
        (likes_text, "likes: account, post", ""),
        (comments_text, "comments: post, id", ""),
        (texts_text, "texts: id", ""),
        (leftovers_text, "deleted_posts: id", ""),
        (requests_text, "requests: author, request", ""),
        (remove_posts_text, "posts: id", ""),
        (remove_texts_text, "texts: id", ""),
        (end_delivery_text, "undelivered: id", ""),
        (begin_clearing_text, "", ""),
        (remove_likes_text, "", ""),
        (remove_comments_text, "", ""),
        (remove_reposts_text, "", ""),
        (end_deletions_text, "deletions: id", ""),
    ];
    let written: &[(Write, &'static str, &'static str)] = &[
        (add_posts_text, "", ""),
        // Of the rows of a group, each with each.
        (change_posts_text, "posts: id", "Join Filter"),
        (add_texts_text, "", ""),
        (begin_delivery_text, "", ""),
        (add_likes_text, "", ""),
        (add_comments_text, "", ""),
        (add_reposts_text, "", ""),
        (note_requests_text, "", ""),
        (begin_deletions_text, "", ""),
        // Of the rows of a group, each with each.
        (change_accounts_text, "accounts: id", "Join Filter"),
    ];
    let alone = alone.iter().map(|&(text, keys, excused)| (text(is_embedded), keys, excused));
    let written =
        written.iter().map(|&(text, keys, excused)| (text(is_embedded, 1), keys, excused));
    let statement = |(text, keys, excused)| Statement { text, keys, excused };
    alone.chain(written).map(statement).collect()
}

fn of_reads(database: &Database) -> Vec<Statement> {
    let is_embedded = database.is_embedded();
    let (of_post, of_account) = (PostId::new(1).unwrap(), UserId::new(1).unwrap());
    let page = |list: List| list.page_text().to_owned();
    let mut all = vec![
        (posts::posts_text(is_embedded), "posts: id; texts: id", ""),
        (posts::liked_text(is_embedded), "likes: account, post", ""),
        (page(List::Likers(of_post)), "likes: post, since, account", ""),
        (page(List::Reposts(of_post)), "reposts: target, repost", ""),
        (page(List::PostsOf(of_account)), "texts: author, id", ""),
        (lists::comments_text(true), "comments: post, id", ""),
        (lists::comments_text(false), "comments: post, id", ""),
        (lists::comments_by_key_text(is_embedded), "comments: post, id; posts: id", ""),
        // Whether the post of each is there.
        (lists::comments_by_author_text(), "comments: author, id, post; posts: id", "Filter"),
        (lists::LIKED_BY.to_owned(), "likes: account, post; posts: id", "Filter"),
        // Of a page of each author.
        (lists::newest_text(is_embedded), "texts: author, id", "Sort"),
        (lists::counts_text(is_embedded), "accounts: id", ""),
    ];
    all.extend(PostItem::ALL.map(|item| {
        let (keys, excused) = match item {
            PostItem::Post => ("posts: id; texts: id; likes: post", ""),
            // Of a few at each end.
            PostItem::Comments => ("posts: id; comments: post", "Sort"),
            PostItem::Reposts => ("posts: id; reposts: target", ""),
            PostItem::Author => ("accounts: id; texts: author", ""),
            PostItem::Liked => ("accounts: id; likes: account", ""),
        };
        (item.load_text(database), keys, excused)
    }));
    all.into_iter().map(|(text, keys, excused)| Statement { text, keys, excused }).collect()
}

fn of_jobs() -> Vec<Statement> {
    let (comments, reposts) = (["comments", "post", "id"], ["reposts", "target", "repost"]);
    let all = [
        (deletion::remove_text(comments), "comments: post; deleted_posts: id", ""),
        (deletion::remove_text(reposts), "reposts: target; deleted_posts: id", ""),
        // Whether something of each is left.
        (
            deletion::forget_posts_text(),
            "deleted_posts: id; likes: post; comments: post; reposts: target",
            "Filter",
        ),
    ];
    all.map(|(text, keys, excused)| Statement { text, keys, excused }).into()
}

/// The statements in the loops of functions, with parameters in place of the elements of their arrays.
fn of_functions() -> Vec<Statement> {
    let keys = ["likes: account, post", "comments: post, id", "reposts: target, repost"];
    let (_, _, schema) = MIGRATIONS[1];
    let loops: Vec<_> = schema.split(" LOOP DELETE ").skip(1).collect();
    assert_eq!(loops.len(), keys.len());
    let statement = |(rest, keys): (&str, _)| {
        let (rest, _) = rest.split_once(';').unwrap();
        let mut parameters = 0;
        let words = rest.split(' ').map(|word| match word.ends_with("[at]") {
            true => {
                parameters += 1;
                format!("${parameters}")
            }
            false => word.to_owned(),
        });
        let words: Vec<_> = words.collect();
        Statement { text: format!("DELETE {}", words.join(" ")), keys, excused: "" }
    };
    loops.into_iter().zip(keys).map(statement).collect()
}

impl Statement {
    /// Returns what a plan has that takes the longer the larger the tables are. `indexes` has the columns of
    /// each index. While tables are small, another index may be as good, until PostgreSQL has analyzed them.
    fn faults<'a>(
        &self,
        plan: &'a [String],
        indexes: &BTreeMap<String, String>,
        are_small: bool,
    ) -> Vec<&'a str> {
        let keys: BTreeMap<&str, &str> =
            self.keys.split("; ").filter_map(|key| key.split_once(": ")).collect();
        let lines: Vec<&str> =
            plan.iter().map(|line| line.trim_start().trim_start_matches("->  ")).collect();
        let (mut faults, mut read) = (Vec::new(), BTreeSet::new());
        for (at, line) in lines.iter().enumerate() {
            if matches!(*line, "Sort" | "Incremental Sort") {
                faults.push("Sort");
            }
            if line.starts_with("Join Filter: ") {
                faults.push("Join Filter");
            }
            let Some(table) = scanned(line) else { continue };
            read.insert(table);
            let below = &lines[at + 1..];
            let count = below.iter().take_while(|line| line.contains(": ")).count();
            let (properties, below) = below.split_at(count);
            if properties.iter().any(|property| property.starts_with("Filter: ")) {
                faults.push("Filter");
            }
            let bitmap = || below.first()?.split_once("Bitmap Index Scan on ");
            let index = line.split_once(" using ").or_else(bitmap);
            let index = index.and_then(|(_, name)| indexes.get(name.split(' ').next()?));
            let conditions = properties.iter().filter(|property| property.contains(" Cond: "));
            let words: Vec<&str> = conditions.flat_map(|condition| words(condition)).collect();
            let is_by_key = keys.get(table).zip(index).is_some_and(|(&key, columns)| {
                (are_small || columns.starts_with(key))
                    && key.split(", ").all(|column| words.contains(&column))
            });
            if !is_by_key {
                faults.push(*line);
            }
        }
        if !read.iter().eq(keys.keys()) {
            faults.push("it reads other tables");
        }
        faults.retain(|fault| *fault != self.excused);
        faults
    }
}

/// Returns the table that a line of a plan scans.
fn scanned(line: &str) -> Option<&str> {
    let (scan, relation) = line.split_once(" on ")?;
    let is_of_rows = scan.contains("Scan") && scan != "Bitmap Index Scan";
    let is_of_year = |letter: char| letter == '_' || letter.is_ascii_digit();
    let table = relation.split(' ').next()?.trim_end_matches(is_of_year);
    (is_of_rows && TABLES.contains(&table)).then_some(table)
}

/// Returns the words of a condition. A column of another table has the name of that in front.
fn words(condition: &str) -> impl Iterator<Item = &str> {
    condition.split(|letter: char| !letter.is_ascii_alphanumeric() && !"_.$".contains(letter))
}

/// The plans of SQLite, which has no statistics, so they are those of tables of any size.
#[tokio::test]
async fn no_statement_of_a_call_reads_a_whole_table() {
    let directory = tempfile::tempdir().unwrap();
    let database = open(&format!("sqlite://{}/a.db?mode=rwc", directory.path().display())).await;
    for Statement { text, .. } in statements(&database) {
        let numbered = (1..=PARAMETERS).rev().map(|at| format!("${at}"));
        let explain = numbered.fold(text.clone(), |text, at| text.replace(&at, "'[]'"));
        let explain = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {explain}"));
        let plan = sqlx::raw_sql(explain).fetch_all(database.readers()).await;
        for step in plan.unwrap_or_else(|error| panic!("{text}: {error}")) {
            let step: String = sqlx::Row::try_get(&step, 3).unwrap();
            let reads_all = TABLES.iter().any(|table| {
                step == format!("SCAN {table}") || step.starts_with(&format!("SCAN {table} "))
            });
            assert!(!reads_all, "{step}: {text}");
        }
    }
}

/// PostgreSQL keeps the plan of a statement while its tables grow, and while partitions are added that it has
/// no statistics of.
#[tokio::test]
async fn a_plan_is_good_for_tables_of_any_size() {
    let server = PostgresServer::start().await;
    let database = open(&server.url()).await;
    for year in YEARS {
        server.sql(&partitions::make_text(year));
    }
    let indexes = indexes(&server);
    let [filled @ .., _] = YEARS;
    let analyzed =
        filled.iter().flat_map(|year| PARTITIONED.map(|table| format!("{table}_{year}")));
    let others = TABLES.iter().filter(|table| !PARTITIONED.contains(table));
    let analyzed: Vec<_> = analyzed.chain(others.map(|&table| table.to_owned())).collect();
    for (size, posts) in [("empty", 0), ("tiny", 1), ("small", 20), ("large", 20_000)] {
        fill(&server, posts);
        // After VACUUM, an index that has all columns looks better than one that does not.
        for statistics in ["", "ANALYZE", "VACUUM ANALYZE"] {
            if !statistics.is_empty() {
                server.sql(&format!("{statistics} {}", analyzed.join(", ")));
            }
            for statement in statements(&database) {
                let plan = plan(&database, &statement.text).await;
                let faults = statement.faults(&plan, &indexes, posts < 1_000);
                assert!(
                    faults.is_empty(),
                    "{faults:#?}\n{size} tables, {statistics}: {}\n{}",
                    statement.text,
                    plan.join("\n")
                );
            }
        }
    }
}

/// Returns the columns of each index.
fn indexes(server: &PostgresServer) -> BTreeMap<String, String> {
    let indexes =
        "SELECT indexname || ': ' || substring(indexdef FROM '\\((.*?)\\)') FROM pg_indexes";
    let indexes = server.sql(indexes);
    let index =
        |line: &str| line.split_once(": ").map(|(name, of)| (name.to_owned(), of.to_owned()));
    indexes.lines().filter_map(index).collect()
}

/// Fills the tables anew: each year but the last one has so many posts.
fn fill(server: &PostgresServer, posts: u64) {
    server.sql(&format!("TRUNCATE {}", TABLES.join(", ")));
    server.sql(&format!(
        "INSERT INTO accounts SELECT n, 1, 1, 1, 0, 0, 0, 0 FROM generate_series(1, {posts}) AS n; \
         INSERT INTO requests SELECT n, n, n, 0, n FROM generate_series(1, {posts}) AS n; \
         INSERT INTO undelivered SELECT n FROM generate_series(1, {posts} / 100) AS n; \
         INSERT INTO deleted_posts SELECT n FROM generate_series(1, {posts} / 100) AS n"
    ));
    let [filled @ .., _] = YEARS;
    for year in filled {
        let id = |n: &str| format!("{} + {n} * 4096", partitions::first_id(year));
        // Some posts have several likes, comments and reposts.
        let (post, other, of) = (id("n"), id("(n + 1)"), id("(n / 5)"));
        server.sql(&format!(
            "INSERT INTO posts SELECT {post}, n % 500, 0, 0, 1, 0, 0, 1, 1, 0 \
             FROM generate_series(1, {posts}) AS n; \
             INSERT INTO texts SELECT {post}, n % 500, 'text' FROM generate_series(1, {posts}) AS n; \
             INSERT INTO likes SELECT n % 700, {of}, n FROM generate_series(1, {posts}) AS n; \
             INSERT INTO comments SELECT {of}, {other}, n % 300, 0, 0, 'so' \
             FROM generate_series(1, {posts}) AS n; \
             INSERT INTO reposts SELECT {of}, {other} FROM generate_series(1, {posts}) AS n"
        ));
    }
}

/// Returns the plan that a connection keeps for a statement, with all partitions: where a parameter is NULL,
/// none would be left.
async fn plan(database: &Database, statement: &str) -> Vec<String> {
    let parameters = (1..=PARAMETERS).filter(|at| statement.contains(&format!("${at}")));
    let nulls = parameters.map(|_| "NULL").collect::<Vec<_>>().join(", ");
    let mut transaction = database.begin().await.unwrap();
    let prepare =
        format!("SET LOCAL enable_partition_pruning = off; PREPARE explained AS {statement}");
    let prepared = sqlx::raw_sql(AssertSqlSafe(prepare)).execute(&mut *transaction).await;
    prepared.unwrap_or_else(|error| panic!("{statement}: {error}"));
    let explain = AssertSqlSafe(format!("EXPLAIN (COSTS OFF) EXECUTE explained({nulls})"));
    let plan = sqlx::raw_sql(explain).fetch_all(&mut *transaction).await.unwrap();
    sqlx::raw_sql("DEALLOCATE explained").execute(&mut *transaction).await.unwrap();
    plan.iter().map(|row| sqlx::Row::try_get(row, 0).unwrap()).collect()
}
