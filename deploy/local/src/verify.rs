//! `microblog verify`: runs the services' checks of their invariants, optionally with repair, and
//! prints the results.

use std::process::ExitCode;

use anyhow::anyhow;
use indicatif::HumanCount;
use microblog_proto::{
    post::{self, post_service_client::PostServiceClient},
    relation::{self, relation_service_client::RelationServiceClient},
    timeline::{self, timeline_service_client::TimelineServiceClient},
    user::{self, user_service_client::UserServiceClient},
};
use tonic::{Request, Status};

use crate::{
    keys::Keys,
    progress::Progress,
    remote::{self, POST_URL, RELATION_URL, TIMELINE_URL, USER_URL},
};

// A full check streams one message per partition.
const PARTITIONS: u64 = 1_024;

/// Checks the invariants of accounts, of the follow graph and of posts. Read-only without --repair.
///
/// Concurrent writes can cause false reports. Exits with 1 if there are violations (after a repair:
/// remaining ones), and with 2 if the check fails.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The id of the account whose follows and posts to check, or `all`, which also checks the accounts
    /// themselves.
    #[arg(long, value_name = "ID|all", default_value = "all", value_parser = parse_user)]
    user: UserChoice,
    /// Repairs violations and prints the repairs. Safe during writes. Cancels pending
    /// registrations. Does not repair unreadable data and posts in the archive.
    #[arg(long)]
    repair: bool,
    /// URL of the user service.
    #[arg(long, value_name = "URL", default_value = USER_URL, env = "MICROBLOG_USER_URL")]
    user_url: String,
    /// URL of the relation service.
    #[arg(long, value_name = "URL", default_value = RELATION_URL, env = "MICROBLOG_RELATION_URL")]
    relation_url: String,
    /// URL of the post service.
    #[arg(long, value_name = "URL", default_value = POST_URL, env = "MICROBLOG_POST_URL")]
    post_url: String,
    /// URL of the timeline service.
    #[arg(long, value_name = "URL", default_value = TIMELINE_URL, env = "MICROBLOG_TIMELINE_URL")]
    timeline_url: String,
    #[command(flatten)]
    keys: Keys,
}

#[derive(Clone, Copy, Debug)]
enum UserChoice {
    All,
    One(u64),
}

fn parse_user(text: &str) -> Result<UserChoice, String> {
    match text {
        "all" => Ok(UserChoice::All),
        id => {
            let id = id.parse().ok().filter(|&id| id != 0);
            id.map(UserChoice::One).ok_or("neither an id nor `all`".to_owned())
        }
    }
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (repair, keys) = (args.repair, &args.keys);
    let (accounts, user_id) = match args.user {
        UserChoice::All => (accounts(&args.user_url, repair, keys).await?, 0),
        UserChoice::One(id) => (Findings::default(), id),
    };
    let graph = graph(&args.relation_url, user_id, repair, keys).await?;
    let posts = posts(&args.post_url, user_id, repair, keys).await?;
    fanout(&args.timeline_url, keys).await?;
    let violations = accounts.violations + graph.violations + posts.violations;
    if repair {
        let repaired = accounts.repaired + graph.repaired + posts.repaired;
        println!("{} repaired", HumanCount(repaired));
    }
    if violations > 0 {
        println!("{} violations", HumanCount(violations));
        return Ok(ExitCode::from(1));
    }
    println!("no violations");
    Ok(ExitCode::SUCCESS)
}

/// Results of a check and repair.
#[derive(Clone, Copy, Debug, Default)]
struct Findings {
    violations: u64,
    repaired: u64,
}

impl Findings {
    // Prints and counts the results of one message.
    fn print(&mut self, violations: &[String], repaired: &[String]) {
        for repair in repaired {
            println!("repaired   {repair}");
        }
        for violation in violations {
            println!("violation  {violation}");
        }
        self.violations += violations.len() as u64;
        self.repaired += repaired.len() as u64;
    }
}

/// Checks all accounts, and repairs them if `repair` is set.
async fn accounts(url: &str, repair: bool, keys: &Keys) -> anyhow::Result<Findings> {
    let mut client = UserServiceClient::new(keys.sign(remote::connect(url).await?));
    let progress = Progress::start("accounts", PARTITIONS);
    let (mut checked, mut findings) = (0, Findings::default());
    let request = Request::new(user::VerifyRequest { repair });
    let mut answers = client.verify(request).await.map_err(failed)?.into_inner();
    while let Some(answer) = answers.message().await.map_err(failed)? {
        checked += answer.users_checked;
        findings.print(&answer.violations, &answer.repaired);
        progress.add(1);
    }
    progress.finish();
    println!("accounts   {} checked", HumanCount(checked));
    Ok(findings)
}

/// Checks the lists of one user, or of all if 0, and repairs them if `repair` is set.
async fn graph(url: &str, user_id: u64, repair: bool, keys: &Keys) -> anyhow::Result<Findings> {
    let mut client = RelationServiceClient::new(keys.sign(remote::connect(url).await?));
    let progress = Progress::start("graph", if user_id == 0 { PARTITIONS } else { 1 });
    let (mut users, mut follows, mut findings) = (0, 0, Findings::default());
    let request = Request::new(relation::VerifyRequest { user_id, repair });
    let mut answers = client.verify(request).await.map_err(failed)?.into_inner();
    while let Some(answer) = answers.message().await.map_err(failed)? {
        users += answer.users_checked;
        follows += answer.follows_checked;
        findings.print(&answer.violations, &answer.repaired);
        progress.add(1);
    }
    progress.finish();
    println!(
        "graph      {} accounts' lists and {} follows checked",
        HumanCount(users),
        HumanCount(follows)
    );
    Ok(findings)
}

/// Checks the posts of one author, or of all if 0, and repairs them if `repair` is set.
async fn posts(url: &str, user_id: u64, repair: bool, keys: &Keys) -> anyhow::Result<Findings> {
    let mut client = PostServiceClient::new(keys.sign(remote::connect(url).await?));
    let progress = Progress::start("posts", if user_id == 0 { PARTITIONS } else { 1 });
    let (mut posts, mut entries, mut unarchived, mut erased) = (0, 0, 0, 0);
    let mut findings = Findings::default();
    let request = Request::new(post::VerifyRequest { user_id, repair });
    let mut answers = client.verify(request).await.map_err(failed)?.into_inner();
    while let Some(answer) = answers.message().await.map_err(failed)? {
        posts += answer.posts_checked;
        entries += answer.entries_checked;
        findings.print(&answer.violations, &answer.repaired);
        unarchived += answer.changes_unarchived;
        erased += answer.accounts_being_erased;
        progress.add(1);
    }
    progress.finish();
    println!(
        "posts      {} posts and {} entries of their lists checked",
        HumanCount(posts),
        HumanCount(entries)
    );
    if unarchived > 0 {
        println!("           {} changes not archived yet", HumanCount(unarchived));
    }
    if erased > 0 {
        println!("           {} deleted accounts are being erased", HumanCount(erased));
    }
    Ok(findings)
}

/// Prints the number of fan-out jobs.
async fn fanout(url: &str, keys: &Keys) -> anyhow::Result<()> {
    let mut client = TimelineServiceClient::new(keys.sign(remote::connect(url).await?));
    let answer = client.verify(timeline::VerifyRequest {}).await.map_err(failed)?.into_inner();
    print!("timelines  {} fan-out jobs in flight", HumanCount(answer.jobs_in_flight));
    match answer.jobs_in_flight {
        0 => println!(),
        _ => println!(", the oldest for {} ms", HumanCount(answer.oldest_job_age_ms)),
    }
    Ok(())
}

fn failed(status: Status) -> anyhow::Error {
    anyhow!("{}", remote::error_message(&status)).context("check failed")
}
