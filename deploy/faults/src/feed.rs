//! A reader of the change feed beside the load. It stops and continues at its cursor at random, as if
//! it had been killed, and takes a snapshot when it has none or when it has expired.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    time::Duration,
};

use anyhow::{Result, anyhow};
use microblog_local::remote;
use microblog_proto::{
    common::{Change, ChangeKind},
    gateway::{SnapshotRequest, WatchRequest, change_service_client::ChangeServiceClient},
};
use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng};
use tokio::{
    task::{JoinHandle, spawn_local},
    time::{sleep, timeout},
};
use tonic::{Request, Status, transport::Channel};

/// The file of service callers of each gateway, with the hash of `secret`.
pub(crate) const CALLERS: &str = r#"{"callers": [{"name": "faults",
    "secrets_sha256": ["2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"],
    "methods": ["ChangeService.Watch", "ChangeService.Snapshot"], "private_changes": true}]}"#;

const RETRY: Duration = Duration::from_millis(200);
/// Longer than the time between two messages.
const MESSAGE: Duration = Duration::from_secs(15);
/// The most messages that the reader takes of a stream before it stops.
const MESSAGES: u32 = 12;

/// What a reader knows, in lines like those of the record without texts, each with its account or author.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known(BTreeMap<String, u64>);

/// A running reader. Dropping it stops it.
pub(crate) struct FeedReader {
    state: Rc<RefCell<State>>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    known: Known,
    cursor: Option<String>,
    /// Streams that failed, and cursors that had expired.
    failures: usize,
    expiries: usize,
}

impl State {
    fn note(&mut self, failure: &Status) {
        if remote::reason(failure) == "CURSOR_EXPIRED" {
            (self.cursor, self.expiries) = (None, self.expiries + 1);
        } else {
            self.failures += 1;
        }
    }
}

impl FeedReader {
    /// Starts a reader.
    pub(crate) fn start(gateways: &[&str], seed: u64) -> Result<Self> {
        let clients: Vec<_> = gateways.iter().map(|url| client(url)).collect::<Result<_>>()?;
        let state = Rc::new(RefCell::new(State::default()));
        let task = spawn_local(run(clients, state.clone(), SmallRng::seed_from_u64(seed)));
        Ok(Self { state, task })
    }

    /// Returns what the reader knows; `None` while it needs a snapshot.
    pub(crate) fn known(&self) -> Option<Known> {
        let state = self.state.borrow();
        state.cursor.is_some().then(|| state.known.clone())
    }

    /// Returns how many streams have failed, and how many cursors had expired.
    pub(crate) fn failures(&self) -> (usize, usize) {
        let state = self.state.borrow();
        (state.failures, state.expiries)
    }
}

impl Drop for FeedReader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

type Client = ChangeServiceClient<Channel>;

fn client(gateway: &str) -> Result<Client> {
    Ok(ChangeServiceClient::new(remote::channel(gateway)?))
}

/// Returns what a snapshot of a gateway has.
pub(crate) async fn snapshot(gateway: &str) -> Result<Known> {
    let taken = take_snapshot(&client(gateway)?).await;
    let (known, _) = taken.map_err(|status| anyhow!(remote::error_message(&status)))?;
    Ok(known)
}

async fn run(clients: Vec<Client>, state: Rc<RefCell<State>>, mut random: SmallRng) {
    loop {
        let client = &clients[random.random_range(0..clients.len())];
        let messages = random.random_range(1..=MESSAGES);
        let cursor = state.borrow().cursor.clone();
        let done = match cursor {
            Some(cursor) => watch(client, cursor, messages, &state).await,
            None => take_snapshot(client).await.map(|(known, cursor)| {
                let mut state = state.borrow_mut();
                (state.known, state.cursor) = (known, Some(cursor));
            }),
        };
        if let Err(status) = done {
            state.borrow_mut().note(&status);
            sleep(RETRY).await;
        }
    }
}

async fn watch(
    client: &Client,
    cursor: String,
    messages: u32,
    state: &RefCell<State>,
) -> Result<(), Status> {
    let request = WatchRequest { kinds: Vec::new(), cursor };
    let stream = in_time(client.clone().watch(by_caller(request)?)).await?;
    let mut stream = stream.into_inner();
    for _ in 0..messages {
        let message = in_time(stream.message()).await?;
        let message = message.ok_or_else(|| Status::unavailable("the stream has ended"))?;
        let mut state = state.borrow_mut();
        message.changes.iter().for_each(|change| state.known.apply(change));
        state.cursor = Some(message.cursor);
    }
    Ok(())
}

async fn take_snapshot(client: &Client) -> Result<(Known, String), Status> {
    let request = by_caller(SnapshotRequest::default())?;
    let mut stream = in_time(client.clone().snapshot(request)).await?.into_inner();
    let (mut known, mut cursor) = (Known::default(), String::new());
    while let Some(message) = in_time(stream.message()).await? {
        message.changes.iter().for_each(|change| known.apply(change));
        cursor = message.cursor;
    }
    if cursor.is_empty() {
        return Err(Status::unavailable("the snapshot has ended without its cursor"));
    }
    Ok((known, cursor))
}

async fn in_time<T>(call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    timeout(MESSAGE, call).await.unwrap_or_else(|_| Err(Status::deadline_exceeded("no message")))
}

fn by_caller<T>(message: T) -> Result<Request<T>, Status> {
    let mut request = Request::new(message);
    let caller = "Caller faults:secret".parse();
    let caller = caller.map_err(|_| Status::internal("the caller is not ASCII"))?;
    request.metadata_mut().insert("authorization", caller);
    Ok(request)
}

impl Known {
    fn apply(&mut self, change: &Change) {
        let Change { user_id, target_id, post_id, comment_id, .. } = change;
        let kind = change.kind();
        let line = match kind {
            ChangeKind::Account => format!("account {user_id}"),
            ChangeKind::Follow => format!("edge follow {user_id} {target_id}"),
            ChangeKind::Block => format!("edge block {user_id} {target_id}"),
            ChangeKind::Mute => format!("edge mute {user_id} {target_id}"),
            ChangeKind::Post => format!("post {post_id}"),
            ChangeKind::Comment => format!("comment {post_id} {comment_id}"),
            ChangeKind::Like => format!("like {post_id} {user_id}"),
            ChangeKind::Repost | ChangeKind::Unspecified => return,
        };
        if !change.ended {
            self.0.insert(line, *user_id);
            return;
        }
        if kind == ChangeKind::Post {
            let [comments, likes] = ["comment", "like"].map(|part| format!("{part} {post_id} "));
            self.0.retain(|line, _| !line.starts_with(&comments) && !line.starts_with(&likes));
        }
        self.0.remove(&line);
    }

    /// Returns the lines that the gateway would show: nothing of accounts that are lost.
    pub(crate) fn shown(&self) -> BTreeSet<String> {
        let is_account = |id: &str| self.0.contains_key(&format!("account {id}"));
        let is_post = |id: &str| {
            let author = self.0.get(&format!("post {id}"));
            author.is_some_and(|author| is_account(&author.to_string()))
        };
        let is_shown = |(line, user): &(&String, &u64)| {
            let words: Vec<_> = line.split(' ').collect();
            is_account(&user.to_string())
                && match words[..] {
                    ["edge", _, _, target] => is_account(target),
                    ["like" | "comment", post, _] => is_post(post),
                    _ => true,
                }
        };
        self.0.iter().filter(is_shown).map(|(line, _)| line.clone()).collect()
    }
}

/// Returns lines of the record without what the feed does not have: authors, roots and texts.
pub(crate) fn without_texts(record: &BTreeSet<String>) -> BTreeSet<String> {
    let ids = |line: &String| {
        let count = match line.split(' ').next() {
            Some("account" | "post") => 2,
            Some("edge") => 4,
            _ => 3,
        };
        line.split(' ').take(count).collect::<Vec<_>>().join(" ")
    };
    record.iter().map(ids).collect()
}
