//! A task of the model test: a series of random operations. It changes the relations of its own
//! users, posts for any user and reads any timeline.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::{
    Case, USERS,
    check::Reader,
    history::{Action, Kind, NEVER, Post, Span},
    rng::Rng,
    support,
};

/// A late post is delivered at most so many steps after it got its id.
const LATE_STEPS: usize = 4;

/// The most posts that are delivered again after a restart.
const REPEATED_MAX: usize = 200;

/// The approximate number of initial followings per user.
const FOLLOWS: usize = 8;

/// In a decline, each author with a multiple of this number loses followers.
const UNLOVED: usize = 5;

/// The approximate number of posts: fewer than the length of a home timeline.
const POSTS_MAX: usize = 750;

/// The phase: which operations are most frequent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Follows.
    Growth,
    /// Unfollows, all of the same few authors.
    Decline,
    /// Neither.
    Calm,
}

#[derive(Clone, Copy, Debug)]
enum Verb {
    Post,
    PostLate,
    Repost,
    Quote,
    Redeliver,
    Restart,
    Act(Action),
    Home,
    HomeAmidFollows,
    HomeTop,
    Friends,
    User,
    Count,
    Poll,
    Expire,
}

fn verbs(phase: Phase) -> Vec<(usize, Verb)> {
    let (follow, unfollow) = match phase {
        Phase::Growth => (30, 4),
        Phase::Decline => (6, 50),
        Phase::Calm => (6, 4),
    };
    let mut verbs = vec![
        (14, Verb::Post),
        (6, Verb::PostLate),
        (12, Verb::Repost),
        (4, Verb::Quote),
        (3, Verb::Redeliver),
        (1, Verb::Restart),
        (6, Verb::Home),
        (4, Verb::HomeAmidFollows),
        (18, Verb::HomeTop),
        (3, Verb::Friends),
        (2, Verb::User),
        (5, Verb::Count),
        (14, Verb::Poll),
        (2, Verb::Expire),
    ];
    let deeds = [
        (follow, Action::Follow),
        (unfollow, Action::Unfollow),
        (2, Action::RemoveFollower),
        (2, Action::Block),
        (3, Action::Unblock),
        (3, Action::Mute),
        (3, Action::Unmute),
    ];
    verbs.extend(deeds.map(|(weight, action)| (weight, Verb::Act(action))));
    verbs
}

/// A task.
pub(crate) struct Task {
    case: Arc<Case>,
    rng: Rng,
    users: Vec<usize>,
    /// Posts with an id that are not delivered yet, with their step.
    held: Vec<(usize, Post)>,
    /// Users who poll for new posts.
    readers: BTreeMap<usize, Reader>,
}

impl Task {
    pub(crate) fn new(case: Arc<Case>, seed: u64, number: usize, tasks: usize) -> Self {
        let rng = Rng::new(seed, number as u64);
        let users = (number..USERS).step_by(tasks).collect();
        Self { case, rng, users, held: Vec::new(), readers: BTreeMap::new() }
    }

    /// Makes the task's users follow others.
    pub(crate) async fn prepare(mut self) -> Result<Self, String> {
        for user in self.users.clone() {
            for _ in 0..FOLLOWS {
                let other = self.rng.low(USERS);
                if other != user {
                    self.case.act(Action::Follow, user, other).await?;
                }
            }
        }
        Ok(self)
    }

    /// Runs so many steps.
    pub(crate) async fn run(mut self, phase: Phase, steps: usize) -> Result<Self, String> {
        let verbs = verbs(phase);
        for step in 0..steps {
            if self.case.has_failed() {
                break;
            }
            let due: Vec<_> = self.held.extract_if(.., |(due, _)| *due <= step).collect();
            for (_, post) in due {
                self.case.deliver(&[post]).await?;
            }
            let verb = self.rng.weighed(&verbs);
            let done = self.step(phase, verb, step).await;
            done.map_err(|error| format!("{verb:?}: {error}"))?;
        }
        for (_, post) in std::mem::take(&mut self.held) {
            self.case.deliver(&[post]).await?;
        }
        Ok(self)
    }

    async fn step(&mut self, phase: Phase, verb: Verb, step: usize) -> Result<(), String> {
        let is_post = matches!(verb, Verb::Post | Verb::PostLate | Verb::Repost | Verb::Quote);
        if is_post && self.case.history().posts.len() >= POSTS_MAX {
            return Ok(());
        }
        match verb {
            Verb::Post => {
                let count = if self.rng.one_in(4) { 1 + self.rng.below(3) } else { 1 };
                let posts: Vec<_> = (0..count).map(|_| self.post(0, true)).collect();
                self.case.deliver(&posts).await
            }
            Verb::PostLate => {
                let due = step + 1 + self.rng.below(LATE_STEPS);
                let post = self.post(0, true);
                self.held.push((due, post));
                Ok(())
            }
            Verb::Repost | Verb::Quote => {
                let Some(root) = self.root() else { return Ok(()) };
                let post = self.post(root, matches!(verb, Verb::Quote));
                self.case.deliver(&[post]).await
            }
            Verb::Redeliver => match self.delivered() {
                Some(post) => self.case.deliver(&[post]).await,
                None => Ok(()),
            },
            Verb::Restart => self.restart().await,
            Verb::Act(action) => self.act(action, phase).await,
            Verb::HomeAmidFollows => self.read_amid_follows().await,
            Verb::Home | Verb::HomeTop | Verb::Friends | Verb::User => self.read(verb).await,
            Verb::Count => self.count().await,
            Verb::Poll => self.poll().await,
            Verb::Expire => {
                let user = self.rng.below(USERS);
                self.case.expire(user).await
            }
        }
    }

    fn post(&mut self, root: u64, has_text: bool) -> Post {
        let author = self.rng.low(USERS);
        let id = support::post_id(support::id(author as u64));
        let span = Span { begin: 0, end: NEVER };
        Post { id, author, root, has_text, span, settled: NEVER }
    }

    // One of the newest; newer ones are more likely.
    fn delivered(&mut self) -> Option<Post> {
        let place = self.rng.low(120);
        let history = self.case.history();
        let place = place.min(history.posts.len().checked_sub(1)?);
        history.posts.values().rev().nth(place).copied()
    }

    // As after a restart: home timelines are stale, and the last posts are delivered again, oldest first.
    async fn restart(&mut self) -> Result<(), String> {
        let marked = self.case.store.record_unpushed(Duration::ZERO).await;
        marked.map_err(|error| error.to_string())?;
        let count = self.rng.below(REPEATED_MAX);
        let last: Vec<_> = {
            let history = self.case.history();
            let newest_first = history.posts.values().rev().take(count).copied();
            newest_first.collect::<Vec<_>>().into_iter().rev().collect()
        };
        if last.is_empty() { Ok(()) } else { self.case.deliver(&last).await }
    }

    fn root(&mut self) -> Option<u64> {
        self.delivered().map(|post| post.shows())
    }

    async fn act(&mut self, action: Action, phase: Phase) -> Result<(), String> {
        let own = self.rng.of(&self.users);
        let is_fit = |other: usize| {
            let [of_own, of_other] = self.case.history().pair(own, other);
            match action {
                Action::Follow => !of_own.follows,
                Action::Unfollow if phase == Phase::Decline => {
                    of_own.follows && other.is_multiple_of(UNLOVED)
                }
                Action::Unfollow => of_own.follows,
                Action::RemoveFollower => of_other.follows,
                Action::Block => of_own.follows || of_other.follows,
                Action::Unblock => of_own.blocks,
                Action::Mute => of_own.follows && !of_own.mutes,
                Action::Unmute => of_own.mutes,
            }
        };
        // Sometimes without effect, or rejected.
        let is_any = self.rng.one_in(10);
        let others = (0..USERS).filter(|&other| other != own && (is_any || is_fit(other)));
        let others: Vec<_> = others.collect();
        if others.is_empty() {
            return Ok(());
        }
        let other = others[self.rng.low(others.len())];
        self.case.act(action, own, other).await
    }

    async fn read(&mut self, verb: Verb) -> Result<(), String> {
        let (kind, pages_max) = match verb {
            Verb::User => (Kind::User, 8),
            Verb::Friends => (Kind::Friends, 8),
            Verb::HomeTop => (Kind::Home, 1),
            _ => (Kind::Home, 12),
        };
        let owner = self.rng.below(USERS);
        let size = self.rng.of(&[1, 2, 5, 10, 20, 20, 35, 41, 60, 100, 200]);
        let (scroll, _) = self.case.scroll(kind, owner, size, pages_max, "").await?;
        scroll.check(&self.case.history(), None)
    }

    // The reader follows and unfollows during the scroll, which changes the suppressed reposts.
    async fn read_amid_follows(&mut self) -> Result<(), String> {
        let owner = self.rng.of(&self.users);
        let size = self.rng.of(&[1, 2, 5, 10]);
        let case = self.case.clone();
        let following = async {
            for _ in 0..FOLLOWS {
                let other = self.rng.low(USERS);
                let follows = case.history().pair(owner, other)[0].follows;
                let action = if follows { Action::Unfollow } else { Action::Follow };
                if other != owner {
                    case.act(action, owner, other).await?;
                }
            }
            Ok::<_, String>(())
        };
        let (scroll, followed) =
            tokio::join!(case.scroll(Kind::Home, owner, size, 40, ""), following);
        followed?;
        scroll?.0.check(&case.history(), None)
    }

    async fn count(&mut self) -> Result<(), String> {
        let owner = self.rng.of(&self.users);
        let Some(reader) = self.readers.get(&owner) else { return Ok(()) };
        let begin = self.case.tick();
        let count = self.case.count(owner, &reader.token).await?;
        let span = Span { begin, end: self.case.tick() };
        self.case.history().check_count(owner, span, reader, count)
    }

    async fn poll(&mut self) -> Result<(), String> {
        let owner = self.rng.of(&self.users);
        match self.readers.remove(&owner) {
            // Sometimes starts anew.
            Some(mut reader) if !self.rng.one_in(25) => {
                let size = self.rng.of(&[1, 3, 20, 50]);
                // Some polls stop before the last page.
                let pages_max = if self.rng.one_in(5) { 1 } else { usize::MAX };
                self.case.poll(owner, size, pages_max, &mut reader).await?;
                self.readers.insert(owner, reader);
            }
            _ => {
                let (size, pages) = self.rng.of(&[(20, 1), (50, 1), (50, 3), (200, 4)]);
                let reader = self.case.begin_polling(owner, size, pages).await?;
                self.readers.insert(owner, reader);
            }
        }
        Ok(())
    }

    /// Checks in a quiescent state that each reader gets each new post once.
    pub(crate) async fn nothing_is_left(&mut self) -> Result<(), String> {
        for (&owner, reader) in &mut self.readers {
            let count = self.case.count(owner, &reader.token).await?;
            let returned = self.case.poll(owner, 50, usize::MAX, reader).await?;
            let left = self.case.poll(owner, 50, usize::MAX, reader).await?;
            if (count, 0) != (returned, left) {
                return Err(format!(
                    "{count} new to {owner}, {returned} returned, then {left} again"
                ));
            }
        }
        Ok(())
    }
}

impl Case {
    async fn begin_polling(
        &self,
        owner: usize,
        size: usize,
        pages: usize,
    ) -> Result<Reader, String> {
        let (scroll, token) = self.scroll(Kind::Home, owner, size, pages, "").await?;
        scroll.check(&self.history(), None)?;
        let with_more = scroll.pages.iter().rfind(|page| page.has_next);
        let floor = with_more.and_then(|page| page.entries.last());
        let floor = floor.map_or(0, |entry| entry.post_id);
        Ok(Reader { token, seen: scroll.ids().into_iter().collect(), floor })
    }

    // Returns the number of new posts. A poll that stops before the last page leaves the since
    // token unchanged.
    async fn poll(
        &self,
        owner: usize,
        size: usize,
        pages_max: usize,
        reader: &mut Reader,
    ) -> Result<usize, String> {
        let (scroll, token) =
            self.scroll(Kind::Home, owner, size, pages_max, &reader.token).await?;
        scroll.check(&self.history(), Some(reader))?;
        reader.token = token;
        let ids = scroll.ids();
        let returned = ids.len();
        if scroll.pages.last().is_some_and(|page| !page.has_next) {
            reader.seen.extend(ids);
        }
        Ok(returned)
    }
}
