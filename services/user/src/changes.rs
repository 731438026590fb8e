//! The changes of accounts in the feed, and in the part of the change feed that this service has.

use futures::future::{BoxFuture, FutureExt as _};
use microblog_domain::UserId;
use microblog_proto::common::{self as pb, ChangeKind};
use microblog_record::{
    Database, Error, ExistingPage, RowKey,
    sql::{existing_page, read},
};
use microblog_storage::changes::FeedTexts;
use sqlx::any::AnyRow;

/// The changes of accounts. Passwords and sessions are none.
pub(crate) struct AccountChanges;

impl FeedTexts for AccountChanges {
    const KINDS: &'static [ChangeKind] = &[ChangeKind::Account];

    fn parse(text: &str) -> Option<Option<pb::Change>> {
        let (verb, rest) = text.split_once(' ')?;
        let id = |text: &str| UserId::new(text.parse().ok()?);
        if matches!(verb, "login" | "use" | "logout" | "password") {
            return id(rest).map(|_| None);
        }
        let (user, version) = rest.split_once(' ')?;
        let account = account(id(user)?.get(), version.parse().ok()?);
        match verb {
            "register" => Some(Some(account)),
            "update" => Some(Some(pb::Change { updated: true, ..account })),
            "delete" => Some(Some(pb::Change { ended: true, ..account })),
            _ => None,
        }
    }

    fn existing(
        database: &Database,
        _: ChangeKind,
        [after, ..]: RowKey,
    ) -> BoxFuture<'_, Result<ExistingPage, Error>> {
        const PAGE: &str =
            "SELECT id, 0, revision FROM accounts WHERE id > $1 + $2 ORDER BY id LIMIT $3";
        let decode = |row: &AnyRow| Ok(Some(account(read(row, 0)?, read(row, 2)?)));
        async move {
            let (changes, next) = existing_page(database, PAGE, [after, 0], decode).await?;
            Ok((changes, next.map(|[id, _]| [id, 0, 0])))
        }
        .boxed()
    }
}

fn account(user_id: u64, version: u64) -> pb::Change {
    let kind = ChangeKind::Account.into();
    pb::Change { kind, user_id, version, ..pb::Change::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_change_feed_has_profiles_and_one_end() {
        let updated = pb::Change { updated: true, ..account(4, 9) };
        let ended = pb::Change { ended: true, ..account(4, 9) };
        for (text, expected) in
            [("register 4 9", account(4, 9)), ("update 4 9", updated), ("delete 4 9", ended)]
        {
            assert_eq!(AccountChanges::parse(text), Some(Some(expected)), "{text}");
        }
        for text in ["login 4", "use 4", "logout 4", "password 4"] {
            assert_eq!(AccountChanges::parse(text), Some(None), "{text}");
        }
        for text in ["", "register", "register 4", "register 0 9", "login x", "rename 4 9"] {
            assert_eq!(AccountChanges::parse(text), None, "{text}");
        }
    }
}
