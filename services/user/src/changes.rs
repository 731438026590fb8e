//! The part of the change feed that this service has: accounts.

use microblog_proto::common::{self as pb, ChangeKind};
use microblog_record::{
    Database, Error, ExistingPage, RowKey,
    sql::{existing_page, read},
};
use sqlx::any::AnyRow;

use crate::journal::JournalEntry;

/// Returns what an entry of the journal is in the feed. Passwords, sessions and claims are not in it.
pub(crate) fn change(entry: &JournalEntry) -> Option<pb::Change> {
    match *entry {
        JournalEntry::Account(id, version) => Some(account(id.get(), version, false)),
        JournalEntry::Deletion(id, version) => Some(account(id.get(), version, true)),
        JournalEntry::Credentials(_) | JournalEntry::Claim(_) => None,
    }
}

fn account(user_id: u64, version: u64, ended: bool) -> pb::Change {
    let kind = ChangeKind::Account.into();
    pb::Change { kind, ended, user_id, version, ..pb::Change::default() }
}

/// Returns a page of the accounts.
pub(crate) async fn existing(
    database: &Database,
    [after, ..]: RowKey,
) -> Result<ExistingPage, Error> {
    const PAGE: &str = "SELECT account, 0, card_version, (SELECT COUNT(*) FROM deleted_accounts \
        WHERE deleted_accounts.account = accounts.account) FROM accounts \
        WHERE account > $1 + $2 ORDER BY account LIMIT $3";
    let decode = |row: &AnyRow| {
        let id = read(row, 0)?;
        let account = account(id, read(row, 2)?.max(id), false);
        Ok((read(row, 3)? == 0).then_some(account))
    };
    let (changes, next) = existing_page(database, PAGE, [], [after, 0], decode).await?;
    Ok((changes, next.map(|[id, _]| [id, 0, 0])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_feed_has_no_credentials() {
        let change = |entry| change(&JournalEntry::parse(entry).unwrap());
        for entry in ["register 4 9", "update 4 9"] {
            assert_eq!(change(entry), Some(account(4, 9, false)), "{entry}");
        }
        for entry in ["delete 4 9", "deleted 4 9"] {
            assert_eq!(change(entry), Some(account(4, 9, true)), "{entry}");
        }
        for entry in ["password 4 9", "logout 4 9", "claim 4 9", "release 4 9"] {
            assert_eq!(change(entry), None, "{entry}");
        }
    }
}
