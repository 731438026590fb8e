//! Shared by the services' benchmarks: the time to record a whole Redis, and to restore it, with the
//! process's peak memory meanwhile (Linux only).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that fails panics")]

use std::{fs, sync::Arc, time::Instant};

use futures::StreamExt as _;
use microblog_proto::common::RestoreSource;
use microblog_record::{Recorder, Tables, restore};
use microblog_testkit::{RedisServer, redis};

/// Records all that a Redis has to an empty database, as the first run of a recorder does.
pub(crate) async fn record<T: Tables>(recorder: &Recorder<T>, rows: (u64, &str)) {
    measure("recorded from nothing", rows, async { recorder.run().await.unwrap() }).await;
}

/// Empties a Redis, and restores it.
pub(crate) async fn restore_all<T: Tables + 'static>(
    server: &RedisServer,
    recorder: &Arc<Recorder<T>>,
    rows: (u64, &str),
) {
    let () = redis::cmd("FLUSHALL").query_async(&mut server.admin().await).await.unwrap();
    let restored = async {
        let all = restore(Some(recorder.clone()), RestoreSource::Unspecified, true).await.unwrap();
        assert!(all.all(async |partition| partition.unwrap().restored).await);
    };
    measure("all restored", rows, restored).await;
}

async fn measure(what: &str, (count, rows): (u64, &str), work: impl Future<Output = ()>) {
    // Resets the peak.
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let begun = Instant::now();
    work.await;
    let seconds = begun.elapsed().as_secs_f64();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().trim();
    println!(
        "  {what}: {seconds:.1} s, {:.0} {rows} a second, peak {peak}",
        count as f64 / seconds
    );
}

/// Returns the `n`th number among the arguments of the benchmark.
pub(crate) fn argument(n: usize) -> Option<u64> {
    std::env::args().skip(1).filter_map(|word| word.parse().ok()).nth(n)
}
