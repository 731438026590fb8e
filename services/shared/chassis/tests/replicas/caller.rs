//! Clients of the replicas.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use futures::StreamExt as _;
use microblog_chassis::{Config, Peer};
use microblog_proto::user::{
    GetUserByNameRequest, GetUserRequest, LoginRequest, UpdateProfileRequest, VerifyRequest,
    VerifyResponse, user_service_client::UserServiceClient,
};
use tokio::task::JoinHandle;
use tonic::{Request, Status, Streaming};

use crate::{replica::FakeResolver, support::config};

/// The methods of the tests, by idempotency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `GetUserByName`.
    Read,
    /// `UpdateProfile`.
    Write,
    /// `Login`.
    NotIdempotent,
    /// `GetUser`, idempotent as a read: it responds with its message before the handler's work.
    StreamedRead,
}

pub(crate) const READ: &str = "GetUserByName";
pub(crate) const WRITE: &str = "UpdateProfile";
pub(crate) const NOT_IDEMPOTENT: &str = "Login";

/// The default flags, with frequent DNS refreshes.
pub(crate) fn frequent_refresh() -> Config {
    Config { peer_refresh_ms: 20, ..config() }
}

/// Returns a peer at a host name.
pub(crate) fn peer_at(hosts: &FakeResolver, config: &Config) -> Peer {
    Peer::resolved_by(Arc::new(hosts.clone()), "http://peer:1", config).unwrap()
}

/// Makes a call with a unique mark in its metadata, and returns the mark.
pub(crate) async fn call(peer: &Peer, kind: Kind) -> Result<String, (String, Status)> {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let mark = CALLS.fetch_add(1, SeqCst).to_string();
    let mut client = UserServiceClient::new(peer.clone());
    let failed = |status| (mark.clone(), status);
    match kind {
        Kind::Read => {
            client.get_user_by_name(marked(GetUserByNameRequest::default(), &mark)).await.err()
        }
        Kind::Write => {
            client.update_profile(marked(UpdateProfileRequest::default(), &mark)).await.err()
        }
        Kind::StreamedRead => client.get_user(marked(GetUserRequest::default(), &mark)).await.err(),
        Kind::NotIdempotent => client.login(marked(LoginRequest::default(), &mark)).await.err(),
    }
    .map_or_else(|| Ok(mark.clone()), |status| Err(failed(status)))
}

fn marked<T>(message: T, mark: &str) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("call", mark.parse().unwrap());
    request
}

/// Opens a stream, and returns it after its first message.
pub(crate) async fn watch(peer: &Peer) -> Result<Streaming<VerifyResponse>, Status> {
    let mut client = UserServiceClient::new(peer.clone());
    let mut stream = client.verify(marked(VerifyRequest::default(), "stream")).await?.into_inner();
    stream.next().await.unwrap()?;
    Ok(stream)
}

/// A load generator with concurrent callers.
pub(crate) struct Load {
    ends: Arc<AtomicBool>,
    made: Arc<AtomicUsize>,
    callers: Vec<JoinHandle<Vec<(String, Status)>>>,
}

impl Load {
    /// Starts that many callers for each method.
    pub(crate) fn start(peer: &Peer, kinds: &[Kind], callers: usize) -> Self {
        let (ends, made) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let callers = kinds.iter().flat_map(|kind| std::iter::repeat_n(*kind, callers));
        let callers = callers.map(|kind| {
            let (peer, ends, made) = (peer.clone(), ends.clone(), made.clone());
            tokio::spawn(async move {
                let mut failures = Vec::new();
                while !ends.load(SeqCst) {
                    failures.extend(call(&peer, kind).await.err());
                    made.fetch_add(1, SeqCst);
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                failures
            })
        });
        Self { callers: callers.collect(), ends, made }
    }

    /// Returns the number of completed calls.
    pub(crate) fn made(&self) -> usize {
        self.made.load(SeqCst)
    }

    /// Stops the callers, and returns the failed calls.
    pub(crate) async fn end(self) -> Vec<(String, Status)> {
        self.ends.store(true, SeqCst);
        let failures = futures::future::join_all(self.callers).await;
        failures.into_iter().flat_map(Result::unwrap).collect()
    }
}
