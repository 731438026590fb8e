//! Page tokens of sorted sets: the last entry of a page, within the scope of its list.

use microblog_domain::{Scope, TokenError};

use crate::{Entry, Page};

impl Entry {
    /// Reads the entry after which a page begins from a list's page token; `None` for the first
    /// page.
    pub fn from_token(scope: Scope, token: &str) -> Result<Option<Self>, TokenError> {
        let position = scope.read(token)?;
        Ok(position.map(|[score, member]| Self { score, member }))
    }
}

impl Page {
    /// Returns the token of the next page; empty where no more entries follow.
    pub fn next_token(&self, scope: Scope) -> String {
        match self.entries.last() {
            Some(last) if self.more => scope.token([last.score, last.member]),
            Some(_) | None => String::new(),
        }
    }
}
