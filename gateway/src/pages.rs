//! Pages of lists: as they are asked for, and filled again where entries are left out.

use microblog_domain::{Invalid, PageSize};
use tonic::Status;

use crate::{
    people::Visit,
    rpc::Gateway,
    skeleton::{Listing, Slice},
};

/// How often a page is asked for at most, so that a list with long stretches of what is not shown
/// cannot make a call endless. After that the page stays short; its token goes on behind what was
/// looked at.
const ROUNDS_MAX: usize = 5;

/// A page as it was asked for, checked as far as the gateway knows the rules.
pub(crate) struct PageRequest {
    /// How many entries at most, at least 1.
    pub(crate) size: usize,
    /// From where to go on, as the caller gave it.
    pub(crate) token: String,
}

impl PageRequest {
    /// Reads the fields `page_size` and `page_token` of a request.
    pub(crate) fn parse(page_size: i32, page_token: String) -> Result<Self, Invalid> {
        Ok(Self { size: PageSize::parse(page_size)?.get(), token: page_token })
    }
}

/// A page to show.
pub(crate) struct Page<Shown> {
    /// Its entries.
    pub(crate) entries: Vec<Shown>,
    /// For the next page; empty at the end of the list.
    pub(crate) next_page_token: String,
}

impl Gateway {
    /// Hydrates a page, and fills it up with what follows in the list as long as it is short.
    /// Each further slice is no longer than what is missing, so that the list's own token is the
    /// page's.
    pub(crate) async fn fill<L: Listing>(
        &self,
        list: &L,
        visit: Visit,
        size: usize,
        first: Slice<L::Entry>,
    ) -> Result<Page<L::Shown>, Status> {
        let mut shown = Vec::with_capacity(size);
        let mut slice = first;
        for _ in 1..ROUNDS_MAX {
            shown.extend(list.hydrate(self, visit, slice.entries).await?);
            let missing = size.saturating_sub(shown.len());
            if missing == 0 || slice.next_page_token.is_empty() {
                return Ok(Page { entries: shown, next_page_token: slice.next_page_token });
            }
            slice = list.slice(self, missing, slice.next_page_token).await?;
        }
        shown.extend(list.hydrate(self, visit, slice.entries).await?);
        Ok(Page { entries: shown, next_page_token: slice.next_page_token })
    }
}
