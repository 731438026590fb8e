//! Writes that run to completion. tonic drops a handler at its next `.await` when the caller
//! cancels or the deadline passes. That would interrupt a write half-way.

use std::{future::Future, panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt as _;
use tokio::{sync::oneshot, time::Instant};
use tonic::Status;
use tracing::Instrument as _;

use super::context::{self, Context};
use crate::status;

// For tasks outside a call, whose server sets no budget.
const BUDGET_DEFAULT: Duration = Duration::from_secs(10);

/// Runs a write in its own task and returns its result. The write continues after its caller
/// disconnects, up to its budget (`--write-budget-ms`). The drain waits for it. It holds the call's
/// slot of `--max-calls`. Its own calls have the budget as their deadline, and the trace of the
/// call.
///
/// Returns DEADLINE_EXCEEDED after the budget, and INTERNAL if the write panics.
pub async fn mutate<T, F>(work: F) -> Result<T, Status>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Status>> + Send + 'static,
{
    let (sender, result) = oneshot::channel();
    match context::with(Context::clone) {
        Some(mut context) => {
            let budget = context.server_state.write_budget;
            let writes = context.server_state.writes.clone();
            context.deadline = Some(Instant::now() + budget);
            let write = context.scope(finish(work, budget, sender));
            writes.spawn(write.instrument(tracing::Span::current()));
        }
        None => {
            tokio::spawn(finish(work, BUDGET_DEFAULT, sender));
        }
    }
    // The sender is dropped only with the runtime.
    result.await.unwrap_or_else(|_| Err(status::internal()))
}

async fn finish<T>(
    work: impl Future<Output = Result<T, Status>>,
    budget: Duration,
    sender: oneshot::Sender<Result<T, Status>>,
) {
    let guarded = AssertUnwindSafe(work).catch_unwind();
    let result = match tokio::time::timeout(budget, guarded).await {
        Ok(Ok(result)) => result,
        Ok(Err(_panic)) => Err(status::internal()),
        Err(_elapsed) => Err(status::deadline_exceeded()),
    };
    if let Err(Err(unreported)) = sender.send(result) {
        tracing::warn!(code = ?unreported.code(), "write failed after its caller disconnected");
    }
}
