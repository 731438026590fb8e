//! `microblog restore`: restores the Redis of the post service from its database, or the database from
//! Redis. Those of user and relation need no restore.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    process::ExitCode,
    time::SystemTime,
};

use anyhow::anyhow;
use clap::ValueEnum;
use indicatif::HumanCount;
use microblog_proto::{
    common::{DamagedRow, RestoreSource, RestoredPartition},
    post::{RestoreRequest, RestoreResponse, post_service_client::PostServiceClient},
};
use tonic::{Request, Status, Streaming};

use crate::{
    keys::{Keys, SignedChannel},
    progress::Progress,
    remote::{self, POST_URL},
};

/// Restores lost posts of Redis from the database of the post service. Accounts and the follow graph need
/// no restore.
///
/// Needs an empty Redis, or the one that was recorded: what it lacks is brought back, and what was
/// deleted since stays so. May be interrupted and repeated: it skips what is restored. While a store does
/// not answer, it tries again for some seconds. User timelines are complete afterwards. Home timelines have
/// the posts of the last day and later ones.
///
/// Prints the last change that each partition had recorded before: later ones are lost, unless Redis
/// has them. Leaves out damaged rows of the database, and prints their names, and those of partitions
/// that the database has never recorded. Exits with 1 if there are some of either, and with 2 if it
/// fails.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The store to restore from.
    #[arg(long, value_name = "STORE", default_value = "database")]
    from: Source,
    /// Restores a store that has data though Redis is not the one that was recorded. In Redis, the newer
    /// one of two entries wins. The database loses all that Redis does not have.
    #[arg(long)]
    force: bool,
    /// Prints a line for each partition.
    #[arg(long)]
    verbose: bool,
    /// URL of the post service.
    #[arg(long, value_name = "URL", default_value = POST_URL, env = "MICROBLOG_POST_URL")]
    post_url: String,
    #[command(flatten)]
    keys: Keys,
}

/// The store to restore from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Source {
    /// Redis is restored.
    Database,
    /// The database is written anew.
    Redis,
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let channel = channel(&args.post_url, &args.keys)?;
    let found = Found::default();
    let restore = async || restore(channel.clone(), &args, &found).await;
    remote::retry_when(may_pass, restore).await.map_err(failed)?;
    let [damaged, unrecorded] =
        [found.damaged.borrow().len(), found.unrecorded.borrow().len()].map(|count| count as u64);
    if damaged > 0 {
        println!("{} damaged rows were left out", HumanCount(damaged));
    }
    if unrecorded > 0 {
        println!(
            "{} partitions were never recorded: they begin with what Redis has of them, if anything",
            HumanCount(unrecorded)
        );
    }
    Ok(if damaged + unrecorded == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// The results of all attempts.
#[derive(Default)]
struct Found {
    /// The last recorded change of each partition before its restore.
    recorded: RefCell<BTreeMap<u32, Option<SystemTime>>>,
    restored: RefCell<BTreeSet<u32>>,
    /// A row may be read for several partitions.
    damaged: RefCell<BTreeSet<String>>,
    unrecorded: RefCell<BTreeSet<u32>>,
}

/// Whether the service answers that it cannot restore now, but may in a moment: its Redis Cluster starts,
/// or its database. A restore goes on where it ended.
fn may_pass(status: &Status) -> bool {
    remote::is_transient(status) && !remote::reason(status).is_empty()
}

/// Restores the service.
async fn restore(channel: SignedChannel, args: &Args, found: &Found) -> Result<(), Status> {
    let source = match args.from {
        Source::Database => RestoreSource::Unspecified,
        Source::Redis => RestoreSource::Redis,
    };
    let request = Request::new(RestoreRequest { source: source.into(), force: args.force });
    let partitions = PostServiceClient::new(channel).restore(request).await?.into_inner();
    show(args, partitions, found).await
}

// Not `remote::connect`, which waits for health: the service is unhealthy until its Redis is restored.
fn channel(url: &str, keys: &Keys) -> anyhow::Result<SignedChannel> {
    Ok(keys.sign(remote::channel(url)?))
}

/// Prints the results, and adds them to those of earlier attempts.
async fn show(
    args: &Args,
    mut partitions: Streaming<RestoreResponse>,
    found: &Found,
) -> Result<(), Status> {
    const PARTITIONS: u64 = 1_024;
    /// The version of what was never recorded.
    const NONE: &str = "0-0";
    let progress = Progress::start("post", PARTITIONS);
    while let Some(response) = partitions.message().await? {
        let partition = response.partition.unwrap_or_default();
        let RestoredPartition { number, restored, recorded_version, .. } = &partition;
        let at = partition.recorded_at.and_then(|at| SystemTime::try_from(at).ok());
        if *restored {
            found.restored.borrow_mut().insert(*number);
        }
        if args.from == Source::Database
            && recorded_version == NONE
            && found.unrecorded.borrow_mut().insert(*number)
        {
            println!("unrecorded  post partition {number}");
        }
        // A repeated restore names the restore before.
        found.recorded.borrow_mut().entry(*number).or_insert(at);
        progress.add(1);
        for DamagedRow { table, key, problem } in &partition.damaged {
            let row = format!("{table} {key}: {problem}");
            if found.damaged.borrow_mut().insert(row.clone()) {
                println!("damaged  post {row}");
            }
        }
        if args.verbose {
            let state = if *restored { "restored" } else { "unchanged" };
            println!("post {number} {state}: recorded up to {recorded_version}, {}", time(at));
        }
    }
    let took = progress.finish();
    let newest = found.recorded.borrow().values().copied().max().flatten();
    println!(
        "post     {} of {PARTITIONS} partitions restored in {:.1} s; the last recorded change: {}",
        HumanCount(found.restored.borrow().len() as u64),
        took.as_secs_f64(),
        time(newest)
    );
    Ok(())
}

fn time(at: Option<SystemTime>) -> String {
    at.map_or_else(|| "none".to_owned(), |at| humantime::format_rfc3339_millis(at).to_string())
}

fn failed(status: Status) -> anyhow::Error {
    anyhow!("{}", remote::error_message(&status)).context("restore failed")
}
