//! A timeline entry and its packed encoding: records of fixed width in one string, so one command
//! reads a whole timeline. Pure.
//!
//! Numbers are little-endian. Ids are below 2^53, which leaves 11 bits of a word. An author is in
//! the same partition as the author's posts, so 43 bits identify the author beside a post id.
//!
//! | record | bytes | content |
//! | --- | --- | --- |
//! | home | 8 | post id; bit 53: whether it has a text |
//! | | 8 | root id of a repost, or 0; above it, the author's upper 11 bits |
//! | | 4 | the author's lower 32 bits |
//! | user | 8 | post id |
//! | | 8 | root id of a repost, or 0; bit 53: whether it has a text |

use std::cmp::Reverse;

use microblog_domain::{Partition, PostId, UserId};

/// The size of a home timeline record in bytes.
pub(crate) const HOME_RECORD: usize = 20;

/// The size of a user timeline record in bytes.
pub const USER_RECORD: usize = 16;

const ID_BITS: u32 = 53;
const ID: u64 = (1 << ID_BITS) - 1;
const HAS_TEXT: u64 = 1 << ID_BITS;

/// A timeline entry: a post or repost without its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The post id.
    pub post: PostId,
    /// The author. In the post's partition.
    pub author: UserId,
    /// The reposted post; `None` if this is not a repost.
    pub root: Option<PostId>,
    /// Whether it has a text. A plain repost has none.
    pub has_text: bool,
}

impl Entry {
    /// Returns the post that the entry displays: the root of a repost, or the post itself.
    pub fn displayed_post(&self) -> PostId {
        self.root.unwrap_or(self.post)
    }

    /// Returns whether it is a repost without a text.
    pub fn is_plain_repost(&self) -> bool {
        self.root.is_some() && !self.has_text
    }

    fn text_bit(&self) -> u64 {
        if self.has_text { HAS_TEXT } else { 0 }
    }

    fn root_number(&self) -> u64 {
        self.root.map_or(0, PostId::get)
    }

    /// Encodes a home timeline record.
    pub(crate) fn home_record(&self) -> [u8; HOME_RECORD] {
        let author = without_partition(self.author);
        let mut record = [0; HOME_RECORD];
        record[..8].copy_from_slice(&(self.post.get() | self.text_bit()).to_le_bytes());
        let second = self.root_number() | ((author >> 32) << ID_BITS);
        record[8..16].copy_from_slice(&second.to_le_bytes());
        record[16..].copy_from_slice(&(author as u32).to_le_bytes());
        record
    }

    /// Decodes a home timeline record. Returns `None` for an empty record.
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

    /// Encodes a user timeline record.
    pub(crate) fn user_record(&self) -> [u8; USER_RECORD] {
        let mut record = [0; USER_RECORD];
        record[..8].copy_from_slice(&self.post.get().to_le_bytes());
        record[8..].copy_from_slice(&(self.root_number() | self.text_bit()).to_le_bytes());
        record
    }

    /// Decodes a user timeline record. Returns `None` if it is not a record, such as the head.
    pub(crate) fn from_user_record(author: UserId, record: &[u8; USER_RECORD]) -> Option<Self> {
        let (first, second) = (word(record, 0), word(record, 8));
        let post = PostId::new(first)?;
        let (root, has_text) = (PostId::new(second & ID), second & HAS_TEXT != 0);
        Some(Self { post, author, root, has_text })
    }
}

/// Sorts entries newest first, deduplicates them, and keeps the newest `max`.
pub(crate) fn newest(mut entries: Vec<Entry>, max: usize) -> Vec<Entry> {
    if !is_newest_first(&entries) {
        // A stable sort is fast on sorted runs, such as each author's posts.
        entries.sort_by_key(|entry| Reverse(entry.post));
        entries.dedup_by_key(|entry| entry.post);
    }
    entries.truncate(max);
    entries
}

fn is_newest_first(entries: &[Entry]) -> bool {
    entries.is_sorted_by(|one, next| one.post > next.post)
}

fn word(record: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&record[at..at + 8]);
    u64::from_le_bytes(bytes)
}

// An id is 41 bits of milliseconds, 10 bits of partition and 2 bits of sequence.
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
        fn records_round_trip(entry in entries().prop_filter_map("an id", |entry| entry)) {
            prop_assert_eq!(Entry::from_home_record(&entry.home_record()), Some(entry));
            let record = entry.user_record();
            prop_assert_eq!(Entry::from_user_record(entry.author, &record), Some(entry));
        }
    }

    #[test]
    fn empty_records_do_not_decode() {
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
    fn newest_sorts_and_deduplicates() {
        assert_eq!(newest(of_posts([5, 9, 5, 1, 7]), 3), of_posts([9, 7, 5]));
        assert_eq!(newest(of_posts([]), 3), []);
    }

    proptest! {
        #[test]
        fn newest_equals_a_plain_sort(
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
            expected.truncate(max);
            prop_assert_eq!(newest(of_posts(posts), max), of_posts(expected));
        }
    }

    #[test]
    fn fuzz_records() {
        let author = UserId::new(4).unwrap();
        bolero::check!().for_each(|bytes: &[u8]| {
            if let Some(record) = bytes.first_chunk()
                && let Some(entry) = Entry::from_home_record(record)
            {
                assert_eq!(Entry::from_home_record(&entry.home_record()), Some(entry));
            }
            if let Some(record) = bytes.first_chunk()
                && let Some(entry) = Entry::from_user_record(author, record)
            {
                assert_eq!(Entry::from_user_record(author, &entry.user_record()), Some(entry));
            }
        });
    }
}
