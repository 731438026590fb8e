//! Paging: requests for pages, and the loop that fills every page. Does not depend on any view.
//!
//! A page is read as a skeleton and hydrated; hydration drops the entries that the viewer must not
//! see. As long as entries are missing, the loop goes on with what follows in the list.

use microblog_chassis::status;
use microblog_domain::{BATCH_MAX, Invalid, PageSize};
use microblog_proto::{PEER_RESPONSE_BYTES_MAX, relation::Relation};
use prost::Message;
use tonic::Status;

use crate::{context::ViewContext, state::Gateway};

/// The largest message that gRPC clients accept by default.
pub(crate) const RESPONSE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What the posts of a response may take. The rest is for tokens and ids.
pub(crate) const PAGE_BYTES_MAX: usize = RESPONSE_BYTES_MAX - 32 * 1024;

/// The largest account profile, with every field at its limit.
pub(crate) const PROFILE_BYTES_MAX: usize = 10 * 1024;
const _: () = assert!(BATCH_MAX * PROFILE_BYTES_MAX < PEER_RESPONSE_BYTES_MAX);

/// What one skeleton of texts takes as it is shown, without the profiles of its authors. The post
/// service ends it at 1.25 MiB. A mention takes at least 16 bytes there, and the gateway adds 8 for
/// the account that it points to, or 9 for one created after May 2028.
const SKELETON_BYTES_MAX: usize = 2 * 1024 * 1024;

/// What an entry takes on a page besides itself: its tag and its length.
const FRAME_BYTES_MAX: usize = 6;

/// A validated request for a page.
pub(crate) struct PageRequest {
    /// The number of entries, at least 1.
    pub(crate) size: usize,
    /// The page token as the caller sent it.
    pub(crate) token: String,
}

impl PageRequest {
    /// Parses the fields `page_size` and `page_token` of a request without other fields that can be
    /// invalid.
    pub(crate) fn parse_only(page_size: i32, page_token: String) -> Result<Self, Status> {
        Self::parse(page_size, page_token).map_err(|invalid| status::invalid([invalid]))
    }

    /// Parses the fields `page_size` and `page_token` of a request.
    pub(crate) fn parse(page_size: i32, page_token: String) -> Result<Self, Invalid> {
        PageSize::parse(page_size).map(|size| Self { size: size.get(), token: page_token })
    }
}

/// A page of a list as the viewer sees it.
pub(crate) struct Page<T> {
    pub(crate) entries: Vec<T>,
    /// Empty at the end of the list.
    pub(crate) next_page_token: String,
}

/// A part of a list before hydration.
pub(crate) struct Skeleton<Entry, Cursor = String> {
    pub(crate) entries: Vec<Entry>,
    /// Where the list continues.
    pub(crate) next: Cursor,
    /// Viewer relations of the entries' accounts, and of the list's owner, if the service returns them.
    pub(crate) relations: Vec<Relation>,
}

impl<Entry, Cursor> Skeleton<Entry, Cursor> {
    /// Returns a skeleton without viewer relations.
    pub(crate) const fn new(entries: Vec<Entry>, next: Cursor) -> Self {
        Self { entries, next, relations: Vec::new() }
    }
}

/// A position in a list.
pub(crate) trait Cursor: Clone + Send + Sync {
    /// Returns whether nothing follows.
    fn is_end(&self) -> bool;
}

/// A page token.
impl Cursor for String {
    fn is_end(&self) -> bool {
        self.is_empty()
    }
}

/// A list that is shown in pages.
pub(crate) trait Listing: Sync {
    /// An entry of the skeleton.
    type Entry: Send;
    /// An entry as the viewer sees it.
    type Shown: Message;
    /// A position in the list.
    type Cursor: Cursor;

    /// How many skeletons one call reads at most, so that long runs of hidden entries cannot make
    /// it endless. After that the page stays short; its token continues behind the last skeleton.
    const SKELETONS_MAX: usize = 5;

    /// The limits of a page.
    const BUDGET: Budget = Budget::LIST;

    /// Returns up to `size` entries after a cursor. Fewer entries do not mean the end of the list.
    fn skeleton(
        &self,
        gateway: &Gateway,
        size: usize,
        cursor: Self::Cursor,
    ) -> impl Future<Output = Result<Skeleton<Self::Entry, Self::Cursor>, Status>> + Send;

    /// Returns the entries as the viewer sees them, in order; `None` for an entry that is hidden
    /// from the viewer or deleted. Under a budget that overfetches, it must return one item for
    /// each entry; otherwise it may leave hidden entries out.
    fn hydrate(
        &self,
        gateway: &Gateway,
        context: ViewContext<'_>,
        entries: Vec<Self::Entry>,
    ) -> impl Future<Output = Result<Vec<Option<Self::Shown>>, Status>> + Send;

    /// Returns the position behind an entry, if the list can continue inside a skeleton.
    fn cursor_after(_: &Self::Entry) -> Option<Self::Cursor> {
        None
    }
}

/// Fills a page of a list whose cursors are page tokens, from the token of its request on. The first
/// skeleton must have no more entries than a batch of the list's budget.
pub(crate) async fn fill_page<L: Listing<Cursor = String>>(
    gateway: &Gateway,
    list: &L,
    context: ViewContext<'_>,
    size: usize,
    first: Skeleton<L::Entry>,
    token: String,
) -> Result<Page<L::Shown>, Status> {
    let mut filling = Filling::new(size, L::BUDGET);
    let mut next_page_token = token;
    fill(gateway, list, context, first, &mut next_page_token, &mut filling).await?;
    Ok(Page { entries: filling.shown, next_page_token })
}

/// Fills a page with a first skeleton and what follows it, until the page is full, in entries or in
/// bytes, or the list ends. `end` is set to the position behind the last entry that the page
/// accounts for, also if a later call fails.
pub(crate) async fn fill<L: Listing>(
    gateway: &Gateway,
    list: &L,
    context: ViewContext<'_>,
    first: Skeleton<L::Entry, L::Cursor>,
    end: &mut L::Cursor,
    filling: &mut Filling<L::Shown>,
) -> Result<(), Status> {
    let mut skeleton = first;
    for _ in 1..L::SKELETONS_MAX {
        let Some(size) = add(gateway, list, context, skeleton, end, filling).await? else {
            return Ok(());
        };
        skeleton = list.skeleton(gateway, size, end.clone()).await?;
    }
    add(gateway, list, context, skeleton, end, filling).await.map(|_| ())
}

/// Hydrates a skeleton and adds what fits to the page. Returns how many entries to read next;
/// `None` if the page is complete.
///
/// A page ends at a cursor. If not all of a skeleton fits and it has cursors at its ends only, it
/// is read again with as many entries as fit.
async fn add<L: Listing>(
    gateway: &Gateway,
    list: &L,
    context: ViewContext<'_>,
    skeleton: Skeleton<L::Entry, L::Cursor>,
    end: &mut L::Cursor,
    filling: &mut Filling<L::Shown>,
) -> Result<Option<usize>, Status> {
    let Skeleton { mut entries, next, relations } = skeleton;
    let context = ViewContext { known: &relations, ..context };
    // At least once, also without entries: hydration checks the subject.
    loop {
        let rest = entries.split_off(entries.len().min(filling.budget.batch_max));
        let cursors: Vec<_> = entries.iter().filter_map(L::cursor_after).collect();
        let mut found = list.hydrate(gateway, context, entries).await?;
        let fitting = filling.fitting(&found);
        let is_cut = fitting < found.len();
        if is_cut && cursors.is_empty() {
            return Ok(Some(fitting));
        }
        found.truncate(fitting);
        let size = filling.take(found);
        if is_cut || !rest.is_empty() {
            if let Some(cursor) = cursors.into_iter().take(fitting).last() {
                *end = cursor;
            }
            if is_cut || filling.is_full() {
                return Ok(None);
            }
            entries = rest;
            continue;
        }
        *end = next;
        return Ok((!end.is_end() && !filling.is_full()).then_some(size));
    }
}

/// The limits of a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// How many entries are hydrated together at most: they are in memory at once.
    pub(crate) batch_max: usize,
    /// What all entries of a page may take.
    pub(crate) page_bytes_max: usize,
    /// What one more entry may take.
    pub(crate) entry_bytes_max: usize,
    /// Whether more entries are read than the page misses if many of them are hidden. What does not
    /// fit is then cut off. Otherwise every skeleton fits.
    pub(crate) overfetches: bool,
}

impl Budget {
    /// For lists whose service bounds the bytes of a skeleton: only profiles come on top.
    const LIST: Self = Self {
        batch_max: PageSize::MAX,
        page_bytes_max: RESPONSE_BYTES_MAX - SKELETON_BYTES_MAX,
        entry_bytes_max: PROFILE_BYTES_MAX,
        overfetches: false,
    };
}

/// A page that is being filled.
pub(crate) struct Filling<Shown> {
    /// The entries so far.
    pub(crate) shown: Vec<Shown>,
    bytes: usize,
    size: usize,
    budget: Budget,
}

impl<Shown: Message> Filling<Shown> {
    /// Returns an empty page for `size` entries.
    pub(crate) fn new(size: usize, budget: Budget) -> Self {
        Self { shown: Vec::with_capacity(size), bytes: 0, size, budget }
    }

    /// Returns how many entries are missing.
    pub(crate) fn missing(&self) -> usize {
        self.size.saturating_sub(self.shown.len())
    }

    /// Returns whether no entry is missing, or the largest possible one would not fit.
    pub(crate) fn is_full(&self) -> bool {
        self.missing() == 0 || self.room() == 0
    }

    /// Returns how many entries of the largest size would fit.
    fn room(&self) -> usize {
        self.budget.page_bytes_max.saturating_sub(self.bytes) / self.budget.entry_bytes_max
    }

    /// Returns how many of the first entries of a batch fit.
    fn fitting(&self, found: &[Option<Shown>]) -> usize {
        // The usual page fits whatever its entries are, and need not be measured.
        if !self.budget.overfetches || found.len() <= self.missing().min(self.room()) {
            return found.len();
        }
        let (mut missing, mut bytes) = (self.missing(), self.bytes);
        let exceeds = |entry: &Option<Shown>| {
            let Some(entry) = entry else { return false };
            bytes += bytes_of(entry);
            let exceeds = missing == 0 || bytes > self.budget.page_bytes_max;
            missing = missing.saturating_sub(1);
            exceeds
        };
        found.iter().position(exceeds).unwrap_or(found.len())
    }

    /// Adds a batch, and returns how many entries to read next: those that are missing, or a whole
    /// batch if most entries of this one are hidden, since the next ones may be, too.
    fn take(&mut self, found: Vec<Option<Shown>>) -> usize {
        let (read, before) = (found.len(), self.shown.len());
        self.shown.extend(found.into_iter().flatten());
        // A page without missing entries is complete, whatever its size.
        if self.missing() > 0 {
            self.bytes += self.shown[before..].iter().map(bytes_of).sum::<usize>();
        }
        if !self.budget.overfetches {
            return self.missing().min(self.room());
        }
        let is_mostly_shown = (self.shown.len() - before) * 2 >= read;
        if is_mostly_shown {
            self.missing().min(self.budget.batch_max)
        } else {
            self.budget.batch_max
        }
    }
}

/// Returns how many of the first entries take up to `bytes_max`.
pub(crate) fn fitting(entries: &[impl Message], bytes_max: usize) -> usize {
    let mut bytes = 0;
    let fits = |entry: &&_| {
        bytes += bytes_of(*entry);
        bytes <= bytes_max
    };
    entries.iter().take_while(fits).count()
}

fn bytes_of(entry: &impl Message) -> usize {
    entry.encoded_len() + FRAME_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use microblog_proto::{gateway::ViewedPost, post::Post};

    use super::*;

    const ENTRY_BYTES_MAX: usize = 162 * 1024;
    const BATCH_MAX: usize = 50;
    const TIMELINE: Budget = Budget {
        batch_max: BATCH_MAX,
        page_bytes_max: PAGE_BYTES_MAX,
        entry_bytes_max: ENTRY_BYTES_MAX,
        overfetches: true,
    };

    fn post(bytes: usize) -> Option<ViewedPost> {
        let post = Post { text: "a".repeat(bytes), ..Post::default() };
        Some(ViewedPost { post: Some(post), ..ViewedPost::default() })
    }

    #[test]
    fn the_largest_page_fits_at_once_and_a_page_of_long_texts_ends_early() {
        let room = |bytes| Filling::<ViewedPost> { bytes, ..Filling::new(1, Budget::LIST) }.room();
        assert!(room(0) >= PageSize::MAX);
        assert_eq!((room(2 * 1024 * 1024), room(usize::MAX)), (0, 0));
    }

    #[test]
    fn a_batch_fits_up_to_where_the_page_is_full() {
        let mut filling = Filling::new(3, TIMELINE);
        let found = [None, post(1), None, post(1), post(1), None, post(1), None];
        assert_eq!(filling.fitting(&found), 6, "hidden entries take no room");
        assert_eq!(filling.fitting(&found[..6]), 6);
        assert!(!filling.is_full());
        filling.take(vec![post(1), post(1), post(1)]);
        assert!(filling.is_full());
        assert_eq!(filling.fitting(&found), 1);
        assert_eq!(filling.fitting(&[None, None]), 2);
    }

    #[test]
    fn a_batch_fits_up_to_the_bytes_of_a_response() {
        let mut filling = Filling::new(200, TIMELINE);
        let found: Vec<_> = (0..50).map(|_| post(ENTRY_BYTES_MAX - 100)).collect();
        assert_eq!(filling.fitting(&found), PAGE_BYTES_MAX / ENTRY_BYTES_MAX);
        filling.take(found[..24].to_vec());
        assert!(!filling.is_full(), "there is room for one more");
        filling.take(found[..1].to_vec());
        assert!(filling.is_full());
        assert!(filling.shown.iter().map(bytes_of).sum::<usize>() < PAGE_BYTES_MAX);
    }

    #[test]
    fn the_next_read_is_what_is_missing_or_a_batch_where_most_is_hidden() {
        let mut filling = Filling::new(20, TIMELINE);
        let mut found = vec![None; 4];
        found.resize(20, post(1));
        assert_eq!(filling.take(found), 4);
        assert_eq!(filling.take(vec![None, None, None, post(1)]), BATCH_MAX);
        assert_eq!(filling.take(vec![None, post(1)]), 2);
        assert_eq!(Filling::new(200, TIMELINE).take(vec![post(1); 50]), BATCH_MAX);
    }
}
