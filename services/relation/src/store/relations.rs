//! Relations of a viewer to accounts, looked up in the viewer's own lists and id sets: in one
//! partition.

use microblog_domain::{IdMap, UserId};
use microblog_keyspace::{
    Batch, Error, decode,
    redis::{Cmd, Value, cmd},
};

use super::{Store, lists::with_ids};
use crate::{
    graph::{Include, List, Relation, State},
    keys,
};

/// From so many targets on, a short list is read whole instead of looking up each target, since a
/// lookup in a listpack scans it. For 25 targets in lists of 0, 30 and 500 entries, lookups take
/// Redis 7.0 about 1.5, 8 and 90 µs; reading takes 0.4, 2 and 30 µs.
const BULK_MIN: usize = 8;

/// The most entries of a listpack (`zset-max-listpack-entries`). Longer lists have fast lookups.
const LISTPACK_MAX: usize = 500;

/// Which targets are on one of the viewer's lists.
struct Membership {
    list: List,
    /// `None` while unknown.
    flags: Option<Vec<bool>>,
}

impl Store {
    /// Returns the relations of a viewer to targets, in their order, and the version of the
    /// viewer's newest follow if requested (0 if there is none).
    ///
    /// One round trip to the viewer's partition: two commands for states, one for each list, one for
    /// the newest follow, one for versions. One more round trip with eight targets or more and a list of
    /// more than 500 entries: one command for each such list. One more for the versions of a viewer who
    /// follows that many.
    pub async fn relations(
        &self,
        viewer: UserId,
        targets: &[UserId],
        include: Include,
    ) -> Result<(Vec<Relation>, u64), Error> {
        let partition = viewer.partition();
        let lists: Vec<List> = include.lists.iter().filter(|_| !targets.is_empty()).collect();
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
        let has_versions = include.following_versions && !targets.is_empty();
        if has_versions {
            batch.query(partition, look_up_versions(viewer, targets));
        }

        let mut answers = self.keyspace.send(batch).await?.into_iter();
        let mut next = || answers.next().ok_or(Error::Malformed("missing response".into()));
        let (mut follows, mut is_follower) = (Vec::new(), Vec::new());
        if !targets.is_empty() {
            (follows, is_follower) = (flags(next()?)?, flags(next()?)?);
        }
        let mut listed = Vec::with_capacity(lists.len());
        for list in lists {
            listed.push(Membership { list, flags: parse_look_up(targets, next()?)? });
        }
        let newest: Vec<(u64, f64)> =
            if include.newest_following { decode(next()?)? } else { Vec::new() };
        let versions = if has_versions {
            self.following_versions(viewer, targets, next()?).await?
        } else {
            Vec::new()
        };
        self.look_up_long_lists(viewer, targets, &mut listed).await?;

        let at = |flags: &[bool], i: usize| flags.get(i).copied().unwrap_or(false);
        let lists = |i| {
            let contains = |one: &&Membership| one.flags.as_ref().is_some_and(|flags| at(flags, i));
            listed.iter().filter(contains).map(|one| one.list).collect()
        };
        let relation = |(i, &target)| {
            let state = if target == viewer {
                State::Own
            } else {
                State::of(at(&follows, i), at(&is_follower, i))
            };
            let version = versions.get(i).copied().filter(|_| state.is_following());
            let following_version = version.unwrap_or_default();
            Relation { target, state, lists: lists(i), following_version }
        };
        let relations = targets.iter().enumerate().map(relation).collect();
        Ok((relations, newest.first().map_or(0, |&(_, score)| score as u64)))
    }

    // Returns the versions of the viewer's follows of targets, from the response to `look_up_versions`; 0
    // for none. One more round trip if the list is too long to read.
    async fn following_versions(
        &self,
        viewer: UserId,
        targets: &[UserId],
        answer: Value,
    ) -> Result<Vec<u64>, Error> {
        let scores_of = |answer| -> Result<Vec<u64>, Error> {
            let scores: Vec<Option<f64>> = decode(answer)?;
            Ok(scores.into_iter().map(|score| score.unwrap_or_default() as u64).collect())
        };
        if targets.len() < BULK_MIN {
            return scores_of(answer);
        }
        let entries: Vec<(u64, f64)> = decode(answer)?;
        if entries.len() <= LISTPACK_MAX {
            let versions: IdMap<u64, f64> = entries.into_iter().collect();
            let version = |target: &UserId| versions.get(&target.get()).map_or(0, |&it| it as u64);
            return Ok(targets.iter().map(version).collect());
        }
        let mut batch = Batch::with_capacity(1);
        batch.query(viewer.partition(), scores(List::Following, viewer, targets));
        let answer = self.keyspace.send(batch).await?.pop();
        scores_of(answer.ok_or(Error::Malformed("missing response".into()))?)
    }

    // Looks up targets in the lists that are too long to read.
    async fn look_up_long_lists(
        &self,
        viewer: UserId,
        targets: &[UserId],
        listed: &mut [Membership],
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

// Reads the start of a list, or looks up each target.
fn look_up(list: List, viewer: UserId, targets: &[UserId]) -> Cmd {
    if targets.len() < BULK_MIN {
        return scores(list, viewer, targets);
    }
    cmd("ZRANGE").arg(keys::list(list, viewer)).arg(0).arg(LISTPACK_MAX).take()
}

fn look_up_versions(viewer: UserId, targets: &[UserId]) -> Cmd {
    let list = List::Following;
    if targets.len() < BULK_MIN {
        return scores(list, viewer, targets);
    }
    let list = keys::list(list, viewer);
    cmd("ZRANGE").arg(list).arg(0).arg(LISTPACK_MAX).arg("WITHSCORES").take()
}

fn scores(list: List, viewer: UserId, targets: &[UserId]) -> Cmd {
    with_ids("ZMSCORE", keys::list(list, viewer), targets)
}

// Returns which targets are on a list, from the response to `look_up`; `None` if the list is
// longer.
fn parse_look_up(targets: &[UserId], answer: Value) -> Result<Option<Vec<bool>>, Error> {
    if targets.len() < BULK_MIN {
        return flags(answer).map(Some);
    }
    let mut members: Vec<u64> = decode(answer)?;
    members.sort_unstable();
    let is_all = members.len() <= LISTPACK_MAX;
    let is_member = |target: &UserId| members.binary_search(&target.get()).is_ok();
    Ok(is_all.then(|| targets.iter().map(is_member).collect()))
}

// SMISMEMBER returns 0 and 1, ZMSCORE nil and scores.
fn flags(answer: Value) -> Result<Vec<bool>, Error> {
    let values: Vec<Value> = decode(answer)?;
    let flag = |value: Value| match value {
        Value::Nil => Ok(false),
        Value::Int(flag) => Ok(flag > 0),
        // A score is a version, which is never 0.
        Value::BulkString(_) | Value::Double(_) => Ok(true),
        other => Ok(decode::<f64>(other)? > 0.0),
    };
    values.into_iter().map(flag).collect()
}
