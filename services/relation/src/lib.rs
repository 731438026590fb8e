//! The relation service: a directed follow graph with mutual follows, blocks and mutes.
//!
//! Every follow and every block is an [edge of two sides](Edges) that survives a crash between
//! them. Reads ask one partition, the viewer's or the list's owner's, and cost the same however
//! long the lists are. The service calls nobody, and does not know whether an account exists; an
//! account that it was told to [forget](Store::forget) takes part in nothing any more.

mod background;
mod common;
mod config;
mod edges;
mod error;
mod forget;
mod graph;
mod keys;
mod not_followed_back;
mod repair;
mod rpc;
mod store;
mod sweeper;
mod verify;
mod wire;

use std::sync::Arc;

use microblog_chassis::{Listening, Service, Worker, identity::CallAuthorizer};
use microblog_keyspace as keyspace;
use microblog_proto::relation::{
    RelationServiceGuard, RelationServiceHandler,
    relation_service_server::{RelationServiceServer, SERVICE_NAME},
};
use tonic::service::Routes;

pub use config::Config;
pub use edges::{Completed, Edges, Imported};
pub use error::Error;
pub use forget::forget_marked;
pub use graph::{Change, Conflict, Counts, Edge, Include, List, Outcome, Relation, State};
pub use store::{Blocked, Projected, ProjectedBlock, Store, Targets, Truth, Waiting};
pub use sweeper::Sweeper;
pub use verify::{Report, partition as verify_partition, user as verify_user};

/// Returns the service as one worker of a process runs it. Succeeds while the store is away.
pub async fn service(config: &Config, worker: Worker) -> Result<Service, keyspace::Error> {
    let store = Store::open(config)?;
    let max_message_bytes = config.chassis.max_message_bytes;
    let rpc = Arc::new(RelationServiceGuard::new(rpc::Rpc::new(store.clone()), CallAuthorizer));
    let handler: RelationServiceHandler = rpc.clone();
    let server = RelationServiceServer::from_arc(rpc).max_decoding_message_size(max_message_bytes);
    let background = if worker.is_first() { background::jobs(&store) } else { Vec::new() };
    let ready = Arc::new(move || {
        let store = store.clone();
        Box::pin(async move { store.is_ready().await }) as _
    });
    let handler = Some(Arc::new(handler) as _);
    Ok(Service { name: SERVICE_NAME, routes: Routes::new(server), handler, ready, background })
}

/// Returns what the process of this service listens for.
pub async fn listen(config: Config, worker: Worker) -> Result<Vec<Listening>, keyspace::Error> {
    let service = service(&config, worker).await?;
    Ok(vec![Listening { address: config.listen, service }])
}
