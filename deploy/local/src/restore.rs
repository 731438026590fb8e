//! `microblog restore`: restores the Redis of each service from its database, or the database from
//! Redis.

use std::{collections::BTreeSet, process::ExitCode, time::SystemTime};

use anyhow::anyhow;
use clap::ValueEnum;
use indicatif::HumanCount;
use microblog_proto::{
    common::{DamagedRow, RestoreSource, RestoredPartition},
    post::{self, post_service_client::PostServiceClient},
    relation::{self, relation_service_client::RelationServiceClient},
    user::{self, user_service_client::UserServiceClient},
};
use tonic::{Request, Status, Streaming};

use crate::{
    keys::{Keys, SignedChannel},
    progress::Progress,
    remote::{self, POST_URL, RELATION_URL, USER_URL},
};

/// Restores lost data of Redis from the databases of the services.
///
/// Needs an empty Redis, or the one that was recorded: what it lacks is brought back, and what was
/// deleted or blocked since stays so. May be interrupted and repeated: it skips what is restored. User
/// timelines are complete afterwards. Home timelines have the posts of the last day and later ones.
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
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "user,relation,post")]
    services: Vec<Name>,
    /// Prints a line for each partition.
    #[arg(long)]
    verbose: bool,
    /// URL of the user service.
    #[arg(long, value_name = "URL", default_value = USER_URL, env = "MICROBLOG_USER_URL")]
    user_url: String,
    /// URL of the relation service.
    #[arg(long, value_name = "URL", default_value = RELATION_URL, env = "MICROBLOG_RELATION_URL")]
    relation_url: String,
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

/// A service with a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Name {
    User,
    Relation,
    Post,
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let source = match args.from {
        Source::Database => RestoreSource::Unspecified,
        Source::Redis => RestoreSource::Redis,
    };
    let (source, force) = (source.into(), args.force);
    let mut lost = Lost::default();
    for name in &args.services {
        let lost_by = match name {
            Name::User => {
                let channel = channel(&args.user_url, &args.keys)?;
                let request = user::RestoreRequest { source, force };
                let mut client = UserServiceClient::new(channel);
                let partitions = client.restore(Request::new(request)).await.map_err(failed)?;
                let partitions = partitions.into_inner();
                show("user", &args, partitions, |response| response.partition).await?
            }
            Name::Relation => {
                let channel = channel(&args.relation_url, &args.keys)?;
                let request = relation::RestoreRequest { source, force };
                let mut client = RelationServiceClient::new(channel);
                let partitions = client.restore(Request::new(request)).await.map_err(failed)?;
                let partitions = partitions.into_inner();
                show("relation", &args, partitions, |response| response.partition).await?
            }
            Name::Post => {
                let channel = channel(&args.post_url, &args.keys)?;
                let request = post::RestoreRequest { source, force };
                let mut client = PostServiceClient::new(channel);
                let partitions = client.restore(Request::new(request)).await;
                let partitions = partitions.map_err(failed)?.into_inner();
                show("post", &args, partitions, |response| response.partition).await?
            }
        };
        lost.damaged += lost_by.damaged;
        lost.unrecorded += lost_by.unrecorded;
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

/// What a restore could not bring back.
#[derive(Debug, Default, PartialEq, Eq)]
struct Lost {
    /// Damaged rows of the database.
    damaged: u64,
    /// Partitions that the database has never recorded.
    unrecorded: u64,
}

// Not `remote::connect`, which waits for health: a service is unhealthy until its Redis is restored.
fn channel(url: &str, keys: &Keys) -> anyhow::Result<SignedChannel> {
    Ok(keys.sign(remote::channel(url)?))
}

/// Prints the results of a service.
async fn show<T>(
    service: &'static str,
    args: &Args,
    mut partitions: Streaming<T>,
    partition: impl Fn(T) -> Option<RestoredPartition>,
) -> anyhow::Result<Lost> {
    const PARTITIONS: u64 = 1_024;
    /// The version of what was never recorded.
    const NONE: &str = "0-0";
    let progress = Progress::start(service, PARTITIONS);
    let (mut restored, mut unrecorded, mut newest) = (0, 0, None);
    // A row may be read for several partitions.
    let mut damaged = BTreeSet::new();
    while let Some(response) = partitions.message().await.map_err(failed)? {
        let partition = partition(response).unwrap_or_default();
        let at = partition.recorded_at.and_then(|at| SystemTime::try_from(at).ok());
        restored += u64::from(partition.restored);
        if args.from == Source::Database && partition.recorded_version == NONE {
            unrecorded += 1;
            println!("unrecorded  {service} partition {}", partition.number);
        }
        newest = newest.max(at);
        progress.add(1);
        for DamagedRow { table, key, problem } in partition.damaged {
            let row = format!("{table} {key}: {problem}");
            if damaged.insert(row.clone()) {
                println!("damaged  {service} {row}");
            }
        }
        if args.verbose {
            let RestoredPartition { number, restored, recorded_version, .. } = partition;
            let state = if restored { "restored" } else { "unchanged" };
            println!("{service} {number} {state}: recorded up to {recorded_version}, {}", time(at));
        }
    }
    let took = progress.finish();
    println!(
        "{service:8} {} of {PARTITIONS} partitions restored in {:.1} s; the last recorded change: {}",
        HumanCount(restored),
        took.as_secs_f64(),
        time(newest)
    );
    Ok(Lost { damaged: damaged.len() as u64, unrecorded })
}

fn time(at: Option<SystemTime>) -> String {
    at.map_or_else(|| "none".to_owned(), |at| humantime::format_rfc3339_millis(at).to_string())
}

fn failed(status: Status) -> anyhow::Error {
    anyhow!("{}", remote::error_message(&status)).context("restore failed")
}
