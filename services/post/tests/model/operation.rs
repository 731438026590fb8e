//! Random operations of users.

use proptest::prelude::*;

use crate::support::timelines::Mode;

/// The number of users.
pub(crate) const USERS: usize = 4;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Verb {
    Create,
    Repost,
    Delete,
    Like,
    Unlike,
    Comment,
    Answer,
    Uncomment,
}

/// The step after which the process that executes an operation is killed.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(crate) enum Fate {
    Truth,
    /// Not killed, but stalled: the steps after the first are late.
    Stall,
    Telling,
    Confirmation,
    Delivery,
    /// Executed by the service, not by steps.
    Whole,
    /// Likewise, by two callers at once.
    Twice,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) user: usize,
    pub(crate) verb: Verb,
    /// The index of an existing post or comment.
    pub(crate) place: usize,
    pub(crate) fate: Fate,
    /// Whether the caller repeats it.
    pub(crate) again: bool,
}

/// The plan of a case.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) operations: Vec<Operation>,
    /// How the timeline service answers meanwhile.
    pub(crate) mood: Mode,
    /// Whether the archive is enabled from the beginning, if there is one.
    pub(crate) is_archived: bool,
}

/// Returns a strategy for plans; with an archive, more posts can be evicted.
pub(crate) fn plan(has_archive: bool) -> impl Strategy<Value = Plan> {
    let count = if has_archive { 20..120_usize } else { 1..80 };
    let operations = prop::collection::vec(operation(has_archive), count);
    (operations, mood(has_archive), any::<bool>())
        .prop_map(|(operations, mood, is_archived)| Plan { operations, mood, is_archived })
}

fn operation(has_archive: bool) -> impl Strategy<Value = Operation> {
    // A post stays in Redis for a day after one of its reposts was deleted.
    let [create, repost, delete] = if has_archive { [6, 4, 3] } else { [2, 6, 4] };
    let verb = prop_oneof![
        create => Just(Verb::Create),
        repost => Just(Verb::Repost),
        delete => Just(Verb::Delete),
        3 => Just(Verb::Like),
        2 => Just(Verb::Unlike),
        2 => Just(Verb::Comment),
        2 => Just(Verb::Answer),
        2 => Just(Verb::Uncomment),
    ];
    let fate = prop_oneof![
        2 => Just(Fate::Truth),
        1 => Just(Fate::Stall),
        1 => Just(Fate::Telling),
        1 => Just(Fate::Confirmation),
        1 => Just(Fate::Delivery),
        2 => Just(Fate::Whole),
        1 => Just(Fate::Twice),
    ];
    (0..USERS, verb, 0..60_usize, fate, any::<bool>())
        .prop_map(|(user, verb, place, fate, again)| Operation { user, verb, place, fate, again })
}

fn mood(has_archive: bool) -> impl Strategy<Value = Mode> {
    // Undelivered posts stay in Redis.
    let well = if has_archive { 8 } else { 2 };
    prop_oneof![well => Just(Mode::Ok), 1 => Just(Mode::Unavailable), 1 => Just(Mode::Failing)]
}
