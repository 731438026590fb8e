//! What it costs Redis to say how a viewer stands to each account on a page of followers: by the
//! usual recipes on sorted sets, and our way, for lists of any length. Redis' own account of the
//! time it spends on commands, made one page at a time.

mod ours;
mod recipes;

use std::time::{Duration, Instant};

use microblog_keyspace::redis::aio::MultiplexedConnection;

use super::stats;

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
    let before = stats::commands(admin).await?;
    let begin = Instant::now();
    let mut pages = 0;
    while pages < PAGES_MAX && (pages == 0 || begin.elapsed() < MEASURE) {
        page(pages).await?;
        pages += 1;
    }
    let after = stats::commands(admin).await?;
    Ok(stats::per_round(&before, &after, pages))
}

/// Returns the id of the account with a number: spread over the partitions, as ids are.
fn account(number: u64) -> u64 {
    ((60_000_000_000 + number) << 12) | ((number * 37 % 1_024) << 2)
}
