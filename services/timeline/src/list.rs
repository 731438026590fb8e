//! A timeline as its reader sees it: which of its entries are shown, and which of them are on a
//! page. Pure: how authors stand to the reader is asked elsewhere.

mod page;

use microblog_domain::{IdMap, IdSet, PostId, UserId};

use crate::entry::{Entry, newest};

pub(crate) use page::{Page, Wanted};

/// The length of home and friends timelines.
pub(crate) const HOME_MAX: usize = 800;

/// The length of user timelines.
pub(crate) const USER_MAX: usize = 1_000;

/// Among how many entries below it a repost is left out where one shows the same root.
const REPEAT_WINDOW: usize = 40;

/// How much of a list that is cut must be known below what is decided, and how far above it one looks
/// for what is left out, in entries that show different posts: among so many there are as many that are
/// shown as matter, unless two of three are hidden.
const MARGIN: usize = 3 * REPEAT_WINDOW;

/// Entries, newest first, each once; up to 800, and as far down as they are known.
#[derive(Clone, Debug, Default)]
pub(crate) struct List {
    entries: Vec<Entry>,
    // Below which something may be missing.
    cut: Option<PostId>,
}

/// An entry that is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) entry: Entry,
    /// All reposts of the same root that are left out for it, oldest first, but for those that were
    /// named on a page before.
    pub(crate) stand_ins: Vec<Entry>,
}

/// A part of a list, of which something is to be decided: which of its entries are candidates, and
/// how far down one must look to know whether they are shown.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    candidates: Vec<usize>,
    // The entries that matter: from the first one to behind the last one.
    from: usize,
    to: usize,
    /// Whether the list has no other candidates.
    pub(crate) is_all: bool,
}

impl Shown {
    /// Returns an entry for which nothing is left out.
    fn alone(entry: Entry) -> Self {
        Self { entry, stand_ins: Vec::new() }
    }
}

impl List {
    /// Returns a list of entries in any order; below `cut`, some may be missing.
    pub(crate) fn new(entries: Vec<Entry>, cut: Option<PostId>) -> Self {
        let mut entries = newest(entries, HOME_MAX);
        let known = entries.len();
        entries.retain(|entry| cut.is_none_or(|cut| entry.post >= cut));
        // Nobody sees what is missing behind the end.
        let cut = cut.filter(|_| entries.len() < known || known < HOME_MAX);
        Self { entries, cut }
    }

    /// Returns the list of one author's posts.
    pub(crate) fn of_author(entries: Vec<Entry>) -> Self {
        Self { entries: newest(entries, USER_MAX), cut: None }
    }

    /// Returns this list with further entries.
    pub(crate) fn with(mut self, mut entries: Vec<Entry>) -> Self {
        entries.append(&mut self.entries);
        Self::new(entries, self.cut)
    }

    /// Returns the oldest post of a list that has no room for more than `max`, and so may lack older
    /// ones; `None` where there is room.
    pub(crate) fn end(&self, max: usize) -> Option<PostId> {
        self.entries.get(max - 1).map(|entry| entry.post)
    }

    /// Returns whether anything in it may be wanted.
    pub(crate) fn has_any(&self, wanted: &Wanted) -> bool {
        self.candidates(wanted).next().is_some() || self.is_cut_for(wanted)
    }

    /// Returns the part in which the first `count` candidates for a page are; `None` where more of
    /// the list must be known to tell.
    pub(crate) fn part(&self, wanted: &Wanted, count: usize) -> Option<Part> {
        let candidates: Vec<_> = self.candidates(wanted).take(count).collect();
        let is_all = candidates.len() < count;
        if is_all && self.is_cut_for(wanted) {
            return None;
        }
        let from = candidates.first().copied().unwrap_or(0);
        let to = candidates.last().map_or(0, |last| last + 1);
        let from = self.rise(from, to);
        let (to, has_reposts) = self.reach(from, to);
        let is_known = self.cut.is_none() || !has_reposts || self.has_margin(to);
        is_known.then_some(Part { candidates, from, to, is_all })
    }

    /// Returns the authors in a part, each once, but for the reader.
    pub(crate) fn authors(&self, part: &Part, reader: UserId) -> Vec<UserId> {
        let entries = self.entries[part.from..part.to].iter();
        let mut known = IdSet::default();
        known.reserve(entries.len() + 1);
        known.insert(reader);
        entries.map(|entry| entry.author).filter(|&author| known.insert(author)).collect()
    }

    /// Returns which candidates of a part are shown, newest first, to a reader who may see what
    /// `is_visible` says.
    ///
    /// Goes from the oldest to the newest, as a timeline grows: a plain repost is left out where
    /// the root is among the newest 40 that are shown by then. So what comes later changes nothing
    /// below it.
    pub(crate) fn shown(
        &self,
        part: &Part,
        wanted: &Wanted,
        is_visible: impl Fn(&Entry) -> bool,
    ) -> Vec<Shown> {
        if !self.entries[part.from..part.to].iter().any(Entry::is_plain_repost) {
            let candidates = part.candidates.iter().map(|&place| self.entries[place]);
            return candidates.filter(is_visible).map(Shown::alone).collect();
        }
        let count = part.to - part.from;
        let mut shown: Vec<Shown> = Vec::with_capacity(count);
        let mut places: Vec<usize> = Vec::with_capacity(count);
        let mut shown_at: IdMap<PostId, usize> = IdMap::default();
        shown_at.reserve(count);
        for place in (part.from..part.to).rev() {
            let entry = self.entries[place];
            if !is_visible(&entry) {
                continue;
            }
            let recent = shown_at.get(&entry.shows()).copied();
            match recent.filter(|at| shown.len() - at <= REPEAT_WINDOW) {
                Some(at) if entry.is_plain_repost() => {
                    if wanted.may_stand_in(&entry) {
                        shown[at].stand_ins.push(entry);
                    }
                }
                _ => {
                    shown_at.insert(entry.shows(), shown.len());
                    shown.push(Shown::alone(entry));
                    places.push(place);
                }
            }
        }
        let is_candidate = |place: &usize| part.candidates.binary_search(place).is_ok();
        let of_part = places.iter().zip(shown).rev();
        of_part.filter(|(place, _)| is_candidate(place)).map(|(_, shown)| shown).collect()
    }

    /// Returns what is wanted and one more where there is, if everything is shown.
    pub(crate) fn all(&self, wanted: &Wanted) -> Vec<Shown> {
        let shown = |place: usize| Shown::alone(self.entries[place]);
        self.candidates(wanted).take(wanted.size + 1).map(shown).collect()
    }

    /// Returns the posts that are wanted, whether they are shown or not.
    pub(crate) fn posts(&self, wanted: &Wanted) -> Vec<PostId> {
        self.candidates(wanted).map(|place| self.entries[place].post).collect()
    }

    fn candidates(&self, wanted: &Wanted) -> impl Iterator<Item = usize> {
        let after = wanted.place.as_ref().map(|place| place.after);
        let from =
            after.map_or(0, |after| self.entries.partition_point(|entry| entry.post >= after));
        let is_new =
            move |entry: &Entry| wanted.since.as_ref().is_none_or(|since| since.is_new(entry.post));
        (from..self.entries.len()).filter(move |&place| is_new(&self.entries[place]))
    }

    // Whether what is missing may be wanted.
    fn is_cut_for(&self, wanted: &Wanted) -> bool {
        let reaches = |cut| wanted.since.as_ref().is_none_or(|since| since.reaches_below(cut));
        self.cut.is_some_and(reaches)
    }

    // Plain reposts do not count: any number of them may be left out.
    fn has_margin(&self, from: usize) -> bool {
        let below = self.entries[from..].iter();
        below.filter(|entry| !entry.is_plain_repost()).take(MARGIN).count() == MARGIN
    }

    // How far up one must look to know what stands in for the entries of a part: to the newest plain
    // repost that shows the same as one of them. Any number of such reposts may lie on the way.
    fn rise(&self, from: usize, to: usize) -> usize {
        if !self.entries[..from].iter().any(Entry::is_plain_repost) {
            return from;
        }
        let shown: IdSet<_> = self.entries[from..to].iter().map(Entry::shows).collect();
        let (mut top, mut others) = (from, IdSet::default());
        for (place, entry) in self.entries[..from].iter().enumerate().rev() {
            if entry.is_plain_repost() && shown.contains(&entry.shows()) {
                top = place;
            } else if others.insert(entry.shows()) && others.len() == MARGIN {
                break;
            }
        }
        top
    }

    // How far down one must look to know which entries of a part are shown: to the oldest entry
    // that shows the same as a plain repost in it, and what is in between counts as well. And
    // whether there are plain reposts in it.
    fn reach(&self, from: usize, to: usize) -> (usize, bool) {
        let mut oldest: Option<IdMap<PostId, usize>> = None;
        let (mut to, mut place) = (to, from);
        while place < to {
            let entry = &self.entries[place];
            if entry.is_plain_repost() {
                let oldest = oldest.get_or_insert_with(|| {
                    let places = self.entries.iter().enumerate();
                    places.map(|(place, entry)| (entry.shows(), place)).collect()
                });
                to = to.max(oldest.get(&entry.shows()).map_or(to, |oldest| oldest + 1));
            }
            place += 1;
        }
        (to, oldest.is_some())
    }
}

#[cfg(test)]
mod tests;
