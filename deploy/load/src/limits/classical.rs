//! What it costs Redis to say how a viewer stands to each account on a page of followers: by the
//! usual recipes on sorted sets, and our way, for lists of any length. Redis' own account of the
//! time it spends on commands, made one page at a time.

mod ours;
mod recipes;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use microblog_keyspace::redis::aio::MultiplexedConnection;

use crate::info::{Executed, Info};

pub(crate) use ours::ours;
pub(crate) use recipes::recipes;

/// The accounts on a page.
const PAGE: u64 = 50;

/// How many pages are enough, whatever they take.
const PAGES_MAX: u64 = 2_000;

/// For how long pages are made, unless they are enough before.
const MEASURE: Duration = Duration::from_secs(2);

/// A page at least comes before those that count.
const WARM_UP: u64 = 20;

/// Makes pages, and returns for how long Redis works on the commands of each, in microseconds.
async fn per_page(
    admin: &mut MultiplexedConnection,
    mut page: impl AsyncFnMut(u64) -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    let begin = Instant::now();
    for number in 0..WARM_UP {
        page(number).await?;
        if begin.elapsed() > MEASURE {
            break;
        }
    }
    let before = Info::ask(admin, &["commandstats"]).await?;
    let begin = Instant::now();
    let mut pages = 0;
    while pages < PAGES_MAX && (pages == 0 || begin.elapsed() < MEASURE) {
        page(pages).await?;
        pages += 1;
    }
    let after = Info::ask(admin, &["commandstats"]).await?;
    Ok(per_round(&before.commands(), &after.commands(), pages))
}

/// Returns the id of the account with a number: spread over the partitions, as ids are.
fn account(number: u64) -> u64 {
    ((60_000_000_000 + number) << 12) | ((number * 37 % 1_024) << 2)
}

/// Returns for how long Redis worked on commands in each of `times` rounds, in microseconds: what
/// came less often than every other round is somebody else's. Must not be asked about functions.
fn per_round(
    before: &BTreeMap<String, Executed>,
    after: &BTreeMap<String, Executed>,
    times: u64,
) -> f64 {
    let spent = |(name, &after): (&String, &Executed)| {
        let Executed { calls, us } = after - before.get(name).copied().unwrap_or_default();
        let each_round = (calls as f64 / times as f64).round();
        if calls == 0 { 0.0 } else { us as f64 / calls as f64 * each_round }
    };
    after.iter().filter(|(name, _)| *name != "info").map(spent).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_send_now_and_then_does_not_count() {
        let executed = |calls, us| Executed { calls, us };
        let name = str::to_owned;
        let before = BTreeMap::from([(name("zrange"), executed(10, 100))]);
        let after = BTreeMap::from([
            (name("zrange"), executed(10 + 202, 100 + 404)),
            (name("ping"), executed(30, 3)),
            (name("info"), executed(100, 900)),
        ]);
        assert_eq!(per_round(&before, &after, 100), 4.0);
    }
}
