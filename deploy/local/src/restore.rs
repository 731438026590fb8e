//! `microblog restore`: restores the Redis of each service from its database, or the database from
//! Redis.

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
    post::{self, post_service_client::PostServiceClient},
    user::{self, user_service_client::UserServiceClient},
};
use tonic::{Request, Status, Streaming};

use crate::{
    keys::{Keys, SignedChannel},
    progress::Progress,
    remote::{self, POST_URL, USER_URL},
};

/// Restores lost data of Redis from the databases of the services.
///
/// Needs an empty Redis, or the one that was recorded: what it lacks is brought back, and what was
/// deleted or blocked since stays so. May be interrupted and repeated: it skips what is restored. While a
/// store does not answer, it tries again for some seconds. User timelines are complete afterwards. Home
/// timelines have the posts of the last day and later ones.
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
    /// one of two entries wins. The databases lose all that Redis does not have.
    #[arg(long)]
    force: bool,
    /// The services to restore.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "user,post")]
    services: Vec<Name>,
    /// Prints a line for each partition.
    #[arg(long)]
    verbose: bool,
    /// URL of the user service.
    #[arg(long, value_name = "URL", default_value = USER_URL, env = "MICROBLOG_USER_URL")]
    user_url: String,
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
    /// The databases are written anew.
    Redis,
}

/// A service that records its changes in a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Name {
    User,
    Post,
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut lost = Lost::default();
    for &name in &args.services {
        let channel = channel(args.url(name), &args.keys)?;
        let found = Found::default();
        let restore = async || restore(name, channel.clone(), &args, &found).await;
        remote::retry_when(may_pass, restore).await.map_err(failed)?;
        lost.damaged += found.damaged.borrow().len() as u64;
        lost.unrecorded += found.unrecorded.borrow().len() as u64;
    }
    if lost.damaged > 0 {
        println!("{} damaged rows were left out", HumanCount(lost.damaged));
    }
    if lost.unrecorded > 0 {
        println!(
            "{} partitions were never recorded: they begin with what Redis has of them, if anything",
            HumanCount(lost.unrecorded)
        );
    }
    Ok(if lost == Lost::default() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

impl Args {
    fn url(&self, name: Name) -> &str {
        match name {
            Name::User => &self.user_url,
            Name::Post => &self.post_url,
        }
    }
}

/// What a restore could not bring back.
#[derive(Debug, Default, PartialEq, Eq)]
struct Lost {
    /// Damaged rows of the database.
    damaged: u64,
    /// Partitions that the database has never recorded.
    unrecorded: u64,
}

/// The results of a service, of all attempts.
#[derive(Default)]
struct Found {
    /// The last recorded change of each partition before its restore.
    recorded: RefCell<BTreeMap<u32, Option<SystemTime>>>,
    restored: RefCell<BTreeSet<u32>>,
    /// A row may be read for several partitions.
    damaged: RefCell<BTreeSet<String>>,
    unrecorded: RefCell<BTreeSet<u32>>,
}

/// Whether a service answers that it cannot restore now, but may in a moment: its Redis Cluster starts,
/// or its database. A restore goes on where it ended.
fn may_pass(status: &Status) -> bool {
    remote::is_transient(status) && !remote::reason(status).is_empty()
}

/// Restores a service.
async fn restore(
    name: Name,
    channel: SignedChannel,
    args: &Args,
    found: &Found,
) -> Result<(), Status> {
    let source = match args.from {
        Source::Database => RestoreSource::Unspecified,
        Source::Redis => RestoreSource::Redis,
    };
    let (source, force) = (source.into(), args.force);
    match name {
        Name::User => {
            let request = Request::new(user::RestoreRequest { source, force });
            let partitions = UserServiceClient::new(channel).restore(request).await?.into_inner();
            show("user", args, partitions, |response| response.partition, found).await
        }
        Name::Post => {
            let request = Request::new(post::RestoreRequest { source, force });
            let partitions = PostServiceClient::new(channel).restore(request).await?.into_inner();
            show("post", args, partitions, |response| response.partition, found).await
        }
    }
}

// Not `remote::connect`, which waits for health: a service is unhealthy until its Redis is restored.
fn channel(url: &str, keys: &Keys) -> anyhow::Result<SignedChannel> {
    Ok(keys.sign(remote::channel(url)?))
}

/// Prints the results of a service, and adds them to those of earlier attempts.
async fn show<T>(
    service: &'static str,
    args: &Args,
    mut partitions: Streaming<T>,
    partition: impl Fn(T) -> Option<RestoredPartition>,
    found: &Found,
) -> Result<(), Status> {
    const PARTITIONS: u64 = 1_024;
    /// The version of what was never recorded.
    const NONE: &str = "0-0";
    let progress = Progress::start(service, PARTITIONS);
    while let Some(response) = partitions.message().await? {
        let partition = partition(response).unwrap_or_default();
        let RestoredPartition { number, restored, recorded_version, .. } = &partition;
        let at = partition.recorded_at.and_then(|at| SystemTime::try_from(at).ok());
        if *restored {
            found.restored.borrow_mut().insert(*number);
        }
        if args.from == Source::Database
            && recorded_version == NONE
            && found.unrecorded.borrow_mut().insert(*number)
        {
            println!("unrecorded  {service} partition {number}");
        }
        // A repeated restore names the restore before.
        found.recorded.borrow_mut().entry(*number).or_insert(at);
        progress.add(1);
        for DamagedRow { table, key, problem } in &partition.damaged {
            let row = format!("{table} {key}: {problem}");
            if found.damaged.borrow_mut().insert(row.clone()) {
                println!("damaged  {service} {row}");
            }
        }
        if args.verbose {
            let state = if *restored { "restored" } else { "unchanged" };
            println!("{service} {number} {state}: recorded up to {recorded_version}, {}", time(at));
        }
    }
    let took = progress.finish();
    let newest = found.recorded.borrow().values().copied().max().flatten();
    println!(
        "{service:8} {} of {PARTITIONS} partitions restored in {:.1} s; the last recorded change: {}",
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
