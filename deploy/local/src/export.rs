//! `microblog export`: writes the data of an account as JSON Lines. This file has the order of the
//! data.

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

const FAILED: &str = "export failed";

/// Exports the data of an account as JSON Lines: profile, lists, posts, likes and comments.
///
/// The order is: the account, following, followers, blocks, mutes, posts and reposts, likes (of the newest
/// posts first), comments (newest first). The field `kind` names the kind of each line. The last line, of kind
/// `end`, has the number of lines of each kind, and names in `omitted` what the export leaves out; without it
/// the export is incomplete. The export contains the e-mail address, but no password, sessions or notices.
///
/// Exits with 2 if the account does not exist or the export fails.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The account's id or name. If it is the id of one account and the name of another, it is the
    /// id; put @ before a name.
    #[arg(value_name = "USER")]
    user: String,
    /// The output file, instead of standard output. The file is readable by its owner only and is
    /// replaced atomically when the export is complete.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Omits comments.
    #[arg(long)]
    without_comments: bool,
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

const EXAMPLES: &str = "\
Examples:
  microblog export ada --output ada.jsonl
  microblog export ada | jq 'select(.kind == \"post\") | .text'";

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let services =
        Services::connect(&args.keys, &args.user_url, &args.relation_url, &args.post_url).await?;
    let Some(account) = find(&services, &args.user).await.map_err(failed)? else {
        bail!("account `{}` not found", args.user);
    };
    let mut lines = Lines::new(Output::open(args.output.as_deref())?);
    write(&services, &account, &mut lines).await?;
    if !args.without_comments {
        let comments = async |token| services.comments(account.id, token).await;
        list(&mut lines, Kind::Comment, comments).await?;
    }
    ensure_not_deleted(&services, &account).await?;
    let count = lines.finish(args.without_comments)?;
    if let Some(file) = &args.output {
        println!("wrote {} lines to {}", HumanCount(count), file.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the account with an id, a name, or a name after @.
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

/// Writes the account, the lists of the follow graph, the posts and the likes.
async fn write(services: &Services, account: &Account, lines: &mut Lines) -> anyhow::Result<()> {
    let id = account.id;
    lines.write(Kind::Account, account)?;
    list(lines, Kind::Following, async |token| services.following(id, token).await).await?;
    list(lines, Kind::Follower, async |token| services.followers(id, token).await).await?;
    list(lines, Kind::Block, async |token| services.blocks(id, token).await).await?;
    list(lines, Kind::Mute, async |token| services.mutes(id, token).await).await?;
    list(lines, Kind::Post, async |token| services.posts(id, token).await).await?;
    list(lines, Kind::Like, async |token| services.likes(id, token).await).await
}

/// Fails if the account was deleted during the export, since lists may then be incomplete.
async fn ensure_not_deleted(services: &Services, account: &Account) -> anyhow::Result<()> {
    if services.account(account.id).await.map_err(failed)?.is_none() {
        return Err(anyhow!("the account was deleted during the export").context(FAILED));
    }
    Ok(())
}

/// Writes all pages of a list.
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
    anyhow!("{}", remote::error_message(&status)).context(FAILED)
}
