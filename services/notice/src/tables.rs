//! The tables of the service, and how their rows are read.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use microblog_domain::UserId;
use microblog_record::{
    Database, Error, Migration,
    sql::{number, read_id, statement},
};
use microblog_storage::feed::feed;
use sqlx::{Row as _, any::AnyRow};

use crate::{
    notice::{Act, NoticeRow, Seen, Subject},
    source::{Progress, Source},
    steps::AccountRow,
};

/// The migrations of the service.
pub(crate) static MIGRATIONS: [Migration; 2] =
    [feed(1), (2, "notices", include_str!("schema.sql"))];

/// Joins columns, none of which is NULL, to one text. The driver's work grows with the columns of all rows.
pub(crate) fn packed(columns: &[&str]) -> String {
    format!("concat_ws(' ', {})", columns.join(", "))
}

/// Decodes the numbers of columns that [`packed`] has joined.
pub(crate) fn read_packed<const COLUMNS: usize>(
    row: &AnyRow,
    column: usize,
) -> Result<[u64; COLUMNS], sqlx::Error> {
    let text: String = row.try_get(column)?;
    let numbers = text.split_ascii_whitespace().map(str::parse);
    let numbers: Vec<u64> =
        numbers.collect::<Result<_, _>>().map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
    numbers.try_into().map_err(|_| malformed())
}

/// Returns the error of a row that no statement of this service has written.
pub(crate) fn malformed() -> sqlx::Error {
    sqlx::Error::Decode("malformed row".into())
}

/// The columns of an account.
pub(crate) const ACCOUNT: [&str; 15] = [
    "id",
    "revision",
    "mentions_revision",
    "top",
    "notices",
    "mentions",
    "changed_day",
    "deleted",
    "seen_follow",
    "seen_mutual",
    "seen_mention",
    "seen_comment",
    "seen_reply",
    "seen_repost",
    "seen_like",
];

/// Reads the numbers of [`ACCOUNT`].
pub(crate) fn account(
    [
        id,
        revision,
        mentions_revision,
        top,
        notices,
        mentions,
        changed_day,
        deleted_ms,
        seen @ ..,
    ]: [u64; ACCOUNT.len()],
) -> Result<(UserId, AccountRow), sqlx::Error> {
    let account = AccountRow {
        revision,
        mentions_revision,
        top,
        notices,
        mentions,
        changed_day,
        deleted_ms,
        seen: Seen(seen),
    };
    Ok((UserId::new(id).ok_or_else(malformed)?, account))
}

/// Returns the numbers of [`ACCOUNT`].
pub(crate) fn account_numbers((id, row): (&UserId, &AccountRow)) -> [u64; ACCOUNT.len()] {
    let [follow, mutual, mention, comment, reply, repost, like] = row.seen.0;
    [
        id.get(),
        row.revision,
        row.mentions_revision,
        row.top,
        row.notices,
        row.mentions,
        row.changed_day,
        row.deleted_ms,
        follow,
        mutual,
        mention,
        comment,
        reply,
        repost,
        like,
    ]
}

/// The columns of a notice beside its account, for [`read_notice`].
pub(crate) const NOTICE: [&str; 5] = ["kind", "subject", "comment", "earlier", "acts"];

/// Reads the words of [`NOTICE`]. A damaged notice has no acts, so that new ones replace it.
pub(crate) fn read_notice(words: &[&str]) -> Result<(Subject, NoticeRow), sqlx::Error> {
    let &[kind, subject, comment, earlier, acts] = words else { return Err(malformed()) };
    let parse = |word: &str| word.parse::<u64>().map_err(|_| malformed());
    let numbers = [parse(kind)?, parse(subject)?, parse(comment)?];
    let subject = Subject::read(numbers).ok_or_else(malformed)?;
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(acts).ok();
    let row = match bytes.and_then(|bytes| Act::unpack(&bytes)) {
        Some(acts) => NoticeRow { earlier: parse(earlier)?, acts },
        None => {
            tracing::error!(?subject, "damaged notice left out");
            NoticeRow::default()
        }
    };
    Ok((subject, row))
}

/// Returns the text of the column `acts`.
pub(crate) fn acts_text(acts: &[Act]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(Act::pack(acts))
}

/// The columns of a position, for [`progress`].
pub(crate) const POSITION: [&str; 4] = ["sequence", "token", "applied", "read_until"];

/// Reads the numbers of [`POSITION`].
pub(crate) fn progress([sequence, token, applied, read_until_ms]: [u64; 4]) -> Progress {
    Progress { sequence, token, applied, read_until_ms }
}

/// Returns the statement that reads the position in a feed, its parameter.
pub(crate) fn position_text() -> String {
    format!("SELECT {} FROM positions WHERE feed = $1", packed(&POSITION))
}

/// Reads how far a feed is applied.
pub(crate) async fn read_progress(database: &Database, source: Source) -> Result<Progress, Error> {
    let read = async {
        let query = statement(position_text()).bind(source.name());
        Ok(progress(read_packed(&query.fetch_one(database.readers()).await?, 0)?))
    };
    database.read("SELECT positions", read).await
}

/// Returns the statement that reads the accounts whose notices expire, up to a day and a number, the parameters.
pub(crate) fn expired_text() -> String {
    "SELECT id FROM accounts WHERE changed_day > 0 AND changed_day < $1 \
     ORDER BY changed_day, id LIMIT $2"
        .to_owned()
}

/// Reads accounts whose last act was before a day.
pub(crate) async fn expired(
    database: &Database,
    day: u64,
    count: usize,
) -> Result<Vec<UserId>, Error> {
    let read = async {
        let query = statement(expired_text()).bind(number(day)).bind(number(count as u64));
        let rows = query.fetch_all(database.readers()).await?;
        rows.iter().map(|row| read_id(row, 0, UserId::new)).collect()
    };
    database.read("SELECT accounts", read).await
}
