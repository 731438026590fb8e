//! What is read of the entry of a list. Does no I/O.

use std::collections::HashSet;

use microblog_domain::UserId;
use microblog_keyspace::{
    Error, decode,
    redis::{Cmd, Value, cmd},
};
use microblog_storage::{
    Contents, EntryKeys, Found, Head, Record, View,
    entry::{HEADER, RECORD, SET_MEMBER},
};

use crate::items::{Front, SMALL};

/// Where the records begin.
const RECORDS: usize = HEADER + Front::BYTES;

/// A part of a list.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ListView<'a> {
    /// The lengths alone.
    Lengths,
    /// The newest entries, up to a number.
    Newest(usize),
    /// The oldest entries of those that the cache has, up to a number.
    Oldest(usize),
    /// All entries that the cache has.
    All,
    /// Which accounts are among the entries that the cache has.
    Members(&'a [UserId]),
}

/// What was read of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListPart {
    /// The lengths.
    pub(crate) front: Front,
    /// The entries, oldest first.
    pub(crate) records: Vec<Record>,
    /// Of each account that was asked for: whether it is on the list.
    pub(crate) members: Vec<bool>,
}

impl View for ListView<'_> {
    type Output = ListPart;

    fn commands(&self, keys: &EntryKeys) -> Vec<Cmd> {
        let range =
            |start: isize, end: isize| cmd("GETRANGE").arg(&keys.entry).arg(start).arg(end).take();
        let bytes = |count: usize| (count * RECORD) as isize;
        let (records, whole) = (RECORDS as isize, range(0, -1));
        match *self {
            Self::Lengths => vec![range(0, records - 1)],
            // With the front before them: a shorter reply is the whole entry.
            Self::Newest(count) => {
                vec![range(0, records - 1), range(-bytes(count) - records, -1)]
            }
            Self::Oldest(count) => vec![range(0, records + bytes(count) - 1)],
            Self::All => vec![whole],
            Self::Members(accounts) => {
                // One byte more than an entry without a set has.
                let small = range(0, records + bytes(SMALL));
                // Full capacity: an id has up to 16 digits.
                let bytes = keys.set.len() + 17 * (accounts.len() + 2);
                let mut is_member = Cmd::with_capacity(accounts.len() + 3, bytes);
                is_member.arg("SMISMEMBER").arg(&keys.set).arg(SET_MEMBER);
                accounts.iter().for_each(|account| _ = is_member.arg(account.get()));
                vec![small, is_member]
            }
        }
    }

    fn of_entry(&self, replies: Vec<Value>) -> Result<Found<ListPart>, Error> {
        let mut replies = replies.into_iter();
        let mut bytes = || decode::<Vec<u8>>(replies.next().unwrap_or(Value::Nil));
        let entry = bytes()?;
        if entry.is_empty() {
            return Ok(Found::Missing);
        }
        let head = Head::read(&entry).filter(|head| head.front == Front::BYTES);
        let front = head.and_then(|_| Front::read(&entry[HEADER..]));
        let Some(front) = front else { return Ok(Found::Broken) };
        let records = &entry[RECORDS..];
        let mut part = ListPart { front, ..ListPart::default() };
        match self {
            Self::Lengths => {}
            Self::Newest(count) => {
                let newest = bytes()?;
                let is_whole = newest.len() < RECORDS + count * RECORD;
                if is_whole {
                    // It may have changed since the first command.
                    match newest.get(HEADER..).and_then(Front::read) {
                        Some(front) => part.front = front,
                        None => return Ok(Found::Missing),
                    }
                }
                let records = newest.get(RECORDS..).unwrap_or_default();
                part.records = Record::read_all(records).collect();
            }
            Self::Oldest(_) | Self::All => part.records = Record::read_all(records).collect(),
            Self::Members(accounts) if records.len() <= SMALL * RECORD => {
                part.members = members(records, accounts);
            }
            Self::Members(_) => {
                let flags: Vec<u8> = decode(replies.next().unwrap_or(Value::Nil))?;
                match flags.split_first() {
                    Some((1, flags)) => {
                        part.members = flags.iter().map(|&flag| flag == 1).collect()
                    }
                    // The set was evicted.
                    _ => return Ok(Found::Broken),
                }
            }
        }
        Ok(Found::Whole(part))
    }

    fn of_item(&self, Contents { front, records }: &Contents) -> ListPart {
        let front = Front::read(front).unwrap_or_default();
        let all = Record::read_all(records);
        let length = all.len();
        let (records, members) = match *self {
            Self::Lengths => (Vec::new(), Vec::new()),
            Self::Newest(count) => (all.skip(length.saturating_sub(count)).collect(), Vec::new()),
            Self::Oldest(count) => (all.take(count).collect(), Vec::new()),
            Self::All => (all.collect(), Vec::new()),
            Self::Members(accounts) => (Vec::new(), members(records, accounts)),
        };
        ListPart { front, records, members }
    }
}

/// The number of accounts in the set of a long entry; 0 of a short one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SetLength;

impl View for SetLength {
    type Output = usize;

    fn commands(&self, keys: &EntryKeys) -> Vec<Cmd> {
        vec![cmd("SCARD").arg(&keys.set).take()]
    }

    fn of_entry(&self, replies: Vec<Value>) -> Result<Found<usize>, Error> {
        let members: usize = decode(replies.into_iter().next().unwrap_or(Value::Nil))?;
        // One is no account.
        Ok(Found::Whole(members.saturating_sub(1)))
    }

    fn of_item(&self, Contents { records, .. }: &Contents) -> usize {
        let length = Record::read_all(records).len();
        if length > SMALL { length } else { 0 }
    }
}

// Returns which accounts are among records.
fn members(records: &[u8], accounts: &[UserId]) -> Vec<bool> {
    let ids: HashSet<u64> = Record::read_all(records).map(|record| record.id).collect();
    accounts.iter().map(|account| ids.contains(&account.get())).collect()
}

#[cfg(test)]
mod tests {
    use microblog_storage::entry::FORMAT;
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::graph::List;

    fn account(id: u64) -> UserId {
        UserId::new(id).unwrap()
    }

    /// What Redis replies to the commands of a view.
    fn replies(view: &ListView<'_>, entry: &[u8], set: Option<&[u64]>) -> Vec<Value> {
        let keys = EntryKeys {
            partition: account(4).partition(),
            entry: "entry".into(),
            lease: "lease".into(),
            set: "set".into(),
        };
        let reply = |command: &Cmd| {
            let arguments: Vec<String> = command
                .args_iter()
                .map(|argument| match argument {
                    microblog_keyspace::redis::Arg::Simple(bytes) => {
                        String::from_utf8(bytes.to_vec()).unwrap()
                    }
                    _ => unreachable!(),
                })
                .collect();
            if arguments[0] == "SMISMEMBER" {
                let flag = |id: &String| {
                    let id = id.parse().unwrap();
                    Value::Int(i64::from(set.is_some_and(|set| set.contains(&id))))
                };
                return Value::Array(arguments[2..].iter().map(flag).collect());
            }
            // As GETRANGE does.
            let length = entry.len() as i64;
            let from_end = |at: i64| if at < 0 { (length + at).max(0) } else { at };
            let [start, end] = [2, 3].map(|at| from_end(arguments[at].parse().unwrap()));
            let end = end.min(length - 1);
            let range = if start > end { &[][..] } else { &entry[start as usize..=end as usize] };
            Value::BulkString(range.to_vec())
        };
        view.commands(&keys).iter().map(reply).collect()
    }

    fn entry(contents: &Contents) -> Vec<u8> {
        let mut entry = vec![FORMAT, 0, 0, 0];
        entry.extend((contents.front.len() as u32).to_be_bytes());
        entry.extend(7_u64.to_be_bytes());
        entry.extend(&*contents.front);
        entry.extend(&contents.records);
        entry
    }

    fn contents(count: u64) -> Contents {
        let record = |n| Record { id: 4 * n, time_ms: 1_000 + n };
        let records = Record::write_all((1..=count).map(record));
        Contents { front: Front::of(List::Followers, |_| count).write().into(), records }
    }

    proptest! {
        #[test]
        fn an_entry_and_its_item_have_the_same_parts(
            count in 0..120_u64, asked in 0..130_usize, ids in vec(1..500_u64, 0..20)
        ) {
            let contents = contents(count);
            let accounts: Vec<_> = ids.into_iter().map(account).collect();
            let set: Vec<u64> = (0..=count).map(|n| 4 * n).collect();
            let set = (count > SMALL as u64).then_some(&*set);
            let views = [
                ListView::Lengths, ListView::All, ListView::Members(&accounts),
                ListView::Newest(asked.max(1)), ListView::Oldest(asked),
            ];
            for view in views {
                let found = view.of_entry(replies(&view, &entry(&contents), set)).unwrap();
                prop_assert_eq!(found, Found::Whole(view.of_item(&contents)), "{:?}", view);
            }
        }

        #[test]
        fn any_replies_are_read_without_a_panic(
            bytes in vec(vec(any::<u8>(), 0..80), 0..3), asked in 1..9_usize
        ) {
            let accounts = [account(4)];
            let views = [
                ListView::Lengths, ListView::All, ListView::Members(&accounts),
                ListView::Newest(asked), ListView::Oldest(asked),
            ];
            for view in views {
                let replies = bytes.iter().cloned().map(Value::BulkString).collect();
                let _ = view.of_entry(replies);
            }
        }
    }

    #[test]
    fn a_set_that_was_evicted_makes_the_entry_useless() {
        let (contents, accounts) = (contents(60), [account(4)]);
        let view = ListView::Members(&accounts);
        let replies = replies(&view, &entry(&contents), None);
        assert_eq!(view.of_entry(replies).unwrap(), Found::Broken);
    }

    #[test]
    fn there_is_no_entry_without_bytes() {
        for view in [ListView::Lengths, ListView::All, ListView::Newest(5)] {
            assert_eq!(view.of_entry(replies(&view, &[], None)).unwrap(), Found::Missing);
        }
    }
}
