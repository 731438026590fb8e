//! The timeline service: user, home and friends timelines.
//!
//! A post is taken in (`delivery`) by its author's own timelines at once, and by a job that brings
//! it to followers (`fanout`, `worker`): into the home timelines of those who are active, that
//! is, of whom one is kept (`homes`). The posts of authors with many followers are not pushed, but
//! fetched when a home timeline is read (`pull`, `reader`). What is shown of a timeline
//! (`list`) is decided at every read, by how its authors stand to the reader then (`circle`):
//! what is kept of a timeline is a cache.
//!
//! The service calls the relation service alone (`graph`). It knows neither texts nor deletions.

mod background;
mod circle;
mod config;
mod delivery;
mod entry;
mod error;
mod fanout;
mod graph;
mod homes;
mod job;
mod keys;
mod list;
mod metrics;
mod pull;
mod reader;
mod rpc;
mod seen;
mod store;
mod watch;
mod wire;
mod worker;

use std::sync::Arc;

use microblog_chassis::{AddressError, Listening, Peer, Service, Worker, identity::CallAuthorizer};
use microblog_keyspace as keyspace;
use microblog_proto::timeline::{
    TimelineServiceGuard, TimelineServiceHandler,
    timeline_service_server::{SERVICE_NAME, TimelineServiceServer},
};
use tonic::service::Routes;

pub use config::{Config, Mode};
pub use entry::Entry;
pub use error::Error;
pub use job::{Job, Kind};
pub use store::{Begun, Head, Home, Published, Replacement, State, Step, Store, Tail};

use crate::{
    delivery::Delivery, fanout::Fanout, graph::Graph, metrics::Metrics, reader::Reader, rpc::Rpc,
    worker::Workers,
};

/// Why the service does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address of the store makes no sense.
    #[error("the store cannot be opened")]
    Store(#[from] keyspace::Error),
    /// The address of the relation service makes no sense.
    #[error("the address of the relation service is not valid")]
    Relation(#[from] AddressError),
}

/// Returns the service as one worker of a process runs it, with the relation service that it asks.
/// Succeeds while the store is away.
pub async fn service(
    config: &Config,
    relation: Peer,
    worker: Worker,
) -> Result<Service, keyspace::Error> {
    let store = Store::open(&config.redis)?;
    let (graph, metrics) = (Graph::new(relation), Metrics::new());
    let (mode, threshold) = (config.mode, config.pull_threshold);
    // With connections of its own: a step's thousands of commands would be before those of readers.
    let fanout_store = Store::open(&config.redis)?;
    let fanout = Fanout::new(fanout_store.clone(), graph.clone(), mode, threshold, metrics.clone());
    let workers = Workers::new(fanout_store, fanout, metrics.clone());
    let background = background::jobs(&store, &workers, &metrics, worker);
    let rpc = Rpc {
        store: store.clone(),
        reader: Reader::new(store.clone(), graph, mode, metrics.clone()),
        delivery: Delivery::new(store.clone(), mode, metrics.clone()),
        metrics,
    };
    let rpc = Arc::new(TimelineServiceGuard::new(rpc, CallAuthorizer));
    let handler: TimelineServiceHandler = rpc.clone();
    let server = TimelineServiceServer::from_arc(rpc)
        .max_decoding_message_size(config.chassis.max_message_bytes);
    let ready = Arc::new(move || {
        let store = store.clone();
        Box::pin(async move { store.is_ready().await }) as _
    });
    let handler = Some(Arc::new(handler) as _);
    Ok(Service { name: SERVICE_NAME, routes: Routes::new(server), handler, ready, background })
}

/// Returns what the process of this service listens for.
pub async fn listen(config: Config, worker: Worker) -> Result<Vec<Listening>, StartError> {
    let relation = Peer::remote(&config.relation_url, &config.chassis)?;
    let service = service(&config, relation, worker).await?;
    Ok(vec![Listening { address: config.listen, service }])
}
