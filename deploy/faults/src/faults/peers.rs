//! A peer that answers each call with an error.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use anyhow::{Result, ensure};
use futures::{StreamExt as _, future::BoxFuture};
use http::{Request, Response};
use microblog_proto::common::{BatchedReply, CallBatch, ReplyBatch};
use tokio::{runtime::Builder, sync::oneshot, task::spawn_blocking, time::sleep};
use tonic::{
    Code, Status, Streaming,
    body::Body,
    server::{Grpc, NamedService},
    transport::Server,
};
use tonic_prost::ProstCodec;
use tower::{Service, service_fn};

use super::separate;
use crate::{
    load::CLIENTS,
    trial::{Bite, Fault, Trial},
};

const FAILING: Duration = Duration::from_secs(10);
/// The attempts of a call that another server may repeat.
const ATTEMPTS_MAX: u64 = 2;
/// The calls to the user service that the gateway makes for a write: it verifies the session.
const CALLS_MAX: u64 = 2;

/// Returns these faults.
pub(super) fn all() -> Vec<Fault> {
    vec![Fault::new(
        "user-failing",
        "in place of all replicas of user, a server answers each call with UNAVAILABLE for 10 s",
        "failed calls, of which few are repeated",
        separate(),
        |trial| Box::pin(failing(trial)),
    )]
}

/// A server fails all calls. Its callers do not repeat them again and again.
async fn failing(trial: &mut Trial) -> Result<Bite> {
    const USER: &str = "microblog-user";
    trial.before().await;
    let since = trial.load.shared.log.len();
    trial.system.kill_all(USER)?;
    let calls = Arc::new(AtomicU64::new(0));
    let address = trial.system.urls().user.trim_start_matches("http://").parse::<SocketAddr>()?;
    let server = Server::builder().add_service(Failing(calls.clone())).serve(address);
    let (stop, stopped) = oneshot::channel::<()>();
    // With a runtime of its own, so that its connections end with it.
    let thread = spawn_blocking(|| {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            tokio::select! {
                ended = server => Ok(ended?),
                _ = stopped => anyhow::Ok(()),
            }
        })
    });
    sleep(FAILING).await;
    drop(stop);
    thread.await??;
    let attempts = (trial.load.shared.log.len() - since) as u64;
    let calls = calls.load(Ordering::Relaxed);
    trial.system.start_servers().await?;
    trial.after().await;
    // Each client may have a call under way, which is not logged yet.
    let few = (attempts + CLIENTS as u64) * CALLS_MAX * ATTEMPTS_MAX;
    ensure!(calls <= few, "{attempts} calls of clients became {calls} calls to user");
    Ok(Bite::seen_if(
        calls > 0,
        format!("{attempts} calls of clients, {calls} failed calls to user"),
    ))
}

/// Fails all calls of batches, and counts them.
#[derive(Clone)]
struct Failing(Arc<AtomicU64>);

impl NamedService for Failing {
    const NAME: &'static str = "microblog.common.v1.BatchService";
}

impl Service<Request<Body>> for Failing {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let calls = self.0.clone();
        let exchange = service_fn(move |request: tonic::Request<Streaming<CallBatch>>| {
            let calls = calls.clone();
            let replies = request.into_inner().map(move |batch| {
                let batch = batch?;
                calls.fetch_add(batch.calls.len() as u64, Ordering::Relaxed);
                let fail = |id| BatchedReply {
                    id,
                    code: Code::Unavailable as u32,
                    ..BatchedReply::default()
                };
                let replies = batch.calls.iter().map(|call| fail(call.id)).collect();
                Ok::<_, Status>(ReplyBatch { replies, closing: false })
            });
            async move { Ok::<_, Status>(tonic::Response::new(replies)) }
        });
        Box::pin(async move {
            let codec = ProstCodec::<ReplyBatch, CallBatch>::default();
            Ok(Grpc::new(codec).streaming(exchange, request).await)
        })
    }
}
