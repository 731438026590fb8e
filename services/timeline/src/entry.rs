//! An entry of a timeline, and how it is packed: records of fixed width in one string, so that a
//! whole timeline is read at once. Pure.
//!
//! Numbers are little-endian. Ids are below 2^53, which leaves 11 bits of a word; an author lies in
//! the partition of their posts, so that 43 bits name them beside a post.
//!
//! | record | bytes | what |
//! | --- | --- | --- |
//! | home | 8 | post; above it, bit 53: whether it has a text |
//! | | 8 | root of a repost, or 0; above it, the author's upper 11 bits |
//! | | 4 | the author's lower 32 bits |
//! | user | 8 | post |
//! | | 8 | root of a repost, or 0; above it, bit 53: whether it has a text |

use std::cmp::Reverse;

use microblog_domain::{Partition, PostId, UserId};

/// The bytes of a record in a home timeline.
pub(crate) const HOME_RECORD: usize = 20;

/// The bytes of a record in a user timeline.
pub(crate) const USER_RECORD: usize = 16;

const ID_BITS: u32 = 53;
const ID: u64 = (1 << ID_BITS) - 1;
const HAS_TEXT: u64 = 1 << ID_BITS;

/// A post as timelines know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The post.
    pub post: PostId,
    /// Whose. In the post's partition.
    pub author: UserId,
    /// Of a repost, the post that it repeats.
    pub root: Option<PostId>,
    /// Whether it has a text: a repost may have none.
    pub has_text: bool,
}

impl Entry {
    /// Returns the post that a reader sees by it: the root of a repost, or itself.
    pub fn shows(&self) -> PostId {
        self.root.unwrap_or(self.post)
    }

    /// Returns whether it says nothing but that somebody reposted.
    pub fn is_plain_repost(&self) -> bool {
        self.root.is_some() && !self.has_text
    }

    fn text_bit(&self) -> u64 {
        if self.has_text { HAS_TEXT } else { 0 }
    }

    fn root_number(&self) -> u64 {
        self.root.map_or(0, PostId::get)
    }

    /// Returns its record in home timelines.
    pub(crate) fn home_record(&self) -> [u8; HOME_RECORD] {
        let author = without_partition(self.author);
        let mut record = [0; HOME_RECORD];
        record[..8].copy_from_slice(&(self.post.get() | self.text_bit()).to_le_bytes());
        let second = self.root_number() | ((author >> 32) << ID_BITS);
        record[8..16].copy_from_slice(&second.to_le_bytes());
        record[16..].copy_from_slice(&(author as u32).to_le_bytes());
        record
    }

    /// Reads a record of a home timeline; `None` for what is none.
    pub(crate) fn from_home_record(record: &[u8; HOME_RECORD]) -> Option<Self> {
        let (first, second) = (word(record, 0), word(record, 8));
        let [.., a, b, c, d] = *record;
        let author = ((second >> ID_BITS) << 32) | u64::from(u32::from_le_bytes([a, b, c, d]));
        let post = PostId::new(first & ID)?;
        Some(Self {
            post,
            author: with_partition(author, post.partition())?,
            root: PostId::new(second & ID),
            has_text: first & HAS_TEXT != 0,
        })
    }

    /// Returns its record in the author's own timeline.
    pub(crate) fn user_record(&self) -> [u8; USER_RECORD] {
        let mut record = [0; USER_RECORD];
        record[..8].copy_from_slice(&self.post.get().to_le_bytes());
        record[8..].copy_from_slice(&(self.root_number() | self.text_bit()).to_le_bytes());
        record
    }

    /// Reads a record of an author's own timeline; `None` for what is none, such as its head.
    pub(crate) fn from_user_record(author: UserId, record: &[u8; USER_RECORD]) -> Option<Self> {
        let (first, second) = (word(record, 0), word(record, 8));
        let post = PostId::new(first)?;
        let (root, has_text) = (PostId::new(second & ID), second & HAS_TEXT != 0);
        Some(Self { post, author, root, has_text })
    }
}

/// Sorts entries, newest first, makes them unique, and keeps the newest `max`.
pub(crate) fn newest(mut entries: Vec<Entry>, max: usize) -> Vec<Entry> {
    if !is_newest_first(&entries) {
        // The stable sort makes use of what is in order already, such as each author's posts.
        entries.sort_by_key(|entry| Reverse(entry.post));
        entries.dedup_by_key(|entry| entry.post);
    }
    entries.truncate(max);
    entries
}

/// Sorts entries, newest first, and makes them unique, that came one after the other: mostly oldest
/// first.
pub(crate) fn newest_first(mut entries: Vec<Entry>) -> Vec<Entry> {
    entries.reverse();
    if !is_newest_first(&entries) {
        if !insert_into_order(&mut entries) {
            entries.sort_by_key(|entry| Reverse(entry.post));
        }
        entries.dedup_by_key(|entry| entry.post);
    }
    entries
}

fn is_newest_first(entries: &[Entry]) -> bool {
    entries.is_sorted_by(|one, next| one.post > next.post)
}

/// Sorts entries, newest first, by inserting each into those before it. Returns whether it did: it
/// gives up where more are out of order than another way would cost.
fn insert_into_order(entries: &mut [Entry]) -> bool {
    let mut moves_left = 4 * entries.len();
    for place in 1..entries.len() {
        let (before, entry) = (&entries[..place], entries[place]);
        let older = before.iter().rev().take_while(|other| other.post < entry.post);
        let moves = older.take(moves_left + 1).count();
        let Some(left) = moves_left.checked_sub(moves) else { return false };
        entries[place - moves..=place].rotate_right(1);
        moves_left = left;
    }
    true
}

fn word(record: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&record[at..at + 8]);
    u64::from_le_bytes(bytes)
}

// An id is 41 bits of milliseconds, 10 of partition, 2 of sequence.
fn without_partition(author: UserId) -> u64 {
    ((author.get() >> 12) << 2) | (author.get() & 3)
}

fn with_partition(author: u64, partition: Partition) -> Option<UserId> {
    UserId::new(((author >> 2) << 12) | (u64::from(partition.number()) << 2) | (author & 3))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        fn entries()(
            post in 1u64..1 << 53,
            author in 0u64..1 << 43,
            root in 0u64..1 << 53,
            has_text: bool,
        ) -> Option<Entry> {
            let post = PostId::new(post)?;
            let author = with_partition(author, post.partition())?;
            Some(Entry { post, author, root: PostId::new(root), has_text })
        }
    }

    proptest! {
        #[test]
        fn a_record_keeps_its_entry(entry in entries().prop_filter_map("an id", |entry| entry)) {
            prop_assert_eq!(Entry::from_home_record(&entry.home_record()), Some(entry));
            let record = entry.user_record();
            prop_assert_eq!(Entry::from_user_record(entry.author, &record), Some(entry));
        }
    }

    #[test]
    fn nothing_is_read_from_an_empty_place() {
        assert_eq!(Entry::from_home_record(&[0; HOME_RECORD]), None);
        let author = UserId::new(4).unwrap();
        assert_eq!(Entry::from_user_record(author, &[0; USER_RECORD]), None);
        assert_eq!(Entry::from_user_record(author, &[0xff; USER_RECORD]), None);
    }

    fn of_posts(posts: impl IntoIterator<Item = u64>) -> Vec<Entry> {
        let entry = |post| Entry {
            post: PostId::new(post).unwrap(),
            author: UserId::new(4).unwrap(),
            root: None,
            has_text: true,
        };
        posts.into_iter().map(entry).collect()
    }

    #[test]
    fn the_newest_are_unique_and_in_order() {
        assert_eq!(newest(of_posts([5, 9, 5, 1, 7]), 3), of_posts([9, 7, 5]));
        assert_eq!(newest(of_posts([]), 3), []);
        assert_eq!(newest_first(of_posts([])), []);
        assert_eq!(newest_first(of_posts([1, 2, 3])), of_posts([3, 2, 1]));
    }

    #[test]
    fn what_is_far_out_of_order_is_left_to_another_way() {
        // Each would have to pass all before it.
        let mut entries = of_posts((1..=100).chain(200..=300));
        assert!(!insert_into_order(&mut entries));
        let mut nearly = of_posts([9, 8, 6, 7, 5, 5, 4, 2, 3]);
        assert!(insert_into_order(&mut nearly));
        assert_eq!(nearly, of_posts([9, 8, 7, 6, 5, 5, 4, 3, 2]));
    }

    proptest! {
        #[test]
        fn the_newest_are_the_newest_in_whatever_order_they_come(
            posts in prop::collection::vec(1_u64..300, 0..200),
            is_nearly_in_order: bool,
            max in 0_usize..250,
        ) {
            let mut posts = posts;
            if is_nearly_in_order {
                posts.sort_by_key(|post| post / 8);
            }
            let mut expected = posts.clone();
            expected.sort_unstable_by(|a, b| b.cmp(a));
            expected.dedup();
            prop_assert_eq!(newest_first(of_posts(posts.clone())), of_posts(expected.clone()));
            expected.truncate(max);
            prop_assert_eq!(newest(of_posts(posts), max), of_posts(expected));
        }
    }
}
