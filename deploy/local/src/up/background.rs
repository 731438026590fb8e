//! A dedicated thread beside the servers: reports readiness, observes redis-server, creates the demo
//! graph, and handles Ctrl-C for the launcher. The servers handle their own shutdown.

use std::{io, path::PathBuf, process, thread, time::Duration};

use anyhow::Context as _;
use tokio::{
    runtime,
    signal::unix::{Signal, SignalKind, signal},
    time,
};

use super::{Access, demo_data, messages, redis};
use crate::{keys::Keys, remote, services::SERVERS};

const POLL_INTERVAL: Duration = Duration::from_millis(100);
const LAST_GRACE: Duration = Duration::from_secs(1);
// The exit code of shells: 128 plus the number of SIGINT.
const INTERRUPTED: i32 = 130;

/// Starts the thread, which ends with the process. With `demo_data_mark`, it creates the demo
/// graph, as the identity `system` of the servers' keys.
pub(super) fn start(
    port_base: u16,
    demo_data_mark: Option<PathBuf>,
    keys: Keys,
    access: Access,
) -> anyhow::Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let signals = {
        let _runtime = runtime.enter();
        Signals::new().context("cannot register signal handlers")?
    };
    thread::Builder::new()
        .name("background".to_owned())
        .spawn(move || runtime.block_on(run(signals, port_base, demo_data_mark, keys, access)))?;
    Ok(())
}

async fn run(
    mut signals: Signals,
    port_base: u16,
    demo_data_mark: Option<PathBuf>,
    keys: Keys,
    access: Access,
) {
    tokio::select! {
        result = when_serving(port_base, demo_data_mark, &keys, &access) => {
            if let Err(error) = result {
                eprintln!("error: {error:#}");
            }
            signals.next().await;
        }
        () = signals.next() => {}
    }
    println!("draining: waiting for calls in flight; a second Ctrl-C stops at once");
    signals.next().await;
    // After a second signal, the servers do not wait for calls. redis-server stops quickly, unless
    // it is stuck.
    time::sleep(LAST_GRACE).await;
    process::exit(INTERRUPTED);
}

async fn when_serving(
    port_base: u16,
    demo_data_mark: Option<PathBuf>,
    keys: &Keys,
    access: &Access,
) -> anyhow::Result<()> {
    for server in SERVERS {
        let channel = remote::channel(&server.url(port_base))?;
        while !remote::is_serving(channel.clone()).await.unwrap_or(false) {
            time::sleep(POLL_INTERVAL).await;
        }
    }
    if let Err(error) = redis::observe_memory(access) {
        eprintln!("the memory of redis-server is not measured: {error:#}");
    }
    messages::ready(port_base);
    if let Some(mark) = demo_data_mark {
        let created = demo_data::ensure(port_base, &mark, keys).await;
        if let Some((graph, post_id)) = created.context("cannot create the demo graph")? {
            messages::demo_graph(port_base, &graph, post_id);
        }
    }
    Ok(())
}

/// SIGINT and SIGTERM.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
