//! The notice service: what others did that concerns an account.
//!
//! A follower of each service's change feed (`feed`) reads what has changed, finds whom it concerns
//! (`acts`, which asks the services by `peers`), and applies it to the notices of these accounts
//! (`store`, whose functions have the rules for repeated acts). Callers list notices (`rpc`), mark them
//! as seen, or watch for new ones (`watch`).
//!
//! The service stores ids only. Its callers check what an account may see, at each read.

mod acts;
mod config;
mod error;
mod feed;
mod keys;
mod metrics;
mod notice;
mod peers;
mod rpc;
mod store;
mod watch;
mod wire;

use std::{process::ExitCode, sync::Arc};

use clap::Parser as _;
use futures::{FutureExt as _, future::BoxFuture};
use microblog_chassis::{AddressError, CallAuthorizer, Peer, Service, ServiceListener, Worker};
use microblog_keyspace as keyspace;
use microblog_proto::notice::{
    NoticeServiceGuard, NoticeServiceHandler,
    notice_service_server::{NoticeServiceServer, SERVICE_NAME},
};
use tonic::service::Routes;

pub use config::Config;
pub use error::Error;
pub use peers::Peers;
pub use store::Store;

use crate::{
    feed::{Follower, Source},
    metrics::Metrics,
    rpc::Rpc,
};

/// Why the service fails to start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The Redis URL is invalid.
    #[error("cannot open the redis store")]
    Store(#[from] keyspace::Error),
    /// The URL of a service is invalid.
    #[error("invalid URL of the {0} service")]
    Peer(&'static str, #[source] AddressError),
}

/// Returns the service for one worker thread of a process. Does not wait for Redis.
pub async fn service(
    config: &Config,
    peers: Peers,
    worker: Worker,
) -> Result<Service, keyspace::Error> {
    let store = Store::open(&config.redis)?;
    // A separate connection: the functions of a busy feed must not delay reads.
    let jobs = jobs(&Store::open(&config.redis)?, &peers, worker);
    let rpc = Arc::new(NoticeServiceGuard::new(Rpc { store: store.clone() }, CallAuthorizer));
    let handler: NoticeServiceHandler = rpc.clone();
    let server = NoticeServiceServer::from_arc(rpc)
        .max_decoding_message_size(config.chassis.max_message_bytes);
    let ready = Arc::new(move || {
        let store = store.clone();
        Box::pin(async move { store.is_ready().await }) as _
    });
    let handler = Some(Arc::new(handler) as _);
    Ok(Service {
        name: SERVICE_NAME,
        routes: Routes::new(server),
        handler,
        web: None,
        ready,
        background: jobs,
    })
}

/// Returns the background jobs of a thread, which never complete: the feeds are divided among the
/// threads.
fn jobs(store: &Store, peers: &Peers, worker: Worker) -> Vec<BoxFuture<'static, ()>> {
    let is_ours = |source: &Source| *source as usize % worker.count == worker.index;
    let sources = Source::ALL.into_iter().filter(is_ours);
    let follower = |source| {
        let (store, peers, metrics) = (store.clone(), peers.clone(), Metrics::new());
        Follower { source, store, peers, metrics }.run().boxed()
    };
    sources.map(follower).collect()
}

/// The program: parses flags and runs the service. `microblog` also calls it, under this program's name.
pub fn main() -> ExitCode {
    let config = Config::parse();
    microblog_chassis::run(&config.chassis.clone(), move |worker| listen(config.clone(), worker))
}

async fn listen(config: Config, worker: Worker) -> Result<Vec<ServiceListener>, StartError> {
    let peer = |name, url| {
        Peer::remote(url, &config.chassis).map_err(|error| StartError::Peer(name, error))
    };
    let peers = Peers {
        user: peer("user", &config.user_url)?,
        relation: peer("relation", &config.relation_url)?,
        post: peer("post", &config.post_url)?,
    };
    let service = service(&config, peers, worker).await?;
    Ok(vec![ServiceListener { address: config.listen, service }])
}
