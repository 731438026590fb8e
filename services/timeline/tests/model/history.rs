//! The history of a run: posts and the follow graph as the callers know them, and what they imply
//! for concurrent reads. Independent of the service.
//!
//! Moments are values of one counter. An operation may take effect at any time between its start
//! and its end, so an overlapping read may show either state.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use crate::support::id;

/// A value of the counter.
pub(crate) type Moment = u64;

/// In the future.
pub(crate) const NEVER: Moment = Moment::MAX;

/// The start and end of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) begin: Moment,
    pub(crate) end: Moment,
}

/// A delivered post.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Post {
    pub(crate) id: u64,
    pub(crate) author: usize,
    /// 0 for none.
    pub(crate) root: u64,
    pub(crate) has_text: bool,
    /// Its delivery.
    pub(crate) span: Span,
    /// When its fan-out was known to be complete.
    pub(crate) settled: Moment,
}

impl Post {
    /// Returns the post that it displays.
    pub(crate) fn shows(&self) -> u64 {
        if self.root == 0 { self.id } else { self.root }
    }

    pub(crate) fn is_plain_repost(&self) -> bool {
        self.root != 0 && !self.has_text
    }
}

/// The relation of one user to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Side {
    pub(crate) follows: bool,
    pub(crate) blocks: bool,
    pub(crate) mutes: bool,
}

/// The relations between two users, that of the lower number first.
pub(crate) type Pair = [Side; 2];

/// A change of the relation to another user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Follow,
    Unfollow,
    RemoveFollower,
    Block,
    Unblock,
    Mute,
    Unmute,
}

impl Action {
    /// Returns the relations after the change by the first user; `None` if it is rejected.
    fn done(self, [mut own, mut other]: Pair) -> Option<Pair> {
        match self {
            Self::Follow if own.blocks || other.blocks => return None,
            Self::Follow => own.follows = true,
            Self::Unfollow => own.follows = false,
            Self::RemoveFollower => other.follows = false,
            Self::Block => {
                own.blocks = true;
                (own.follows, other.follows) = (false, false);
            }
            Self::Unblock => own.blocks = false,
            Self::Mute => own.mutes = true,
            Self::Unmute => own.mutes = false,
        }
        Some([own, other])
    }
}

/// A change between two users, and their relations after it.
#[derive(Clone, Copy, Debug)]
struct Change {
    span: Span,
    after: Pair,
}

/// The timeline kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    User,
    Home,
    Friends,
}

/// The visibility of an author's posts during a read.
#[derive(Clone, Copy, Debug, Default)]
struct Sight {
    /// Visible at some moment.
    may: bool,
    /// Visible at every moment.
    must: bool,
    /// The newest follow, if it had ended.
    follow: Option<Span>,
}

/// What a timeline that was read in a span may show, and must show.
pub(crate) struct View {
    pub(crate) kind: Kind,
    pub(crate) owner: usize,
    pub(crate) span: Span,
    /// Whether posts are fetched from user timelines, so that they show at once.
    is_direct: bool,
    sights: Vec<Sight>,
}

impl View {
    /// Returns whether it may show a post, by author and time.
    pub(crate) fn may(&self, post: &Post) -> bool {
        self.sights[post.author].may && post.span.begin < self.span.end
    }

    /// Returns the ids of the authors whose posts are visible at every moment.
    pub(crate) fn authors(&self) -> Vec<u64> {
        let sights = self.sights.iter().enumerate();
        sights.filter(|(_, sight)| sight.must).map(|(author, _)| id(author as u64)).collect()
    }

    /// Returns whether it must show a post, before suppression of reposts.
    pub(crate) fn must(&self, post: &Post) -> bool {
        let sight = self.sights[post.author];
        let begin = self.span.begin;
        let is_at_once = self.is_direct || post.author == self.owner;
        let came_with_follow = sight.follow.is_some_and(|follow| post.span.end <= follow.begin);
        sight.must
            && (post.settled <= begin
                || is_at_once && post.span.end <= begin
                || came_with_follow && self.kind == Kind::Home)
    }
}

/// The history.
pub(crate) struct History {
    now: Moment,
    users: usize,
    is_direct: bool,
    pub(crate) posts: BTreeMap<u64, Post>,
    pairs: BTreeMap<(usize, usize), Vec<Change>>,
    busy: BTreeSet<(usize, usize)>,
    /// The start of the last completed home read of each user.
    reads: Vec<Moment>,
}

impl History {
    pub(crate) fn new(users: usize, is_direct: bool) -> Self {
        let (posts, pairs, busy) = Default::default();
        Self { now: 1, users, is_direct, posts, pairs, busy, reads: vec![0; users] }
    }

    /// Returns the next moment.
    pub(crate) fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    /// Records the start of a delivery, some posts of it repeated.
    pub(crate) fn delivery_begins(&mut self, posts: &[Post]) {
        let span = Span { begin: self.tick(), end: NEVER };
        for post in posts {
            self.posts.entry(post.id).or_insert(Post { span, ..*post });
        }
    }

    pub(crate) fn delivery_ends(&mut self, posts: &[Post]) {
        let end = self.tick();
        for post in posts {
            let post = self.posts.get_mut(&post.id).expect("it began");
            post.span.end = post.span.end.min(end);
        }
    }

    /// Records that no fan-out of these authors was pending at a moment.
    pub(crate) fn settled(&mut self, at: Moment, is_idle: impl Fn(usize) -> bool) {
        let now = self.tick();
        for post in self.posts.values_mut() {
            if post.settled == NEVER && post.span.end <= at && is_idle(post.author) {
                post.settled = now;
            }
        }
    }

    pub(crate) fn home_was_read(&mut self, user: usize, begin: Moment) {
        self.reads[user] = self.reads[user].max(begin);
    }

    /// Records a change by a user, and returns whether it is accepted; `None` if another change
    /// between the two is pending.
    pub(crate) fn action_begins(
        &mut self,
        action: Action,
        own: usize,
        other: usize,
    ) -> Option<bool> {
        if !self.busy.insert(key(own, other)) {
            return None;
        }
        let before = self.pair(own, other);
        let after = action.done(before);
        if let Some(after) = after.filter(|after| *after != before) {
            let span = Span { begin: self.tick(), end: NEVER };
            let after = turned(own, other, after);
            self.pairs.entry(key(own, other)).or_default().push(Change { span, after });
        }
        Some(after.is_some())
    }

    pub(crate) fn deed_ends(&mut self, own: usize, other: usize) {
        let end = self.tick();
        self.busy.remove(&key(own, other));
        if let Some(last) = self.pairs.get_mut(&key(own, other)).and_then(|all| all.last_mut()) {
            last.span.end = last.span.end.min(end);
        }
    }

    /// Returns the relations between two users after all changes.
    pub(crate) fn pair(&self, own: usize, other: usize) -> Pair {
        let last = self.pairs.get(&key(own, other)).and_then(|changes| changes.last());
        turned(own, other, last.map_or(Pair::default(), |change| change.after))
    }

    /// Returns what a timeline that was read in a span may and must show.
    pub(crate) fn view(&self, kind: Kind, owner: usize, span: Span) -> View {
        let sights = (0..self.users).map(|author| self.sight(kind, owner, author, span)).collect();
        let is_direct = self.is_direct || kind != Kind::Home;
        View { kind, owner, span, is_direct, sights }
    }

    /// Returns the same for a count, which may miss follows that no read has met.
    pub(crate) fn view_of_count(&self, owner: usize, span: Span) -> View {
        let mut view = self.view(Kind::Home, owner, span);
        let is_met = |follow: &Span| follow.end <= self.reads[owner];
        for sight in view.sights.iter_mut().filter(|_| !self.is_direct) {
            sight.must &= sight.follow.as_ref().is_none_or(is_met);
        }
        view
    }

    fn sight(&self, kind: Kind, owner: usize, author: usize, span: Span) -> Sight {
        if owner == author || kind == Kind::User {
            let is_own = owner == author && kind != Kind::Friends;
            return Sight { may: is_own, must: is_own, follow: None };
        }
        let first = Change { span: Span { begin: 0, end: 0 }, after: Pair::default() };
        let changes = self.pairs.get(&key(owner, author)).map_or(&[][..], |changes| changes);
        let changes: Vec<Change> = std::iter::once(first).chain(changes.iter().copied()).collect();
        let mut sight = Sight { may: false, must: true, follow: None };
        let mut was_followed = false;
        for (place, change) in changes.iter().enumerate() {
            let [own, other] = turned(owner, author, change.after);
            if own.follows && !was_followed {
                sight.follow = Some(change.span).filter(|follow| follow.end <= span.begin);
            } else if !own.follows {
                sight.follow = None;
            }
            was_followed = own.follows;
            // It may hold from the start of its change to the end of the next one.
            let until = changes.get(place + 1).map_or(NEVER, |next| next.span.end);
            if change.span.begin < span.end && until > span.begin {
                let is_near = own.follows && (kind == Kind::Home || other.follows);
                let is_seen = is_near && !own.blocks && !other.blocks && !own.mutes;
                sight.may |= is_seen;
                sight.must &= is_seen;
            }
        }
        sight
    }

    /// Describes a post and its author's relations to a reader.
    pub(crate) fn describe(&self, id: u64, reader: usize) -> String {
        let Some(post) = self.posts.get(&id) else { return format!("post {id}, unknown") };
        let mut text = format!("{post:?}");
        for Change { span, after } in
            self.pairs.get(&key(reader, post.author)).into_iter().flatten()
        {
            let [own, other] = turned(reader, post.author, *after);
            let _ = fmt::Write::write_fmt(
                &mut text,
                format_args!("\n    {span:?}: reader {own:?}, author {other:?}"),
            );
        }
        text
    }
}

fn key(own: usize, other: usize) -> (usize, usize) {
    (own.min(other), own.max(other))
}

// Converts from the lower number's side to one's own, and back.
fn turned(own: usize, other: usize, [first, second]: Pair) -> Pair {
    if own < other { [first, second] } else { [second, first] }
}
