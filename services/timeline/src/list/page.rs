//! A page of a timeline: as it is wanted, and as it is. Pure.

use microblog_domain::PostId;
use microblog_proto::relation::Relation;

use super::Shown;
use crate::{
    entry::Entry,
    seen::{Place, Seen},
};

/// A page as it is asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// How many entries at most.
    pub(crate) size: usize,
    /// Where it begins, if not at the beginning.
    pub(crate) place: Option<Place>,
    /// Only what is new to whoever has seen this.
    pub(crate) since: Option<Seen>,
}

impl Wanted {
    /// Returns whether a post may stand in for an entry of the page: not if it was named on a page
    /// before, or is not new to whoever wants what is.
    pub(crate) fn may_stand_in(&self, entry: &Entry) -> bool {
        let was_named = self.place.as_ref().is_some_and(|place| place.named.has(entry));
        !was_named && self.since.as_ref().is_none_or(|since| since.is_new(entry.post))
    }
}

/// A page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) entries: Vec<Shown>,
    /// Where the next one begins, if there is one.
    pub(crate) next: Option<Place>,
    /// What its reader has seen with it, and is not to be told of again.
    pub(crate) seen: Seen,
    /// Where the timeline ends with it for want of room: only posts older than this one may be
    /// missing.
    pub(crate) older_than: Option<PostId>,
    /// How those who wrote its entries, or what stands in for them, stand to its reader, where that
    /// was asked.
    pub(crate) relations: Vec<Relation>,
}

impl Page {
    /// Returns the page that was wanted, of what is shown from where it begins.
    pub(crate) fn new(wanted: &Wanted, mut shown: Vec<Shown>) -> Self {
        let has_more = shown.len() > wanted.size;
        shown.truncate(wanted.size);
        let before = wanted.place.as_ref().map(|place| &place.seen).or(wanted.since.as_ref());
        let mut seen = before.cloned().unwrap_or_default();
        for shown in &shown {
            seen.note(shown.entry.post);
        }
        let last = shown.last().map(|shown| shown.entry.post).filter(|_| has_more);
        if let (Some(last), None) = (last, &wanted.since) {
            seen.note_down_to(last);
        }
        let next = last.map(|after| Self::next(wanted, &shown, after, seen.clone()));
        // What is new and has more pages is seen when its reader has come to the last one: who stops
        // before that is to be told again.
        let seen = wanted.since.clone().filter(|_| has_more).unwrap_or(seen);
        Self { entries: shown, next, seen, older_than: None, relations: Vec::new() }
    }

    fn next(wanted: &Wanted, shown: &[Shown], after: PostId, seen: Seen) -> Place {
        let named = wanted.place.as_ref().map(|place| place.named.clone());
        let mut named = named.unwrap_or_default();
        let names_others =
            |shown: &&Shown| shown.entry.is_plain_repost() || !shown.stand_ins.is_empty();
        shown.iter().filter(names_others).for_each(|shown| named.note(&shown.entry));
        Place { after, seen, named }
    }

    /// Returns the page with where the past begins, if it is the last one of a list that ends at a
    /// post for want of room. What is new has no past.
    pub(crate) fn ending_at(mut self, wanted: &Wanted, end: Option<PostId>) -> Self {
        let end = end.filter(|_| self.next.is_none() && wanted.since.is_none());
        // So much may have come since the page before that the list ends above it by now. All down
        // to there was on the pages before.
        let place = wanted.place.as_ref().map(|place| place.after);
        self.older_than = end.map(|end| place.map_or(end, |place| place.min(end)));
        self
    }
}
