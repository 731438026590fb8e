//! The tables of the service, and what their statements have in common.

use microblog_domain::{CommentId, PostId, UserId};
use microblog_record::{
    Migration,
    sql::{read, read_id, read_text},
};
use microblog_storage::feed::feed;
use sqlx::{Row as _, any::AnyRow};

use crate::post::{Comment, CommentContent, Reply};

/// The migrations of the service.
pub(crate) static MIGRATIONS: [Migration; 2] = [feed(1), (2, "posts", include_str!("schema.sql"))];

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
    numbers(&text)?.try_into().map_err(|_| malformed())
}

/// Decodes numbers between spaces.
pub(crate) fn numbers(text: &str) -> Result<Vec<u64>, sqlx::Error> {
    let numbers = text.split_ascii_whitespace().map(str::parse);
    numbers.collect::<Result<_, _>>().map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

/// Returns the error of a row that no statement of this service has written.
pub(crate) fn malformed() -> sqlx::Error {
    sqlx::Error::Decode("malformed row".into())
}

/// Decodes the id of an account.
pub(crate) fn user(id: u64) -> Result<UserId, sqlx::Error> {
    UserId::new(id).ok_or_else(malformed)
}

/// Decodes the id of a post.
pub(crate) fn post(id: u64) -> Result<PostId, sqlx::Error> {
    PostId::new(id).ok_or_else(malformed)
}

/// The columns of a comment, for [`read_comment`].
pub(crate) const COMMENT: &str = "post, id, author, reply_to, reply_author, text";

/// Decodes the columns of [`COMMENT`], of which `first` is the first.
pub(crate) fn read_comment(row: &AnyRow, first: usize) -> Result<Comment, sqlx::Error> {
    let content = CommentContent {
        author: read_id(row, first + 2, UserId::new)?,
        text: read_text(row, first + 5)?,
        in_reply_to: Reply::read(read(row, first + 3)?, read(row, first + 4)?),
    };
    let (post, id) = (read_id(row, first, PostId::new)?, read_id(row, first + 1, CommentId::new)?);
    Ok(Comment { id, post, content })
}
