//! What goes on beside the servers: says when they are ready, makes the demo graph, and tells
//! people that their Ctrl-C was heard. The servers see to themselves.

use std::{io, path::PathBuf, process, thread, time::Duration};

use anyhow::Context as _;
use tokio::{
    runtime,
    signal::unix::{Signal, SignalKind, signal},
    time,
};

use super::{announce, sample, services::SERVERS};
use crate::{keys::Keys, remote};

const POLL: Duration = Duration::from_millis(100);
const LAST_GRACE: Duration = Duration::from_secs(1);
// As shells have it: 128 and the number of SIGINT.
const INTERRUPTED: i32 = 130;

/// Starts all that, in a thread of its own that ends with the process. `sample_mark` asks for the
/// demo graph, which is made as the system, with the servers' keys.
pub(super) fn start(
    port_base: u16,
    sample_mark: Option<PathBuf>,
    keys: Keys,
) -> anyhow::Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let signals = {
        let _runtime = runtime.enter();
        Signals::new().context("cannot listen for signals")?
    };
    thread::Builder::new()
        .name("companion".to_owned())
        .spawn(move || runtime.block_on(attend(signals, port_base, sample_mark, keys)))?;
    Ok(())
}

async fn attend(mut signals: Signals, port_base: u16, sample_mark: Option<PathBuf>, keys: Keys) {
    tokio::select! {
        outcome = accompany(port_base, sample_mark, &keys) => {
            if let Err(error) = outcome {
                eprintln!("error: {error:#}");
            }
            signals.next().await;
        }
        () = signals.next() => {}
    }
    println!("stopping once the calls under way are done; a second Ctrl-C ends it at once");
    signals.next().await;
    // The servers do not wait for calls any more; redis-server is quick, too, unless it is stuck.
    time::sleep(LAST_GRACE).await;
    process::exit(INTERRUPTED);
}

async fn accompany(
    port_base: u16,
    sample_mark: Option<PathBuf>,
    keys: &Keys,
) -> anyhow::Result<()> {
    for server in &SERVERS {
        let channel = remote::channel(&server.url(port_base))?;
        while !remote::is_serving(channel.clone()).await.unwrap_or(false) {
            time::sleep(POLL).await;
        }
    }
    announce::ready(port_base);
    if let Some(mark) = sample_mark {
        sample::ensure(port_base, &mark, keys).await.context("cannot make the demo graph")?;
    }
    Ok(())
}

/// The signals that ask the process to stop.
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
