//! `microblog import`: imports a follow graph from a file and prints a report.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use indicatif::HumanCount;

use crate::{
    edges::{self, EdgeList},
    graph::{self, Follows, Target, Users},
};

/// Why it is unclear whether this import created something.
pub(crate) const UNCLEAR: &str = "calls were repeated after an error";

/// Imports a follow graph: one `follower following` per line.
///
/// Both are account names (1 to 30 of A-Z, a-z, 0-9 and underscore), separated by white space.
/// Lines that begin with # are comments. The whole file is checked before anything is written.
/// Existing accounts and follows stay as they are, so an import can be repeated. Exits with 1 if an
/// account could not be created, and with 2 if the import fails.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The edge list, plain or gzipped; - reads standard input.
    file: String,
    #[command(flatten)]
    target: Target,
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let begun = Instant::now();
    let list = edges::read(&args.file)?;
    let read_took = begun.elapsed();
    let users = graph::users(&list, &args.target).await?;
    let follows = graph::follows(&list, &users.ids, &args.target).await?;
    report(&list, &users, &follows);
    println!(
        "took       {:.1} s: reading {:.1}, accounts {:.1}, follows {:.1}",
        begun.elapsed().as_secs_f64(),
        read_took.as_secs_f64(),
        users.took.as_secs_f64(),
        follows.took.as_secs_f64(),
    );
    println!(
        "rate       {} follows/s, {} accounts/s",
        rate(follows.sent, follows.took),
        rate(users.ids.len() as u64, users.took)
    );
    Ok(if users.rejected > 0 { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn report(list: &EdgeList, users: &Users, follows: &Follows) {
    let existing = users.ids.len() as u64 - users.created - users.unclear - users.rejected;
    report_accounts([users.created, existing, users.unclear, users.rejected]);
    let outcome = &follows.outcome;
    println!(
        "follows    {} created, {} unchanged",
        HumanCount(outcome.created),
        HumanCount(outcome.unchanged)
    );
    if follows.unclear > 0 {
        println!("           {} created or unchanged: {UNCLEAR}", HumanCount(follows.unclear));
    }
    for (count, reason) in [
        (list.self_follows + outcome.rejected_self, "self-follow"),
        (outcome.rejected_blocked, "one has blocked the other"),
        (outcome.rejected_limit, "the follower has reached the limit"),
        (outcome.rejected_deleted, "account deleted"),
        (follows.dropped, "account could not be created"),
    ] {
        if count > 0 {
            println!("           {} rejected: {reason}", HumanCount(count));
        }
    }
}

/// Prints how many accounts are new, existed, are either, and could not be created.
pub(crate) fn report_accounts([created, existing, unclear, rejected]: [u64; 4]) {
    println!("accounts   {} new, {} existing", HumanCount(created), HumanCount(existing));
    if unclear > 0 {
        println!("           {} new or existing: {UNCLEAR}", HumanCount(unclear));
    }
    if rejected > 0 {
        println!(
            "           {} could not be created: the name is reserved after a deletion, or another \
             account has the e-mail address",
            HumanCount(rejected)
        );
    }
}

pub(crate) fn rate(count: u64, took: Duration) -> HumanCount {
    HumanCount((count as f64 / took.as_secs_f64().max(0.001)) as u64)
}
