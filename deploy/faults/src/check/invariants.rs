//! The invariants, which compare what is stored with the model, and with itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
};

use microblog_proto::{gateway::RootState, notice::NoticeKind};

use super::{
    read_back::{Account, Post, World},
    record,
};
use crate::model::{Loss, Model, State, Subject, present};

/// Up to how many acts the count of a notice is exact.
const EXACT: u64 = 20;

/// What a comparison has found.
#[derive(Default)]
pub(super) struct Findings {
    pub(super) comparisons: usize,
    pub(super) lost: usize,
    pub(super) violations: Vec<String>,
}

impl Findings {
    /// Checks all invariants.
    pub(super) fn of(
        model: &Model,
        world: &World,
        recorded: Option<&BTreeSet<String>>,
        losses: &[Loss],
        with_notices: bool,
    ) -> Self {
        let mut findings = Self { violations: model.anomalies(losses), ..Self::default() };
        findings.equal("ids that were issued twice", &model.repeated_ids(), &Vec::new());
        let stored = Stored::of(world);
        for subject in model.subjects() {
            if stored.has_parties(model, subject) {
                let state = stored.states.get(subject).cloned();
                findings.state(model, subject, state, losses);
            }
        }
        findings.unexpected(model, &stored);
        findings.exactly_once(model, world);
        findings.readable(model, world, &stored);
        if let Some(recorded) = recorded {
            findings.recorded(recorded, &record::shown(world));
        }
        for account in world.accounts.values() {
            if with_notices {
                findings.notices(model, account, world);
            }
            findings.lists(model, account, world);
            findings.home(account, world);
        }
        findings
    }

    fn equal<T: PartialEq + Debug>(&mut self, what: &str, found: &T, expected: &T) {
        self.comparisons += 1;
        if found != expected {
            self.violations.push(format!("{what}: {found:?} in place of {expected:?}"));
        }
    }

    /// Every acknowledged change is there, and none that was rejected, deleted or ended.
    fn state(&mut self, model: &Model, subject: &Subject, state: State, losses: &[Loss]) {
        self.comparisons += 1;
        let possible = model.possible(subject, losses);
        if !possible.contains(&state) {
            let text = format!("{subject:?} is {state:?}, and may only be {possible:?}");
            self.violations.push(text);
        } else if !model.possible(subject, &[]).contains(&state) {
            self.lost += 1;
        }
    }

    /// Nothing is stored that no client has written.
    fn unexpected(&mut self, model: &Model, stored: &Stored<'_>) {
        let known: BTreeSet<&Subject> = model.subjects().collect();
        for subject in stored.states.keys() {
            if !known.contains(subject) {
                self.violations.push(format!("no client has written {subject:?}"));
            }
        }
    }

    /// Each text is stored once, with the id that the call returned.
    fn exactly_once(&mut self, model: &Model, world: &World) {
        let mut found: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for (name, account) in &world.accounts {
            found.entry(name).or_default().push(account.id);
            for post in &account.posts {
                found.entry(&post.text).or_default().push(post.id);
                for (id, text) in &post.comments {
                    found.entry(text).or_default().push(*id);
                }
            }
        }
        let mut owners: BTreeMap<u64, &str> = model.issued().collect();
        for (what, ids) in found {
            let expected = model.id(what).unwrap_or(ids[0]);
            self.equal(&format!("the ids of `{what}`"), &ids, &vec![expected]);
            let owner = *owners.entry(expected).or_insert(what);
            self.equal(&format!("the owner of the id {expected}"), &what, &owner);
        }
    }

    /// A post can be read by its id as long as its author's timeline has it, and not any more.
    fn readable(&mut self, model: &Model, world: &World, stored: &Stored<'_>) {
        for (text, post) in &model.posts {
            let (found, expected) =
                (world.readable.contains(&post.id), stored.posts.contains_key(&post.id));
            self.equal(&format!("whether `{text}` can be read by its id"), &found, &expected);
        }
        for post in stored.posts.values().filter(|post| post.root_id != 0) {
            let root = stored.posts.contains_key(&post.root_id);
            let state = if root { RootState::Shown } else { RootState::Deleted };
            self.equal(&format!("the state of the root of {}", post.id), &post.root_state, &state);
        }
    }

    /// The database has what is shown, and no more.
    fn recorded(&mut self, recorded: &BTreeSet<String>, shown: &BTreeSet<String>) {
        self.comparisons += recorded.len();
        let missing = shown.difference(recorded).map(|it| format!("the database lacks `{it}`"));
        let others = recorded.difference(shown).map(|it| format!("only the database has `{it}`"));
        self.violations.extend(missing.chain(others));
    }

    /// The change feed leads to what is shown.
    pub(super) fn fed(&mut self, what: &str, known: &BTreeSet<String>, shown: &BTreeSet<String>) {
        self.comparisons += shown.len();
        let missing = shown.difference(known).map(|it| format!("{what} lacks `{it}`"));
        let others = known.difference(shown).map(|it| format!("only {what} has `{it}`"));
        self.violations.extend(missing.chain(others));
    }

    /// Both sides of edges agree, and counts equal lists.
    fn lists(&mut self, model: &Model, account: &Account, world: &World) {
        let id = account.id;
        let exists = |id: &u64| world.accounts.values().any(|account| account.id == *id);
        let with = |lists: fn(&Account) -> &Vec<u64>| {
            let others = world.accounts.values().filter(|other| lists(other).contains(&id));
            others.map(|other| other.id).collect::<BTreeSet<_>>()
        };
        let set = |list: &[u64]| list.iter().copied().collect::<BTreeSet<_>>();
        let (following, followers) = (set(&account.following), set(&account.followers));
        self.equal(&format!("followers of {id}"), &followers, &with(|other| &other.following));
        self.equal(&format!("following of {id}"), &following, &with(|other| &other.followers));
        let mutuals = following.intersection(&followers).count() as u64;
        // Entries of lost accounts count, and are not listed.
        let counted = |count: u64, shown: usize, party: &dyn Fn(&Subject) -> Option<u64>| {
            let is_lost = |subject: &&Subject| party(subject).is_some_and(|id| !exists(&id));
            let (lost, shown) = (model.subjects().filter(is_lost).count() as u64, shown as u64);
            count.clamp(shown, shown + lost)
        };
        let counts = &account.counts;
        let followed = |subject: &Subject| match subject {
            Subject::Follow(from, to) if *from == id => Some(*to),
            _ => None,
        };
        let follower = |subject: &Subject| match subject {
            Subject::Follow(from, to) if *to == id => Some(*from),
            _ => None,
        };
        self.equal(
            &format!("counts of following, followers, mutuals and posts of {id}"),
            &[counts.following, counts.followers, counts.mutuals, account.post_count],
            &[
                counted(counts.following, account.following.len(), &followed),
                counted(counts.followers, account.followers.len(), &follower),
                mutuals,
                account.posts.len() as u64,
            ],
        );
        for blocked in &account.blocks {
            let edge = following.contains(blocked) || followers.contains(blocked);
            self.equal(&format!("a follow between {id} and {blocked}, blocked"), &edge, &false);
        }
        for post in &account.posts {
            let reposts = world.accounts.values().flat_map(|other| &other.posts);
            let reposts = reposts.filter(|other| other.root_id == post.id).count();
            let liker = |subject: &Subject| match subject {
                Subject::Like(user, of) if *of == post.id => Some(*user),
                _ => None,
            };
            let is_repost =
                |text: &str| model.posts.get(text).is_some_and(|it| it.root == Some(post.id));
            let reposter = |subject: &Subject| match subject {
                Subject::Post(author, text) if is_repost(text) => Some(*author),
                _ => None,
            };
            let commenter = |subject: &Subject| match subject {
                Subject::Comment(of, text) if *of == post.id => model.commenters.get(text).copied(),
                _ => None,
            };
            self.equal(
                &format!("counts of likes, comments and reposts of {}", post.id),
                &[post.likes, post.comment_count, post.reposts],
                &[
                    counted(post.likes, post.likers.len(), &liker),
                    counted(post.comment_count, post.comments.len(), &commenter),
                    counted(post.reposts, reposts, &reposter),
                ],
            );
            let likers = set(&post.likers).len();
            self.equal(&format!("distinct likers of {}", post.id), &likers, &post.likers.len());
        }
    }

    /// The account has notices of what visible accounts did, and no others. All of them are unread.
    fn notices(&mut self, model: &Model, account: &Account, world: &World) {
        let hidden = hidden_from(account, world);
        let is_visible = |id: &u64| *id != account.id && !hidden.contains(id);
        let mut expected = BTreeMap::new();
        let mut add = |kind: NoticeKind, post: u64, comment: u64, acts: usize| {
            if acts > 0 {
                expected.insert((kind as i32, post, comment), acts as u64);
            }
        };
        let followers = account.followers.iter().filter(|id| is_visible(id)).count();
        add(NoticeKind::Follow, 0, 0, followers);
        for post in &account.posts {
            let likers = post.likers.iter().filter(|id| is_visible(id)).count();
            add(NoticeKind::Like, post.id, 0, likers);
            let reposts =
                all_posts(world).filter(|(by, of)| of.root_id == post.id && is_visible(by));
            // A repost has reposts of its own, which are not told apart here.
            add(
                NoticeKind::Repost,
                post.id,
                0,
                if post.root_id == 0 { reposts.count() } else { 0 },
            );
            for (id, text) in &post.comments {
                let is_shown = model.commenters.get(text).is_some_and(is_visible);
                add(NoticeKind::Comment, post.id, *id, usize::from(is_shown));
            }
        }
        let is_repost =
            |id: u64| account.posts.iter().any(|post| post.id == id && post.root_id != 0);
        let mut found: BTreeMap<_, u64> = BTreeMap::new();
        for notice in &account.notices {
            let post = notice.post.as_ref().and_then(|viewed| viewed.post.as_ref());
            let post = post.map_or(0, |post| post.id);
            let comment = notice.comment.as_ref().and_then(|viewed| viewed.comment.as_ref());
            // Which of two follows came first does not matter here, nor does the day.
            let kind = match notice.kind() {
                NoticeKind::Mutual => NoticeKind::Follow,
                kind => kind,
            };
            if kind != NoticeKind::Repost || !is_repost(post) {
                let subject = (kind as i32, post, comment.map_or(0, |comment| comment.id));
                *found.entry(subject).or_default() += notice.count;
            }
        }
        // Of follows beyond the newest 20, also ended ones are counted.
        let follows = (NoticeKind::Follow as i32, 0, 0);
        if let (Some(found), Some(expected)) = (found.get_mut(&follows), expected.get(&follows)) {
            *found = (*found).min(*expected);
        }
        // Beyond the newest 20 acts, a count is not exact.
        let cap = |counts: &mut BTreeMap<_, u64>| {
            counts.values_mut().for_each(|count| *count = (*count).min(EXACT));
        };
        cap(&mut found);
        cap(&mut expected);
        self.equal(&format!("the notices of {}", account.id), &found, &expected);
        let unread = account.notices.len() as u64;
        self.equal(&format!("the unread notices of {}", account.id), &account.unread, &unread);
    }

    /// The home timeline has each post of the account and of those it follows once, and no other.
    fn home(&mut self, account: &Account, world: &World) {
        let hidden = hidden_from(account, world);
        let shown: BTreeSet<u64> = account.following.iter().copied().chain([account.id]).collect();
        let authors: BTreeMap<u64, u64> =
            all_posts(world).map(|(author, post)| (post.id, author)).collect();
        // A post of a hidden author may hide its reposts.
        let is_certain = |post: &Post| {
            post.root_id == 0 || authors.get(&post.root_id).is_some_and(|it| !hidden.contains(it))
        };
        let of_shown = all_posts(world)
            .filter(|(author, _)| shown.contains(author) && !hidden.contains(author));
        let (certain, others): (Vec<_>, Vec<_>) = of_shown.partition(|(_, post)| is_certain(post));
        let id = |(_, post): (u64, &Post)| post.id;
        let others: BTreeSet<u64> = others.into_iter().map(id).collect();
        let mut expected: Vec<u64> = certain.into_iter().map(id).collect();
        let mut found: Vec<u64> =
            account.home.iter().copied().filter(|id| !others.contains(id)).collect();
        expected.sort_unstable();
        found.sort_unstable();
        self.equal(&format!("the home timeline of {}", account.id), &found, &expected);
    }
}

/// Returns the accounts whose posts and acts an account does not see.
fn hidden_from(account: &Account, world: &World) -> BTreeSet<u64> {
    let others = world.accounts.values();
    let blocked_by = others.filter(|other| other.blocks.contains(&account.id)).map(|it| it.id);
    account.blocks.iter().chain(&account.mutes).copied().chain(blocked_by).collect()
}

fn all_posts(world: &World) -> impl Iterator<Item = (u64, &Post)> {
    world.accounts.values().flat_map(|account| account.posts.iter().map(|post| (account.id, post)))
}

/// What is stored, by subject.
struct Stored<'a> {
    states: BTreeMap<Subject, String>,
    accounts: BTreeSet<u64>,
    posts: BTreeMap<u64, &'a Post>,
}

impl<'a> Stored<'a> {
    fn of(world: &'a World) -> Self {
        let mut states = BTreeMap::new();
        let mut add = |subject, state: State| {
            if let Some(state) = state {
                states.insert(subject, state);
            }
        };
        for (name, account) in &world.accounts {
            let id = account.id;
            add(Subject::Account(name.clone()), present());
            add(Subject::Profile(id), Some(account.bio.clone()).filter(|bio| !bio.is_empty()));
            account.following.iter().for_each(|it| add(Subject::Follow(id, *it), present()));
            account.blocks.iter().for_each(|it| add(Subject::Block(id, *it), present()));
            account.mutes.iter().for_each(|it| add(Subject::Mute(id, *it), present()));
            for post in &account.posts {
                add(Subject::Post(id, post.text.clone()), present());
                post.likers.iter().for_each(|it| add(Subject::Like(*it, post.id), present()));
                for (_, text) in &post.comments {
                    add(Subject::Comment(post.id, text.clone()), present());
                }
            }
        }
        let accounts = world.accounts.values().map(|account| account.id).collect();
        let posts = all_posts(world).map(|(_, post)| (post.id, post)).collect();
        Self { states, accounts, posts }
    }

    /// Returns whether the accounts and the post of a subject exist: without them, it does not.
    fn has_parties(&self, model: &Model, subject: &Subject) -> bool {
        let has = |id: &u64| self.accounts.contains(id);
        match subject {
            Subject::Account(_) => true,
            Subject::Profile(id) | Subject::Post(id, _) => has(id),
            Subject::Follow(a, b) | Subject::Block(a, b) | Subject::Mute(a, b) => has(a) && has(b),
            Subject::Like(user, post) => has(user) && self.posts.contains_key(post),
            Subject::Comment(post, text) => {
                model.commenters.get(text).is_none_or(has) && self.posts.contains_key(post)
            }
        }
    }
}
