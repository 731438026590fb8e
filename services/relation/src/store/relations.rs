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
/// 30 and in 128 entries takes Redis 7.0 some 1.5, 8 and 26 µs, to read the list 0.4, 2 and 8.
const MANY: usize = 8;

/// How many entries a short list has at most.
const SHORT: usize = 128;

impl Store {
    /// Returns how the viewer and targets stand to each other, in their order, and the version of
    /// the viewer's newest follow if it was asked for (0 if there is none).
    ///
    /// One round trip to the viewer's partition: two commands for the states, two more for
    /// blocks, one more for mutes, one more for the newest follow. Another one where there are
    /// eight targets or more and the viewer has more than 128 blocks or mutes: a command for each of
    /// these lists.
    pub async fn relations(
        &self,
        viewer: UserId,
        targets: &[UserId],
        include: Include,
    ) -> Result<(Vec<Relation>, u64), Error> {
        let partition = viewer.partition();
        let is_many = targets.len() >= MANY;
        let lists: Vec<List> = include.lists().filter(|_| !targets.is_empty()).collect();
        let mut batch = Batch::with_capacity(lists.len() + 3);
        if !targets.is_empty() {
            for ids in [keys::following_ids(viewer), keys::follower_ids(viewer)] {
                batch.query(partition, with_ids("SMISMEMBER", ids, targets));
            }
        }
        for &list in &lists {
            let look_up =
                if is_many { beginning(list, viewer) } else { scores(list, viewer, targets) };
            batch.query(partition, look_up);
        }
        if include.newest_following {
            batch.query(partition, newest(viewer));
        }

        let mut answers = self.keyspace.send(batch).await?.into_iter();
        let mut next = || answers.next().unwrap_or(Value::Nil);
        let (mut follows, mut is_follower) = (Vec::new(), Vec::new());
        if !targets.is_empty() {
            (follows, is_follower) = (flags(next())?, flags(next())?);
        }
        let mut listed = Vec::with_capacity(lists.len());
        for _ in &lists {
            listed.push(if is_many { among(targets, next())? } else { Some(flags(next())?) });
        }
        let newest: Vec<(u64, f64)> =
            if include.newest_following { decode(next())? } else { Vec::new() };
        self.look_up_in_long(viewer, targets, &lists, &mut listed).await?;

        let in_list = |list: List| {
            let place = lists.iter().position(|&asked| asked == list);
            place.and_then(|place| listed[place].as_deref()).unwrap_or_default()
        };
        let (blocking, blocked_by, muting) =
            (in_list(List::Blocks), in_list(List::BlockedBy), in_list(List::Mutes));
        let at = |flags: &[bool], i: usize| flags.get(i).copied().unwrap_or(false);
        let relation = |(i, &target)| Relation {
            target,
            state: State::of(at(&follows, i), at(&is_follower, i)),
            blocking: at(blocking, i),
            blocked_by: at(blocked_by, i),
            muting: at(muting, i),
        };
        let relations = targets.iter().enumerate().map(relation).collect();
        Ok((relations, newest.first().map_or(0, |&(_, score)| score as u64)))
    }

    // Looks targets up in those lists of which it is not known yet, since they are long.
    async fn look_up_in_long(
        &self,
        viewer: UserId,
        targets: &[UserId],
        lists: &[List],
        listed: &mut [Option<Vec<bool>>],
    ) -> Result<(), Error> {
        let mut batch = Batch::new();
        for (&list, _) in lists.iter().zip(&*listed).filter(|(_, known)| known.is_none()) {
            batch.query(viewer.partition(), scores(list, viewer, targets));
        }
        if batch.is_empty() {
            return Ok(());
        }
        let answers = self.keyspace.send(batch).await?;
        let unknown = listed.iter_mut().filter(|known| known.is_none());
        for (unknown, answer) in unknown.zip(answers) {
            *unknown = Some(flags(answer)?);
        }
        Ok(())
    }
}

fn newest(viewer: UserId) -> Cmd {
    let following = keys::following(viewer);
    cmd("ZRANGE").arg(following).arg(0).arg(0).arg("REV").arg("WITHSCORES").take()
}

fn beginning(list: List, viewer: UserId) -> Cmd {
    cmd("ZRANGE").arg(key(list, viewer)).arg(0).arg(SHORT).take()
}

fn scores(list: List, viewer: UserId, targets: &[UserId]) -> Cmd {
    with_ids("ZMSCORE", key(list, viewer), targets)
}

// Returns which targets are in a list of which this is the beginning; `None` if that is not all.
fn among(targets: &[UserId], beginning: Value) -> Result<Option<Vec<bool>>, Error> {
    let mut members: Vec<u64> = decode(beginning)?;
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
