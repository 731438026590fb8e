//! The relation service: a directed follow graph with mutual follows, blocks and mutes.
//!
//! Each change of a follow or block is a [saga](EdgeSaga) over two partitions, with a transactional
//! outbox. A page of a list uses one partition, that of its user, and an intersection two. The cost
//! of a stored list's page does not depend on its length. For an intersection, or the followers
//! that a user does not follow, a call examines up to 5,000 entries, or up to the following limit
//! if that is more. The ids of a whole list take one command per 2,000. The service calls no other
//! service and does not know which accounts exist. A [forgotten](Store::forget) account cannot have
//! edges any more.

mod background;
mod changes;
mod config;
mod edge_saga;
mod error;
mod forget;
mod graph;
mod intersection;
mod journal;
mod keys;
mod listing;
mod record;
mod repair;
mod rpc;
mod store;
mod sweeper;
mod verify;
mod wire;

use std::{process::ExitCode, sync::Arc};

use clap::Parser as _;
use microblog_chassis::{CallAuthorizer, Service, ServiceListener, Worker};
use microblog_keyspace as keyspace;
use microblog_proto::relation::{
    RelationServiceGuard, RelationServiceHandler,
    relation_service_server::{RelationServiceServer, SERVICE_NAME},
};
use microblog_record::Database;
use tonic::service::Routes;

pub use config::Config;
pub use edge_saga::{EdgeSaga, ImportResult, SagaResult};
pub use error::Error;
pub use forget::forget_marked;
pub use graph::{Change, Conflict, Counts, Edge, Include, List, ListSet, Outcome, Relation, State};
pub use journal::JournalEntry;
pub use record::{GraphTables, recorder};
pub use store::{
    BlockProjectionResult, BlockSourceResult, OutboxEntry, ProjectionResult, SourceResult, Store,
    Targets,
};
pub use sweeper::Sweeper;
pub use verify::{Report, partition as verify_partition, user as verify_user};

/// Why the service does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The Redis address is not valid.
    #[error("the store cannot be opened")]
    Store(#[from] keyspace::Error),
    /// The address of the database is not valid, or no service can use the database.
    #[error("the database cannot be opened")]
    Database(#[from] microblog_record::OpenError),
}

/// Returns the service for one worker thread of a process. Does not wait for Redis.
pub async fn service(config: &Config, worker: Worker) -> Result<Service, StartError> {
    let store = Store::open(config)?;
    let max_message_bytes = config.chassis.max_message_bytes;
    let database = Database::open(&config.database)?;
    if let Some(database) = database.as_ref().filter(|_| worker.is_first()) {
        database.check_at_start().await?;
    }
    let recorder = database.map(|database| Arc::new(record::recorder(store.clone(), database)));
    let rpc = rpc::Rpc::new(store.clone(), recorder.clone());
    let rpc = Arc::new(RelationServiceGuard::new(rpc, CallAuthorizer));
    let handler: RelationServiceHandler = rpc.clone();
    let server = RelationServiceServer::from_arc(rpc).max_decoding_message_size(max_message_bytes);
    config.durability.set_up(recorder.as_ref())?;
    let background = match worker.is_first() {
        true => background::jobs(&store, recorder.as_ref()),
        false => Vec::new(),
    };
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
        background,
    })
}

/// The program: parses flags and runs the service. `microblog` also calls it, under this program's name.
pub fn main() -> ExitCode {
    let config = Config::parse();
    microblog_chassis::run(&config.chassis.clone(), move |worker| listen(config.clone(), worker))
}

async fn listen(config: Config, worker: Worker) -> Result<Vec<ServiceListener>, StartError> {
    let service = service(&config, worker).await?;
    Ok(vec![ServiceListener { address: config.listen, service }])
}
