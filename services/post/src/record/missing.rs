//! Posts that neither store has: they were evicted from Redis after the copy was made from which the
//! database was restored. Redis does not name evicted posts, but counts those of each author that are
//! not on its list.

use std::{collections::BTreeMap, pin::pin, time::SystemTime};

use futures::TryStreamExt as _;
use microblog_domain::{Partition, Stamp, UserId};
use microblog_record::{
    RecordError, WriteTransaction,
    sql::{ROWS_MAX, number, read, read_id, rows, statement},
};
use sqlx::any::AnyRow;

use super::{PAGE, pages};
use crate::store::{Store, post_ids};

/// Writes the numbers of missing posts of a partition's authors to `missing_posts`, and returns their
/// sum. The database has the rows of evicted posts alone.
pub(super) async fn find(
    store: &Store,
    transaction: &mut WriteTransaction,
    partition: Partition,
) -> Result<u64, RecordError> {
    let mut found = evicted(transaction, partition).await?;
    let mut evictable = pin!(pages(|after| store.evictable_page(partition, after, PAGE)));
    while let Some(page) = evictable.try_next().await? {
        for content in store.contents(&post_ids(&page)).await?.into_iter().flatten() {
            *found.entry(content.author).or_default() += 1;
        }
    }
    let mut missing = BTreeMap::new();
    let mut cursor = 0;
    loop {
        let (next, authors) = store.authors(partition, cursor).await?;
        let counts = store.post_counts(&authors).await?;
        for (author, count) in authors.into_iter().zip(counts) {
            let found = found.get(&author).copied().unwrap_or_default();
            let posts = count.unlisted.unwrap_or_default().saturating_sub(found);
            if posts > 0 {
                missing.insert(author, posts);
            }
        }
        if next == 0 {
            break;
        }
        cursor = next;
    }
    let posts = missing.values().sum();
    if posts > 0 {
        let authors = missing.len();
        tracing::error!(%partition, posts, authors, "posts are missing: see table missing_posts");
    }
    write(transaction, partition, &missing.into_iter().collect::<Vec<_>>()).await?;
    Ok(posts)
}

// Returns the numbers of posts by author, without damaged ones.
async fn evicted(
    transaction: &mut WriteTransaction,
    partition: Partition,
) -> Result<BTreeMap<UserId, u64>, sqlx::Error> {
    const COUNT: &str = "SELECT author, COUNT(*) FROM posts \
        WHERE id / 4 % 1024 = $1 AND deleted = 0 GROUP BY author";
    let query = sqlx::query(COUNT).bind(i64::from(partition.number()));
    let rows = query.fetch_all(&mut **transaction).await?;
    let author = |row: &AnyRow| Some((read_id(row, 0, UserId::new).ok()?, read(row, 1).ok()?));
    Ok(rows.iter().filter_map(author).collect())
}

async fn write(
    transaction: &mut WriteTransaction,
    partition: Partition,
    missing: &[(UserId, u64)],
) -> Result<(), sqlx::Error> {
    let now = Stamp::first_at(SystemTime::now(), partition).get();
    for missing in missing.chunks(ROWS_MAX) {
        let text = format!(
            "INSERT INTO missing_posts (author, found, posts) VALUES {}",
            rows(transaction.backend_name(), missing.len(), 3)
        );
        let query = missing.iter().fold(statement(text), |query, (author, posts)| {
            query.bind(number(author.get())).bind(number(now)).bind(number(*posts))
        });
        query.execute(&mut **transaction).await?;
    }
    Ok(())
}
