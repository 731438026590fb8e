//! The tables of the service, and how their rows are read.

use std::collections::HashMap;

use microblog_domain::UserId;
use microblog_record::{
    Database, Error, Migration, number_rows,
    sql::{number, read, read_id, statement},
};
use microblog_storage::feed::feed;
use sqlx::{Row as _, any::AnyRow};

use crate::{
    address::Address,
    identifier::Identifier,
    password::Hash,
    profile::User,
    steps::{AccountRow, IdentifierRow},
};

/// The migrations of the service.
pub(crate) static MIGRATIONS: [Migration; 2] =
    [feed(1), (2, "accounts", include_str!("schema.sql"))];

/// The columns of an account, for [`read_account`].
pub(crate) const ACCOUNT: &str = "accounts.id, accounts.revision, accounts.sessions_revision, \
    accounts.name, accounts.display_name, accounts.bio, accounts.avatar_url, accounts.location, \
    accounts.address, accounts.password, accounts.request";

/// Decodes the columns of [`ACCOUNT`], which are the first ones of a row.
pub(crate) fn read_account(row: &AnyRow) -> Result<AccountRow, sqlx::Error> {
    Ok(AccountRow {
        user: User {
            id: read_id(row, 0, UserId::new)?,
            name: row.try_get(3)?,
            display_name: row.try_get(4)?,
            bio: row.try_get(5)?,
            avatar_url: row.try_get(6)?,
            location: row.try_get(7)?,
        },
        address: Address::stored(row.try_get(8)?),
        password: Hash::stored(row.try_get(9)?),
        request: row.try_get(10)?,
        revision: read(row, 1)?,
        sessions_revision: read(row, 2)?,
    })
}

/// Returns the statement that reads an account by its id, its parameter.
pub(crate) fn account_text() -> String {
    format!("SELECT {ACCOUNT} FROM accounts WHERE id = $1")
}

/// Reads an account.
pub(crate) async fn account(database: &Database, id: UserId) -> Result<Option<AccountRow>, Error> {
    let read = async {
        let row = statement(account_text()).bind(number(id.get()));
        row.fetch_optional(database.readers()).await?.as_ref().map(read_account).transpose()
    };
    database.read("SELECT accounts", read).await
}

/// Returns the statement that reads the account that has an identifier, by its digest, the parameter.
pub(crate) fn owner_text() -> String {
    // A join might read all accounts, where there are few, and keep that plan.
    let of_identifier = |column| format!("(SELECT {column} FROM identifiers WHERE digest = $1)");
    let [value, account] = ["value", "account"].map(of_identifier);
    format!("SELECT {ACCOUNT}, {value} FROM accounts WHERE id = {account}")
}

/// Reads the account that has an identifier.
pub(crate) async fn owner(
    database: &Database,
    identifier: &Identifier,
) -> Result<Option<AccountRow>, Error> {
    let read = async {
        let query = statement(owner_text()).bind(number(identifier.digest()));
        let Some(row) = query.fetch_optional(database.readers()).await? else { return Ok(None) };
        let value: String = row.try_get(11)?;
        (value == identifier.as_str()).then(|| read_account(&row)).transpose()
    };
    database.read("SELECT identifiers", read).await
}

/// The columns of an identifier, for [`read_identifier`].
pub(crate) const IDENTIFIER: &str = "digest, value, account, held_until, revision";

/// Decodes the columns of [`IDENTIFIER`]. Returns the digest, too.
pub(crate) fn read_identifier(row: &AnyRow) -> Result<(u64, IdentifierRow), sqlx::Error> {
    let row_of = IdentifierRow {
        text: row.try_get(1)?,
        account: UserId::new(read(row, 2)?),
        held_until_ms: read(row, 3)?,
        revision: read(row, 4)?,
    };
    Ok((read(row, 0)?, row_of))
}

/// Returns the statement that reads identifiers by their digests, the parameter.
pub(crate) fn identified_text(is_embedded: bool) -> String {
    let is_one = number_rows::contains(is_embedded, "digest", 1);
    format!("SELECT {IDENTIFIER} FROM identifiers WHERE {is_one}")
}

/// Reads the rows of identifiers, by their stored text.
pub(crate) async fn identified(
    database: &Database,
    identifiers: &[Identifier],
) -> Result<HashMap<String, IdentifierRow>, Error> {
    let is_embedded = database.is_embedded();
    let digests = identifiers.iter().map(Identifier::digest);
    let query = statement(identified_text(is_embedded));
    let query = number_rows::bind_column(query, is_embedded, digests);
    let read = async {
        let rows = query.fetch_all(database.readers()).await?;
        let rows = rows.iter().map(read_identifier);
        rows.map(|row| row.map(|(_, row)| (row.text.clone(), row))).collect()
    };
    database.read("SELECT identifiers", read).await
}

/// Opens a database, and makes the tables.
#[cfg(test)]
pub(crate) async fn open_for_test(url: &str) -> Database {
    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        database: microblog_record::Config,
    }
    let flags = <Flags as clap::Parser>::parse_from(["test", "--database-url", url]);
    let database = Database::open(&flags.database).unwrap();
    let tables = microblog_storage::Tables::new(database.clone(), &MIGRATIONS);
    tables.database().await.unwrap();
    database
}
