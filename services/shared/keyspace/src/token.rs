//! Page tokens of sorted sets: encode the last entry of a page, in the scope of its list.

use microblog_domain::{Scope, TokenError};

use crate::{Entry, Page};

impl Entry {
    /// Returns the token of the page after this entry.
    pub fn token(self, scope: Scope) -> String {
        scope.token([self.score, self.member])
    }

    /// Decodes a page token into the entry before the page; `None` for the first page.
    pub fn from_token(scope: Scope, token: &str) -> Result<Option<Self>, TokenError> {
        let position = scope.read(token)?;
        Ok(position.map(|[score, member]| Self { score, member }))
    }
}

impl Page {
    /// Returns the token of the next page; empty on the last page.
    pub fn next_token(&self, scope: Scope) -> String {
        match self.entries.last() {
            Some(last) if self.more => last.token(scope),
            Some(_) | None => String::new(),
        }
    }
}
