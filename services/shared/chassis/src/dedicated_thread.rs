//! Dedicated thread for CPU-bound jobs: in a worker's runtime they would delay every call. The
//! thread has a lower priority than the workers.

use std::{io, thread};

use futures::future::BoxFuture;
use tokio::{runtime::Builder, sync::oneshot};
use tokio_util::sync::CancellationToken;

/// Niceness of the thread: about a tenth of a worker's share of a busy core, so that it still makes
/// progress.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

/// Returns a job that runs the work on a dedicated, named thread with its own runtime: one of
/// [`Service::background`](crate::Service::background). The thread starts at the first poll. The
/// job ends when the work completes or panics. Dropping the job cancels the work at its next
/// `.await`.
///
/// The work must not use resources of another runtime, such as a worker's connections. It has no
/// call context, and acts as `Identity::Nobody`.
pub fn run_on_dedicated_thread(
    name: &'static str,
    work: impl Future<Output = ()> + Send + 'static,
) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let stop = CancellationToken::new();
        let _stops = stop.clone().drop_guard();
        let (ended, end) = oneshot::channel::<()>();
        let spawned = thread::Builder::new().name(name.to_owned()).spawn(move || {
            // Dropped when the thread ends, also by a panic.
            let _ended = ended;
            yield_to_others(name);
            let done = run(stop.run_until_cancelled_owned(work));
            if let Err(error) = done {
                tracing::error!(job = name, %error, "cannot start a runtime");
            }
        });
        match spawned {
            // Nothing is sent: the receiver resolves when the thread drops the sender.
            Ok(_thread) => drop(end.await),
            Err(error) => tracing::error!(job = name, %error, "cannot start a thread"),
        }
    })
}

// On Linux, niceness is per thread, and inherited by child threads.
#[cfg(target_os = "linux")]
fn yield_to_others(name: &str) {
    if let Err(error) = rustix::process::nice(NICENESS) {
        tracing::warn!(job = name, %error, "cannot lower the priority of a thread");
    }
}

#[cfg(not(target_os = "linux"))]
fn yield_to_others(_name: &str) {}

fn run(work: impl Future) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(work);
    runtime.shutdown_background();
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{future::pending, time::Duration};

    use tokio::time::{sleep, timeout};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn work_runs_on_a_named_thread() {
        let (sender, received) = oneshot::channel();
        let work = async move {
            sleep(Duration::from_millis(1)).await;
            sender.send(thread::current().name().map(str::to_owned)).unwrap();
        };
        timeout(TIMEOUT, run_on_dedicated_thread("test-thread", work))
            .await
            .expect("the job ends with the work");
        assert_eq!(received.await.unwrap().as_deref(), Some("test-thread"));
    }

    #[tokio::test]
    async fn job_ends_when_the_work_panics() {
        let work = async { panic!("a bug") };
        timeout(TIMEOUT, run_on_dedicated_thread("test-thread", work)).await.expect("the job ends");
    }

    #[tokio::test]
    async fn work_is_cancelled_when_the_job_is_dropped() {
        let (start, started) = oneshot::channel();
        let (held, released) = oneshot::channel::<()>();
        let work = async move {
            let _held = held;
            start.send(()).unwrap();
            pending().await
        };
        let job = tokio::spawn(run_on_dedicated_thread("test-thread", work));
        started.await.unwrap();
        job.abort();
        let end = timeout(TIMEOUT, released).await.expect("the work ends");
        assert!(end.is_err(), "nothing is sent");
    }
}
