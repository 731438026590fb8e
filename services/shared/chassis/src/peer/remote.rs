//! A peer on the network: each call goes to one of its addresses, and, where that does no harm, to
//! another one when the first did not answer.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use http::{Request, Response};
use tokio::time::{Instant, timeout_at};
use tonic::{Status, body::Body};
use tower::retry::budget::{Budget as _, TpsBudget};

use super::{
    body::Answer,
    failure::{Failure, Kind, describe},
    metrics::{Outcome, Why},
    outage::Outage,
    outgoing::Outgoing,
    pool::Pool,
};
use crate::{
    methods::{Method, Repeat},
    status,
};

// Of all calls in that time, and in any case so many a second: where all that a peer answers is
// UNAVAILABLE, calls that are made again would be what keeps it from coming back.
const BUDGET_TIME: Duration = Duration::from_secs(10);
const BUDGET_SHARE: f32 = 0.1;
const BUDGET_FLOOR: u32 = 10;
// What nobody has seen is sent again as often as that: once for each connection that a server ends
// when it stops, and for several servers at once.
const UNSEEN_MAX: u32 = 16;

/// A peer on the network, in one worker.
#[derive(Debug)]
pub(super) struct Remote {
    pool: Arc<Pool>,
    budget: TpsBudget,
    outage: Outage,
}

impl Remote {
    pub(super) fn new(pool: Arc<Pool>, outage: Outage) -> Self {
        let budget = TpsBudget::new(BUDGET_TIME, BUDGET_FLOOR, BUDGET_SHARE);
        Self { pool, budget, outage }
    }

    /// Returns what one of the peer's servers answers.
    pub(super) async fn call(
        self: Arc<Self>,
        request: Request<Body>,
        method: &'static Method,
        deadline: Option<Instant>,
    ) -> Result<Response<Body>, Status> {
        let answer = self.ask(Outgoing::new(request), method, deadline);
        match deadline {
            Some(deadline) => {
                let late = |_elapsed| Err(status::deadline_exceeded());
                timeout_at(deadline, answer).await.unwrap_or_else(late)
            }
            None => answer.await,
        }
    }

    async fn ask(
        &self,
        mut request: Outgoing,
        method: &'static Method,
        deadline: Option<Instant>,
    ) -> Result<Response<Body>, Status> {
        self.budget.deposit();
        let mut tries = Tries::default();
        let answer = loop {
            let answer = self.attempt(&mut request, method, deadline, &mut tries.last).await;
            if !(request.is_there() && self.goes_on(&answer, method, &mut tries)) {
                break answer;
            }
        };
        if let Some(why) = tries.why {
            let is_answered = answer.as_ref().is_ok_and(|answer| !answer.is_unavailable());
            let outcome = if is_answered { Outcome::Answered } else { Outcome::Failed };
            self.pool.metrics().retried(method, why, outcome);
        }
        match answer {
            Ok(answer) => {
                self.outage.answered();
                Ok(answer.into_response(deadline))
            }
            Err(failure) => {
                self.outage.failed(&method.path, &failure.cause);
                Err(status::peer_unavailable())
            }
        }
    }

    /// Sends a request to an address, another one than the last if there is one.
    async fn attempt(
        &self,
        request: &mut Outgoing,
        method: &'static Method,
        deadline: Option<Instant>,
        last: &mut Option<SocketAddr>,
    ) -> Result<Answer, Failure> {
        let place = self.pool.place(*last).await;
        let mut place = place.ok_or_else(|| Failure::away(self.pool.cause()))?;
        *last = Some(place.endpoint().address);
        if method.streaming {
            // Boxed: not part of the calls that do without.
            let other = Box::pin(place.for_stream()).await;
            place = other.map_err(|error| Failure::unsent(describe(&error)))?;
        }
        let sent = request.attempt(&place.endpoint().origin, deadline);
        let sent = sent.ok_or_else(|| Failure::away(String::new()))?;
        match place.connection().send(sent).await {
            Ok(response) if method.streaming => Ok(Answer::stream(response, place)),
            Ok(response) => Answer::whole(response, place).await,
            Err(mut error) => {
                let failure = Failure::of_request(&error);
                place.settle(&failure);
                if let Some(unseen) = error.take_message() {
                    request.take_back(unseen);
                }
                Err(failure)
            }
        }
    }

    /// Returns whether a call is made once more, and notes it.
    fn goes_on(
        &self,
        answer: &Result<Answer, Failure>,
        method: &'static Method,
        tries: &mut Tries,
    ) -> bool {
        let may_repeat = match answer {
            Ok(answer) if !answer.is_unavailable() => return false,
            // Another one may fare better; the same one was asked a moment ago.
            Ok(_) => method.repeat != Repeat::Never && self.pool.has_other(tries.last),
            Err(failure) => match failure.kind {
                Kind::Away => return false,
                Kind::Unseen => {
                    tries.unseen += 1;
                    tries.why.get_or_insert(Why::Unseen);
                    return tries.unseen <= UNSEEN_MAX;
                }
                Kind::Broken => method.repeat != Repeat::Never,
                // A write that is still at work could undo what its caller does next.
                Kind::Silent => method.repeat == Repeat::Read,
            },
        };
        if !may_repeat || tries.is_repeated {
            return false;
        }
        if !self.budget.withdraw() {
            self.pool.metrics().retried(method, Why::Unanswered, Outcome::Denied);
            return false;
        }
        tries.is_repeated = true;
        tries.why = Some(Why::Unanswered);
        true
    }
}

/// What was tried for one call.
#[derive(Debug, Default)]
struct Tries {
    /// The address that was asked last.
    last: Option<SocketAddr>,
    unseen: u32,
    is_repeated: bool,
    /// Why it was made again.
    why: Option<Why>,
}
