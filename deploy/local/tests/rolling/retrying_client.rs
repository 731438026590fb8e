//! Calls to two gateways with retries: an ambiguous failure is retried with the same request id at
//! the other gateway.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    error::Error as _,
    fmt,
    rc::Rc,
    time::Duration,
};

use backon::{BackoffBuilder as _, ExponentialBuilder};
use microblog_proto::gateway::gateway_service_client::GatewayServiceClient;
use microblog_testkit::eventually;
use tokio::time::{sleep, timeout};
use tonic::{
    Code, Request, Response, Status,
    transport::{Channel, Endpoint},
};

pub(crate) type Gateway = GatewayServiceClient<Channel>;

/// One server of each service always runs, and the gateway retries by itself. A call that needs
/// more retries has failed.
const REPEATS_MAX: usize = 2;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Longer than a server's deadline.
const ANSWER: Duration = Duration::from_secs(60);
/// Timeout for progress on a slow machine.
const PROGRESS: Duration = Duration::from_secs(120);

/// A call that failed after all retries.
#[derive(Debug)]
pub(crate) struct Failed;

/// Results of the calls of all users.
#[derive(Default)]
pub(crate) struct Tally {
    answered: Cell<u64>,
    /// Number of calls by number of retries.
    repeated: RefCell<[u64; REPEATS_MAX + 1]>,
    /// Number of retries by reason.
    reasons: RefCell<BTreeMap<String, u64>>,
    failed: RefCell<Vec<String>>,
    has_ended: Cell<bool>,
}

impl Tally {
    /// Waits until this many more calls have succeeded.
    pub(crate) async fn more(&self, calls: u64) {
        let enough = self.answered.get() + calls;
        eventually("calls make progress", PROGRESS, async || {
            self.assert_none_failed();
            self.answered.get() >= enough
        })
        .await;
    }

    pub(crate) fn assert_none_failed(&self) {
        let failed = self.failed.borrow();
        assert!(failed.is_empty(), "after {self}, these calls failed: {failed:#?}");
    }

    /// Stops all simulated users.
    pub(crate) fn end(&self) {
        self.has_ended.set(true);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.get()
    }

    fn answered(&self, repeats: usize) {
        self.answered.set(self.answered.get() + 1);
        self.repeated.borrow_mut()[repeats] += 1;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} calls answered", self.answered.get())?;
        let repeated = self.repeated.borrow();
        for (repeats, calls) in repeated.iter().enumerate().skip(1).filter(|(_, c)| **c > 0) {
            write!(f, ", {calls} of them after {repeats} repeats")?;
        }
        let reasons = self.reasons.borrow();
        reasons.iter().try_for_each(|(reason, times)| write!(f, "\n  {times} times {reason}"))
    }
}

/// A client with retries.
pub(crate) struct RetryingClient {
    gateways: Vec<Gateway>,
    tally: Rc<Tally>,
}

impl RetryingClient {
    /// Returns a client with its own connections.
    pub(crate) fn new(gateways: &[String], tally: &Rc<Tally>) -> Self {
        let connect = |url: &String| Endpoint::from_shared(url.clone()).unwrap().connect_lazy();
        let gateways = gateways.iter().map(connect).map(Gateway::new).collect();
        Self { gateways, tally: tally.clone() }
    }

    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Makes an idempotent call by any of the gateways.
    pub(crate) async fn call<M: Clone, A>(
        &self,
        what: &str,
        token: &str,
        message: M,
        method: impl AsyncFn(&mut Gateway, Request<M>) -> Result<Response<A>, Status>,
    ) -> Result<A, Failed> {
        let policy = ExponentialBuilder::default().with_min_delay(FIRST_PAUSE).with_jitter();
        let mut pauses = policy.with_max_times(REPEATS_MAX).build();
        let first = rand::random_range(0..self.gateways.len());
        for repeats in 0.. {
            let mut gateway = self.gateways[(first + repeats) % self.gateways.len()].clone();
            let request = with_token(token, message.clone());
            let Ok(answer) = timeout(ANSWER, method(&mut gateway, request)).await else {
                return Err(self.fail(format!("{what}: no answer within {ANSWER:?}")));
            };
            let status = match answer {
                Ok(answer) => {
                    self.tally.answered(repeats);
                    return Ok(answer.into_inner());
                }
                Err(status) => status,
            };
            let error = format!("{:?}: {}", status.code(), status.message());
            match pauses.next().filter(|_| may_be_repeated(&status)) {
                Some(pause) => {
                    *self.tally.reasons.borrow_mut().entry(error).or_default() += 1;
                    sleep(pause).await;
                }
                None => return Err(self.fail(format!("{what}, repeated {repeats} times: {error}"))),
            }
        }
        unreachable!("the backoff is finite")
    }

    /// Records a failed call.
    pub(crate) fn fail(&self, what: String) -> Failed {
        self.tally.failed.borrow_mut().push(what);
        Failed
    }
}

/// UNAVAILABLE, or a broken connection, which tonic maps to other codes: the status then has a
/// source, since no server sent it.
fn may_be_repeated(status: &Status) -> bool {
    status.code() == Code::Unavailable || status.source().is_some()
}

fn with_token<M>(token: &str, message: M) -> Request<M> {
    let mut request = Request::new(message);
    if !token.is_empty() {
        let bearer = format!("Bearer {token}").parse().unwrap();
        request.metadata_mut().insert("authorization", bearer);
    }
    request
}
