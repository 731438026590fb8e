//! Pages of lists: as they are asked for, and filled again where entries are left out.

use microblog_chassis::status;
use microblog_domain::{Fields, PageSize};
use prost::Message as _;
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

/// What clients of gRPC take in one message, unless they are told otherwise.
pub(crate) const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What a slice of texts takes as it is shown, but for the profiles of its authors: the post service
/// ends it at 2 MiB, and a mention, which is 16 bytes there at least, has 8 more with the account
/// that it points to (9 if the account was made after May 2028: texts that are nothing but mentions
/// of such ones, all by authors with the longest profiles, would come out one per cent too large).
const SLICE_BYTES_MAX: usize = 3 * 1024 * 1024;

/// What an account's profile takes, all its parts as long as they may be.
pub(crate) const PROFILE_BYTES_MAX: usize = 5 * 1024;

/// A page as it was asked for, checked as far as the gateway knows the rules.
pub(crate) struct PageRequest {
    /// How many entries at most, at least 1.
    pub(crate) size: usize,
    /// From where to go on, as the caller gave it.
    pub(crate) token: String,
}

impl PageRequest {
    /// Reads the fields `page_size` and `page_token` of a request, beside what was read from its
    /// other ones, and names all that is wrong at once.
    pub(crate) fn parse<T>(
        mut fields: Fields,
        others: Option<T>,
        page_size: i32,
        page_token: String,
    ) -> Result<(T, Self), Status> {
        let size = fields.read(PageSize::parse(page_size));
        let page = size.map(|size| Self { size: size.get(), token: page_token });
        fields.finish(others.zip(page)).map_err(status::invalid)
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
    /// Hydrates a page, and fills it up with what follows in the list as long as it is short and
    /// what may follow fits into one answer. Each further slice is no longer than what is missing,
    /// so that the list's own token is the page's.
    pub(crate) async fn fill<L: Listing>(
        &self,
        list: &L,
        visit: Visit<'_>,
        size: usize,
        first: Slice<L::Entry>,
    ) -> Result<Page<L::Shown>, Status> {
        let mut shown: Vec<L::Shown> = Vec::with_capacity(size);
        let mut slice = first;
        for _ in 1..ROUNDS_MAX {
            shown.extend(list.hydrate(self, visit, slice.entries).await?);
            let bytes = shown.iter().map(L::Shown::encoded_len).sum();
            let missing = size.saturating_sub(shown.len()).min(room(bytes));
            if missing == 0 || slice.next_page_token.is_empty() {
                return Ok(Page { entries: shown, next_page_token: slice.next_page_token });
            }
            slice = list.slice(self, missing, slice.next_page_token).await?;
        }
        shown.extend(list.hydrate(self, visit, slice.entries).await?);
        Ok(Page { entries: shown, next_page_token: slice.next_page_token })
    }
}

/// Returns how many entries more an answer of so many bytes has room for, whatever they are.
fn room(bytes: usize) -> usize {
    (ANSWER_BYTES_MAX - SLICE_BYTES_MAX).saturating_sub(bytes) / PROFILE_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use microblog_domain::Invalid;
    use tonic_types::StatusExt as _;

    use super::*;

    #[test]
    fn all_that_is_wrong_is_named_at_once() {
        let mut fields = Fields::default();
        let user: Option<u64> = fields.read(Err(Invalid::new("user", "is missing")));
        let status = PageRequest::parse(fields, user, -1, String::new()).err().unwrap();
        let fields = status.get_details_bad_request().unwrap().field_violations;
        let fields: Vec<_> = fields.iter().map(|violation| violation.field.as_str()).collect();
        assert_eq!(fields, ["user", "page_size"]);
    }

    #[test]
    fn the_largest_page_fits_at_once_and_one_of_long_texts_ends_early() {
        assert!(room(0) >= 200);
        assert_eq!((room(1024 * 1024), room(usize::MAX)), (0, 0));
    }
}
