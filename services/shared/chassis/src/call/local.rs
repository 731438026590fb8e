//! Local calls: within the process, run as part of the caller's task.

use std::{future::Future, panic::AssertUnwindSafe};

use futures::FutureExt as _;
use tokio::time::{Instant, timeout_at};
use tonic::{Code, Response, Status};
use tracing::Instrument as _;

use super::InFlightCall;
use crate::status;

/// Runs a handler to completion, to its panic, or to the deadline `end`. A panic becomes INTERNAL.
pub(super) async fn run<A>(
    mut call: InFlightCall,
    end: Option<Instant>,
    work: impl Future<Output = Result<Response<A>, Status>>,
) -> Result<Response<A>, Status> {
    let result = if call.deadline.is_some_and(|deadline| deadline <= call.started) {
        Err(status::deadline_exceeded())
    } else {
        let span = call.span.clone();
        let work = call.context().scope(work);
        let work = AssertUnwindSafe(work).catch_unwind().instrument(span);
        let result = match end {
            Some(end) => timeout_at(end, work).await,
            None => Ok(work.await),
        };
        match result {
            Ok(Ok(result)) => result,
            Ok(Err(_panic)) => Err(status::internal()),
            Err(_elapsed) => Err(status::deadline_exceeded()),
        }
    };
    call.code = Some(result.as_ref().map_or_else(Status::code, |_| Code::Ok));
    result
}
