//! The filter of a timeline: which entries are visible and which plain reposts are suppressed.
//! Pure; the caller loads the viewer's relations.

mod page;

use microblog_domain::{IdMap, IdSet, PostId, UserId};

use crate::entry::{Entry, newest};

pub(crate) use page::{Page, PageQuery, VisibleEntry};

/// The maximum length of home and friends timelines.
pub const HOME_MAX: usize = 800;

/// A plain repost is suppressed if one of so many visible entries below it displays the same post.
const REPOST_WINDOW: usize = 40;

/// How many entries that display different posts must be known below a window, and are searched
/// above it for suppressed reposts. Three times the repost window: enough unless two of three
/// entries are hidden.
const MARGIN: usize = 3 * REPOST_WINDOW;

/// Candidate entries, newest first, deduplicated; up to 800.
#[derive(Clone, Debug, Default)]
pub(crate) struct List {
    entries: Vec<Entry>,
    // Below this post, entries may be missing.
    known_down_to: Option<PostId>,
}

/// A window of a list: candidates of a page, and the range of entries that decide whether they are
/// visible.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    candidates: Vec<usize>,
    // The range of entries that decide.
    from: usize,
    to: usize,
    /// Whether the list has no more candidates.
    pub(crate) is_all: bool,
}

impl List {
    /// Returns a list of entries in any order. Below `known_down_to`, entries may be missing.
    pub(crate) fn new(entries: Vec<Entry>, known_down_to: Option<PostId>) -> Self {
        let mut entries = newest(entries, HOME_MAX);
        let known = entries.len();
        entries
            .retain(|entry| known_down_to.is_none_or(|known_down_to| entry.post >= known_down_to));
        // Entries below the maximum length do not matter.
        let known_down_to = known_down_to.filter(|_| entries.len() < known || known < HOME_MAX);
        Self { entries, known_down_to }
    }

    /// Returns this list merged with further entries.
    pub(crate) fn with(mut self, mut entries: Vec<Entry>) -> Self {
        entries.append(&mut self.entries);
        Self::new(entries, self.known_down_to)
    }

    /// Returns the oldest post of a list of `max` entries, which may lack older posts; `None` for a
    /// shorter list.
    pub(crate) fn oldest_if_full(&self, max: usize) -> Option<PostId> {
        self.entries.get(max - 1).map(|entry| entry.post)
    }

    /// Returns whether the list may have candidates for a query.
    pub(crate) fn may_have_candidates(&self, query: &PageQuery) -> bool {
        self.candidates(query).next().is_some() || self.may_lack_candidates(query)
    }

    /// Returns the window of the first `count` candidates; `None` if more of the list must be
    /// fetched to decide.
    pub(crate) fn window(&self, query: &PageQuery, count: usize) -> Option<Window> {
        let candidates: Vec<_> = self.candidates(query).take(count).collect();
        let is_all = candidates.len() < count;
        if is_all && self.may_lack_candidates(query) {
            return None;
        }
        let from = candidates.first().copied().unwrap_or(0);
        let to = candidates.last().map_or(0, |last| last + 1);
        let from = self.extend_up(from, to);
        let (to, has_reposts) = self.extend_down(from, to);
        let is_known = self.known_down_to.is_none() || !has_reposts || self.has_margin(to);
        is_known.then_some(Window { candidates, from, to, is_all })
    }

    /// Returns the distinct authors in a window, without the reader.
    pub(crate) fn authors(&self, window: &Window, reader: UserId) -> Vec<UserId> {
        let entries = self.entries[window.from..window.to].iter();
        let mut known = IdSet::default();
        known.reserve(entries.len() + 1);
        known.insert(reader);
        entries.map(|entry| entry.author).filter(|&author| known.insert(author)).collect()
    }

    /// Returns the visible candidates of a window, newest first. `is_visible` decides by author.
    ///
    /// Works from the oldest entry to the newest, so that new entries do not change older ones. A
    /// plain repost is suppressed if it displays the same post as one of the 40 newest visible
    /// entries below it.
    pub(crate) fn visible(
        &self,
        window: &Window,
        query: &PageQuery,
        is_visible: impl Fn(&Entry) -> bool,
    ) -> Vec<VisibleEntry> {
        if !self.entries[window.from..window.to].iter().any(Entry::is_plain_repost) {
            let candidates = window.candidates.iter().map(|&place| self.entries[place]);
            return candidates.filter(is_visible).map(VisibleEntry::new).collect();
        }
        let count = window.to - window.from;
        let mut shown: Vec<VisibleEntry> = Vec::with_capacity(count);
        let mut places: Vec<usize> = Vec::with_capacity(count);
        let mut shown_at: IdMap<PostId, usize> = IdMap::default();
        shown_at.reserve(count);
        for place in (window.from..window.to).rev() {
            let entry = self.entries[place];
            if !is_visible(&entry) {
                continue;
            }
            let recent = shown_at.get(&entry.displayed_post()).copied();
            match recent.filter(|at| shown.len() - at <= REPOST_WINDOW) {
                Some(at) if entry.is_plain_repost() => {
                    if query.may_return_repost(&entry) {
                        shown[at].suppressed.push(entry);
                    }
                }
                _ => {
                    shown_at.insert(entry.displayed_post(), shown.len());
                    shown.push(VisibleEntry::new(entry));
                    places.push(place);
                }
            }
        }
        let is_candidate = |place: &usize| window.candidates.binary_search(place).is_ok();
        let of_part = places.iter().zip(shown).rev();
        of_part.filter(|(place, _)| is_candidate(place)).map(|(_, shown)| shown).collect()
    }

    /// Returns all candidate posts, whether they are visible or not.
    pub(crate) fn posts(&self, query: &PageQuery) -> Vec<PostId> {
        self.candidates(query).map(|place| self.entries[place].post).collect()
    }

    fn candidates(&self, query: &PageQuery) -> impl Iterator<Item = usize> {
        let after = query.cursor.as_ref().map(|cursor| cursor.after);
        let from =
            after.map_or(0, |after| self.entries.partition_point(|entry| entry.post >= after));
        let is_new =
            move |entry: &Entry| query.since.as_ref().is_none_or(|since| since.is_new(entry.post));
        (from..self.entries.len()).filter(move |&place| is_new(&self.entries[place]))
    }

    // Returns whether candidates may be missing below the known part.
    fn may_lack_candidates(&self, query: &PageQuery) -> bool {
        let reaches = |known_down_to| {
            query.since.as_ref().is_none_or(|since| since.reaches_below(known_down_to))
        };
        self.known_down_to.is_some_and(reaches)
    }

    // Plain reposts do not count, since any number of them may be suppressed.
    fn has_margin(&self, from: usize) -> bool {
        let below = self.entries[from..].iter();
        below.filter(|entry| !entry.is_plain_repost()).take(MARGIN).count() == MARGIN
    }

    // Returns the top of the range that decides the suppressed reposts of a window: the newest
    // plain repost that displays the same post as one of its entries. Any number of such reposts
    // may be in between.
    fn extend_up(&self, from: usize, to: usize) -> usize {
        if !self.entries[..from].iter().any(Entry::is_plain_repost) {
            return from;
        }
        let shown: IdSet<_> = self.entries[from..to].iter().map(Entry::displayed_post).collect();
        let (mut top, mut others) = (from, IdSet::default());
        for (place, entry) in self.entries[..from].iter().enumerate().rev() {
            if entry.is_plain_repost() && shown.contains(&entry.displayed_post()) {
                top = place;
            } else if others.insert(entry.displayed_post()) && others.len() == MARGIN {
                break;
            }
        }
        top
    }

    // Returns the bottom of the range that decides which entries are visible, and whether it has
    // plain reposts. The bottom is the oldest entry that displays the same post as a plain repost
    // in the range.
    fn extend_down(&self, from: usize, to: usize) -> (usize, bool) {
        let mut oldest: Option<IdMap<PostId, usize>> = None;
        let (mut to, mut place) = (to, from);
        while place < to {
            let entry = &self.entries[place];
            if entry.is_plain_repost() {
                let oldest = oldest.get_or_insert_with(|| {
                    let places = self.entries.iter().enumerate();
                    places.map(|(place, entry)| (entry.displayed_post(), place)).collect()
                });
                to = to.max(oldest.get(&entry.displayed_post()).map_or(to, |oldest| oldest + 1));
            }
            place += 1;
        }
        (to, oldest.is_some())
    }
}

#[cfg(test)]
mod tests;
