//! A group of calls as one transaction: locks the rows that its calls need, decides them in order, and
//! writes what has changed. No text of a statement depends on the group: a connection prepares each once.
//!
//! Rows are locked table by table, and in the order of their keys: accounts, identifiers, guesses. Those of
//! a table that are missing are made before the others of it are locked: so two groups that make rows may,
//! rarely, wait for each other. Then the database ends one, which is repeated.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::{BoxFuture, FutureExt as _};
use microblog_domain::{Partition, UserId};
use microblog_record::{
    json_rows::{self, Type},
    number_rows,
    sql::{number, read, read_id, statement},
};
use microblog_storage::{
    Change, Decided, EntryKeys, FeedRow, Group, Item as _, ItemRevision, Transaction,
};
use sqlx::{
    Any, Row as _,
    any::{AnyArguments, AnyRow},
    query::Query,
};

use crate::{
    identifier::Identifier,
    items::AccountItem,
    steps::{AccountRow, Call, GuessesRow, IdentifierRow, Outcome, SessionRow, State},
    tables::{ACCOUNT, IDENTIFIER, read_account, read_identifier},
    token::Fingerprint,
};

/// The calls that write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calls;

impl Group for Calls {
    type Call = Call;
    type Outcome = Outcome;

    fn run<'a>(
        &'a self,
        transaction: &'a mut Transaction,
        calls: &'a [Call],
    ) -> BoxFuture<'a, Result<Decided<Outcome>, sqlx::Error>> {
        run(transaction, calls).boxed()
    }
}

async fn run(
    transaction: &mut Transaction,
    calls: &[Call],
) -> Result<Decided<Outcome>, sqlx::Error> {
    let mut state = lock(transaction, calls).await?;
    let outcomes = calls.iter().map(|call| state.take(call, rand::random)).collect();
    let has_others = state.guesses.have_changed() || !state.confirmed.is_empty();
    write(transaction, &state).await?;
    let history = transaction.history();
    let change = |(&(item, id), &(before, after)): (&(AccountItem, u64), &(u64, u64))| Change {
        keys: EntryKeys::new(AccountItem::PREFIX, item.kind(), history, Partition::of_id(id), id),
        before,
        after,
        patch: None,
        limits: item.limits(),
    };
    let item = |&(item, id, revision): &(AccountItem, u64, u64)| ItemRevision {
        kind: item.kind().to_owned(),
        id,
        revision,
    };
    let feed = state.events.iter().map(|event| FeedRow {
        items: event.items.iter().map(item).collect(),
        change: event.text.clone(),
    });
    let changes = state.items.iter().map(change).collect();
    Ok(Decided { outcomes, changes, created: Vec::new(), feed: feed.collect(), has_others })
}

// Locks and reads what the calls need.
async fn lock(transaction: &mut Transaction, calls: &[Call]) -> Result<State, sqlx::Error> {
    let ids: BTreeSet<u64> = calls.iter().filter_map(Call::account).map(UserId::get).collect();
    let with_sessions: BTreeSet<u64> =
        calls.iter().filter_map(Call::sessions).map(UserId::get).collect();
    let accounts: BTreeMap<UserId, AccountRow> =
        rows(transaction, lock_accounts_text, &ids, |row| {
            read_account(row).map(|account| (account.user.id, account))
        })
        .await?;
    let sessions = rows(transaction, sessions_text, &with_sessions, read_session).await?;

    let registered = calls.iter().filter_map(|call| match call {
        Call::Register(draft) => Some(draft.identifiers()),
        _ => None,
    });
    let registered: BTreeMap<u64, Identifier> =
        registered.flatten().map(|identifier| (identifier.digest(), identifier)).collect();
    let deleted = calls.iter().filter(|call| matches!(call, Call::Delete { .. }));
    let deleted = deleted.filter_map(|call| accounts.get(&call.account()?));
    let deleted = deleted.flat_map(AccountRow::identifiers).map(|identifier| identifier.digest());
    let digests: BTreeSet<u64> = registered.keys().copied().chain(deleted).collect();
    make_identifiers(transaction, &registered).await?;
    let mut identifiers =
        rows(transaction, lock_identifiers_text, &digests, read_identifier).await?;
    if registered.keys().any(|digest| !identifiers.contains_key(digest)) {
        // One that had expired was removed between the two statements.
        make_identifiers(transaction, &registered).await?;
        identifiers = rows(transaction, lock_identifiers_text, &digests, read_identifier).await?;
    }

    let guessed = calls.iter().filter(|call| matches!(call, Call::Guess(_)));
    let guessed: BTreeSet<u64> = guessed.filter_map(Call::guesses).collect();
    execute(transaction, make_guesses_text, &guessed).await?;
    let digests: BTreeSet<u64> = calls.iter().filter_map(Call::guesses).collect();
    let mut guesses = rows(transaction, lock_guesses_text, &digests, read_guesses).await?;
    if guessed.iter().any(|digest| !guesses.contains_key(digest)) {
        execute(transaction, make_guesses_text, &guessed).await?;
        guesses = rows(transaction, lock_guesses_text, &digests, read_guesses).await?;
    }
    Ok(State::new(transaction.now_ms(), accounts, identifiers, sessions, guesses))
}

// Reads the rows of some keys.
async fn rows<K: Ord, R>(
    transaction: &mut Transaction,
    text: fn(bool) -> String,
    keys: &BTreeSet<u64>,
    read: impl Fn(&AnyRow) -> Result<(K, R), sqlx::Error>,
) -> Result<BTreeMap<K, R>, sqlx::Error> {
    if keys.is_empty() {
        return Ok(BTreeMap::new());
    }
    let query = of_keys(transaction, text, keys);
    query.fetch_all(transaction.connection()).await?.iter().map(read).collect()
}

// Executes a statement for some keys.
async fn execute<'a>(
    transaction: &mut Transaction,
    text: fn(bool) -> String,
    keys: impl IntoIterator<Item = &'a u64>,
) -> Result<(), sqlx::Error> {
    let keys: BTreeSet<u64> = keys.into_iter().copied().collect();
    if !keys.is_empty() {
        of_keys(transaction, text, &keys).execute(transaction.connection()).await?;
    }
    Ok(())
}

fn of_keys(
    transaction: &Transaction,
    text: fn(bool) -> String,
    keys: &BTreeSet<u64>,
) -> Query<'static, Any, AnyArguments> {
    let is_sqlite = transaction.is_sqlite();
    number_rows::bind_column(statement(text(is_sqlite)), is_sqlite, keys.iter().copied())
}

/// Returns what locks the rows of a statement.
const fn lock_clause(is_sqlite: bool) -> &'static str {
    if is_sqlite { "" } else { "FOR UPDATE" }
}

fn lock_accounts_text(is_sqlite: bool) -> String {
    let (is_one, lock) = (number_rows::contains(is_sqlite, "id", 1), lock_clause(is_sqlite));
    format!("SELECT {ACCOUNT} FROM accounts WHERE {is_one} ORDER BY id {lock}")
}

fn sessions_text(is_sqlite: bool) -> String {
    let is_one = number_rows::contains(is_sqlite, "account", 1);
    format!("SELECT account, token, made, used, expires FROM sessions WHERE {is_one}")
}

fn read_session(row: &AnyRow) -> Result<((UserId, Fingerprint), SessionRow), sqlx::Error> {
    let token: String = row.try_get(1)?;
    let token = Fingerprint::stored(&token);
    let token = token.ok_or_else(|| sqlx::Error::Decode("malformed token".into()))?;
    let session =
        SessionRow { made_ms: read(row, 2)?, used_ms: read(row, 3)?, expires_ms: read(row, 4)? };
    Ok(((read_id(row, 0, UserId::new)?, token), session))
}

async fn make_identifiers(
    transaction: &mut Transaction,
    identifiers: &BTreeMap<u64, Identifier>,
) -> Result<(), sqlx::Error> {
    if identifiers.is_empty() {
        return Ok(());
    }
    let row =
        |(digest, identifier): (&u64, &Identifier)| [(*digest).into(), identifier.as_str().into()];
    let text = make_identifiers_text(transaction.is_sqlite());
    let query = json_rows::bind(statement(text), identifiers.iter().map(row));
    query.execute(transaction.connection()).await.map(drop)
}

fn make_identifiers_text(is_sqlite: bool) -> String {
    let columns = [("new_digest", Type::Number), ("new_value", Type::Text)];
    let rows = json_rows::table(is_sqlite, 1, &columns);
    format!(
        "INSERT INTO identifiers (digest, value, account, held_until, revision) \
         SELECT new_digest, new_value, 0, 0, 0 FROM {rows} \
         WHERE (SELECT digest FROM identifiers WHERE digest = new_digest) IS NULL \
         ORDER BY new_digest ON CONFLICT (digest) DO NOTHING"
    )
}

fn lock_identifiers_text(is_sqlite: bool) -> String {
    let (is_one, lock) = (number_rows::contains(is_sqlite, "digest", 1), lock_clause(is_sqlite));
    format!("SELECT {IDENTIFIER} FROM identifiers WHERE {is_one} ORDER BY digest {lock}")
}

fn make_guesses_text(is_sqlite: bool) -> String {
    let digests = number_rows::table(is_sqlite, 1, 1);
    format!(
        "INSERT INTO guesses (digest, failures, delayed_until, expires) \
         SELECT column1, 0, 0, 0 FROM {digests} \
         WHERE (SELECT digest FROM guesses WHERE digest = column1) IS NULL \
         ORDER BY column1 ON CONFLICT (digest) DO NOTHING"
    )
}

fn lock_guesses_text(is_sqlite: bool) -> String {
    let (is_one, lock) = (number_rows::contains(is_sqlite, "digest", 1), lock_clause(is_sqlite));
    format!(
        "SELECT digest, failures, delayed_until, expires FROM guesses WHERE {is_one} \
         ORDER BY digest {lock}"
    )
}

fn read_guesses(row: &AnyRow) -> Result<(u64, GuessesRow), sqlx::Error> {
    let guesses = GuessesRow {
        failures: read(row, 1)?,
        delayed_until_ms: read(row, 2)?,
        expires_ms: read(row, 3)?,
    };
    Ok((read(row, 0)?, guesses))
}

// Writes what has changed.
async fn write(transaction: &mut Transaction, state: &State) -> Result<(), sqlx::Error> {
    write_accounts(transaction, state).await?;
    write_identifiers(transaction, state).await?;
    write_sessions(transaction, state).await?;
    execute(transaction, remove_guesses_text, state.guesses.removed()).await?;
    let row = |(digest, row): (&u64, &GuessesRow)| {
        [*digest, row.failures, row.delayed_until_ms, row.expires_ms]
    };
    write_numbers(transaction, change_guesses_text, state.guesses.changed().map(row)).await?;
    let ids = |users: &[UserId]| users.iter().map(|user| user.get()).collect::<BTreeSet<_>>();
    execute(transaction, begin_deletions_text, &ids(&state.deleted)).await?;
    execute(transaction, end_deletions_text, &ids(&state.confirmed)).await
}

async fn write_accounts(transaction: &mut Transaction, state: &State) -> Result<(), sqlx::Error> {
    let removed: BTreeSet<u64> = state.accounts.removed().map(|id| id.get()).collect();
    execute(transaction, remove_accounts_text, &removed).await?;
    let row = |(id, row): (&UserId, &AccountRow)| {
        let texts = [
            &row.user.name,
            &row.user.display_name,
            row.address.as_str(),
            row.password.as_str(),
            &row.request,
        ];
        let [name, display_name, address, password, request] = texts.map(Into::into);
        [id.get().into(), row.revision.into(), name, display_name, address, password, request]
    };
    let added: Vec<_> = state.accounts.added().map(row).collect();
    if !added.is_empty() {
        let query = json_rows::bind(statement(add_accounts_text(transaction.is_sqlite())), added);
        query.execute(transaction.connection()).await?;
    }
    for (id, row) in state.accounts.changed() {
        let user = &row.user;
        let query = statement(change_account_text())
            .bind(number(id.get()))
            .bind(number(row.revision))
            .bind(number(row.sessions_revision))
            .bind(user.display_name.clone())
            .bind(user.bio.clone())
            .bind(user.avatar_url.clone())
            .bind(user.location.clone())
            .bind(row.password.as_str().to_owned());
        query.execute(transaction.connection()).await?;
    }
    Ok(())
}

fn add_accounts_text(is_sqlite: bool) -> String {
    let names = ["name", "display_name", "address", "password", "request"];
    let texts = names.map(|name| (name, Type::Text));
    let columns: Vec<_> =
        [("id", Type::Number), ("revision", Type::Number)].into_iter().chain(texts).collect();
    let rows = json_rows::table(is_sqlite, 1, &columns);
    format!(
        "INSERT INTO accounts (id, revision, sessions_revision, name, display_name, bio, avatar_url, \
         location, address, password, request) SELECT id, revision, 0, name, display_name, '', '', '', \
         address, password, request FROM {rows}"
    )
}

fn change_account_text() -> String {
    "UPDATE accounts SET revision = $2, sessions_revision = $3, display_name = $4, bio = $5, \
     avatar_url = $6, location = $7, password = $8 WHERE id = $1"
        .to_owned()
}

fn remove_accounts_text(is_sqlite: bool) -> String {
    format!("DELETE FROM accounts WHERE {}", number_rows::contains(is_sqlite, "id", 1))
}

async fn write_identifiers(
    transaction: &mut Transaction,
    state: &State,
) -> Result<(), sqlx::Error> {
    // Those that were made for a registration which did not get them.
    let unused = state.identifiers.now.iter().filter(|(_, row)| row.revision == 0);
    let removed = state.identifiers.removed().chain(unused.map(|(digest, _)| digest));
    execute(transaction, remove_identifiers_text, removed).await?;
    let row = |(digest, row): (&u64, &IdentifierRow)| {
        [*digest, row.account.map_or(0, UserId::get), row.held_until_ms, row.revision]
    };
    write_numbers(transaction, change_identifiers_text, state.identifiers.changed().map(row)).await
}

fn remove_identifiers_text(is_sqlite: bool) -> String {
    format!("DELETE FROM identifiers WHERE {}", number_rows::contains(is_sqlite, "digest", 1))
}

fn change_identifiers_text(is_sqlite: bool) -> String {
    change_text("identifiers", ["account", "held_until", "revision"], is_sqlite)
}

fn change_guesses_text(is_sqlite: bool) -> String {
    change_text("guesses", ["failures", "delayed_until", "expires"], is_sqlite)
}

// Returns the statement that updates rows to rows of numbers, the first of which is their digest.
fn change_text(table: &str, columns: [&str; 3], is_sqlite: bool) -> String {
    let rows = number_rows::table(is_sqlite, 1, 4);
    // With it, PostgreSQL reads no whole index of a table that is small.
    let is_one = match is_sqlite {
        true => String::new(),
        false => format!(" AND {}", number_rows::contains(false, "digest", 1)),
    };
    let [second, third, fourth] = columns;
    format!(
        "UPDATE {table} SET {second} = column2, {third} = column3, {fourth} = column4 FROM {rows} \
         WHERE digest = column1{is_one}"
    )
}

async fn write_numbers(
    transaction: &mut Transaction,
    text: fn(bool) -> String,
    rows: impl Iterator<Item = [u64; 4]>,
) -> Result<(), sqlx::Error> {
    let (rows, is_sqlite): (Vec<_>, _) = (rows.collect(), transaction.is_sqlite());
    if rows.is_empty() {
        return Ok(());
    }
    let query = number_rows::bind(statement(text(is_sqlite)), is_sqlite, &rows);
    match query.execute(transaction.connection()).await?.rows_affected() == rows.len() as u64 {
        true => Ok(()),
        false => Err(sqlx::Error::RowNotFound),
    }
}

async fn write_sessions(transaction: &mut Transaction, state: &State) -> Result<(), sqlx::Error> {
    let key = |(user, token): &(UserId, Fingerprint)| [user.get().into(), token.text().into()];
    let removed: Vec<_> = state.sessions.removed().map(key).collect();
    if !removed.is_empty() {
        let text = remove_sessions_text(transaction.is_sqlite());
        let query = json_rows::bind(statement(text), removed);
        query.execute(transaction.connection()).await?;
    }
    for ((user, token), row) in state.sessions.added() {
        let query = statement(add_session_text()).bind(number(user.get())).bind(token.text());
        let query = query.bind(number(row.made_ms)).bind(number(row.used_ms));
        query.bind(number(row.expires_ms)).execute(transaction.connection()).await?;
    }
    for ((user, token), row) in state.sessions.changed() {
        let query = statement(use_session_text()).bind(number(user.get())).bind(token.text());
        query.bind(number(row.used_ms)).execute(transaction.connection()).await?;
    }
    Ok(())
}

fn remove_sessions_text(is_sqlite: bool) -> String {
    let columns = [("owner", Type::Number), ("ended", Type::Text)];
    let rows = json_rows::table(is_sqlite, 1, &columns);
    // With it, PostgreSQL reads no whole index of a table that is small.
    let is_one = match is_sqlite {
        true => String::new(),
        false => format!("account = ANY(ARRAY(SELECT owner FROM {rows})) AND "),
    };
    format!(
        "DELETE FROM sessions WHERE {is_one}(account, token) IN (SELECT owner, ended FROM {rows})"
    )
}

fn add_session_text() -> String {
    "INSERT INTO sessions (account, token, made, used, expires) VALUES ($1, $2, $3, $4, $5)"
        .to_owned()
}

fn use_session_text() -> String {
    "UPDATE sessions SET used = $3 WHERE account = $1 AND token = $2".to_owned()
}

fn remove_guesses_text(is_sqlite: bool) -> String {
    format!("DELETE FROM guesses WHERE {}", number_rows::contains(is_sqlite, "digest", 1))
}

fn begin_deletions_text(is_sqlite: bool) -> String {
    format!(
        "INSERT INTO deletions (id) SELECT column1 FROM {}",
        number_rows::table(is_sqlite, 1, 1)
    )
}

fn end_deletions_text(is_sqlite: bool) -> String {
    format!("DELETE FROM deletions WHERE {}", number_rows::contains(is_sqlite, "id", 1))
}

#[cfg(test)]
mod tests {
    use microblog_record::Database;
    use sqlx::AssertSqlSafe;

    use super::*;
    use crate::{expiry::REMOVALS, tables};

    const TABLES: [&str; 6] =
        ["accounts", "identifiers", "sessions", "guesses", "deletions", "history"];

    /// The statements of calls.
    fn statements(is_sqlite: bool) -> Vec<String> {
        let of_rows = [
            lock_accounts_text,
            sessions_text,
            make_identifiers_text,
            lock_identifiers_text,
            make_guesses_text,
            lock_guesses_text,
            add_accounts_text,
            remove_accounts_text,
            remove_identifiers_text,
            change_identifiers_text,
            change_guesses_text,
            remove_guesses_text,
            remove_sessions_text,
            begin_deletions_text,
            end_deletions_text,
            tables::identified_text,
        ];
        let mut statements: Vec<String> = of_rows.map(|text| text(is_sqlite)).into();
        statements.extend([
            change_account_text(),
            add_session_text(),
            use_session_text(),
            tables::account_text(),
            tables::owner_text(),
        ]);
        let items = [AccountItem::Profile, AccountItem::Sessions, AccountItem::Name];
        statements.extend(items.map(|item| item.load_text(is_sqlite)));
        statements
    }

    /// The statements that remove what has expired.
    fn removals() -> Vec<String> {
        REMOVALS.map(|(_, _, text)| text.to_owned()).into()
    }

    /// The plans of SQLite, which has no statistics, so they are those of tables of any size.
    #[tokio::test]
    async fn no_statement_of_a_call_reads_a_whole_table() {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}/a.db?mode=rwc", directory.path().display());
        let database = tables::open_for_test(&url).await;
        for statement in statements(true).into_iter().chain(removals()) {
            let numbered = (1..=8).rev().map(|at| format!("${at}"));
            let explain = numbered.fold(statement.clone(), |text, at| text.replace(&at, "4"));
            let explain = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {explain}"));
            let plan = sqlx::raw_sql(explain).fetch_all(database.readers()).await.unwrap();
            for step in plan {
                let step: String = step.try_get(3).unwrap();
                let reads_all = TABLES.iter().any(|table| {
                    step == format!("SCAN {table}") || step.starts_with(&format!("SCAN {table} "))
                });
                assert!(!reads_all, "{step}: {statement}");
            }
        }
    }

    /// PostgreSQL keeps the plan of a statement while its tables grow.
    #[tokio::test]
    async fn a_plan_is_good_for_tables_of_any_size() {
        let server = microblog_testkit::PostgresServer::start().await;
        let database = tables::open_for_test(&server.url()).await;
        for (size, accounts) in [("empty", 0), ("tiny", 1), ("small", 5), ("large", 5_000)] {
            server.sql(&format!(
                "TRUNCATE accounts, identifiers, sessions, guesses; \
                 INSERT INTO accounts SELECT n, 1, 0, 'a' || n, '', '', '', '', 'a', '', '' \
                 FROM generate_series(1, {accounts}) AS n; \
                 INSERT INTO identifiers SELECT n, 'a' || n, n % 2 * n, n, 1 \
                 FROM generate_series(1, 2 * {accounts}) AS n; \
                 INSERT INTO sessions SELECT n % 1000, 'token' || n, n, n, n \
                 FROM generate_series(1, 3 * {accounts}) AS n; \
                 INSERT INTO guesses SELECT n, n, n, n FROM generate_series(1, {accounts}) AS n"
            ));
            if accounts > 0 {
                server.sql("ANALYZE");
            }
            // Of one row, a job may read all.
            let removals = if accounts == 1 { Vec::new() } else { removals() };
            for statement in statements(false).into_iter().chain(removals) {
                let plan = plan(&database, &statement).await;
                for (at, line) in plan.iter().enumerate() {
                    let is_of_table = line.contains("Scan ")
                        && TABLES.iter().any(|table| line.contains(&format!(" on {table}")));
                    let condition = plan.get(at + 1).map_or("", String::as_str);
                    let is_by_key =
                        condition.contains("Index Cond") || condition.contains("Recheck Cond");
                    assert!(!is_of_table || is_by_key, "{size}: {statement}\n{}", plan.join("\n"));
                }
            }
        }
    }

    /// Returns the plan that a connection keeps for a statement.
    async fn plan(database: &Database, statement: &str) -> Vec<String> {
        let parameters = (1..=8).filter(|at| statement.contains(&format!("${at}")));
        let nulls = parameters.map(|_| "NULL").collect::<Vec<_>>().join(", ");
        let mut transaction = database.begin().await.unwrap();
        let prepare = AssertSqlSafe(format!("PREPARE explained AS {statement}"));
        sqlx::raw_sql(prepare).execute(&mut *transaction).await.unwrap();
        let explain = AssertSqlSafe(format!("EXPLAIN EXECUTE explained({nulls})"));
        let plan = sqlx::raw_sql(explain).fetch_all(&mut *transaction).await.unwrap();
        sqlx::raw_sql("DEALLOCATE explained").execute(&mut *transaction).await.unwrap();
        plan.iter().map(|row| row.try_get(0).unwrap()).collect()
    }
}
