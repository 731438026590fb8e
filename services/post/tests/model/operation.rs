//! What users do, at random.

use proptest::prelude::*;

use crate::support::timelines::Mood;

/// How many users there are.
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

/// After which step the process that carries out an operation is killed.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(crate) enum Fate {
    Truth,
    /// Not killed, but held up: what follows the truth comes late.
    Stall,
    Telling,
    Confirmation,
    Delivery,
    /// Not by steps, but as the service does it.
    Whole,
    /// Likewise, by two callers at once.
    Twice,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) user: usize,
    pub(crate) verb: Verb,
    /// Which of the posts or comments that there are.
    pub(crate) place: usize,
    pub(crate) fate: Fate,
    /// Whether the caller repeats it.
    pub(crate) again: bool,
}

/// What happens in a case.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) operations: Vec<Operation>,
    /// How the timeline service answers meanwhile.
    pub(crate) mood: Mood,
    /// Whether it is archived from the beginning, if at all.
    pub(crate) is_archived: bool,
}

/// Returns what may happen; with an archive, more that can leave for it.
pub(crate) fn plan(has_archive: bool) -> impl Strategy<Value = Plan> {
    let count = if has_archive { 20..120_usize } else { 1..80 };
    let operations = prop::collection::vec(operation(has_archive), count);
    (operations, mood(has_archive), any::<bool>())
        .prop_map(|(operations, mood, is_archived)| Plan { operations, mood, is_archived })
}

fn operation(has_archive: bool) -> impl Strategy<Value = Operation> {
    // A post stays in Redis for a day after a repost of it was deleted.
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

fn mood(has_archive: bool) -> impl Strategy<Value = Mood> {
    // What is not delivered stays in Redis.
    let well = if has_archive { 8 } else { 2 };
    prop_oneof![well => Just(Mood::Well), 1 => Just(Mood::Away), 1 => Just(Mood::Failing)]
}
