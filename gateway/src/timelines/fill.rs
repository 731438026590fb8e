//! Pages of timelines: filled again until they are full or the timeline ends. First with what the
//! timeline service holds of it, which ends after some hundreds of entries, then with its past.

use microblog_proto::gateway::ViewedPost;
use prost::Message as _;
use tonic::{Code, Status};

use super::{
    hydrate::ENTRY_BYTES_MAX,
    past::{self, Past},
};
use crate::{
    pages::{ANSWER_BYTES_MAX, PageRequest},
    people::Visit,
    rpc::Gateway,
    skeleton::{Stretch, Timeline},
};

/// How many entries are looked at together, at most: what they are is in memory at once.
pub(super) const SLICE_MAX: usize = 50;

/// How often the timeline is asked for a page at most. More than any page needs: it takes 20
/// slices of the largest size through 1,000 entries, and smaller ones come only where at least the
/// half of a slice was shown, or once after each such.
const ROUNDS_MAX: usize = 48;

/// What the posts of a page take at most. The rest is for its tokens.
const PAGE_BYTES_MAX: usize = ANSWER_BYTES_MAX - 32 * 1024;

/// What a post takes on a page besides itself: its tag and its length.
const FRAME_BYTES_MAX: usize = 6;

/// A page of a timeline to show.
pub(crate) struct TimelinePage {
    /// Its posts.
    pub(crate) posts: Vec<ViewedPost>,
    /// For the next page; empty at the end of the timeline.
    pub(crate) next_page_token: String,
    /// For what will be new.
    pub(crate) since_token: String,
}

/// What a page begins with.
pub(super) enum First {
    /// What the timeline service holds.
    Held(Stretch),
    /// The past.
    Past(Past),
}

impl Gateway {
    /// Returns what a page begins with. One call, or none in the past.
    pub(super) async fn first(
        &self,
        timeline: &Timeline,
        page: &PageRequest,
    ) -> Result<First, Status> {
        if let Some(past) = Past::from_token(past::scope(timeline), &page.token) {
            return Ok(First::Past(past));
        }
        let size = page.size.min(SLICE_MAX);
        timeline.stretch(self, size, page.token.clone()).await.map(First::Held)
    }

    /// Hydrates a page, and fills it up with what follows in the timeline and in its past until it is
    /// full, in entries or in bytes, or there is nothing older.
    pub(super) async fn fill_timeline(
        &self,
        timeline: &Timeline,
        visit: Visit<'_>,
        page: PageRequest,
        first: First,
    ) -> Result<TimelinePage, Status> {
        let mut filling = Filling::new(page.size);
        let mut past = match first {
            First::Past(past) => past,
            First::Held(stretch) => {
                let end = self.fill_held(timeline, visit, page, stretch, &mut filling).await?;
                let Stretch { next_page_token, since_token, older_than_id, .. } = end;
                if older_than_id == 0 {
                    return Ok(TimelinePage { posts: filling.posts, next_page_token, since_token });
                }
                Past { before_id: older_than_id, since_token }
            }
        };
        if !filling.is_full() {
            let filled = self.fill_past(timeline, visit, &mut past.before_id, &mut filling).await;
            match filled {
                // While what is older is away, what is newer is shown.
                Err(status) if status.code() == Code::Unavailable && filling.has_any() => {}
                filled => filled?,
            }
        }
        let has_more = past.before_id != 0;
        let next = has_more.then(|| past.token(past::scope(timeline)));
        let (posts, since_token) = (filling.posts, past.since_token);
        Ok(TimelinePage { posts, next_page_token: next.unwrap_or_default(), since_token })
    }

    /// Fills a page up with what the timeline service holds. Returns where it ends, without entries.
    /// How those who wrote a slice stand to the viewer is told with it, and goes with it.
    ///
    /// A page's tokens are those of the last slice that is on it. So a slice of which more is to be
    /// shown than the page has room for is asked for again, as long as there is room: what comes
    /// then is what counts, although something may have come or gone since.
    async fn fill_held(
        &self,
        timeline: &Timeline,
        visit: Visit<'_>,
        page: PageRequest,
        first: Stretch,
        filling: &mut Filling,
    ) -> Result<Stretch, Status> {
        let since_token = timeline.since_token.clone();
        let mut end = Stretch { next_page_token: page.token, since_token, ..Stretch::default() };
        let mut stretch = first;
        for _ in 1..ROUNDS_MAX {
            let visit = Visit { known: &stretch.relations, ..visit };
            let found = self.hydrate_entries(visit, &stretch.entries).await?;
            let mut size = filling.fitting(&found);
            if size == found.len() {
                size = filling.take(found);
                end = Stretch { entries: Vec::new(), relations: Vec::new(), ..stretch };
                if end.next_page_token.is_empty() || filling.is_full() {
                    break;
                }
            }
            stretch = timeline.stretch(self, size, end.next_page_token.clone()).await?;
        }
        Ok(end)
    }
}

/// A page that is not full yet.
pub(super) struct Filling {
    posts: Vec<ViewedPost>,
    bytes: usize,
    size: usize,
}

impl Filling {
    fn new(size: usize) -> Self {
        Self { posts: Vec::with_capacity(size), bytes: 0, size }
    }

    fn has_any(&self) -> bool {
        !self.posts.is_empty()
    }

    /// Returns how many entries are missing.
    pub(super) fn missing(&self) -> usize {
        self.size.saturating_sub(self.posts.len())
    }

    /// Returns whether there is no more room, or none for an entry that may be as long as any.
    pub(super) fn is_full(&self) -> bool {
        self.missing() == 0 || self.bytes + ENTRY_BYTES_MAX > PAGE_BYTES_MAX
    }

    /// Returns up to which entry what is shown of a slice has room.
    pub(super) fn fitting(&self, found: &[Option<ViewedPost>]) -> usize {
        let (mut missing, mut bytes) = (self.missing(), self.bytes);
        if found.len() <= missing && bytes + found.len() * ENTRY_BYTES_MAX <= PAGE_BYTES_MAX {
            // Whatever they are: the usual page need not be measured.
            return found.len();
        }
        let exceeds = |post: &Option<ViewedPost>| {
            let Some(post) = post else { return false };
            bytes += bytes_of(post);
            let exceeds = missing == 0 || bytes > PAGE_BYTES_MAX;
            missing = missing.saturating_sub(1);
            exceeds
        };
        found.iter().position(exceeds).unwrap_or(found.len())
    }

    /// Takes a slice, and returns how many entries to look at next: what is missing, or more where
    /// little of this one is shown, since it may go on like this.
    pub(super) fn take(&mut self, found: Vec<Option<ViewedPost>>) -> usize {
        let (looked_at, shown) = (found.len(), self.posts.len());
        self.posts.extend(found.into_iter().flatten());
        // Nobody asks how long a page is that has all its entries.
        if self.missing() > 0 {
            self.bytes += self.posts[shown..].iter().map(bytes_of).sum::<usize>();
        }
        let is_mostly_shown = (self.posts.len() - shown) * 2 >= looked_at;
        if is_mostly_shown { self.missing().min(SLICE_MAX) } else { SLICE_MAX }
    }
}

fn bytes_of(post: &ViewedPost) -> usize {
    post.encoded_len() + FRAME_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use microblog_proto::post::Post;

    use super::*;

    fn post(bytes: usize) -> Option<ViewedPost> {
        let post = Post { text: "a".repeat(bytes), ..Post::default() };
        Some(ViewedPost { post: Some(post), ..ViewedPost::default() })
    }

    #[test]
    fn a_slice_fits_up_to_where_the_page_is_full() {
        let mut filling = Filling::new(3);
        let found = [None, post(1), None, post(1), post(1), None, post(1), None];
        assert_eq!(filling.fitting(&found), 6, "what is not shown takes no room");
        assert_eq!(filling.fitting(&found[..6]), 6);
        assert!(!filling.is_full());
        filling.take(vec![post(1), post(1), post(1)]);
        assert!(filling.is_full());
        assert_eq!(filling.fitting(&found), 1);
        assert_eq!(filling.fitting(&[None, None]), 2);
    }

    #[test]
    fn a_slice_fits_up_to_the_bytes_of_an_answer() {
        let mut filling = Filling::new(200);
        let found: Vec<_> = (0..50).map(|_| post(ENTRY_BYTES_MAX - 100)).collect();
        assert_eq!(filling.fitting(&found), PAGE_BYTES_MAX / ENTRY_BYTES_MAX);
        filling.take(found[..24].to_vec());
        assert!(!filling.is_full(), "there is room for one more");
        filling.take(found[..1].to_vec());
        assert!(filling.is_full());
        assert!(filling.posts.iter().map(bytes_of).sum::<usize>() < PAGE_BYTES_MAX);
    }

    #[test]
    fn what_is_looked_at_next_is_what_is_missing_or_more_where_little_is_shown() {
        let mut filling = Filling::new(20);
        let mut found = vec![None; 4];
        found.resize(20, post(1));
        assert_eq!(filling.take(found), 4);
        assert_eq!(filling.take(vec![None, None, None, post(1)]), SLICE_MAX);
        assert_eq!(filling.take(vec![None, post(1)]), 2);
        assert_eq!(Filling::new(200).take(vec![post(1); 50]), SLICE_MAX);
    }
}
