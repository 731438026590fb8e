//! The front door: what applications call, composed of the services' calls.
//!
//! A view is made in four steps: the skeleton (which entries, in which order; `skeleton/`),
//! hydration (profiles, the viewer's relations to them, what mentions point to; `hydrate.rs`, with
//! `people.rs` and `mentions.rs`), filtering (there as well) with a refill of the page (`pages.rs`),
//! and presentation (`present.rs`). Steps that do not depend on each other run at once. Timelines
//! go the same way, but know no texts: posts are asked for by their ids, page by page
//! (`timelines/`), or as they come (`timelines/watch.rs`). Where the timeline service has no more of
//! them, the view goes on with what the post service has of the same authors (`timelines/past.rs`).
//! The number of calls behind a call is bounded, and stated at each handler: it grows with the size of
//! a page only where that is too much to be looked at together, and with a list of somebody's only
//! in the past of a home timeline, which takes all whom the viewer follows.
//!
//! The gateway keeps nothing but how often its callers have come of late, whom it refuses when they
//! come too often (`limits.rs`). It decides about the domain only what takes the knowledge of several
//! services: which posts and comments a viewer is shown, and acts on, past blocks, mutes and
//! accounts that are gone (`people.rs`, `blocks.rs`). It checks what it must read itself (the
//! session token, references to accounts, page sizes) and leaves every other rule to the service
//! that owns it, whose refusals it passes on with field names of its own contract.
//! Where several calls of one step fail, the error that is told is the first in the order in which
//! a reader of the handler meets them, so that it does not depend on which came back first.
//!
//! **Readiness.** The gateway is ready as soon as it listens. It does not make its readiness hang
//! on its peers: when one of them is away, all replicas of the gateway would be taken out of
//! service at once, and calls that do not need that peer, and clear UNAVAILABLE answers, with them.

mod accounts;
mod blocks;
mod config;
mod deletions;
mod follows;
mod hydrate;
pub mod limits;
mod lists;
mod mentions;
mod pages;
mod peers;
mod people;
mod posts;
mod present;
mod profile;
mod reactions;
mod reference;
mod refusal;
mod rpc;
mod skeleton;
mod timelines;
mod view_posts;
mod viewer;

use std::time::Duration;

use futures::{FutureExt as _, future};
use microblog_chassis::{self as chassis, Listening, Worker};
use microblog_proto::gateway::gateway_service_server::{self, GatewayServiceServer};
use tonic::service::Routes;

pub use config::Config;
pub use limits::Limits;
pub use peers::Peers;

use rpc::Gateway;

/// Why a gateway does not start.
#[derive(Debug, thiserror::Error)]
#[error("the address of the {peer} service is not valid")]
pub struct Error {
    peer: &'static str,
    source: chassis::AddressError,
}

/// Returns the gateway as its own process serves it, with its peers on the network.
pub async fn listen(
    config: Config,
    limits: Limits,
    worker: Worker,
) -> Result<Vec<Listening>, Error> {
    let peers = Peers::remote(&config)?;
    let service = service(&config, limits, peers, worker);
    Ok(vec![Listening { address: config.listen, service }])
}

/// Returns the gateway for one worker, with the limits that all workers of the process share. Worker
/// 0 also finishes the deletions of accounts that were left half done, and keeps the limits small.
pub fn service(config: &Config, limits: Limits, peers: Peers, worker: Worker) -> chassis::Service {
    let first = worker.is_first();
    let sweep = first.then(|| limits.job()).flatten();
    let relay = first.then(|| deletions::relay(peers.clone()).boxed());
    let session_check = Duration::from_millis(config.session_check_ms);
    let server = GatewayServiceServer::new(Gateway { peers, limits, session_check })
        .max_decoding_message_size(config.chassis.max_message_bytes);
    chassis::Service {
        name: gateway_service_server::SERVICE_NAME,
        routes: Routes::new(server),
        handler: None,
        ready: std::sync::Arc::new(|| future::ready(true).boxed()),
        background: sweep.into_iter().chain(relay).collect(),
    }
}
