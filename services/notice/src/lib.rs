//! The notice service: what others did that concerns an account.
//!
//! A follower of each service's change feed (`feed`) reads what has changed, finds whom it concerns
//! (`acts`, which asks the services by `peers`), and applies it to the notices of these accounts: a call
//! that is one transaction with the position in the feed (`group`), with the rules of `steps` and `notice`. Redis
//! caches what is read (`items`). Callers list notices (`lists`), mark them as seen, or watch for new ones
//! (`watch`).
//!
//! The service stores ids only. Its callers check what an account may see, at each read.

mod acts;
mod background;
mod config;
mod error;
mod feed;
mod group;
mod items;
mod lists;
mod metrics;
mod notice;
mod peers;
mod rpc;
mod source;
mod steps;
mod tables;
mod verify;
mod watch;
mod wire;

use std::{process::ExitCode, sync::Arc};

use clap::Parser as _;
use microblog_chassis::{AddressError, CallAuthorizer, Peer, Service, ServiceListener, Worker};
use microblog_keyspace::{self as keyspace, Keyspace};
use microblog_proto::notice::{
    NoticeServiceGuard, NoticeServiceHandler,
    notice_service_server::{NoticeServiceServer, SERVICE_NAME},
};
use microblog_record::Database;
use microblog_storage::{Cache, Item as _, Reader, Tables, Trust, Writer};
use tonic::service::Routes;

pub use config::Config;
pub use peers::Peers;

use crate::{group::Calls, items::NoticeItem, lists::Notices, rpc::Rpc, tables::MIGRATIONS};

/// Why the service does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The Redis address is not valid.
    #[error("the cache cannot be opened")]
    Cache(#[from] keyspace::Error),
    /// The address of the database is not valid, or no service can use the database.
    #[error("the database cannot be opened")]
    Database(#[from] microblog_record::OpenError),
    /// The URL of a service is invalid.
    #[error("invalid URL of the {0} service")]
    Peer(&'static str, #[source] AddressError),
}

/// Returns the service for one worker thread of a process. Does not wait for Redis.
pub async fn service(config: &Config, peers: Peers, worker: Worker) -> Result<Service, StartError> {
    let database = Database::open(&config.database)?;
    if worker.is_first() {
        database.check_at_start().await?;
    }
    let keyspace = Keyspace::open(&config.redis, NoticeItem::LIBRARY)?;
    let cache = Cache::new(keyspace.clone());
    let tables = Tables::new(database, &MIGRATIONS);
    let trust = Trust::start(tables.clone(), keyspace.clone(), NoticeItem::PREFIX);
    // Callers do not wait for a busy feed.
    let [writer, jobs_writer] =
        [(); 2].map(|()| Writer::start(Calls, tables.clone(), cache.clone(), trust.clone()));
    let reader = Reader::new(tables.clone(), keyspace.clone(), trust);
    let mut background = background::followers(&tables, &jobs_writer, &peers, worker);
    if worker.is_first() {
        background.extend(background::jobs(&tables, &keyspace, &jobs_writer));
    }
    let rpc = Rpc { notices: Notices { reader, writer }, tables: tables.clone() };
    let rpc = Arc::new(NoticeServiceGuard::new(rpc, CallAuthorizer));
    let handler: NoticeServiceHandler = rpc.clone();
    let server = NoticeServiceServer::from_arc(rpc)
        .max_decoding_message_size(config.chassis.max_message_bytes);
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
