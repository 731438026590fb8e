//! Keyset pagination of sorted sets, by (score, member): entries added or removed between two pages
//! cause no duplicates and no gaps.

use std::cmp::Ordering;

use redis::{Cmd, Value};

use crate::{Error, reply::check, route::partition_of, shared_pool::SharedPool};

// Entries that one command reads at most, to skip entries of equal score.
const CHUNK_ENTRIES_MAX: usize = 1000;

/// A member of a sorted set with its score.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The member: an id.
    pub member: u64,
    /// The score: a stamp, below 2^53.
    pub score: u64,
}

/// The order of a page. Members of equal score are in lexicographic order, as in Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Highest score first.
    Newest,
    /// Lowest score first.
    Oldest,
}

/// Selects the entries of a page.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// The order.
    pub order: Order,
    /// Only entries after this one, which may have been removed.
    pub after: Option<Entry>,
    /// Only entries with a greater score.
    pub above: Option<u64>,
    /// The maximum number of entries.
    pub count: usize,
}

/// A page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The entries in order.
    pub entries: Vec<Entry>,
    /// Whether more entries follow.
    pub more: bool,
}

impl Order {
    /// Compares two entries in this order.
    pub fn compare(self, a: &Entry, b: &Entry) -> Ordering {
        let ascending =
            a.score.cmp(&b.score).then_with(|| compare_lexicographically(a.member, b.member));
        match self {
            Self::Newest => ascending.reverse(),
            Self::Oldest => ascending,
        }
    }
}

impl Range {
    fn command(&self, key: &str, offset: usize, limit: usize) -> Cmd {
        let mut command = redis::cmd("ZRANGE");
        command.arg(key);
        let above = self.above.map(|score| format!("({score}"));
        match (self.order, self.after) {
            (Order::Newest, after) => {
                match after {
                    Some(entry) => command.arg(entry.score),
                    None => command.arg("+inf"),
                };
                command.arg(above.as_deref().unwrap_or("-inf")).arg("BYSCORE").arg("REV")
            }
            (Order::Oldest, after) => {
                match after {
                    Some(entry) if self.above.is_none_or(|above| entry.score > above) => {
                        command.arg(entry.score)
                    }
                    _ => command.arg(above.as_deref().unwrap_or("-inf")),
                };
                command.arg("+inf").arg("BYSCORE")
            }
        };
        command.arg("LIMIT").arg(offset).arg(limit).arg("WITHSCORES");
        command
    }
}

/// Reads a page with one command, or more if many entries share the score of `range.after`.
pub(crate) async fn read(pool: &SharedPool, key: &str, range: Range) -> Result<Page, Error> {
    let is_after = |entry: &Entry, position: Option<Entry>| {
        position.is_none_or(|position| range.order.compare(entry, &position).is_gt())
    };
    // One more to know whether entries follow, and one for `after` itself.
    let mut limit = range.count.saturating_add(1 + usize::from(range.after.is_some()));
    let mut offset = 0;
    let mut last = range.after;
    let mut entries = Vec::with_capacity(range.count.min(CHUNK_ENTRIES_MAX) + 2);
    loop {
        let command = range.command(key, offset, limit);
        let reply = pool.command(command, partition_of(key.as_bytes())).await?;
        let chunk = parse(check(reply)?)?;
        // Chunks must overlap. If they do not, removed entries have moved others to a lower offset:
        // reads again from there.
        let is_gap = chunk.first().is_none_or(|first| is_after(first, last));
        if offset > 0 && is_gap {
            offset = offset.saturating_sub(limit);
            continue;
        }
        let is_end = chunk.len() < limit;
        for entry in chunk {
            if is_after(&entry, last) {
                last = Some(entry);
                entries.push(entry);
            }
        }
        if is_end || entries.len() > range.count {
            break;
        }
        // Repeats the last entry, so that the chunks overlap.
        offset += limit - 1;
        limit = (limit * 2).clamp(2, CHUNK_ENTRIES_MAX.max(range.count));
    }
    let more = entries.len() > range.count;
    entries.truncate(range.count);
    Ok(Page { entries, more })
}

// Parses alternating members and scores.
fn parse(reply: Value) -> Result<Vec<Entry>, Error> {
    let Value::Array(values) = reply else {
        return Err(Error::malformed("a page is no array"));
    };
    let mut entries = Vec::with_capacity(values.len() / 2);
    for pair in values.chunks(2) {
        let [member, score] = pair else {
            return Err(Error::malformed("a member of a page has no score"));
        };
        entries.push(Entry { member: number(member)?, score: number(score)? });
    }
    Ok(entries)
}

fn number(value: &Value) -> Result<u64, Error> {
    let text = match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    };
    let number = text.and_then(|text| text.parse().ok());
    number.ok_or_else(|| Error::malformed("a member or score of a page is no integer"))
}

// Lexicographic, as Redis orders members: 10 before 9.
fn compare_lexicographically(a: u64, b: u64) -> Ordering {
    if a == b { Ordering::Equal } else { a.to_string().cmp(&b.to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_equal_score_are_in_lexicographic_order() {
        let (nine, ten) = (Entry { member: 9, score: 1 }, Entry { member: 10, score: 1 });
        assert!(Order::Oldest.compare(&ten, &nine).is_lt());
        assert!(Order::Newest.compare(&ten, &nine).is_gt());
    }
}
