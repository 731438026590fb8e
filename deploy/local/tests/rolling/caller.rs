//! Calls to two gateways as any sane client makes them: what may not have been done is asked for
//! again, by the same request, at the other one.

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

/// One server of each service is there at any moment, and the gateway looks for it by itself: who
/// has to ask more often than this is not served.
const REPEATS_MAX: usize = 2;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Longer than a server may take for its answer.
const ANSWER: Duration = Duration::from_secs(60);
/// Within it others go on, however slow the machine is.
const PROGRESS: Duration = Duration::from_secs(120);

/// A call that was not answered as it should be, however often it was repeated.
#[derive(Debug)]
pub(crate) struct Failed;

/// What became of the calls of all people.
#[derive(Default)]
pub(crate) struct Tally {
    answered: Cell<u64>,
    /// How many calls took so many repeats.
    repeated: RefCell<[u64; REPEATS_MAX + 1]>,
    /// Why, and how often that was.
    reasons: RefCell<BTreeMap<String, u64>>,
    failed: RefCell<Vec<String>>,
    has_ended: Cell<bool>,
}

impl Tally {
    /// Waits until so many more calls were answered.
    pub(crate) async fn more(&self, calls: u64) {
        let enough = self.answered.get() + calls;
        eventually("calls go on", PROGRESS, async || {
            self.assert_none_failed();
            self.answered.get() >= enough
        })
        .await;
    }

    pub(crate) fn assert_none_failed(&self) {
        let failed = self.failed.borrow();
        assert!(failed.is_empty(), "after {self}, these calls failed: {failed:#?}");
    }

    /// Says that nobody needs to call any more.
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

/// Somebody who calls.
pub(crate) struct Caller {
    gateways: Vec<Gateway>,
    tally: Rc<Tally>,
}

impl Caller {
    /// Returns one with connections of their own.
    pub(crate) fn new(gateways: &[String], tally: &Rc<Tally>) -> Self {
        let connect = |url: &String| Endpoint::from_shared(url.clone()).unwrap().connect_lazy();
        let gateways = gateways.iter().map(connect).map(Gateway::new).collect();
        Self { gateways, tally: tally.clone() }
    }

    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Makes a call, which may be repeated, by any of the gateways.
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
            let said = format!("{:?}: {}", status.code(), status.message());
            match pauses.next().filter(|_| may_be_repeated(&status)) {
                Some(pause) => {
                    *self.tally.reasons.borrow_mut().entry(said).or_default() += 1;
                    sleep(pause).await;
                }
                None => return Err(self.fail(format!("{what}, repeated {repeats} times: {said}"))),
            }
        }
        unreachable!("the pauses end before the numbers do")
    }

    /// Notes a call that failed.
    pub(crate) fn fail(&self, what: String) -> Failed {
        self.tally.failed.borrow_mut().push(what);
        Failed
    }
}

/// UNAVAILABLE, or a connection that broke, which tonic tells by other codes: no server said that,
/// and so there is an error behind it.
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
