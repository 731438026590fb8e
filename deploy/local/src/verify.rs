//! `microblog verify`: runs the services' checks of their invariants, and prints the results.

use std::{process::ExitCode, time::Duration};

use anyhow::anyhow;
use indicatif::HumanCount;
use microblog_proto::{
    notice::{self, notice_service_client::NoticeServiceClient},
    post::{self, post_service_client::PostServiceClient},
    relation::{self, relation_service_client::RelationServiceClient},
    timeline::{self, timeline_service_client::TimelineServiceClient},
    user::{self, user_service_client::UserServiceClient},
};
use tokio::time::{Instant, sleep};
use tonic::{Request, Status};

use crate::{
    keys::Keys,
    progress::Progress,
    remote::{self, NOTICE_URL, POST_URL, RELATION_URL, TIMELINE_URL, USER_URL},
};

const POLL_INTERVAL: Duration = Duration::from_secs(1);

// Exit statuses. Those of all commands are 0 for success and 2 for a failure.
const VIOLATIONS: u8 = 1;
const PENDING: u8 = 3;

/// Checks the invariants of accounts, of the follow graph, of posts and of notices, and that their caches have what
/// their databases have. Read-only.
///
/// Waits for work that is under way, such as the delivery of posts to timelines. Concurrent writes can
/// cause false reports. Exits with 1 if there are violations, with 2 if
/// the check fails, and with 3 if there are no violations, but work is still under way.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The id of the account whose follows, posts and notices to check, or `all`, which also checks the accounts
    /// themselves.
    #[arg(long, value_name = "ID|all", default_value = "all", value_parser = parse_user)]
    user: UserChoice,
    /// How long each of the checks waits for work that is under way. 0 does not wait.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    wait_s: u64,
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
    /// URL of the notice service; empty for none.
    #[arg(long, value_name = "URL", default_value = NOTICE_URL, env = "MICROBLOG_NOTICE_URL")]
    notice_url: String,
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
    let wait = Duration::from_secs(args.wait_s);
    let mut found = Findings::default();
    if let UserChoice::All = args.user {
        let check = async |progress: &Progress, found: &mut Findings| {
            accounts(&args, progress, found).await
        };
        found.add(settled(Progress::start_uncounted("accounts"), wait, check).await?);
    }
    let user_id = match args.user {
        UserChoice::All => 0,
        UserChoice::One(id) => id,
    };
    let progress = Progress::start_uncounted("graph");
    let check = async |progress: &Progress, found: &mut Findings| {
        graph(&args, user_id, progress, found).await
    };
    found.add(settled(progress, wait, check).await?);
    let check = async |progress: &Progress, found: &mut Findings| {
        posts(&args, user_id, progress, found).await
    };
    found.add(settled(Progress::start_uncounted("posts"), wait, check).await?);
    if !args.notice_url.is_empty() {
        let check = async |progress: &Progress, found: &mut Findings| {
            notices(&args, user_id, progress, found).await
        };
        found.add(settled(Progress::start_uncounted("notices"), wait, check).await?);
    }
    fanout(&args.timeline_url, &args.keys).await?;
    let Findings { violations, pending, .. } = found;
    if !pending.is_empty() {
        println!("{} pending after {} s", HumanCount(pending.len() as u64), args.wait_s);
    }
    Ok(match (violations.len(), pending.is_empty()) {
        (0, is_settled) => {
            println!("no violations");
            if is_settled { ExitCode::SUCCESS } else { ExitCode::from(PENDING) }
        }
        (count, _) => {
            println!("{} violations", HumanCount(count as u64));
            ExitCode::from(VIOLATIONS)
        }
    })
}

/// Results of a check.
#[derive(Debug, Default)]
struct Findings {
    /// What was checked.
    summary: Vec<String>,
    violations: Vec<String>,
    /// What is under way.
    pending: Vec<String>,
}

impl Findings {
    fn add(&mut self, other: Self) {
        self.violations.extend(other.violations);
        self.pending.extend(other.pending);
    }

    fn print(&self) {
        for (label, lines) in [("violation", &self.violations), ("pending", &self.pending)] {
            lines.iter().for_each(|line| println!("{label:10} {line}"));
        }
        self.summary.iter().for_each(|line| println!("{line}"));
    }
}

/// Repeats a check while it finds work under way, which may also cause violations, until it has waited for
/// so long. Prints the last results, also if the check fails.
async fn settled(
    progress: Progress,
    wait: Duration,
    check: impl AsyncFn(&Progress, &mut Findings) -> anyhow::Result<()>,
) -> anyhow::Result<Findings> {
    let deadline = Instant::now() + wait;
    let mut is_waiting = false;
    loop {
        let mut found = Findings::default();
        let checked = check(&progress, &mut found).await;
        let now = Instant::now();
        if checked.is_err() || found.pending.is_empty() || now >= deadline {
            progress.finish();
            found.print();
            return checked.map(|()| found);
        }
        if !is_waiting {
            progress.note(&format!("waiting: {}", found.pending[0]));
        }
        is_waiting = true;
        sleep(POLL_INTERVAL.min(deadline - now)).await;
        progress.restart();
    }
}

/// Checks all accounts.
async fn accounts(args: &Args, progress: &Progress, found: &mut Findings) -> anyhow::Result<()> {
    let channel = args.keys.sign(remote::connect(&args.user_url).await?);
    let mut checked = 0;
    let answers = UserServiceClient::new(channel).verify(user::VerifyRequest {}).await;
    let mut answers = answers.map_err(failed)?.into_inner();
    while let Some(answer) = answers.message().await.map_err(failed)? {
        checked += answer.users_checked;
        found.violations.extend(answer.violations);
        found.pending.extend(answer.pending);
        progress.add(answer.users_checked);
    }
    found.summary.push(format!("accounts   {} checked", HumanCount(checked)));
    Ok(())
}

/// Checks the lists of one user, or of all if 0.
async fn graph(
    args: &Args,
    user_id: u64,
    progress: &Progress,
    found: &mut Findings,
) -> anyhow::Result<()> {
    let channel = args.keys.sign(remote::connect(&args.relation_url).await?);
    let (mut users, mut follows) = (0, 0);
    let request = Request::new(relation::VerifyRequest { user_id });
    let answers = RelationServiceClient::new(channel).verify(request).await;
    let mut answers = answers.map_err(failed)?.into_inner();
    while let Some(answer) = answers.message().await.map_err(failed)? {
        users += answer.users_checked;
        follows += answer.follows_checked;
        found.violations.extend(answer.violations);
        found.pending.extend(answer.pending);
        progress.add(answer.users_checked);
    }
    found.summary.push(format!(
        "graph      {} accounts' lists and {} follows checked",
        HumanCount(users),
        HumanCount(follows)
    ));
    Ok(())
}

/// Checks the posts of one author, or of all if 0.
async fn posts(
    args: &Args,
    user_id: u64,
    progress: &Progress,
    found: &mut Findings,
) -> anyhow::Result<()> {
    let channel = args.keys.sign(remote::connect(&args.post_url).await?);
    let (mut posts, mut entries) = (0, 0);
    let request = Request::new(post::VerifyRequest { user_id });
    let answers = PostServiceClient::new(channel).verify(request).await;
    let mut answers = answers.map_err(failed)?.into_inner();
    while let Some(answer) = answers.message().await.map_err(failed)? {
        posts += answer.posts_checked;
        entries += answer.entries_checked;
        found.violations.extend(answer.violations);
        found.pending.extend(answer.pending);
        progress.add(answer.posts_checked);
    }
    found.summary.push(format!(
        "posts      {} posts and {} entries of their lists checked",
        HumanCount(posts),
        HumanCount(entries)
    ));
    Ok(())
}

/// Checks the notices of one account, or of all if 0.
async fn notices(
    args: &Args,
    user_id: u64,
    progress: &Progress,
    found: &mut Findings,
) -> anyhow::Result<()> {
    let channel = args.keys.sign(remote::connect(&args.notice_url).await?);
    let (mut accounts, mut notices) = (0, 0);
    let request = Request::new(notice::VerifyRequest { user_id });
    let answers = NoticeServiceClient::new(channel).verify(request).await;
    let mut answers = answers.map_err(failed)?.into_inner();
    while let Some(answer) = answers.message().await.map_err(failed)? {
        accounts += answer.accounts_checked;
        notices += answer.notices_checked;
        found.violations.extend(answer.violations);
        progress.add(answer.accounts_checked);
    }
    found.summary.push(format!(
        "notices    {} notices of {} accounts checked",
        HumanCount(notices),
        HumanCount(accounts)
    ));
    Ok(())
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
