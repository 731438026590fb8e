//! Jobs that keep a processor busy, in a thread of their own: in a worker's, every call would wait
//! for each of their steps. And behind all calls: such a job works when they leave a processor idle.

use std::{io, thread};

use futures::future::BoxFuture;
use tokio::{runtime::Builder, sync::oneshot};
use tokio_util::sync::CancellationToken;

/// How much less of a busy processor the thread gets, as the system counts it: about a tenth of what a
/// worker gets, so that it goes on, however busy the workers are.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

/// Returns a job that does its work in a thread of this name, with a runtime of its own, from when it
/// is first polled: one of [`Service::background`](crate::Service::background). It ends when the work
/// does, or panics, and the work ends when it is dropped, at its next `.await`.
///
/// What the work uses must not belong to another runtime: connections that a worker opened would
/// have that one drive them. It has no call's context, and so acts for nobody.
pub fn run_on_dedicated_thread(
    name: &'static str,
    work: impl Future<Output = ()> + Send + 'static,
) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let stop = CancellationToken::new();
        let _stops = stop.clone().drop_guard();
        let (ended, end) = oneshot::channel::<()>();
        let spawned = thread::Builder::new().name(name.to_owned()).spawn(move || {
            // Dropped with the thread, whatever happens in it.
            let _ended = ended;
            yield_to_others(name);
            let done = run(stop.run_until_cancelled_owned(work));
            if let Err(error) = done {
                tracing::error!(job = name, %error, "cannot start a runtime");
            }
        });
        match spawned {
            // Nothing is ever sent: what counts is that the other side is gone.
            Ok(_thread) => drop(end.await),
            Err(error) => tracing::error!(job = name, %error, "cannot start a thread"),
        }
    })
}

// On Linux, each thread has a niceness of its own, and those that it starts have the same.
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

    const PATIENCE: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn work_runs_on_a_named_thread() {
        let (tell, told) = oneshot::channel();
        let work = async move {
            sleep(Duration::from_millis(1)).await;
            tell.send(thread::current().name().map(str::to_owned)).unwrap();
        };
        timeout(PATIENCE, run_on_dedicated_thread("aside", work))
            .await
            .expect("the job ends with the work");
        assert_eq!(told.await.unwrap().as_deref(), Some("aside"));
    }

    #[tokio::test]
    async fn job_ends_when_the_work_panics() {
        let work = async { panic!("a bug") };
        timeout(PATIENCE, run_on_dedicated_thread("aside", work)).await.expect("the job ends");
    }

    #[tokio::test]
    async fn work_is_cancelled_when_the_job_is_dropped() {
        let (begin, begun) = oneshot::channel();
        let (held, released) = oneshot::channel::<()>();
        let work = async move {
            let _held = held;
            begin.send(()).unwrap();
            pending().await
        };
        let job = tokio::spawn(run_on_dedicated_thread("aside", work));
        begun.await.unwrap();
        job.abort();
        let gone = timeout(PATIENCE, released).await.expect("the work ends");
        assert!(gone.is_err(), "nothing is sent");
    }
}
