//! The post service: posts, reposts, likes and comments.
//!
//! The database has the posts. A call that writes is one transaction (`group`): it locks the rows of its
//! account and of the posts that it changes, and `steps` has the rules. So the counts of a post are the
//! lengths of its lists, and the ids of an author's posts, and of a post's comments, are in the order of commits. Redis and the processes cache what is read often
//! (`items`): a post with its counts, the newest part of its lists, the newest posts of an account, and which
//! posts it likes.
//!
//! The service calls only the timeline service, to deliver new posts. It does not know which accounts exist or
//! who blocks whom. A deleted account cannot write any more.

mod background;
mod changes;
mod config;
mod deletion;
mod delivery;
mod entities;
mod error;
mod group;
mod items;
mod lists;
mod metrics;
mod partitions;
mod post;
mod posts;
mod rate;
mod rpc;
mod steps;
mod tables;
mod verify;
mod wire;

use std::{process::ExitCode, sync::Arc};

use clap::Parser as _;
use microblog_chassis::{AddressError, CallAuthorizer, Peer, Service, ServiceListener, Worker};
use microblog_keyspace::{self as keyspace, Keyspace};
use microblog_proto::post::{
    PostServiceGuard, PostServiceHandler,
    post_service_server::{PostServiceServer, SERVICE_NAME},
};
use microblog_record::Database;
use microblog_storage::{Cache, Item as _, Reader, Tables, Trust, Writer};
use tonic::service::Routes;

pub use config::Config;

use crate::{
    delivery::Delivery, group::Calls, items::PostItem, partitions::Partitions, posts::Posts,
    steps::Limits, tables::MIGRATIONS,
};

/// Why the service does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The Redis address is not valid.
    #[error("the cache cannot be opened")]
    Cache(#[from] keyspace::Error),
    /// The address of the database is not valid, or no service can use the database.
    #[error("the database cannot be opened")]
    Database(#[from] microblog_record::OpenError),
    /// The address of the timeline service is not valid.
    #[error("the address of the timeline service is not valid")]
    Timeline(#[from] AddressError),
}

/// Returns the service for one worker thread of a process. Without a timeline service, all posts count as
/// delivered. Does not wait for Redis.
pub async fn service(
    config: &Config,
    timeline: Option<Peer>,
    worker: Worker,
) -> Result<Service, StartError> {
    let database = Database::open(&config.database)?;
    if worker.is_first() {
        database.check_at_start().await?;
    }
    let keyspace = Keyspace::open(&config.redis, PostItem::LIBRARY)?;
    let limits = Limits { posts: config.posts_per_minute, comments: config.comments_per_minute };
    let cache = Cache::new(keyspace.clone());
    let tables = Tables::new(database, &MIGRATIONS);
    let trust = Trust::start(tables.clone(), keyspace.clone(), PostItem::PREFIX);
    let start_writer = || {
        let calls = Calls { limits, partitions: Partitions::default() };
        Writer::start(calls, tables.clone(), cache.clone(), trust.clone())
    };
    let delivery = Delivery::new(tables.clone(), timeline);
    let posts = Posts {
        reader: Reader::new(tables.clone(), keyspace.clone(), trust.clone()),
        tables: tables.clone(),
        writer: start_writer(),
        delivery: delivery.clone(),
    };
    let mut background = vec![background::job(&delivery)];
    if worker.is_first() {
        background.extend(background::jobs(&tables, &keyspace, start_writer(), &delivery));
    }
    let rpc = Arc::new(PostServiceGuard::new(rpc::Rpc::new(posts), CallAuthorizer));
    let handler: PostServiceHandler = rpc.clone();
    let server = PostServiceServer::from_arc(rpc)
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
    let timeline = Peer::remote(&config.timeline_url, &config.chassis)?;
    let service = service(&config, Some(timeline), worker).await?;
    Ok(vec![ServiceListener { address: config.listen, service }])
}
