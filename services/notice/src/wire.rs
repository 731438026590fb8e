//! Conversion between wire types and domain types, with validation of requests.

use microblog_domain::{
    CommentId, Fields as _, Invalid, PageSize, PostId, Scope, TokenError, UserId,
};
use microblog_proto::notice::{self as pb, NoticeKind};

use crate::{
    error::Error,
    lists::{Found, Query},
    notice::{Act, KINDS, Notice},
    verify::Report,
};

/// A request for a page of notices.
pub(crate) struct List {
    pub(crate) user: UserId,
    pub(crate) query: Query,
    is_first: bool,
    scope: Scope,
}

impl List {
    /// Decodes a request.
    pub(crate) fn parse(request: &pb::ListNoticesRequest) -> Result<Self, Error> {
        let user = UserId::parse("user_id", request.user_id);
        let fields = (user, kinds(&request.kinds), PageSize::parse(request.page_size));
        let (user, kinds, size) = fields.all().map_err(Error::Invalid)?;
        let scope = Scope::new("ListNotices").with(user.get()).with(mask(&kinds));
        let scope = scope.with(u64::from(request.unseen));
        let below = token("page_token", scope.read(&request.page_token))?.map(|[below]| below);
        let (is_first, count, unseen) = (below.is_none(), size.get(), request.unseen);
        let query = Query { kinds, below, above: 0, count, unseen };
        Ok(Self { user, query, is_first, scope })
    }

    /// Encodes a page.
    pub(crate) fn response(&self, found: Found) -> pb::ListNoticesResponse {
        let next = found.next.map(|below| self.scope.token([below]));
        let seen_token = if self.is_first {
            seen_token(self.user, &self.query.kinds, found.top)
        } else {
            String::new()
        };
        let encoded = |notice: &Notice| encode(notice, found.seen.of(notice.subject.kind()));
        pb::ListNoticesResponse {
            notices: found.notices.iter().map(encoded).collect(),
            next_page_token: next.unwrap_or_default(),
            seen_token,
        }
    }
}

/// A request for a page of mentions.
pub(crate) struct Mentions {
    pub(crate) user: UserId,
    pub(crate) below: Option<PostId>,
    pub(crate) count: usize,
}

impl Mentions {
    /// Decodes a request.
    pub(crate) fn parse(request: &pb::ListMentionsRequest) -> Result<Self, Error> {
        let user = UserId::parse("user_id", request.user_id);
        let fields = (user, PageSize::parse(request.page_size));
        let (user, size) = fields.all().map_err(Error::Invalid)?;
        let below = token("page_token", Self::scope(user).read(&request.page_token))?;
        let below = below.and_then(|[below]: [u64; 1]| PostId::new(below));
        Ok(Self { user, below, count: size.get() })
    }

    /// Encodes a page.
    pub(crate) fn response(&self, post_ids: Vec<u64>) -> pb::ListMentionsResponse {
        let last = post_ids.last().filter(|_| post_ids.len() == self.count);
        let next = last.map(|&last| Self::scope(self.user).token([last]));
        pb::ListMentionsResponse { next_page_token: next.unwrap_or_default(), post_ids }
    }

    fn scope(user: UserId) -> Scope {
        Scope::new("ListMentions").with(user.get())
    }
}

/// Decodes the token of WatchNotices: the position of the newest act. `None` without one.
pub(crate) fn since(user: UserId, text: &str) -> Result<Option<u64>, Error> {
    match seen(user, "since_token", text)? {
        Some((kinds, _)) if kinds.len() < KINDS.len() => {
            Err(Error::Token { field: "since_token", error: TokenError::Mismatch })
        }
        seen => Ok(seen.map(|(_, position)| position)),
    }
}

/// Decodes the token of MarkSeen: the kinds, and the position of the newest act. `None` without one.
pub(crate) fn seen(
    user: UserId,
    field: &'static str,
    text: &str,
) -> Result<Option<(Vec<NoticeKind>, u64)>, Error> {
    let numbers = token(field, seen_scope(user).read(text))?;
    let of_mask = |mask: u64| {
        let is_in = |kind: &NoticeKind| mask & bit(*kind) != 0;
        KINDS.into_iter().filter(is_in).collect()
    };
    Ok(numbers.map(|[mask, position]: [u64; 2]| (of_mask(mask), position)))
}

/// Returns a token for MarkSeen.
pub(crate) fn seen_token(user: UserId, kinds: &[NoticeKind], position: u64) -> String {
    seen_scope(user).token([mask(kinds), position])
}

fn seen_scope(user: UserId) -> Scope {
    Scope::new("MarkSeen").with(user.get())
}

/// Encodes the report of a check.
pub(crate) fn report(Report { accounts, notices, violations }: Report) -> pb::VerifyResponse {
    pb::VerifyResponse {
        accounts_checked: accounts,
        notices_checked: notices,
        violations: violations.into_vec(),
    }
}

/// Encodes a notice, of which acts above a position are new.
pub(crate) fn encode(notice: &Notice, seen: u64) -> pb::Notice {
    let (post, comment) = notice.subject.ids();
    let act = |act: &Act| pb::Act {
        actor_id: act.actor.get(),
        is_new: act.position > seen,
        since: Some(act.version.time().into()),
    };
    pb::Notice {
        kind: notice.subject.kind().into(),
        acts: notice.acts.iter().map(act).collect(),
        earlier: notice.earlier,
        post_id: post.map_or(0, PostId::get),
        comment_id: comment.map_or(0, CommentId::get),
    }
}

/// Decodes the field `kinds`: empty for all.
fn kinds(numbers: &[i32]) -> Result<Vec<NoticeKind>, Invalid> {
    if numbers.len() > KINDS.len() {
        let problem = format!("must have at most {} items, has {}", KINDS.len(), numbers.len());
        return Err(Invalid::new("kinds", problem));
    }
    let is_unknown = |number: &i32| KINDS.iter().all(|kind| i32::from(*kind) != *number);
    if let Some(index) = numbers.iter().position(is_unknown) {
        return Err(Invalid::new(format!("kinds[{index}]"), "is not a kind of notices"));
    }
    let is_asked = |kind: &NoticeKind| numbers.is_empty() || numbers.contains(&i32::from(*kind));
    Ok(KINDS.into_iter().filter(is_asked).collect())
}

fn mask(kinds: &[NoticeKind]) -> u64 {
    kinds.iter().map(|&kind| bit(kind)).sum()
}

fn bit(kind: NoticeKind) -> u64 {
    1 << (kind as u64)
}

fn token<T>(field: &'static str, read: Result<T, TokenError>) -> Result<T, Error> {
    read.map_err(|error| Error::Token { field, error })
}
