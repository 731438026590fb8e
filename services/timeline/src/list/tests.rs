//! Tests of the filter against a reference implementation.

use std::{cell::RefCell, collections::HashSet};

use proptest::prelude::*;

use super::*;
use crate::cursor::{PageCursor, ReturnedEntries, SeenPosts};

const AUTHORS: u64 = 6;

/// The reader, who is one of the authors.
const READER: UserId = author(0);

const fn author(number: u64) -> UserId {
    UserId::new(number + 1).unwrap()
}

fn id(number: u64) -> PostId {
    PostId::new(number).unwrap()
}

// A post; or a repost of the post that an entry so many positions below displays; or a repost of a
// post outside the list.
fn kinds() -> impl Strategy<Value = (usize, u64, bool)> {
    let has_text = prop::bool::weighted(0.3);
    prop_oneof![
        4 => Just((0, 0, true)),
        3 => (1..60_usize, Just(0), has_text),
        1 => (36..46_usize, Just(0), Just(false)),
        1 => (Just(0), 1..4_u64, has_text),
    ]
}

/// Entries, newest first.
fn entries(count: impl Into<prop::collection::SizeRange>) -> impl Strategy<Value = Vec<Entry>> {
    let all = prop::collection::vec((0..AUTHORS, 1..4_u64, kinds()), count);
    all.prop_map(|all| {
        let mut entries: Vec<Entry> = Vec::new();
        let mut post = 10;
        for (number, gap, (below, foreign, has_text)) in all {
            post += gap;
            let place = entries.len().checked_sub(below).filter(|_| below > 0);
            let shown = place.map(|place| entries[place].displayed_post());
            let root = shown.or(PostId::new(foreign));
            let has_text = has_text || root.is_none();
            entries.push(Entry { post: id(post), author: author(number), root, has_text });
        }
        entries.reverse();
        entries
    })
}

/// The visible authors: most of them.
fn visible() -> impl Strategy<Value = HashSet<UserId>> {
    let are = prop::collection::vec(prop::bool::weighted(0.8), AUTHORS as usize);
    are.prop_map(|are| {
        let all = (0..AUTHORS).map(author).zip(are);
        all.filter_map(|(author, is)| is.then_some(author)).collect()
    })
}

/// The reference: from the oldest entry up, a plain repost is suppressed if one of the 40 visible
/// entries below it displays the same post.
fn expected(entries: &[Entry], visible: &HashSet<UserId>) -> Vec<VisibleEntry> {
    let mut shown: Vec<VisibleEntry> = Vec::new();
    for entry in entries.iter().rev().filter(|entry| visible.contains(&entry.author)) {
        let mut below = shown.iter_mut().rev().take(40);
        match below.find(|below| below.entry.displayed_post() == entry.displayed_post()) {
            Some(below) if entry.root.is_some() && !entry.has_text => {
                below.suppressed.push(*entry);
            }
            _ => shown.push(VisibleEntry { entry: *entry, suppressed: Vec::new() }),
        }
    }
    shown.reverse();
    shown
}

// Reads a page as `reader` does. Returns `None` if more of the list must be fetched.
fn page(list: &List, query: &PageQuery, visible: &HashSet<UserId>) -> Option<Page> {
    let count = query.size + 1;
    let mut candidates = count + count / 4;
    loop {
        let window = list.window(query, candidates)?;
        let asked: HashSet<_> = list.authors(&window, READER).into_iter().collect();
        let unknown = RefCell::new(Vec::new());
        let mut shown = list.visible(&window, query, |entry| {
            if entry.author != READER && !asked.contains(&entry.author) {
                unknown.borrow_mut().push(*entry);
            }
            visible.contains(&entry.author)
        });
        assert_eq!(unknown.take(), [], "authors whose relations were not loaded");
        if window.is_all || shown.len() >= count {
            shown.truncate(count);
            return Some(Page::new(query, shown));
        }
        candidates *= 2;
    }
}

/// Returns the pages of a scroll, and whether it reached the end.
fn scroll(
    list: &List,
    size: usize,
    since: Option<&SeenPosts>,
    visible: &HashSet<UserId>,
) -> (Vec<Page>, bool) {
    let mut query = PageQuery { size, cursor: None, since: since.cloned() };
    let mut pages = Vec::new();
    while let Some(page) = page(list, &query, visible) {
        assert!(pages.len() <= list.entries.len(), "the scroll does not end");
        query.cursor.clone_from(&page.next);
        pages.push(page);
        if query.cursor.is_none() {
            return (pages, true);
        }
    }
    (pages, false)
}

fn posts<'a>(shown: impl IntoIterator<Item = &'a VisibleEntry>) -> Vec<PostId> {
    shown.into_iter().map(|shown| shown.entry.post).collect()
}

// Whether each margin of entries has as many visible ones as the repost window.
fn is_dense(entries: &[Entry], shown: &[VisibleEntry]) -> bool {
    let shown: HashSet<_> = posts(shown).into_iter().collect();
    let is_shown = |entry: &&Entry| shown.contains(&entry.post);
    entries.windows(MARGIN).all(|part| part.iter().filter(is_shown).count() >= REPOST_WINDOW)
}

proptest! {
    #[test]
    fn pages_equal_the_filtered_list(
        entries in entries(0..200), visible in visible(), size in 1..60_usize,
    ) {
        let list = List::new(entries.clone(), None);
        let (pages, is_all) = scroll(&list, size, None, &visible);
        let shown: Vec<_> = pages.into_iter().flat_map(|page| page.entries).collect();
        let expected = expected(&entries, &visible);
        prop_assert!(is_all);
        prop_assert_eq!(posts(&shown), posts(&expected));
        if is_dense(&entries, &expected) {
            prop_assert_eq!(shown, expected);
        }
    }

    #[test]
    fn new_posts_are_filtered_as_in_the_whole_list(
        entries in entries(0..200),
        visible in visible(),
        size in 1..60_usize,
        seen in prop::collection::vec(prop::bool::weighted(0.5), 200),
        floor in prop::option::of(0..300_u64),
    ) {
        let mut since = SeenPosts::default();
        let noted = entries.iter().zip(seen).filter_map(|(entry, is_seen)| is_seen.then_some(entry));
        noted.for_each(|entry| since.insert(entry.post));
        if let Some(floor) = floor.and_then(PostId::new) {
            since.insert_down_to(floor);
        }
        let list = List::new(entries.clone(), None);
        let (pages, is_all) = scroll(&list, size, Some(&since), &visible);
        let mut expected = expected(&entries, &visible);
        let is_dense = is_dense(&entries, &expected);
        expected.retain(|shown| since.is_new(shown.entry.post));
        for shown in &mut expected {
            shown.suppressed.retain(|entry| since.is_new(entry.post));
        }
        prop_assert!(is_all);
        let shown: Vec<_> = pages.iter().flat_map(|page| page.entries.clone()).collect();
        let seen_posts = posts(&shown);
        prop_assert_eq!(&seen_posts, &posts(&expected));
        if is_dense {
            prop_assert_eq!(shown, expected);
        }
        let seen = &pages.last().unwrap().seen;
        prop_assert!(seen_posts.iter().all(|&post| !seen.is_new(post)), "returned posts are not new");
        let of_below = |seen: &SeenPosts| entries.iter().filter(|entry| seen.is_new(entry.post)).count();
        prop_assert!(of_below(seen) + seen_posts.len() <= of_below(&since), "no other post was lost or added");
        let query = PageQuery { size, cursor: None, since: Some(since) };
        prop_assert!(list.may_have_candidates(&query) || seen_posts.is_empty());
    }

    // Invariant: the gateway may show any of an entry and its suppressed reposts, so none may
    // appear twice.
    #[test]
    fn a_scroll_returns_no_post_twice(
        entries in entries(0..200),
        between in prop::collection::vec(
            (visible(), prop::collection::vec(prop::bool::weighted(0.9), 200)), 1..20,
        ),
        size in 1..20_usize,
        is_new_only: bool,
    ) {
        let since = is_new_only.then(SeenPosts::default);
        let mut query = PageQuery { size, cursor: None, since };
        let mut returned = Vec::new();
        for (visible, are_there) in between.iter().cycle().take(entries.len() + 1) {
            let there = entries.iter().zip(are_there).filter(|&(_, &is_there)| is_there);
            let list = List::new(there.map(|(&entry, _)| entry).collect(), None);
            let page = page(&list, &query, visible).expect("the whole list is known");
            for VisibleEntry { entry, suppressed } in &page.entries {
                returned.push(entry.post);
                returned.extend(suppressed.iter().map(|entry| entry.post));
            }
            query.cursor = page.next;
            if query.cursor.is_none() {
                break;
            }
        }
        let count = returned.len();
        returned.sort_unstable();
        returned.dedup();
        prop_assert_eq!(returned.len(), count, "a post is returned twice");
    }

    #[test]
    fn newer_posts_do_not_change_older_ones(
        entries in entries(0..200), visible in visible(), later in 0..200_usize,
    ) {
        let later = later.min(entries.len());
        let of = |entries: &[Entry]| {
            let list = List::new(entries.to_vec(), None);
            let (pages, _) = scroll(&list, HOME_MAX, None, &visible);
            pages.into_iter().flat_map(|page| page.entries).collect::<Vec<_>>()
        };
        let (before, after) = (of(&entries[later..]), of(&entries));
        let below = &after[after.len().saturating_sub(before.len())..];
        prop_assert_eq!(posts(below), posts(&before));
        for (before, after) in before.iter().zip(below) {
            prop_assert!(after.suppressed.starts_with(&before.suppressed), "{before:?}, {after:?}");
        }
    }

    #[test]
    fn a_list_ignores_order_and_duplicates(
        (entries, shuffled) in entries(0..60).prop_flat_map(|entries| {
            let twice = [&entries[..], &entries[..]].concat();
            (Just(entries), Just(twice).prop_shuffle())
        }),
    ) {
        let list = List::new(Vec::new(), None).with(shuffled);
        prop_assert_eq!(list.entries, entries);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    // Below the known part, entries are missing. A page must equal that of the whole list, or ask
    // for more.
    #[test]
    fn a_partly_known_list_shows_the_same_as_the_whole_list(
        entries in entries(100..500),
        visible in visible(),
        size in 1..60_usize,
        known_down_to in 0..500_usize,
        missing in prop::collection::vec(any::<bool>(), 500),
        since in prop::option::of(0..500_usize),
    ) {
        let known_down_to = known_down_to % entries.len();
        let known = entries.iter().enumerate();
        let known = known.filter(|&(place, _)| place <= known_down_to || !missing[place]);
        let list = List::new(known.map(|(_, &entry)| entry).collect(), Some(entries[known_down_to].post));
        let mut expected = expected(&entries, &visible);
        prop_assume!(is_dense(&entries, &expected));
        let since = since.map(|place| {
            let mut since = SeenPosts::default();
            since.insert_down_to(entries[place % entries.len()].post);
            since
        });
        let (pages, is_all) = scroll(&list, size, since.as_ref(), &visible);
        expected.retain(|shown| since.as_ref().is_none_or(|since| since.is_new(shown.entry.post)));
        let shown: Vec<_> = pages.into_iter().flat_map(|page| page.entries).collect();
        if !is_all {
            prop_assert!(shown.last().is_none_or(|last| last.entry.post >= entries[known_down_to].post));
            expected.truncate(shown.len());
        }
        prop_assert_eq!(shown, expected);
    }
}

#[test]
fn only_the_newest_800_entries_matter() {
    let entry = |number: u64, root: u64| Entry {
        post: id(number),
        author: READER,
        root: PostId::new(root),
        has_text: root == 0,
    };
    let mut entries: Vec<_> = (1..=HOME_MAX as u64).map(|number| entry(number, 0)).collect();
    entries.push(entry(HOME_MAX as u64 + 1, 1));
    let visible = HashSet::from([READER]);
    // The root is outside the list, and too far away to matter.
    for known_down_to in [None, Some(id(1)), Some(id(2))] {
        let (pages, is_all) =
            scroll(&List::new(entries.clone(), known_down_to), 200, None, &visible);
        let shown = posts(pages.iter().flat_map(|page| &page.entries));
        let newest: Vec<_> = (2..=HOME_MAX as u64 + 1).rev().map(id).collect();
        assert_eq!((shown, is_all), (newest, true), "known down to {known_down_to:?}");
    }
    let known_down_to = List::new(entries, Some(id(3)));
    let query = PageQuery { size: HOME_MAX, ..PageQuery::default() };
    assert!(known_down_to.window(&query, HOME_MAX).is_none());
}

#[test]
fn a_full_list_sets_older_than() {
    let entry =
        |number: u64| Entry { post: id(number), author: READER, root: None, has_text: true };
    let list = |posts: std::ops::RangeInclusive<u64>| List::new(posts.map(entry).collect(), None);
    let ends = [1..=799, 1..=800, 1..=801].map(|posts| list(posts).oldest_if_full(HOME_MAX));
    assert_eq!(ends, [None, Some(id(1)), Some(id(2))]);
    let after = |post| PageQuery {
        size: 10,
        cursor: Some(PageCursor {
            after: id(post),
            seen: SeenPosts::default(),
            returned: ReturnedEntries::default(),
        }),
        since: None,
    };
    let older_than = |list: &List, query: &PageQuery| {
        let window = list.window(query, query.size + 1).unwrap();
        let shown = list.visible(&window, query, |_| true);
        Page::new(query, shown).with_older_than(query, list.oldest_if_full(HOME_MAX)).older_than
    };
    let list = list(101..=900);
    assert_eq!(older_than(&list, &after(901)), None, "there are more pages");
    assert_eq!(older_than(&list, &after(111)), Some(id(101)));
    assert_eq!(older_than(&list, &after(101)), Some(id(101)));
    assert_eq!(
        older_than(&list, &after(50)),
        Some(id(50)),
        "earlier pages returned all posts down to it"
    );
    let since = PageQuery { since: Some(SeenPosts::default()), ..after(111) };
    assert_eq!(older_than(&list, &since), None, "queries for new posts do not set it");
}

#[test]
fn suppressed_reposts_above_the_page_are_listed() {
    let entry = |number: u64, root: u64| Entry {
        post: id(number),
        author: READER,
        root: PostId::new(root),
        has_text: root == 0,
    };
    let list = List::new([entry(1, 0), entry(2, 0), entry(3, 1), entry(4, 0)].into(), None);
    let (pages, _) = scroll(&list, 1, None, &HashSet::from([READER]));
    let shown = pages.iter().flat_map(|page| &page.entries);
    let shown: Vec<_> = shown.map(|shown| (shown.entry.post, &shown.suppressed[..])).collect();
    assert_eq!(shown, [(id(4), &[][..]), (id(2), &[]), (id(1), &[entry(3, 1)])]);
}

#[test]
fn all_suppressed_reposts_are_listed() {
    let entry = |number: u64, root: u64| Entry {
        post: id(number),
        author: READER,
        root: PostId::new(root),
        has_text: root == 0,
    };
    let reposts = (3..700).map(|number| entry(number, 1));
    let others = [entry(1, 0), entry(2, 0), entry(700, 0)];
    let list = List::new(reposts.clone().chain(others).collect(), None);
    for size in [1, 2, 3] {
        let (pages, _) = scroll(&list, size, None, &HashSet::from([READER]));
        let shown: Vec<_> = pages.into_iter().flat_map(|page| page.entries).collect();
        assert_eq!(posts(&shown), [700, 2, 1].map(id));
        assert!(shown[2].suppressed.iter().copied().eq(reposts.clone()), "pages of {size}");
    }
}
