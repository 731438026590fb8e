//! The timeline service: home and friends timelines.
//!
//! `delivery` writes a post into its author's user timeline, which only fan-out on read and builds
//! of home timelines read, and enqueues a fan-out job. Fan-out on write (push: `fanout_on_write`,
//! `fanout_worker`) copies the post into the cached home timelines of active followers
//! (`home_cache`). Fan-out on read (pull: `fanout_on_read`) fetches posts of authors with many followers when a home timeline is read (`reader`). Every read filters entries
//! (`list`) by the current relations between the viewer and the authors (`viewer_relations`). A
//! stored home timeline is therefore only a cache.
//!
//! The service calls the relation service (`graph`), and the post service for the posts that its
//! user timelines lack (`author_posts`). It stores neither post texts nor deletions; the gateway hydrates posts.

mod author_posts;
mod background;
mod config;
mod cursor;
mod delivery;
mod entry;
mod error;
mod failover;
mod fanout_on_read;
mod fanout_on_write;
mod fanout_switch;
mod fanout_worker;
mod graph;
mod home_cache;
mod job;
mod keys;
mod list;
mod metrics;
mod peer;
mod reader;
mod rpc;
mod store;
mod viewer_relations;
mod watch;
mod wire;

use std::{process::ExitCode, sync::Arc};

use clap::Parser as _;
use microblog_chassis::{AddressError, CallAuthorizer, Peer, Service, ServiceListener, Worker};
use microblog_keyspace as keyspace;
use microblog_proto::timeline::{
    TimelineServiceGuard, TimelineServiceHandler,
    timeline_service_server::{SERVICE_NAME, TimelineServiceServer},
};
use tonic::service::Routes;

pub use config::{Config, Mode};
pub use entry::{Entry, USER_RECORD};
pub use error::Error;
pub use job::{Job, Kind};
pub use keys::STREAMS;
pub use list::HOME_MAX;
pub use store::{BuildLease, FanoutState, Head, Home, Published, Replacement, Step, Store, Tail};

use crate::{
    author_posts::PostLists, delivery::Delivery, fanout_on_read::AuthorLists,
    fanout_on_write::Fanout, fanout_switch::FanoutSwitch, fanout_worker::FanoutWorkers,
    graph::Graph, metrics::Metrics, reader::Reader, rpc::Rpc,
};

/// Why the service fails to start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The Redis URL is invalid.
    #[error("cannot open the redis store")]
    Store(#[from] keyspace::Error),
    /// The URL of the relation or post service is invalid.
    #[error("invalid URL of the {0} service")]
    Peer(&'static str, #[source] AddressError),
}

/// Returns the service for one worker thread of a process. `relation` and `post` are its clients of these
/// services. Without `post`, posts are missing that Redis has lost. Does not wait for Redis.
pub async fn service(
    config: &Config,
    relation: Peer,
    post: Option<Peer>,
    worker: Worker,
) -> Result<Service, keyspace::Error> {
    let store = Store::open(&config.redis)?;
    let (graph, metrics) = (Graph::new(relation), Metrics::new());
    let posts = post.map(PostLists::new);
    let authors = AuthorLists::new(store.clone(), posts.clone());
    let mode = config.mode;
    // A separate connection: the thousands of commands of a fan-out step must not delay reads.
    let fanout_store = Store::open(&config.redis)?;
    let switch = FanoutSwitch::new(fanout_store.clone(), mode, config.pull_threshold);
    let fanout = Fanout {
        store: fanout_store.clone(),
        graph: graph.clone(),
        switch,
        metrics: metrics.clone(),
    };
    let workers = FanoutWorkers::new(fanout_store, fanout, metrics.clone());
    let background = background::jobs(&store, posts, &workers, &metrics, worker);
    let rpc = Rpc {
        store: store.clone(),
        reader: Reader::new(store.clone(), graph, authors, mode, metrics.clone()),
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
    let relation = peer("relation", &config.relation_url)?;
    let post = peer("post", &config.post_url)?;
    let service = service(&config, relation, Some(post), worker).await?;
    Ok(vec![ServiceListener { address: config.listen, service }])
}
