//! The gateway: the API that applications call, composed of calls of the services.
//!
//! **Layers.** Imports go one way: `rpc.rs` (gRPC) → `views/` and `actions/` → helpers that depend on
//! no view (`paging.rs`, `watch.rs`, `hydration/`, `context.rs`, `credentials.rs`, `errors.rs`) → `state.rs` →
//! `callers.rs`, `limits.rs` and `sessions.rs`.
//!
//! **Views.** A view has four steps: the skeleton (which entries, in which order), hydration
//! (profiles, viewer relations, mentions, likes), rules (what the viewer must not see), and
//! presentation. Steps that do not depend on each other run at once. `paging.rs` fills every page:
//! as long as hidden entries leave it short, it goes on with what follows in the list. The skeleton
//! of a home or friends timeline has ids only, and continues behind the timeline service's entries
//! with posts from the post service.
//!
//! **Costs.** Each function states the calls of services that it makes. Their number is bounded. It
//! grows with the page size only where a page is hydrated in batches, and with the length of a list
//! only for older posts of a home or friends timeline, which are read of 500 authors in a call, and for
//! unread notices, of which there are at most 800. A comment of a notice costs a call of its own; calls
//! that are ready together share a message. The
//! number of a read does not include user.Authenticate, unless the function names it.
//!
//! **State.** The gateway stores nothing but rate limit state and which sessions it verified within
//! the last minute, in memory.
//!
//! **Sessions.** Every call verifies its session, with user.Authenticate before anything else. But if
//! the session was verified within the last minute, a read runs first. Its first user.BatchGetUsers
//! verifies the session; for a read without one, user.Authenticate does, beside the read or after it.
//! The result is discarded if the session has ended. So an ended session sees nothing, and a token
//! that was never valid costs one call.
//!
//! **Service callers.** A service caller of `--callers-file` acts for the account that it names. No session
//! is verified then. A read runs first, and its first user.BatchGetUsers returns whether that account
//! exists.
//!
//! **Rules.** The gateway decides only what takes the data of several services: which posts and
//! comments a viewer sees and acts on, given blocks, mutes and deleted accounts. It validates what
//! it reads itself: session tokens, references to accounts, page sizes. Every other rule belongs to
//! one service, whose errors the gateway maps to the field names of its own API.
//!
//! **Errors.** If several calls of one step fail, the first in source order wins, so the error does
//! not depend on timing.
//!
//! **Readiness.** The gateway is ready as soon as it listens, also while services are unavailable.
//! Otherwise one unavailable service would take all gateways out of service at once, and with them
//! the calls that do not need that service, and the UNAVAILABLE answers.

mod actions;
mod audit;
mod callers;
mod config;
mod context;
mod credentials;
mod errors;
mod feed_metrics;
mod hydration;
pub mod limits;
mod page;
mod paging;
mod rpc;
mod sessions;
mod state;
mod views;
mod watch;

use std::{process::ExitCode, time::Duration};

use clap::Parser as _;
use futures::{FutureExt as _, future};
use microblog_chassis::{self as chassis, ServiceListener, Web, Worker};
use microblog_proto::gateway::gateway_service_server;

pub use callers::Callers;
pub use config::Config;
pub use limits::Limits;
pub use state::{Error, Peers};

use actions::deletions;
use feed_metrics::FeedMetrics;
use rpc::Rpc;
use sessions::RecentSessions;
use state::Gateway;

/// The program: parses flags and runs the gateway. `microblog` also calls it, under this program's name.
pub fn main() -> ExitCode {
    let config = Config::parse();
    // Shared by all workers: any of them may get a client's next connection.
    let limits = Limits::new(&config.limits);
    chassis::run(&config.chassis.clone(), move |worker| {
        listen(config.clone(), limits.clone(), worker)
    })
}

async fn listen(
    config: Config,
    limits: Limits,
    worker: Worker,
) -> Result<Vec<ServiceListener>, Error> {
    let peers = Peers::remote(&config)?;
    let service = service(&config, limits, peers, worker);
    Ok(vec![ServiceListener { address: config.listen, service }])
}

/// Returns the gateway for one worker, with the limits that all workers of the process share. The
/// first worker also runs the periodic jobs: it finishes interrupted account deletions, and evicts
/// idle rate limit state.
pub fn service(config: &Config, limits: Limits, peers: Peers, worker: Worker) -> chassis::Service {
    let is_first = worker.is_first();
    let eviction = is_first.then(|| limits.job()).flatten();
    let deletion = is_first.then(|| deletions::run_job(peers.clone()).boxed());
    let session_check = Duration::from_millis(config.session_check_ms);
    let sessions = RecentSessions::default();
    let callers = config.callers_file.clone();
    let feed_metrics = FeedMetrics::register();
    let heartbeat = Duration::from_millis(config.watch_heartbeat_ms);
    let heartbeat = (!heartbeat.is_zero()).then_some(heartbeat);
    let gateway =
        Gateway { peers, limits, sessions, callers, feed_metrics, session_check, heartbeat };
    chassis::Service {
        name: gateway_service_server::SERVICE_NAME,
        routes: Rpc::into_routes(gateway, config.chassis.max_message_bytes),
        handler: None,
        web: Some(Web {
            allowed_origins: config.allowed_origins.clone(),
            files: if config.page { page::files(config.page_metrics) } else { Vec::new() },
            metrics: config.page_metrics,
            proxy_protocol: config.limits.proxy_protocol(),
        }),
        ready: std::sync::Arc::new(|| future::ready(true).boxed()),
        background: eviction.into_iter().chain(deletion).collect(),
    }
}
