//! `microblog verify`: has the services check their own invariants, and mend what is wrong if they
//! are to, and tells what they found and did.

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

// A check of everything answers once per logical partition.
const PARTITIONS: u64 = 1_024;

/// Checks the invariants of accounts, of the follow graph and of posts; read-only, without --repair.
///
/// Meaningful while nothing is being written. Exits with 1 if something is wrong, after a repair if
/// something still is, and with 2 if it could not be checked.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The id of one account whose lists and posts to check, or `all` for everything.
    #[arg(long, value_name = "ID|all", default_value = "all", value_parser = parse_user)]
    user: UserChoice,
    /// Mends what is wrong, and says what was done. Safe while others write. Registrations under way
    /// are given up. What cannot be read, and what is wrong with a post in the archive, stays.
    #[arg(long)]
    repair: bool,
    /// Where the user service listens.
    #[arg(long, value_name = "URL", default_value = USER_URL, env = "MICROBLOG_USER_URL")]
    user_url: String,
    /// Where the relation service listens.
    #[arg(long, value_name = "URL", default_value = RELATION_URL, env = "MICROBLOG_RELATION_URL")]
    relation_url: String,
    /// Where the post service listens.
    #[arg(long, value_name = "URL", default_value = POST_URL, env = "MICROBLOG_POST_URL")]
    post_url: String,
    /// Where the timeline service listens.
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
        id => id.parse().map(UserChoice::One).map_err(|_| "neither an id nor `all`".to_owned()),
    }
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (repair, keys) = (args.repair, &args.keys);
    let (accounts, user_id) = match args.user {
        UserChoice::All => (accounts(&args.user_url, repair, keys).await?, 0),
        UserChoice::One(id) => (Found::default(), id),
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

/// What a check found, and a repair did.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    violations: u64,
    repaired: u64,
}

impl Found {
    // Prints what one message says.
    fn tell(&mut self, violations: &[String], repaired: &[String]) {
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

/// Checks all accounts, and mends what is wrong if `repair`.
async fn accounts(url: &str, repair: bool, keys: &Keys) -> anyhow::Result<Found> {
    let mut client = UserServiceClient::new(keys.sign(remote::serving(url).await?));
    let progress = Progress::start("accounts", PARTITIONS);
    let (mut checked, mut found) = (0, Found::default());
    let request = Request::new(user::VerifyRequest { repair });
    let mut answers = client.verify(request).await.map_err(failed)?.into_inner();
    while let Some(answer) = answers.message().await.map_err(failed)? {
        checked += answer.users_checked;
        found.tell(&answer.violations, &answer.repaired);
        progress.add(1);
    }
    progress.finish();
    println!("accounts   {} checked", HumanCount(checked));
    Ok(found)
}

/// Checks the lists of one user, or of all for 0, and mends what is wrong if `repair`.
async fn graph(url: &str, user_id: u64, repair: bool, keys: &Keys) -> anyhow::Result<Found> {
    let mut client = RelationServiceClient::new(keys.sign(remote::serving(url).await?));
    let progress = Progress::start("graph", if user_id == 0 { PARTITIONS } else { 1 });
    let (mut users, mut follows, mut found) = (0, 0, Found::default());
    let request = Request::new(relation::VerifyRequest { user_id, repair });
    let mut answers = client.verify(request).await.map_err(failed)?.into_inner();
    while let Some(answer) = answers.message().await.map_err(failed)? {
        users += answer.users_checked;
        follows += answer.follows_checked;
        found.tell(&answer.violations, &answer.repaired);
        progress.add(1);
    }
    progress.finish();
    println!(
        "graph      {} accounts' lists and {} follows checked",
        HumanCount(users),
        HumanCount(follows)
    );
    Ok(found)
}

/// Checks the posts of one author, or of all for 0, and mends what is wrong if `repair`.
async fn posts(url: &str, user_id: u64, repair: bool, keys: &Keys) -> anyhow::Result<Found> {
    let mut client = PostServiceClient::new(keys.sign(remote::serving(url).await?));
    let progress = Progress::start("posts", if user_id == 0 { PARTITIONS } else { 1 });
    let (mut posts, mut entries, mut unarchived, mut erased) = (0, 0, 0, 0);
    let mut found = Found::default();
    let request = Request::new(post::VerifyRequest { user_id, repair });
    let mut answers = client.verify(request).await.map_err(failed)?.into_inner();
    while let Some(answer) = answers.message().await.map_err(failed)? {
        posts += answer.posts_checked;
        entries += answer.entries_checked;
        found.tell(&answer.violations, &answer.repaired);
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
        println!("           {} changes wait to be archived", HumanCount(unarchived));
    }
    if erased > 0 {
        println!("           {} deleted accounts are being erased", HumanCount(erased));
    }
    Ok(found)
}

/// Prints how many posts are on their way into home timelines.
async fn fanout(url: &str, keys: &Keys) -> anyhow::Result<()> {
    let mut client = TimelineServiceClient::new(keys.sign(remote::serving(url).await?));
    let answer = client.verify(timeline::VerifyRequest {}).await.map_err(failed)?.into_inner();
    print!("timelines  {} fan-out jobs in flight", HumanCount(answer.jobs_in_flight));
    match answer.jobs_in_flight {
        0 => println!(),
        _ => println!(", the oldest for {} ms", HumanCount(answer.oldest_job_age_ms)),
    }
    Ok(())
}

fn failed(status: Status) -> anyhow::Error {
    anyhow!("{}", remote::told(&status)).context("the check could not be completed")
}
