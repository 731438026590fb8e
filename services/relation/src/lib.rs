//! The relation service: a directed follow graph with mutual follows, blocks and mutes.
//!
//! The database has the graph: an edge is one row, and the rows of its two accounts have the lengths of
//! their lists. A change locks both, so limits, lengths and both sides of an edge are exact. Redis has
//! the lists that are read ([`microblog_storage`]): a page of one, or the relations of a viewer to
//! accounts, is one round trip. For an intersection, or the followers that a user does not follow, a call
//! examines up to 5,000 entries, or up to the following limit if that is more. The service calls no
//! other service and does not know which accounts exist. A deleted account cannot get edges any more.

mod background;
mod changes;
mod config;
mod deletion;
mod error;
mod graph;
mod group;
mod import;
mod intersection;
mod items;
mod listing;
mod lists;
mod rpc;
mod steps;
mod tables;
mod verify;
mod views;
mod wire;

use std::{process::ExitCode, sync::Arc};

use clap::Parser as _;
use microblog_chassis::{CallAuthorizer, Service, ServiceListener, Worker};
use microblog_keyspace::{self as keyspace, Keyspace};
use microblog_proto::relation::{
    RelationServiceGuard, RelationServiceHandler,
    relation_service_server::{RelationServiceServer, SERVICE_NAME},
};
use microblog_record::Database;
use microblog_storage::{Cache, Item as _, Reader, Tables, Trust, Writer};
use tonic::service::Routes;

pub use config::Config;

use crate::{graph::List, group::Steps, lists::Lists, steps::Limits, tables::MIGRATIONS};

/// Why the service does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The Redis address is not valid.
    #[error("the cache cannot be opened")]
    Cache(#[from] keyspace::Error),
    /// The address of the database is not valid, or no service can use the database.
    #[error("the database cannot be opened")]
    Database(#[from] microblog_record::OpenError),
}

/// Returns the service for one worker thread of a process. Does not wait for Redis.
pub async fn service(config: &Config, worker: Worker) -> Result<Service, StartError> {
    let database = Database::open(&config.database)?;
    if worker.is_first() {
        database.check_at_start().await?;
    }
    let keyspace = Keyspace::open(&config.redis, List::LIBRARY)?;
    let limits =
        Limits { following: config.following_limit.into(), blocks: config.blocks_limit.into() };
    let cache = Cache::new(keyspace.clone());
    let tables = Tables::new(database, &MIGRATIONS);
    let trust = Trust::start(tables.clone(), keyspace.clone(), List::PREFIX);
    // Calls of many steps have transactions of their own, for which others do not wait.
    let [writer, bulk_writer] = [(); 2]
        .map(|()| Writer::start(Steps { limits }, tables.clone(), cache.clone(), trust.clone()));
    let reader = Reader::new(tables.clone(), keyspace.clone(), trust);
    let lists = Lists::new(reader, tables.clone(), config.following_limit);
    let background = match worker.is_first() {
        true => background::jobs(&tables, &keyspace, &bulk_writer),
        false => Vec::new(),
    };
    let rpc = Arc::new(RelationServiceGuard::new(
        rpc::Rpc::new(lists, writer, bulk_writer),
        CallAuthorizer,
    ));
    let handler: RelationServiceHandler = rpc.clone();
    let max_message_bytes = config.chassis.max_message_bytes;
    let server = RelationServiceServer::from_arc(rpc).max_decoding_message_size(max_message_bytes);
    // Without Redis, the database answers.
    let ready = Arc::new(move || {
        let tables = tables.clone();
        Box::pin(async move { tables.database().await.is_ok() }) as _
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
