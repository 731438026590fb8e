//! The price of change journals: Redis' time in functions with and without them.

use crate::RedisServer;

/// Changes of a kind in a round.
pub const CHANGES: u64 = 10_000;

/// Rounds, with and without journals in turns. The least disturbed one counts.
const ROUNDS: usize = 6;

/// The partitions whose state is changed, with consecutive numbers from 0. A change that finds its
/// caller new to the partition costs more: few changes do.
pub const PARTITIONS: u64 = 64;

/// Measures changes of some kinds, and prints Redis' microseconds for each. Each round has a server of
/// its own. `open` prepares the state, with a change in each partition, and `change`
/// makes [`CHANGES`] of a kind.
pub async fn print_journal_cost<S>(
    kinds: &[&str],
    journal: impl Fn(u64) -> String,
    open: impl AsyncFn(&RedisServer) -> S,
    change: impl AsyncFn(&S, &str),
) {
    let mut least = vec![[f64::INFINITY; 2]; kinds.len()];
    for _ in 0..ROUNDS {
        for has_journals in [false, true] {
            let server = RedisServer::start().await;
            if has_journals {
                open_journals(&server, &journal).await;
            }
            let state = open(&server).await;
            for (kind, least) in kinds.iter().zip(&mut least) {
                server.reset_commandstats().await;
                change(&state, kind).await;
                let time = server.function_time().await / CHANGES as f64;
                let least = &mut least[usize::from(has_journals)];
                *least = time.min(*least);
            }
        }
    }
    println!("microseconds of Redis for a change, least of {ROUNDS} rounds of {CHANGES}\n");
    println!("{:<10}{:>10}{:>10}{:>10}", "journal", "without", "with", "ratio");
    for (kind, [without, with]) in kinds.iter().zip(least) {
        println!("{kind:<10}{without:>10.2}{with:>10.2}{:>10.2}", with / without);
    }
}

async fn open_journals(server: &RedisServer, journal: &impl Fn(u64) -> String) {
    let mut admin = server.admin().await;
    for partition in 0..PARTITIONS {
        let mut open = redis::cmd("XADD");
        open.arg(journal(partition)).arg("1-0").arg("c").arg("opened x 9");
        open.exec_async(&mut admin).await.expect("open a journal");
    }
}
