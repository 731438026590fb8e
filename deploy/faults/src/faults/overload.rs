//! More calls or connections than usual.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, stream};
use microblog_local::remote;
use microblog_proto::gateway::{
    ViewHomeRequest, WatchHomeRequest, WatchHomeResponse,
    gateway_service_client::GatewayServiceClient,
};
use microblog_testkit::{eventually, redis::cmd};
use tokio::{
    io::AsyncWriteExt as _,
    net::TcpStream,
    task::JoinSet,
    time::{interval, sleep},
};
use tonic::{Code, Status, Streaming, transport::Channel};

use super::separate;
use crate::{
    check::{as_viewer, login},
    system::{Passage, Proxy, Setup, StoreKind},
    trial::{Bite, Fault, Trial},
};

const CONNECTIONS: usize = 2_500;
const INTERVAL: Duration = Duration::from_millis(2);
/// The start of HTTP/2, and the start of a frame that never ends.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x12\x04";

const READERS: usize = 2_000;

const VIEWERS: usize = 8;
/// As many as a viewer may have.
const WATCHES: usize = 8;
/// The keepalive of a connection notices later that its client has vanished.
const GONE: Duration = Duration::from_secs(90);

/// Returns these faults.
pub(super) fn all() -> Vec<Fault> {
    let setups = || vec![Setup::one(), Setup::separate(StoreKind::Single)];
    vec![
        Fault::new(
            "connections-dropped",
            "2,500 connections to the gateway are opened and dropped in 5 s, some amid a request",
            "opened connections",
            setups(),
            |trial| Box::pin(connections_dropped(trial)),
        ),
        Fault::new(
            "cold-timeline",
            "2,000 calls at once read one home timeline that is not cached",
            "pages, all of them equal",
            separate(),
            |trial| Box::pin(cold_timeline(trial)),
        ),
        Fault::new(
            "watchers-vanished",
            "64 clients watch their home timelines: some read, some do not, and some vanish",
            "posts that were read; the viewers can watch again",
            separate(),
            |trial| Box::pin(watchers_vanished(trial)),
        ),
    ]
}

/// Connections to the gateway are opened and dropped.
async fn connections_dropped(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    let gateway = trial.system.urls().gateway.clone();
    let address = gateway.trim_start_matches("http://");
    let mut ticks = interval(INTERVAL);
    let mut opened = 0;
    for number in 0..CONNECTIONS {
        ticks.tick().await;
        let Ok(mut connection) = TcpStream::connect(address).await else { continue };
        opened += 1;
        if number % 2 == 0 {
            // The server may have closed it.
            let _ = connection.write_all(PREFACE).await;
        }
    }
    trial.after().await;
    let unknown = trial.load.shared.log.unknown(since);
    let seen = format!("{opened} opened connections, {unknown} unknown outcomes");
    Ok(Bite::seen_if(opened > CONNECTIONS / 2, seen))
}

/// Many calls read one home timeline at once, which no cache has. The clients do not write meanwhile.
async fn cold_timeline(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    trial.load.stop().await?;
    let (name, id) = trial.load.shared.model.borrow().accounts().next().context("no account")?;
    let gateway = GatewayServiceClient::new(remote::channel(&trial.system.urls().gateway)?);
    let token = login(&gateway, &name).await?;
    let mut connection = trial.system.redis.single()?.admin().await;
    let pattern = format!("tl:*:home:{id}");
    let keys: Vec<String> = cmd("KEYS").arg(pattern).query_async(&mut connection).await?;
    if !keys.is_empty() {
        cmd("UNLINK").arg(keys).exec_async(&mut connection).await?;
    }
    let read = |_| {
        let (mut gateway, token) = (gateway.clone(), token.clone());
        async move {
            loop {
                let request = as_viewer(&token, ViewHomeRequest::default())?;
                match gateway.view_home(request).await {
                    Ok(page) => {
                        let posts = page.into_inner().posts.into_iter();
                        let ids = posts.filter_map(|viewed| Some(viewed.post?.id));
                        return anyhow::Ok(ids.collect::<Vec<u64>>());
                    }
                    Err(status) if status.code() == Code::ResourceExhausted => {
                        sleep(INTERVAL).await;
                    }
                    Err(status) => return Err(status.into()),
                }
            }
        }
    };
    let mut pages = stream::iter(0..READERS).map(read).buffer_unordered(READERS);
    let mut found: BTreeMap<Vec<u64>, usize> = BTreeMap::new();
    while let Some(page) = pages.next().await {
        *found.entry(page?).or_default() += 1;
    }
    ensure!(found.len() == 1, "one timeline is read as {found:?}");
    let posts = found.keys().next().map_or(0, Vec::len);
    Ok(Bite::seen_if(posts > 0, format!("{READERS} equal pages of {posts} posts")))
}

/// Clients watch their home timelines. Some do not read, and some vanish without an end of their
/// connections. Later, their viewers may watch as often as before.
async fn watchers_vanished(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let url = &trial.system.urls().gateway;
    let port = url.rsplit_once(':').context("a URL has a port")?.1.parse()?;
    let network = Proxy::start("watchers", "gateway", port).await?;
    let connect =
        |url: &str| Ok::<_, anyhow::Error>(GatewayServiceClient::new(remote::channel(url)?));
    let reading = connect(url)?;
    let (stalled, vanishing) =
        (connect(url)?, connect(&format!("http://127.0.0.1:{}", network.port()))?);
    let viewers: Vec<_> = trial.load.shared.model.borrow().accounts().take(VIEWERS).collect();
    let (mut readers, mut others, mut tokens) = (JoinSet::new(), Vec::new(), Vec::new());
    for (name, _) in viewers {
        let token = login(&reading, &name).await?;
        for number in 0..WATCHES {
            match number % 3 {
                0 => {
                    let mut posts = watch(&reading, &token).await?;
                    readers.spawn(async move {
                        let mut read = 0;
                        while let Ok(Some(page)) = posts.message().await {
                            read += page.posts.len();
                        }
                        read
                    });
                }
                1 => others.push(watch(&stalled, &token).await?),
                _ => others.push(watch(&vanishing, &token).await?),
            }
        }
        tokens.push(token);
    }
    let rejected = watch(&reading, &tokens[0]).await.err().context("there is no limit")?;
    ensure!(remote::error_message(&rejected).contains("WATCH_LIMIT"), "{rejected}");
    trial.meanwhile().await;
    network.set(Passage::Cut);
    eventually("those that vanished do not count", GONE, async || {
        let mut opened = Vec::new();
        for token in &tokens {
            opened.extend(watch(&stalled, token).await);
        }
        opened.len() == tokens.len()
    })
    .await;
    drop((reading, stalled, vanishing, others));
    trial.after().await;
    trial.load.stop().await?;
    // The servers end what still watches.
    for gateway in trial.system.replicas("microblog-gateway")? {
        trial.system.restart(gateway).await?;
    }
    let read: usize = readers.join_all().await.into_iter().sum();
    let seen = format!("{read} posts read, {} viewers watch again", tokens.len());
    Ok(Bite::seen_if(read > 0, seen))
}

async fn watch(
    gateway: &GatewayServiceClient<Channel>,
    token: &str,
) -> Result<Streaming<WatchHomeResponse>, Status> {
    // Without a deadline.
    let mut request = as_viewer(token, WatchHomeRequest::default())?;
    request.metadata_mut().remove("grpc-timeout");
    Ok(gateway.clone().watch_home(request).await?.into_inner())
}
