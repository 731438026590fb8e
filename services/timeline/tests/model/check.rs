//! Checks whether a read has what the history requires and nothing else.

use std::collections::BTreeSet;

use microblog_proto::timeline as pb;

use crate::{
    history::{History, Kind, Moment, Post, Span, View},
    support,
};

/// A plain repost is suppressed if one of so many entries below it displays the same post.
const REPOST_WINDOW: usize = 40;

/// How many newer seen posts still let a late post count as new.
const LATE_MAX: usize = 40;

/// A page of a read.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) span: Span,
    pub(crate) entries: Vec<pb::Entry>,
    pub(crate) has_next: bool,
}

/// Consecutive pages of a timeline from its beginning.
#[derive(Debug)]
pub(crate) struct Scroll {
    pub(crate) kind: Kind,
    pub(crate) owner: usize,
    pub(crate) page_size: usize,
    pub(crate) pages: Vec<Page>,
}

/// The seen set of a reader who polls for new posts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reader {
    pub(crate) token: String,
    pub(crate) seen: BTreeSet<u64>,
    /// The oldest post of the first read; 0 if it was complete.
    pub(crate) floor: u64,
}

impl Reader {
    /// Returns whether a post would be new: not seen, and not too old.
    pub(crate) fn is_new(&self, post: u64) -> bool {
        let is_late = self.seen.range(post + 1..).count() <= LATE_MAX;
        post > self.floor && is_late && !self.seen.contains(&post)
    }
}

macro_rules! demand {
    ($holds:expr, $($what:tt)+) => {
        if !$holds {
            return Err(format!($($what)+));
        }
    };
}

impl Scroll {
    pub(crate) fn span(&self) -> Span {
        let of = |pick: fn(&Span) -> Moment| move |page: &Page| pick(&page.span);
        let begin = self.pages.first().map_or(0, of(|span| span.begin));
        Span { begin, end: self.pages.last().map_or(0, of(|span| span.end)) }
    }

    pub(crate) fn ids(&self) -> Vec<u64> {
        self.pages.iter().flat_map(|page| &page.entries).map(|entry| entry.post_id).collect()
    }

    /// Checks a scroll; with `reader`, one of new posts.
    pub(crate) fn check(&self, history: &History, reader: Option<&Reader>) -> Result<(), String> {
        self.is_in_order()?;
        for page in &self.pages {
            let view = history.view(self.kind, self.owner, page.span);
            for entry in &page.entries {
                self.is_allowed(history, &view, page, entry)?;
                if let Some(reader) = reader {
                    let is_new = reader.is_new(entry.post_id);
                    demand!(is_new, "not new: {}", history.describe(entry.post_id, self.owner));
                }
            }
        }
        self.has_all(history, reader)
    }

    fn is_in_order(&self) -> Result<(), String> {
        let ids = self.ids();
        demand!(ids.is_sorted_by(|a, b| a > b), "not newest first, each once: {ids:?}");
        let entries = self.pages.iter().flat_map(|page| &page.entries);
        let mut named = BTreeSet::new();
        for id in entries.flat_map(|entry| [&[entry.post_id], &entry.stand_in_ids[..]].concat()) {
            demand!(named.insert(id), "returned twice in one scroll: {id}");
        }
        for page in &self.pages {
            let (count, has_next) = (page.entries.len(), page.has_next);
            let is_full = count == self.page_size || !has_next && count <= self.page_size;
            demand!(is_full, "{count} of {} entries, more: {has_next}", self.page_size);
        }
        Ok(())
    }

    // Checks that only allowed posts are shown.
    fn is_allowed(
        &self,
        history: &History,
        view: &View,
        page: &Page,
        entry: &pb::Entry,
    ) -> Result<(), String> {
        let describe = |id| history.describe(id, self.owner);
        let id = entry.post_id;
        let post = history.posts.get(&id).filter(|post| view.may(post));
        let Some(post) = post else {
            return Err(format!("in {:?} shown against the rules: {}", page.span, describe(id)));
        };
        demand!(entry.root_id == post.root, "another root: {entry:?}, {}", describe(id));
        let is_repeat = post.is_plain_repost() && self.kind != Kind::User;
        if let Some(shown) = history.repeated(view, post).filter(|_| is_repeat) {
            let (repost, shown) = (describe(id), describe(shown));
            return Err(format!("in {:?} {repost}\n  repeats {shown}", page.span));
        }
        let stand_ins = &entry.stand_in_ids;
        let is_list = stand_ins.is_sorted_by(|a, b| a < b);
        demand!(is_list, "not oldest first, each once: {entry:?}");
        for &stand_in in stand_ins {
            let is_shown = page.entries.iter().any(|entry| entry.post_id == stand_in);
            let of_entry = |other: &&Post| {
                other.is_plain_repost() && other.shows() == post.shows() && other.id > id
            };
            let other = history.posts.get(&stand_in).filter(|other| view.may(other));
            let is_stand_in = other.filter(of_entry).is_some() && !is_shown;
            demand!(is_stand_in, "{} is suppressed by {}", describe(stand_in), describe(id));
        }
        Ok(())
    }

    // Checks that all required posts are shown, as far down as was read.
    fn has_all(&self, history: &History, reader: Option<&Reader>) -> Result<(), String> {
        let ids = self.ids();
        let is_whole = self.pages.last().is_some_and(|page| !page.has_next);
        let from = if is_whole { 0 } else { ids.last().map_or(0, |last| last + 1) };
        let shown: BTreeSet<u64> = ids.into_iter().collect();
        let view = history.view(self.kind, self.owner, self.span());
        for post in history.posts.range(from..).map(|(_, post)| post) {
            let is_demanded = view.must(post)
                && !shown.contains(&post.id)
                && reader.is_none_or(|reader| reader.is_new(post.id))
                && (self.kind == Kind::User || !history.may_be_repeated(&view, post));
            let describe = || history.describe(post.id, self.owner);
            demand!(!is_demanded, "not shown in {:?}: {}", self.span(), describe());
        }
        Ok(())
    }
}

impl History {
    /// Returns an entry that certainly displays the same post among the 40 below a repost.
    fn repeated(&self, view: &View, repost: &Post) -> Option<u64> {
        let below = self.posts.range(..repost.id).rev().map(|(_, post)| post);
        let below = below.filter(|post| view.may(post)).take(REPOST_WINDOW);
        let mut shown = below.filter(|post| view.must(post) && !post.is_plain_repost());
        shown.find(|post| post.shows() == repost.shows()).map(|post| post.id)
    }

    /// Returns whether a repost may be suppressed: one of the 40 entries below it may display the
    /// same post.
    fn may_be_repeated(&self, view: &View, repost: &Post) -> bool {
        if !repost.is_plain_repost() {
            return false;
        }
        let mut certain = 0;
        for post in self.posts.range(..repost.id).rev().map(|(_, post)| post) {
            if view.may(post) && post.shows() == repost.shows() {
                return true;
            }
            certain += usize::from(view.must(post) && !post.is_plain_repost());
            if certain == REPOST_WINDOW {
                return false;
            }
        }
        false
    }

    /// Checks a count of new posts.
    pub(crate) fn check_count(
        &self,
        owner: usize,
        span: Span,
        reader: &Reader,
        count: usize,
    ) -> Result<(), String> {
        let view = self.view_of_count(owner, span);
        let new = || self.posts.values().filter(|post| reader.is_new(post.id));
        let must = |post: &&Post| view.must(post) && !post.is_plain_repost();
        let (min, max) = (new().filter(must).count(), new().filter(|post| view.may(post)).count());
        let describe =
            || new().filter(must).map(|post| format!("\n  {}", self.describe(post.id, owner)));
        demand!(
            (min..=max).contains(&count),
            "{count} new in {span:?}, not {min} to {max}:{}",
            describe().collect::<String>()
        );
        Ok(())
    }
}

/// A required entry in a quiescent state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) post: TimelineEnd,
    pub(crate) stand_ins: Vec<u64>,
}

/// The wire fields of an entry: its id, author and root.
pub(crate) type TimelineEnd = (u64, u64, u64);

/// Returns a timeline by the specification.
pub(crate) fn expected(history: &History, view: &View) -> Vec<Expected> {
    let mut shown: Vec<(Post, Vec<u64>)> = Vec::new();
    for post in history.posts.values().filter(|post| view.must(post)) {
        let mut below = shown.iter_mut().rev().take(REPOST_WINDOW);
        match below.find(|(entry, _)| entry.shows() == post.shows()) {
            Some((_, stand_ins)) if post.is_plain_repost() && view.kind != Kind::User => {
                stand_ins.push(post.id);
            }
            _ => shown.push((*post, Vec::new())),
        }
    }
    let expected = |(post, stand_ins): (Post, Vec<u64>)| {
        let author = support::id(post.author as u64);
        Expected { post: (post.id, author, post.root), stand_ins }
    };
    shown.into_iter().rev().map(expected).collect()
}
