//! A client: it owns some accounts, acts for them one call at a time, and repeats most calls until
//! their outcome is known.

use std::{collections::BTreeSet, error::Error as _, rc::Rc, time::Duration};

use anyhow::{Context as _, Result};
use microblog_local::remote;
use microblog_proto::gateway::{
    LoginRequest, ViewHomeRequest, gateway_service_client::GatewayServiceClient,
};
use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng, seq::IndexedRandom as _};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tonic::{Code, Status, metadata::MetadataMap, transport::Channel};

use super::{
    Order, Shared,
    act::Act,
    log::{Entry, Outcome},
};
use crate::{
    check::as_viewer,
    clock,
    model::{Post, Subject},
    system::WRITE_BUDGET_MS,
};

/// The password of all accounts.
pub(crate) const PASSWORD: &str = "correct horse battery";

const ACCOUNTS: usize = 4;
const ACCOUNTS_MAX: usize = 8;
const TIMEOUT: Duration = Duration::from_secs(8);
const OVERLOADED_PAUSE: Duration = Duration::from_millis(200);
/// After a failover of Redis, an older state may be read for 15 s, without the newest sessions.
const SESSION_KNOWN_MS: clock::Millis = 20_000;
/// An attempt with an unknown outcome may still run. Another change of the same subject must not
/// overtake it, so the next attempt comes after it has ended.
const REPEAT_PAUSE: Duration = Duration::from_millis(WRITE_BUDGET_MS + 500);

/// An account of the client.
struct Account {
    id: u64,
    name: String,
    session: Option<Session>,
}

/// A session, which nobody ends.
struct Session {
    token: String,
    since: clock::Millis,
}

/// A client.
pub(super) struct Client {
    number: usize,
    gateway: GatewayServiceClient<Channel>,
    rng: SmallRng,
    shared: Rc<Shared>,
    accounts: Vec<Account>,
    /// How many names and texts it has made.
    made: u64,
    /// Posts of its accounts that a call did not find.
    gone: BTreeSet<u64>,
}

impl Client {
    pub(super) fn new(number: usize, gateway: &str, seed: u64, shared: Rc<Shared>) -> Result<Self> {
        Ok(Self {
            number,
            gateway: GatewayServiceClient::new(remote::channel(gateway)?),
            rng: SmallRng::seed_from_u64(seed),
            shared,
            accounts: Vec::new(),
            made: 0,
            gone: BTreeSet::new(),
        })
    }

    /// Registers its first accounts.
    pub(super) async fn register_accounts(&mut self) -> Result<()> {
        for _ in 0..ACCOUNTS {
            self.register().await?;
        }
        Ok(())
    }

    /// Returns the ids of its accounts.
    pub(super) fn accounts(&self) -> Vec<u64> {
        self.accounts.iter().map(|account| account.id).collect()
    }

    /// Acts until it is stopped. Follows accounts of other clients too.
    pub(super) async fn run(
        mut self,
        everybody: Vec<u64>,
        orders: watch::Receiver<Order>,
    ) -> Result<()> {
        while *orders.borrow() == Order::Write {
            let few = self.accounts.len() < 2;
            if few || self.accounts.len() < ACCOUNTS_MAX && self.rng.random_ratio(1, 40) {
                self.register().await?;
            } else {
                let actor = self.rng.random_range(0..self.accounts.len());
                if self.rng.random_ratio(1, 10) {
                    self.view_home(actor).await;
                } else if let Some(act) = self.choose(actor, &everybody) {
                    self.perform(actor, act).await?;
                }
            }
        }
        Ok(())
    }

    /// Reads the home timeline of an account, so that a later post is pushed into it. The check after
    /// the fault reads what is there then.
    async fn view_home(&mut self, actor: usize) {
        let Account { id, session: Some(session), .. } = &self.accounts[actor] else { return };
        let (id, began) = (*id, clock::now());
        let Ok(request) = as_viewer(&session.token, ViewHomeRequest::default()) else { return };
        let answer = answered(self.gateway.view_home(request)).await;
        // Any answer will do.
        let _ = self.log(id, "ViewHome".to_owned(), began, answer.as_ref().err());
    }

    async fn register(&mut self) -> Result<()> {
        let name = self.unique("user").replace('-', "_");
        // A new account has no id yet.
        self.accounts.push(Account { id: 0, name: name.clone(), session: None });
        let actor = self.accounts.len() - 1;
        match self.perform(actor, Act::Register { name }).await? {
            Some(id) => self.accounts[actor].id = id,
            None => drop(self.accounts.pop()),
        }
        Ok(())
    }

    fn unique(&mut self, kind: &str) -> String {
        self.made += 1;
        format!("{kind}-{}-{}", self.number, self.made)
    }

    /// Returns a write for an account, if the choice can be made.
    fn choose(&mut self, actor: usize, everybody: &[u64]) -> Option<Act> {
        let actor = self.accounts[actor].id;
        let own = self.accounts();
        let other = own.choose(&mut self.rng).copied().filter(|id| *id != actor);
        Some(match self.rng.random_range(0..100) {
            0..4 => Act::Profile { bio: self.unique("bio") },
            4..14 => Act::Follow(other?),
            14..22 => {
                Act::Follow(everybody.choose(&mut self.rng).copied().filter(|id| *id != actor)?)
            }
            22..28 => Act::Unfollow(self.other_with(actor, |id| Subject::Follow(actor, id))?),
            28..31 => Act::Block(self.other_with(actor, |id| Subject::Follow(id, actor))?),
            31..36 => Act::Unblock(self.other_with(actor, |id| Subject::Block(actor, id))?),
            36..39 => Act::Mute(other?),
            39..43 => Act::Unmute(self.other_with(actor, |id| Subject::Mute(actor, id))?),
            43..63 => Act::Publish { text: self.unique("post") },
            63..69 => {
                let post = self.post(|post| post.root.is_none())?.1.id;
                Act::Repost { post, text: self.unique("repost") }
            }
            69..73 => {
                let (text, Post { id, .. }) = self.post(|post| post.author == actor)?;
                Act::DeletePost { post: id, text }
            }
            73..83 => Act::Like(self.post(|_| true)?.1.id),
            83..87 => Act::Unlike(self.post(|_| true)?.1.id),
            87..95 => {
                let post = self.post(|_| true)?.1.id;
                Act::Comment { post, text: self.unique("comment") }
            }
            _ => self.comment_to_delete(actor)?,
        })
    }

    /// Returns another account of its own, if possible one with this subject: so that a write ends
    /// something.
    fn other_with(&mut self, actor: u64, subject: impl Fn(u64) -> Subject) -> Option<u64> {
        let model = self.shared.model.borrow();
        let others = self.accounts.iter().map(|account| account.id).filter(|id| *id != actor);
        let (with, without): (Vec<u64>, Vec<u64>) =
            others.partition(|id| model.may_exist(&subject(*id)));
        let candidates = if with.is_empty() { without } else { with };
        candidates.choose(&mut self.rng).copied()
    }

    /// Returns a post of its accounts that exists, and its text.
    fn post(&mut self, is_suitable: impl Fn(&Post) -> bool) -> Option<(String, Post)> {
        let model = self.shared.model.borrow();
        let own = |author: u64| self.accounts.iter().any(|account| account.id == author);
        let exists = |text: &&String, post: &Post| {
            model.may_exist(&Subject::Post(post.author, (*text).clone()))
        };
        let posts = model.posts.iter().filter(|(text, post)| {
            own(post.author)
                && is_suitable(post)
                && !self.gone.contains(&post.id)
                && exists(text, post)
        });
        let posts: Vec<_> = posts.collect();
        posts.choose(&mut self.rng).map(|(text, post)| ((*text).clone(), (*post).clone()))
    }

    fn comment_to_delete(&mut self, actor: u64) -> Option<Act> {
        let (_, Post { id: post, .. }) = self.post(|post| post.author == actor)?;
        let model = self.shared.model.borrow();
        let comments = model.subjects().filter_map(|subject| match subject {
            Subject::Comment(of, text) if *of == post && model.may_exist(subject) => {
                Some((text.clone(), model.id(text)?))
            }
            _ => None,
        });
        let comments: Vec<_> = comments.collect();
        let (text, comment) = comments.choose(&mut self.rng)?.clone();
        Some(Act::DeleteComment { post, comment, text })
    }

    /// Makes a call, and repeats it until its outcome is known, or gives up: then only the servers can
    /// complete what they have begun. Returns the id of what it created, or `None` if it was rejected
    /// or is unknown.
    async fn perform(&mut self, actor: usize, act: Act) -> Result<Option<u64>> {
        let request_id = self.request_id();
        let actor_id = self.accounts[actor].id;
        let effects = act.effects(actor_id);
        let pending = self.shared.model.borrow_mut().begin(clock::now(), &effects);
        if let Act::Comment { text, .. } = &act {
            // Also of a comment whose outcome stays unknown, which may exist.
            self.shared.model.borrow_mut().commenters.insert(text.clone(), actor_id);
        }
        let mut was_unknown = false;
        loop {
            let Some(metadata) = self.credentials(actor, &act).await? else {
                // The account is lost.
                self.accounts.remove(actor);
                if !was_unknown {
                    self.shared.model.borrow_mut().reject(&pending);
                }
                return Ok(None);
            };
            match self.attempt(actor_id, &act, metadata, request_id.clone()).await {
                Ok(id) => {
                    self.check_allowed(actor_id, &act);
                    let mut model = self.shared.model.borrow_mut();
                    model.acknowledge(clock::now(), &pending);
                    if let Some(created) = act.creates() {
                        model.issue(created, id);
                    }
                    let root = if let Act::Repost { post, .. } = act { Some(post) } else { None };
                    if let Act::Publish { text } | Act::Repost { text, .. } = act {
                        model.posts.insert(text, Post { id, author: actor_id, root });
                    }
                    return Ok(Some(id));
                }
                Err(Failure::Unauthenticated) => self.lose_session(actor),
                Err(Failure::Overloaded) => sleep(OVERLOADED_PAUSE).await,
                Err(Failure::Unknown) => {
                    was_unknown = true;
                    sleep(REPEAT_PAUSE).await;
                    if self.rng.random_ratio(1, 3) {
                        return Ok(None);
                    }
                }
                Err(Failure::Rejected(code)) => {
                    self.check_rejection(code, &act);
                    if !was_unknown {
                        self.shared.model.borrow_mut().reject(&pending);
                    }
                    return Ok(None);
                }
            }
        }
    }

    /// A follow is an error if there is a block for certain.
    fn check_allowed(&self, actor: u64, act: &Act) {
        let Act::Follow(target) = *act else { return };
        let mut model = self.shared.model.borrow_mut();
        for block in [Subject::Block(actor, target), Subject::Block(target, actor)] {
            model.contradict("a follow".to_owned(), block);
        }
    }

    /// A rejection is an error if the client has sent a valid request, and what it is about is there
    /// for certain.
    fn check_rejection(&mut self, code: Code, act: &Act) {
        let what = format!("{act:?} is rejected with {code:?}");
        let mut model = self.shared.model.borrow_mut();
        match (code, act) {
            (
                Code::NotFound,
                Act::Repost { post, .. } | Act::Like(post) | Act::Comment { post, .. },
            ) => {
                self.gone.insert(*post);
                let of_post = model.posts.iter().find(|(_, known)| known.id == *post);
                let subject =
                    of_post.map(|(text, known)| Subject::Post(known.author, text.clone()));
                if let Some(subject) = subject {
                    model.contradict(what, subject);
                }
            }
            (Code::InvalidArgument | Code::Unimplemented | Code::DataLoss, _) => model.error(what),
            _ => {}
        }
    }

    /// Returns the metadata of a call of an account, or `None` if the account is unknown.
    async fn credentials(&mut self, actor: usize, act: &Act) -> Result<Option<MetadataMap>> {
        let mut metadata = MetadataMap::new();
        if matches!(act, Act::Register { .. }) {
            return Ok(Some(metadata));
        }
        while self.accounts[actor].session.is_none() {
            let account = &self.accounts[actor];
            let login = format!("{}@example.org", account.name);
            let request = LoginRequest { login, password: PASSWORD.to_owned() };
            let (began, id) = (clock::now(), account.id);
            let answer = self.gateway.login(remote::request(request, TIMEOUT)).await;
            match self.log(id, "Login".to_owned(), began, answer.as_ref().err()) {
                Ok(()) => {
                    let (token, since) = (answer?.into_inner().token, clock::now());
                    self.accounts[actor].session = Some(Session { token, since });
                }
                Err(Failure::Rejected(_) | Failure::Unauthenticated) => return Ok(None),
                Err(Failure::Overloaded | Failure::Unknown) => sleep(OVERLOADED_PAUSE).await,
            }
        }
        let session = self.accounts[actor].session.as_ref();
        let token = session.map_or("", |session| &session.token);
        let bearer = format!("Bearer {token}").parse().context("the token is not ASCII")?;
        metadata.insert("authorization", bearer);
        Ok(Some(metadata))
    }

    /// Forgets a session that was refused. Of one that is older than what may be read, it is an error.
    fn lose_session(&mut self, actor: usize) {
        let (account, now) = (&mut self.accounts[actor], clock::now());
        if account.session.take().is_some_and(|session| session.since + SESSION_KNOWN_MS < now) {
            self.shared.model.borrow_mut().refuse_session(now, account.id);
        }
    }

    async fn attempt(
        &mut self,
        actor: u64,
        act: &Act,
        metadata: MetadataMap,
        request_id: String,
    ) -> Result<u64, Failure> {
        let (call, began) = (format!("{act:?}"), clock::now());
        let answer = answered(act.clone().call(&mut self.gateway, metadata, request_id)).await;
        self.log(actor, call, began, answer.as_ref().err())?;
        Ok(answer.unwrap_or_default())
    }

    /// Logs an attempt, and classifies its outcome.
    fn log(
        &self,
        actor: u64,
        call: String,
        began: clock::Millis,
        error: Option<&Status>,
    ) -> Result<(), Failure> {
        let result = error.map_or(Ok(()), |status| Err(Failure::of(status)));
        let outcome = match (error, &result) {
            (None, _) | (_, Ok(())) => Outcome::Done,
            (Some(status), Err(Failure::Unknown)) => {
                Outcome::Unknown(remote::error_message(status))
            }
            (Some(status), Err(_)) => Outcome::Rejected(remote::error_message(status)),
        };
        let (client, ended) = (self.number, clock::now());
        self.shared.log.push(Entry { client, actor, call, began, ended, outcome });
        result
    }

    /// Returns a random UUID.
    fn request_id(&mut self) -> String {
        let bits: u128 = self.rng.random();
        let hex = format!("{bits:032x}");
        let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
        parts.join("-")
    }
}

/// Returns the answer to a call, or an error if there is none in time.
async fn answered<T>(call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    timeout(TIMEOUT, call).await.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer")))
}

/// Why an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// Without effect. The session has ended.
    Unauthenticated,
    /// Without effect, and may succeed later.
    Overloaded,
    /// Without effect.
    Rejected(Code),
    Unknown,
}

impl Failure {
    fn of(status: &Status) -> Self {
        match status.code() {
            // A broken connection, in whatever form the transport reports it.
            _ if status.source().is_some() => Self::Unknown,
            Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Cancelled
            | Code::Internal
            | Code::Aborted
            | Code::Unknown => Self::Unknown,
            Code::Unauthenticated => Self::Unauthenticated,
            Code::ResourceExhausted => Self::Overloaded,
            code => Self::Rejected(code),
        }
    }
}
