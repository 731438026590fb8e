//! Lists against the contract, word for word.

use std::{cell::RefCell, collections::HashSet};

use proptest::prelude::*;

use super::*;
use crate::seen::{Named, Place, Seen};

const AUTHORS: u64 = 6;

/// Who reads: one of the authors.
const READER: UserId = author(0);

const fn author(number: u64) -> UserId {
    UserId::new(number + 1).unwrap()
}

fn id(number: u64) -> PostId {
    PostId::new(number).unwrap()
}

// A post, or a repost of what is shown by the entry so many places below; or of a post that nobody
// around the reader wrote.
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
            let shown = place.map(|place| entries[place].shows());
            let root = shown.or(PostId::new(foreign));
            let has_text = has_text || root.is_none();
            entries.push(Entry { post: id(post), author: author(number), root, has_text });
        }
        entries.reverse();
        entries
    })
}

/// Who is visible: most.
fn visible() -> impl Strategy<Value = HashSet<UserId>> {
    let are = prop::collection::vec(prop::bool::weighted(0.8), AUTHORS as usize);
    are.prop_map(|are| {
        let all = (0..AUTHORS).map(author).zip(are);
        all.filter_map(|(author, is)| is.then_some(author)).collect()
    })
}

/// Goes up from the oldest entry: a plain repost is left out where one of the 40 that are shown
/// below it shows the same.
fn expected(entries: &[Entry], visible: &HashSet<UserId>) -> Vec<Shown> {
    let mut shown: Vec<Shown> = Vec::new();
    for entry in entries.iter().rev().filter(|entry| visible.contains(&entry.author)) {
        let mut below = shown.iter_mut().rev().take(40);
        match below.find(|below| below.entry.shows() == entry.shows()) {
            Some(below) if entry.root.is_some() && !entry.has_text => {
                below.stand_ins.push(*entry);
            }
            _ => shown.push(Shown { entry: *entry, stand_ins: Vec::new() }),
        }
    }
    shown.reverse();
    shown
}

// As a reader goes about it. `None` where more of the list must be known.
fn page(list: &List, wanted: &Wanted, visible: &HashSet<UserId>) -> Option<Page> {
    let count = wanted.size + 1;
    let mut candidates = count + count / 4;
    loop {
        let part = list.part(wanted, candidates)?;
        let asked: HashSet<_> = list.authors(&part, READER).into_iter().collect();
        let unknown = RefCell::new(Vec::new());
        let mut shown = list.shown(&part, wanted, |entry| {
            if entry.author != READER && !asked.contains(&entry.author) {
                unknown.borrow_mut().push(*entry);
            }
            visible.contains(&entry.author)
        });
        assert_eq!(unknown.take(), [], "of authors who were not asked about");
        if part.is_all || shown.len() >= count {
            shown.truncate(count);
            return Some(Page::new(wanted, shown));
        }
        candidates *= 2;
    }
}

/// Returns the pages of a list from its beginning, and whether they are all.
fn scroll(
    list: &List,
    size: usize,
    since: Option<&Seen>,
    visible: &HashSet<UserId>,
) -> (Vec<Page>, bool) {
    let mut wanted = Wanted { size, place: None, since: since.cloned() };
    let mut pages = Vec::new();
    while let Some(page) = page(list, &wanted, visible) {
        assert!(pages.len() <= list.entries.len(), "the scroll goes round in circles");
        wanted.place.clone_from(&page.next);
        pages.push(page);
        if wanted.place.is_none() {
            return (pages, true);
        }
    }
    (pages, false)
}

fn posts<'a>(shown: impl IntoIterator<Item = &'a Shown>) -> Vec<PostId> {
    shown.into_iter().map(|shown| shown.entry.post).collect()
}

// Whether among as many entries as are looked at there are as many that are shown as matter.
fn is_dense(entries: &[Entry], shown: &[Shown]) -> bool {
    let shown: HashSet<_> = posts(shown).into_iter().collect();
    let is_shown = |entry: &&Entry| shown.contains(&entry.post);
    entries.windows(MARGIN).all(|part| part.iter().filter(is_shown).count() >= REPEAT_WINDOW)
}

proptest! {
    #[test]
    fn pages_are_as_if_the_whole_list_was_decided_at_once(
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
    fn what_is_new_is_shown_as_in_the_whole_list(
        entries in entries(0..200),
        visible in visible(),
        size in 1..60_usize,
        seen in prop::collection::vec(prop::bool::weighted(0.5), 200),
        floor in prop::option::of(0..300_u64),
    ) {
        let mut since = Seen::default();
        let noted = entries.iter().zip(seen).filter_map(|(entry, is_seen)| is_seen.then_some(entry));
        noted.for_each(|entry| since.note(entry.post));
        if let Some(floor) = floor.and_then(PostId::new) {
            since.note_down_to(floor);
        }
        let list = List::new(entries.clone(), None);
        let (pages, is_all) = scroll(&list, size, Some(&since), &visible);
        let mut expected = expected(&entries, &visible);
        let is_dense = is_dense(&entries, &expected);
        expected.retain(|shown| since.is_new(shown.entry.post));
        for shown in &mut expected {
            shown.stand_ins.retain(|entry| since.is_new(entry.post));
        }
        prop_assert!(is_all);
        let shown: Vec<_> = pages.iter().flat_map(|page| page.entries.clone()).collect();
        let told = posts(&shown);
        prop_assert_eq!(&told, &posts(&expected));
        if is_dense {
            prop_assert_eq!(shown, expected);
        }
        let seen = &pages.last().unwrap().seen;
        prop_assert!(told.iter().all(|&post| !seen.is_new(post)), "and is not new again");
        let of_below = |seen: &Seen| entries.iter().filter(|entry| seen.is_new(entry.post)).count();
        prop_assert!(of_below(seen) + told.len() <= of_below(&since), "nor is anything else");
        let wanted = Wanted { size, place: None, since: Some(since) };
        prop_assert!(list.has_any(&wanted) || told.is_empty());
    }

    // Whatever is deleted: of an entry and its stand-ins, any may be shown.
    #[test]
    fn a_scroll_names_nothing_twice_whatever_comes_and_goes_between_its_pages(
        entries in entries(0..200),
        between in prop::collection::vec(
            (visible(), prop::collection::vec(prop::bool::weighted(0.9), 200)), 1..20,
        ),
        size in 1..20_usize,
        is_new_only: bool,
    ) {
        let since = is_new_only.then(Seen::default);
        let mut wanted = Wanted { size, place: None, since };
        let mut named = Vec::new();
        for (visible, are_there) in between.iter().cycle().take(entries.len() + 1) {
            let there = entries.iter().zip(are_there).filter(|&(_, &is_there)| is_there);
            let list = List::new(there.map(|(&entry, _)| entry).collect(), None);
            let page = page(&list, &wanted, visible).expect("the whole list is known");
            for Shown { entry, stand_ins } in &page.entries {
                named.push(entry.post);
                named.extend(stand_ins.iter().map(|entry| entry.post));
            }
            wanted.place = page.next;
            if wanted.place.is_none() {
                break;
            }
        }
        let count = named.len();
        named.sort_unstable();
        named.dedup();
        prop_assert_eq!(named.len(), count, "one is named twice");
    }

    #[test]
    fn what_comes_later_changes_nothing_below_it(
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
            prop_assert!(after.stand_ins.starts_with(&before.stand_ins), "{before:?}, {after:?}");
        }
    }

    #[test]
    fn an_order_and_repetitions_change_nothing(
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

    // Below a cut something is missing: then either a page is as in the whole list, or more of it
    // is asked for.
    #[test]
    fn a_list_that_is_cut_shows_what_the_whole_list_shows(
        entries in entries(100..500),
        visible in visible(),
        size in 1..60_usize,
        cut in 0..500_usize,
        missing in prop::collection::vec(any::<bool>(), 500),
        since in prop::option::of(0..500_usize),
    ) {
        let cut = cut % entries.len();
        let known = entries.iter().enumerate();
        let known = known.filter(|&(place, _)| place <= cut || !missing[place]);
        let list = List::new(known.map(|(_, &entry)| entry).collect(), Some(entries[cut].post));
        let mut expected = expected(&entries, &visible);
        prop_assume!(is_dense(&entries, &expected));
        let since = since.map(|place| {
            let mut since = Seen::default();
            since.note_down_to(entries[place % entries.len()].post);
            since
        });
        let (pages, is_all) = scroll(&list, size, since.as_ref(), &visible);
        expected.retain(|shown| since.as_ref().is_none_or(|since| since.is_new(shown.entry.post)));
        let shown: Vec<_> = pages.into_iter().flat_map(|page| page.entries).collect();
        if !is_all {
            prop_assert!(shown.last().is_none_or(|last| last.entry.post >= entries[cut].post));
            expected.truncate(shown.len());
        }
        prop_assert_eq!(shown, expected);
    }
}

#[test]
fn the_newest_800_are_decided_among_themselves() {
    let entry = |number: u64, root: u64| Entry {
        post: id(number),
        author: READER,
        root: PostId::new(root),
        has_text: root == 0,
    };
    let mut entries: Vec<_> = (1..=HOME_MAX as u64).map(|number| entry(number, 0)).collect();
    entries.push(entry(HOME_MAX as u64 + 1, 1));
    let visible = HashSet::from([READER]);
    // The root is no longer in the list, and as far away as it is, it would not matter.
    for cut in [None, Some(id(1)), Some(id(2))] {
        let (pages, is_all) = scroll(&List::new(entries.clone(), cut), 200, None, &visible);
        let shown = posts(pages.iter().flat_map(|page| &page.entries));
        let newest: Vec<_> = (2..=HOME_MAX as u64 + 1).rev().map(id).collect();
        assert_eq!((shown, is_all), (newest, true), "cut at {cut:?}");
    }
    let cut = List::new(entries, Some(id(3)));
    let wanted = Wanted { size: HOME_MAX, ..Wanted::default() };
    assert!(cut.part(&wanted, HOME_MAX).is_none());
}

#[test]
fn a_list_without_room_for_older_ones_says_where_it_ends() {
    let entry =
        |number: u64| Entry { post: id(number), author: READER, root: None, has_text: true };
    let list = |posts: std::ops::RangeInclusive<u64>| List::new(posts.map(entry).collect(), None);
    let ends = [1..=799, 1..=800, 1..=801].map(|posts| list(posts).end(HOME_MAX));
    assert_eq!(ends, [None, Some(id(1)), Some(id(2))]);
    let after = |post| Wanted {
        size: 10,
        place: Some(Place { after: id(post), seen: Seen::default(), named: Named::default() }),
        since: None,
    };
    let older_than = |list: &List, wanted: &Wanted| {
        let shown = list.all(wanted);
        Page::new(wanted, shown).ending_at(wanted, list.end(HOME_MAX)).older_than
    };
    let list = list(101..=900);
    assert_eq!(older_than(&list, &after(901)), None, "there are more pages");
    assert_eq!(older_than(&list, &after(111)), Some(id(101)));
    assert_eq!(older_than(&list, &after(101)), Some(id(101)));
    assert_eq!(older_than(&list, &after(50)), Some(id(50)), "all down to there was shown before");
    let since = Wanted { since: Some(Seen::default()), ..after(111) };
    assert_eq!(older_than(&list, &since), None, "what is new has no past");
}

#[test]
fn what_stands_in_for_an_entry_is_named_though_it_is_above_the_page() {
    let entry = |number: u64, root: u64| Entry {
        post: id(number),
        author: READER,
        root: PostId::new(root),
        has_text: root == 0,
    };
    let list = List::new([entry(1, 0), entry(2, 0), entry(3, 1), entry(4, 0)].into(), None);
    let (pages, _) = scroll(&list, 1, None, &HashSet::from([READER]));
    let shown = pages.iter().flat_map(|page| &page.entries);
    let shown: Vec<_> = shown.map(|shown| (shown.entry.post, &shown.stand_ins[..])).collect();
    assert_eq!(shown, [(id(4), &[][..]), (id(2), &[]), (id(1), &[entry(3, 1)])]);
}

#[test]
fn all_that_stand_in_are_named_however_many_they_are() {
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
        assert!(shown[2].stand_ins.iter().copied().eq(reposts.clone()), "pages of {size}");
    }
}
