//! The price of change journals: Redis' time in functions with and without them.

use crate::RedisServer;

/// Changes of a kind in a round.
pub const CHANGES: u64 = 10_000;

/// Rounds, with and without journals in turns.
const ROUNDS: usize = 6;

/// The partitions whose state is changed, with consecutive numbers from 0. A change that finds its
/// caller new to the partition costs more: few changes do.
pub const PARTITIONS: u64 = 64;

/// Measures changes of some kinds, and prints the medians of Redis' microseconds for each. Each round
/// has a server of its own. `open` prepares the state, with a change in each partition, and `change`
/// makes [`CHANGES`] of a kind.
pub async fn print_journal_cost<S>(
    kinds: &[&str],
    journal: impl Fn(u64) -> String,
    open: impl AsyncFn(&RedisServer) -> S,
    change: impl AsyncFn(&S, &str),
) {
    let mut rounds = vec![[const { Vec::new() }; 3]; kinds.len()];
    for _ in 0..ROUNDS {
        let mut times = Vec::new();
        for has_journals in [false, true] {
            let server = RedisServer::start().await;
            if has_journals {
                open_journals(&server, &journal).await;
            }
            let state = open(&server).await;
            for kind in kinds {
                server.reset_commandstats().await;
                change(&state, kind).await;
                times.push(server.function_time().await / CHANGES as f64);
            }
        }
        let (without, with) = times.split_at(kinds.len());
        for (kind, (without, with)) in rounds.iter_mut().zip(without.iter().zip(with)) {
            kind[0].push(*without);
            kind[1].push(*with);
            kind[2].push(with / without);
        }
    }
    println!("microseconds of Redis for a change, medians of {ROUNDS} rounds of {CHANGES}\n");
    println!("{:<10}{:>10}{:>10}{:>10}", "journal", "without", "with", "ratio");
    for (kind, of_kind) in kinds.iter().zip(rounds) {
        let [without, with, ratio] = of_kind.map(median);
        println!("{kind:<10}{without:>10.2}{with:>10.2}{ratio:>10.2}");
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

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    (values[(values.len() - 1) / 2] + values[middle]) / 2.0
}
