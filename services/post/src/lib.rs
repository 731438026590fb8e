//! The post service: posts, reposts, likes and comments.
//!
//! A post and everything that belongs to it lie in one partition, its author's; the post's id names
//! it. One atomic step changes a list together with its count. Work that crosses partitions or
//! services, such as repost counts and delivery to timelines, is a [saga that survives
//! crashes](Posts). Posts live in two tiers: Redis is the [hot store](Store), a SQL database the
//! [archive](Archive); [`TieredStore`] reads both.
//!
//! The service calls only the timeline service, to deliver new posts. It does not store whether an
//! account exists or who blocks whom. It rejects posts of accounts that are marked as
//! [deleted](Store::forget).

mod archive;
mod background;
mod changes;
mod config;
mod delivery;
mod entities;
mod erasure;
mod error;
mod evictor;
mod forget;
mod journal;
mod keys;
mod metrics;
mod post;
mod posts;
mod reactions;
mod record;
mod repair;
mod rpc;
mod store;
mod sweeper;
mod tiered_store;
mod verify;
mod wire;

use std::{process::ExitCode, sync::Arc};

use clap::Parser as _;
use microblog_chassis::{AddressError, CallAuthorizer, Peer, Service, ServiceListener, Worker};
use microblog_keyspace as keyspace;
use microblog_proto::post::{
    PostServiceGuard, PostServiceHandler,
    post_service_server::{PostServiceServer, SERVICE_NAME},
};
use tonic::service::Routes;

pub use archive::{Archive, Config as ArchiveConfig};
pub use config::Config;
pub use delivery::Delivery;
pub use erasure::Eraser;
pub use error::Error;
pub use evictor::{Evictions, Evictor};
pub use forget::forget_marked;
pub use journal::{JournalEntry, Reaction, ReactionList};
pub use post::{
    Backlink, BacklinkUpdate, Comment, CommentContent, Content, Counts, ListLengths, MadeByRequest,
    Origin, Post, PostPage, Reply, Root, Snapshot, WithRoot,
};
pub use posts::Posts;
pub use reactions::Reactions;
pub use record::{PostTables, recorder};
pub use repair::Repair;
pub use store::{
    AddedComment, CommentAdmission, Job, List, PostCount, PostDeletion, Presence, Published,
    RestoreOutcome, Store,
};
pub use sweeper::Sweeper;
pub use tiered_store::TieredStore;
pub use verify::{Report, partition as verify_partition};

/// Why the service does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The Redis address is not valid.
    #[error("the store cannot be opened")]
    Store(#[from] keyspace::Error),
    /// The archive address is not valid, or no service can use the database.
    #[error("the archive cannot be opened")]
    Archive(#[from] microblog_record::OpenError),
    /// The address of the timeline service is not valid.
    #[error("the address of the timeline service is not valid")]
    Timeline(#[from] AddressError),
}

/// Returns the service as one worker of a process runs it. Without a timeline service, all posts
/// count as delivered. Succeeds while Redis and the archive are unavailable.
pub async fn service(
    config: &Config,
    timeline: Option<Peer>,
    worker: Worker,
) -> Result<Service, StartError> {
    let store = Store::open(config)?;
    let archive = Archive::open(&config.database)?;
    if let Some(archive) = archive.as_ref().filter(|_| worker.is_first()) {
        archive.database().check_at_start().await?;
    }
    if let Some(file) = archive.as_ref().filter(|archive| archive.database().is_embedded()) {
        // Reads may arrive before the recorder migrates the database.
        if let Err(error) = file.migrate().await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "archive unavailable at start");
        }
    }
    let tiered = TieredStore::new(store.clone(), archive.clone(), config.archive.warm_window);
    let delivery = Delivery::new(store.clone(), timeline);
    let posts = Posts::new(tiered.clone(), delivery.clone());
    let recorder = archive
        .as_ref()
        .map(|archive| Arc::new(record::recorder(&store, archive, &config.archive)));
    config.durability.set_up(recorder.as_ref())?;
    let rpc = rpc::Rpc::new(tiered.clone(), posts, recorder);
    let rpc = Arc::new(PostServiceGuard::new(rpc, CallAuthorizer));
    let handler: PostServiceHandler = rpc.clone();
    let server = PostServiceServer::from_arc(rpc)
        .max_decoding_message_size(config.chassis.max_message_bytes);
    let mut background = Vec::new();
    if worker.is_first() {
        background.extend(background::jobs(&tiered, &delivery, &config.chassis));
        if let Some(archive) = Archive::open(&config.database)? {
            // The recorder's runtime needs its own connections.
            background.push(background::archiving(Store::open(config)?, archive, &config.archive));
        }
    }
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
    let timeline = Peer::remote(&config.timeline_url, &config.chassis)?;
    let service = service(&config, Some(timeline), worker).await?;
    Ok(vec![ServiceListener { address: config.listen, service }])
}
