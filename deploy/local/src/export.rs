//! `microblog export`: writes what belongs to an account as JSON Lines. Knows in which order;
//! whom to ask, what is in a line, and where lines go, the parts know.

mod lines;
mod output;
mod records;
mod services;

use std::{path::PathBuf, process::ExitCode};

use anyhow::{anyhow, bail};
use indicatif::HumanCount;
use serde::Serialize;
use tonic::Status;

use self::{
    lines::{Kind, Lines},
    output::Output,
    records::Account,
    services::{Page, Services},
};
use crate::{
    keys::Keys,
    progress::Progress,
    remote::{self, POST_URL, RELATION_URL, USER_URL},
};

const INCOMPLETE: &str = "the export could not be completed";

/// Writes what belongs to an account as JSON Lines, for its owner: profile, lists, posts and
/// comments.
///
/// The first line is the account; then come whom it follows, its followers, whom it blocks and
/// whom it mutes, then its posts and reposts, and last its comments on any post, newest first; what
/// it commented within the last seconds may be missing. The `kind` of a line says which of them it
/// is. A last line, of the kind `end`, says how many lines there are of each other kind:
/// without it an export is not complete. There are no passwords in it and no sessions, but the
/// e-mail address; and no likes, which belong to the posts that they are about.
///
/// Exits with 2 where there is no such account, or it could not be read to the end.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The account's id or name. What is the id of one account and the name of another is taken as
    /// the id: put @ before a name.
    #[arg(value_name = "USER")]
    user: String,
    /// Where to write it instead of to standard output: a file that only its owner may read, there
    /// once it is complete, in place of what was there before.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Leaves comments out: without an archive, nobody knows them by their author.
    #[arg(long)]
    without_comments: bool,
    /// Where the user service listens.
    #[arg(long, value_name = "URL", default_value = USER_URL, env = "MICROBLOG_USER_URL")]
    user_url: String,
    /// Where the relation service listens.
    #[arg(long, value_name = "URL", default_value = RELATION_URL, env = "MICROBLOG_RELATION_URL")]
    relation_url: String,
    /// Where the post service listens.
    #[arg(long, value_name = "URL", default_value = POST_URL, env = "MICROBLOG_POST_URL")]
    post_url: String,
    #[command(flatten)]
    keys: Keys,
}

const EXAMPLES: &str = "\
Examples:
  microblog export ada --output ada.jsonl
  microblog export ada | jq 'select(.kind == \"post\") | .text'";

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let services = Services::serving(&args).await?;
    let Some(account) = find(&services, &args.user).await.map_err(failed)? else {
        bail!("there is no account `{}`", args.user);
    };
    let mut lines = Lines::new(Output::open(args.output.as_deref())?);
    write(&services, &account, &mut lines).await?;
    if !args.without_comments {
        let comments = async |token| services.comments(account.id, token).await;
        list(&mut lines, Kind::Comment, comments).await?;
    }
    ensure_still_there(&services, &account).await?;
    let count = lines.finish()?;
    if let Some(file) = &args.output {
        println!("{} lines are in {}", HumanCount(count), file.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the account that people mean by an id, a name, or a name behind @.
async fn find(services: &Services, user: &str) -> Result<Option<Account>, Status> {
    let (id, name) = match user.strip_prefix('@') {
        Some(name) => (None, name),
        None => (user.parse().ok(), user),
    };
    if let Some(id) = id
        && let Some(account) = services.account(id).await?
    {
        return Ok(Some(account));
    }
    match services.id_of(name).await? {
        Some(id) => services.account(id).await,
        None => Ok(None),
    }
}

/// Writes the account, the lists of the follow graph and the posts.
async fn write(services: &Services, account: &Account, lines: &mut Lines) -> anyhow::Result<()> {
    let id = account.id;
    lines.write(Kind::Account, account)?;
    list(lines, Kind::Following, async |token| services.following(id, token).await).await?;
    list(lines, Kind::Follower, async |token| services.followers(id, token).await).await?;
    list(lines, Kind::Block, async |token| services.blocks(id, token).await).await?;
    list(lines, Kind::Mute, async |token| services.mutes(id, token).await).await?;
    list(lines, Kind::Post, async |token| services.posts(id, token).await).await
}

/// Refuses an account that was deleted in between: lists may have been empty already.
async fn ensure_still_there(services: &Services, account: &Account) -> anyhow::Result<()> {
    if services.account(account.id).await.map_err(failed)?.is_none() {
        return Err(anyhow!("the account was deleted meanwhile").context(INCOMPLETE));
    }
    Ok(())
}

/// Writes a list, whose pages come by their tokens.
async fn list<T: Serialize>(
    lines: &mut Lines,
    kind: Kind,
    fetch: impl AsyncFn(String) -> Result<Page<T>, Status>,
) -> anyhow::Result<()> {
    lines.begin(kind);
    let progress = Progress::start_uncounted(kind.plural());
    let mut token = String::new();
    loop {
        let page = fetch(token).await.map_err(failed)?;
        for record in &page.records {
            lines.write(kind, record)?;
        }
        progress.add(page.records.len() as u64);
        token = page.next;
        if token.is_empty() {
            break;
        }
    }
    progress.finish();
    Ok(())
}

fn failed(status: Status) -> anyhow::Error {
    anyhow!("{}", remote::told(&status)).context(INCOMPLETE)
}
