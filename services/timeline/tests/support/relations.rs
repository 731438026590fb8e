//! A relation service that can be killed, and a proxy that can cut the connection to it.

use std::{
    net::{SocketAddr, TcpListener},
    sync::Arc,
    thread::{self, JoinHandle},
};

use clap::Parser as _;
use microblog_chassis::{Worker, serve};
use microblog_proto::relation::{self as pb, relation_service_client::RelationServiceClient};
use microblog_testkit as testkit;
use tokio::{
    net::TcpStream,
    sync::{oneshot, watch},
};
use tonic::transport::Channel;

use super::{PATIENCE, channel};

/// A relation service in a thread of its own, on a fixed port.
pub(crate) struct Relation {
    redis_url: String,
    database: testkit::Database,
    port: u16,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Relation {
    pub(crate) async fn start(redis_url: String) -> Self {
        let database = testkit::Database::sqlite();
        let mut relation = Self { redis_url, database, port: testkit::free_port(), running: None };
        relation.restart().await;
        relation
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(crate) fn client(&self) -> RelationServiceClient<Channel> {
        RelationServiceClient::new(channel(&self.url()))
    }

    /// Ends it like a crash: its connections break.
    pub(crate) fn kill(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            drop(stop);
            thread.join().unwrap();
        }
    }

    /// Starts it again on the same port, and waits until it responds.
    pub(crate) async fn restart(&mut self) {
        self.kill();
        let (stop, stopped) = oneshot::channel();
        let (url, database, port) = (self.redis_url.clone(), self.database.flag(), self.port);
        let run = move || run(&url, &database, port, stopped);
        self.running = Some((stop, thread::spawn(run)));
        let relation = self.client();
        testkit::eventually("relation answers", PATIENCE, async || {
            let question = pb::BatchGetCountsRequest { user_ids: vec![4] };
            relation.clone().batch_get_counts(question).await.is_ok()
        })
        .await;
    }
}

impl Drop for Relation {
    fn drop(&mut self) {
        self.kill();
    }
}

fn run(redis_url: &str, database: &str, port: u16, stopped: oneshot::Receiver<()>) {
    let flags = ["relation", "--redis-url", redis_url, database, "--threads", "1"];
    let config = microblog_relation::Config::parse_from(flags);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let service = microblog_relation::service(&config, Worker::ONLY).await.unwrap();
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let stop = std::future::pending();
        tokio::select! {
            served = serve(listener, service, &config.chassis, stop) => served.unwrap(),
            _ = stopped => {}
        }
    });
}

/// The state of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// Bytes pass.
    Open,
    /// Bytes are delayed without an error.
    Frozen,
    /// Connections break, old ones and new ones.
    Cut,
}

/// A proxy to a service on 127.0.0.1.
pub(crate) struct Proxy {
    address: SocketAddr,
    link: watch::Sender<Link>,
}

impl Proxy {
    pub(crate) async fn to(port: u16) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, link) = (listener.local_addr().unwrap(), watch::Sender::new(Link::Open));
        let states = link.subscribe();
        tokio::spawn(async move {
            while let Ok((caller, _)) = listener.accept().await {
                if *states.borrow() != Link::Cut {
                    tokio::spawn(carry(caller, port, states.clone()));
                }
            }
        });
        Self { address, link }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn set(&self, link: Link) {
        self.link.send_replace(link);
    }
}

impl Relation {
    /// Returns a proxy to it.
    pub(crate) async fn proxy(&self) -> Proxy {
        Proxy::to(self.port).await
    }
}

async fn carry(caller: TcpStream, port: u16, link: watch::Receiver<Link>) {
    let Ok(callee) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    let (caller, callee) = (Arc::new(caller), Arc::new(callee));
    tokio::select! {
        _ = pump(caller.clone(), callee.clone(), link.clone()) => {}
        _ = pump(callee, caller, link) => {}
    }
}

// Until one side closes, or the link is cut.
async fn pump(
    from: Arc<TcpStream>,
    to: Arc<TcpStream>,
    mut link: watch::Receiver<Link>,
) -> Option<()> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let state = *link.wait_for(|&link| link != Link::Frozen).await.ok()?;
        if state == Link::Cut {
            return None;
        }
        tokio::select! {
            biased;
            changed = link.changed() => { changed.ok()?; continue }
            readable = from.readable() => readable.ok()?,
        }
        let Some(count) = unless_blocked(from.try_read(&mut buffer))? else { continue };
        let mut rest = &buffer[..count];
        while !rest.is_empty() {
            to.writable().await.ok()?;
            if let Some(written) = unless_blocked(to.try_write(rest))? {
                rest = &rest[written..];
            }
        }
    }
}

// `None` at the end, `Some(None)` without data.
fn unless_blocked(count: std::io::Result<usize>) -> Option<Option<usize>> {
    match count {
        Ok(0) => None,
        Ok(count) => Some(Some(count)),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Some(None),
        Err(_) => None,
    }
}

/// The follows that one import can process in time, in a debug build on a busy machine.
const IMPORT: usize = 10_000;

/// Makes many users follow one.
pub(crate) async fn import(
    relation: &RelationServiceClient<Channel>,
    followers: impl IntoIterator<Item = u64>,
    target_id: u64,
) {
    let follow = |follower_id| pb::Follow { follower_id, target_id };
    let all: Vec<_> = followers.into_iter().map(follow).collect();
    for follows in all.chunks(IMPORT) {
        let request = pb::ImportFollowsRequest { follows: follows.to_vec() };
        let imported = relation.clone().import_follows(request).await.unwrap().into_inner();
        assert_eq!(imported.created + imported.unchanged, follows.len() as u64);
    }
}
