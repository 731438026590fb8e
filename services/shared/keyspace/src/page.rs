//! Pages of a sorted set by (score, member), never by rank: what is added or removed between two
//! pages causes no duplicates and no gaps. Knows no token and no page size of a request.

use std::cmp::Ordering;

use redis::{Cmd, Value};

use crate::{Error, keyspace::accept, links::Links, route};

// The most entries that one command reads while it looks for the end of equal scores.
const CHUNK_MAX: usize = 1000;

/// A member of a sorted set with its score.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The member: an id.
    pub member: u64,
    /// The score: a stamp, below 2^53.
    pub score: u64,
}

/// The order of a page. Redis orders members of equal score as texts, and so does a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Highest score first.
    Newest,
    /// Lowest score first.
    Oldest,
}

/// Which entries a page has.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// In which order.
    pub order: Order,
    /// Only what comes after this entry, which need not be there any more.
    pub after: Option<Entry>,
    /// Only scores greater than this.
    pub above: Option<u64>,
    /// At most so many.
    pub count: usize,
}

/// A page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Its entries in order.
    pub entries: Vec<Entry>,
    /// Whether more follow.
    pub more: bool,
}

impl Order {
    /// Returns how two entries lie in this order.
    pub fn compare(self, a: &Entry, b: &Entry) -> Ordering {
        let ascending = a.score.cmp(&b.score).then_with(|| compare_as_texts(a.member, b.member));
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

/// Reads a page: one command, but where more entries than fit share the score of `range.after`.
pub(crate) async fn read(links: &Links, key: &str, range: Range) -> Result<Page, Error> {
    let is_after = |entry: &Entry, position: Option<Entry>| {
        position.is_none_or(|position| range.order.compare(entry, &position).is_gt())
    };
    // One more says whether more follow, and one is `after` itself.
    let mut limit = range.count.saturating_add(1 + usize::from(range.after.is_some()));
    let mut offset = 0;
    let mut last = range.after;
    let mut entries = Vec::with_capacity(range.count.min(CHUNK_MAX) + 2);
    loop {
        let command = range.command(key, offset, limit);
        let answer = links.command(command, Some(route::of_key(key))).await?;
        let chunk = parse(accept(answer)?)?;
        // A chunk must reach back to where the one before it ended, or what was removed meanwhile
        // has moved others past: look further back.
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
        // The last one again, to see that there is no gap.
        offset += limit - 1;
        limit = (limit * 2).clamp(2, CHUNK_MAX.max(range.count));
    }
    let more = entries.len() > range.count;
    entries.truncate(range.count);
    Ok(Page { entries, more })
}

// Members and scores in turn, as texts.
fn parse(answer: Value) -> Result<Vec<Entry>, Error> {
    let Value::Array(values) = answer else {
        return Err(Error::malformed("a page is no list"));
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
    number.ok_or_else(|| Error::malformed("a member or score of a page is no whole number"))
}

// As Redis orders members: 10 before 9.
fn compare_as_texts(a: u64, b: u64) -> Ordering {
    if a == b { Ordering::Equal } else { a.to_string().cmp(&b.to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_equal_score_lie_as_texts_do() {
        let (nine, ten) = (Entry { member: 9, score: 1 }, Entry { member: 10, score: 1 });
        assert!(Order::Oldest.compare(&ten, &nine).is_lt());
        assert!(Order::Newest.compare(&ten, &nine).is_gt());
    }
}
