//! The limit on each wait of long work. A database whose host goes silent never answers, and a connection
//! without data in flight does not find out.

use std::{
    future::poll_fn,
    pin::pin,
    sync::atomic::{AtomicBool, Ordering},
    task::Poll,
    time::Duration,
};

use futures::{StreamExt as _, stream::FuturesUnordered};
use tokio::time::{Instant, sleep};

use crate::{Error, RecordError};

/// Executes work of any length. Fails if it waits for one answer for longer than `limit`.
pub(crate) async fn limit_waits<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, RecordError>>,
) -> Result<T, RecordError> {
    let is_woken = AtomicBool::new(false);
    let mut work = pin!(work);
    let step = poll_fn(|context| {
        is_woken.store(true, Ordering::Relaxed);
        work.as_mut().poll(context)
    });
    // Polls the work only when it is woken itself, and not with the rest of its task, which renews a
    // lease.
    let mut steps = FuturesUnordered::from_iter([step]);
    let mut silence = pin!(sleep(limit));
    poll_fn(|context| {
        if let Poll::Ready(Some(done)) = steps.poll_next_unpin(context) {
            return Poll::Ready(done);
        }
        if is_woken.swap(false, Ordering::Relaxed) {
            silence.as_mut().reset(Instant::now() + limit);
        }
        silence.as_mut().poll(context).map(|()| Err(Error::timed_out().into()))
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn each_wait_is_limited_and_not_the_whole() {
        let work = async {
            for _ in 0..5 {
                sleep(LIMIT / 2).await;
            }
            Ok(())
        };
        limit_waits(LIMIT, work).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn other_work_of_the_task_does_not_count() {
        let begun = Instant::now();
        let silent = async {
            let done = limit_waits(LIMIT, pending::<Result<(), RecordError>>()).await;
            (done, begun.elapsed())
        };
        let others = async {
            for _ in 0..20 {
                sleep(LIMIT / 10).await;
            }
        };
        let ((done, waited), ()) = tokio::join!(silent, others);
        assert!(matches!(&done, Err(RecordError::Database(error)) if error.is_unavailable()));
        assert!((LIMIT..LIMIT * 2).contains(&waited), "{waited:?}");
    }
}
