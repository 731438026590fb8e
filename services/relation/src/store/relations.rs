//! How accounts stand to a viewer, looked up in the viewer's own id sets and lists: in one partition.

use microblog_domain::UserId;
use microblog_keyspace::{
    Batch, Error, decode,
    redis::{Cmd, Value, cmd},
};

use super::{
    Store,
    lists::{key, with_ids},
};
use crate::{
    graph::{Include, List, Relation, State},
    keys,
};

/// From how many accounts on a list is read whole, if it is short, instead of each being looked up
/// in it: a packed list is searched from its beginning for each. To look 25 accounts up in none, in
/// 30 and in 500 entries takes Redis 7.0 some 1.5, 8 and 90 µs, to read the list 0.4, 2 and 30.
const MANY: usize = 8;

/// How many entries a short list has at most: as many as are packed (`zset-max-listpack-entries`). In
/// longer ones each account is found at once.
const SHORT: usize = 500;

/// Whether each of some accounts is on a list of the viewer's.
struct Listed {
    list: List,
    /// `None` as long as it is not known.
    flags: Option<Vec<bool>>,
}

impl Store {
    /// Returns how the viewer and targets stand to each other, in their order, and the version of
    /// the viewer's newest follow if it was asked for (0 if there is none).
    ///
    /// One round trip to the viewer's partition: two commands for the states, two more for
    /// blocks, one more for mutes, one more for the newest follow. Another one where there are
    /// eight targets or more, and more than 500 accounts on a list of blocks, either way, or mutes: a
    /// command for each such list.
    pub async fn relations(
        &self,
        viewer: UserId,
        targets: &[UserId],
        include: Include,
    ) -> Result<(Vec<Relation>, u64), Error> {
        let partition = viewer.partition();
        let lists: Vec<List> = include.lists().filter(|_| !targets.is_empty()).collect();
        let mut batch = Batch::with_capacity(lists.len() + 3);
        if !targets.is_empty() {
            for ids in [keys::following_ids(viewer), keys::follower_ids(viewer)] {
                batch.query(partition, with_ids("SMISMEMBER", ids, targets));
            }
        }
        for &list in &lists {
            batch.query(partition, look_up(list, viewer, targets));
        }
        if include.newest_following {
            batch.query(partition, newest(viewer));
        }

        let mut answers = self.keyspace.send(batch).await?.into_iter();
        let mut next = || answers.next().ok_or(Error::Malformed("an answer is missing".into()));
        let (mut follows, mut is_follower) = (Vec::new(), Vec::new());
        if !targets.is_empty() {
            (follows, is_follower) = (flags(next()?)?, flags(next()?)?);
        }
        let mut listed = Vec::with_capacity(lists.len());
        for list in lists {
            listed.push(Listed { list, flags: looked_up(targets, next()?)? });
        }
        let newest: Vec<(u64, f64)> =
            if include.newest_following { decode(next()?)? } else { Vec::new() };
        self.look_up_in_long(viewer, targets, &mut listed).await?;

        let is_on = |list: List| {
            let listed = listed.iter().find(|listed| listed.list == list);
            listed.and_then(|listed| listed.flags.as_deref()).unwrap_or_default()
        };
        let (blocking, blocked_by, muting) =
            (is_on(List::Blocks), is_on(List::BlockedBy), is_on(List::Mutes));
        // What was not asked for is not told.
        let at = |flags: &[bool], i: usize| flags.get(i).copied().unwrap_or(false);
        let relation = |(i, &target)| Relation {
            target,
            state: if target == viewer {
                State::Own
            } else {
                State::of(at(&follows, i), at(&is_follower, i))
            },
            blocking: at(blocking, i),
            blocked_by: at(blocked_by, i),
            muting: at(muting, i),
        };
        let relations = targets.iter().enumerate().map(relation).collect();
        Ok((relations, newest.first().map_or(0, |&(_, score)| score as u64)))
    }

    // Looks targets up in those lists of which nothing is known yet, since they are long.
    async fn look_up_in_long(
        &self,
        viewer: UserId,
        targets: &[UserId],
        listed: &mut [Listed],
    ) -> Result<(), Error> {
        let unknown = || listed.iter().filter(|listed| listed.flags.is_none());
        let mut batch = Batch::new();
        for long in unknown() {
            batch.query(viewer.partition(), scores(long.list, viewer, targets));
        }
        if batch.is_empty() {
            return Ok(());
        }
        let answers = self.keyspace.send(batch).await?;
        let unknown = listed.iter_mut().filter(|listed| listed.flags.is_none());
        for (long, answer) in unknown.zip(answers) {
            long.flags = Some(flags(answer)?);
        }
        Ok(())
    }
}

fn newest(viewer: UserId) -> Cmd {
    let following = keys::following(viewer);
    cmd("ZRANGE").arg(following).arg(0).arg(0).arg("REV").arg("WITHSCORES").take()
}

// Reads the beginning of a list, or looks each target up in it.
fn look_up(list: List, viewer: UserId, targets: &[UserId]) -> Cmd {
    if targets.len() < MANY {
        return scores(list, viewer, targets);
    }
    cmd("ZRANGE").arg(key(list, viewer)).arg(0).arg(SHORT).take()
}

fn scores(list: List, viewer: UserId, targets: &[UserId]) -> Cmd {
    with_ids("ZMSCORE", key(list, viewer), targets)
}

// Returns which targets are on a list, by the answer to `look_up`; `None` if it is longer than its
// beginning.
fn looked_up(targets: &[UserId], answer: Value) -> Result<Option<Vec<bool>>, Error> {
    if targets.len() < MANY {
        return flags(answer).map(Some);
    }
    let mut members: Vec<u64> = decode(answer)?;
    members.sort_unstable();
    let is_all = members.len() <= SHORT;
    let is_member = |target: &UserId| members.binary_search(&target.get()).is_ok();
    Ok(is_all.then(|| targets.iter().map(is_member).collect()))
}

// SMISMEMBER answers 0 and 1, ZMSCORE nil and scores.
fn flags(answer: Value) -> Result<Vec<bool>, Error> {
    let values: Vec<Value> = decode(answer)?;
    let flag = |value: Value| match value {
        Value::Nil => Ok(false),
        Value::Int(flag) => Ok(flag > 0),
        // A version, which need not be read: there is none that is 0.
        Value::BulkString(_) | Value::Double(_) => Ok(true),
        other => Ok(decode::<f64>(other)? > 0.0),
    };
    values.into_iter().map(flag).collect()
}
