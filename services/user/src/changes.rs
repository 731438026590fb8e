//! The part of the change feed that this service has: accounts.

use microblog_proto::common::{self as pb, ChangeKind};
use microblog_record::{
    Database, Error, ExistingPage, RowKey,
    sql::{existing_page, read},
};
use sqlx::any::AnyRow;

use crate::journal::JournalEntry;

/// Returns what an entry of the journal is in the feed. Passwords, sessions and claims are not in it, nor
/// is the confirmation of a deletion: the account has ended before.
pub(crate) fn change(entry: &JournalEntry) -> Option<pb::Change> {
    match *entry {
        JournalEntry::Registration(id, version) => Some(account(id.get(), version)),
        JournalEntry::Update(id, version) => {
            Some(pb::Change { updated: true, ..account(id.get(), version) })
        }
        JournalEntry::Deletion(id, version) => {
            Some(pb::Change { ended: true, ..account(id.get(), version) })
        }
        JournalEntry::Confirmation(_) | JournalEntry::Credentials(_) | JournalEntry::Claim(_) => {
            None
        }
    }
}

fn account(user_id: u64, version: u64) -> pb::Change {
    let kind = ChangeKind::Account.into();
    pb::Change { kind, user_id, version, ..pb::Change::default() }
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
        let account = account(id, read(row, 2)?.max(id));
        Ok((read(row, 3)? == 0).then_some(account))
    };
    let (changes, next) = existing_page(database, PAGE, [], [after, 0], decode).await?;
    Ok((changes, next.map(|[id, _]| [id, 0, 0])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_feed_has_no_credentials_and_one_end() {
        let change = |entry| change(&JournalEntry::parse(entry).unwrap());
        let (begun, updated, ended) =
            (account(4, 9), pb::Change { updated: true, ..account(4, 9) }, account(4, 9));
        let ended = pb::Change { ended: true, ..ended };
        for (entry, expected) in
            [("register 4 9", begun), ("update 4 9", updated), ("delete 4 9", ended)]
        {
            assert_eq!(change(entry), Some(expected), "{entry}");
        }
        for entry in ["deleted 4 9", "password 4 9", "logout 4 9", "claim 4 9", "release 4 9"] {
            assert_eq!(change(entry), None, "{entry}");
        }
    }
}
