//! `microblog-load memory`: what accounts, follows, posts, likes, comments and home timelines take
//! of Redis' memory. Brings in one kind after the other, and reads the memory in between, when
//! nothing is under way any more.

mod content;
mod kinds;
mod plain;
mod report;
mod store;

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context as _, ensure};
use microblog_local::{
    edges::{Edge, EdgeList},
    graph::{self, Target},
};

use self::{
    content::Content,
    report::{Report, Step},
    store::{Reading, Store},
};
use crate::{
    data,
    outcome::write_json,
    services,
    system::{Shape, System, Urls},
};

/// Accounts that are there before anything is measured.
const WARM_UP: u32 = 200;

const EMAIL_DOMAIN: &str = "import.invalid";

/// How many posts a home timeline has room for.
const HOME_POSTS_MAX: u64 = 800;

/// Measures what each kind of thing takes of Redis' memory, with a system of its own.
///
/// Twice: of all that Redis uses, which counts its tables, too, and of what it says of the keys by
/// themselves. Follows are measured beside the same ones in two plain sorted sets, as Redis comes:
/// whom each account follows, and who follows it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    data: data::Args,
    /// How many posts each account makes, of 140 characters
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    posts: u32,
    /// How many accounts like each post
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    likes: u32,
    /// How many comments each post gets, of 140 characters
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    comments: u32,
    /// Where to write all of it as JSON, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let graph = args.data.graph()?;
    ensure!(graph.names().len() > 0, "there are no accounts to measure");
    let system = System::start(Shape::One, Some(1), &[]).await?;
    let connection = system.redis().await?.context("the system's Redis cannot be reached")?;
    let mut store = Store::new(connection);
    let report = measure(&args, &graph, system.urls(), &mut store).await?;
    report.print();
    write_json(args.json.as_deref(), &report)?;
    Ok(ExitCode::SUCCESS)
}

async fn measure(
    args: &Args,
    graph: &EdgeList,
    urls: &Urls,
    store: &mut Store,
) -> anyhow::Result<Report> {
    warm_up(urls).await?;
    let mut steps = Steps { last: store.at_rest().await?, steps: Vec::new() };
    let target = target(urls);
    let users = graph::users(graph, &target).await?;
    ensure!(users.refused == 0, "{} accounts were refused", users.refused);
    let accounts = users.ids.len() as u64;
    steps.end("accounts", accounts, store).await?;
    let follows = graph::follows(graph, &users.ids, &target).await?.outcome;
    ensure!(follows.refused_limit == 0, "{} follows were refused", follows.refused_limit);
    steps.end("follows, on both sides", follows.created, store).await?;

    plain::write(store, graph, &users.ids).await?;
    steps.end(report::PLAIN, follows.created, store).await?;
    store.remove(plain::PATTERN).await?;
    steps.last = store.at_rest().await?;

    let content = Content::new(urls, &users.ids).await?;
    let mut posts = Vec::new();
    for round in 0..args.posts {
        posts.extend(content.publish(round).await?);
        // At once, so that the table of keys grows as it would if most posts were old.
        store.remove_passing().await?;
    }
    steps.end("posts", posts.len() as u64, store).await?;
    let likes = content.like(&posts, args.likes).await?;
    steps.end("likes", likes, store).await?;
    for round in 0..args.comments {
        content.comment(&posts, round).await?;
        store.remove_passing().await?;
    }
    steps.end("comments", posts.len() as u64 * u64::from(args.comments), store).await?;
    content.read_homes().await?;
    let homes = format!("home timelines, {:.0} posts each", posts_of_homes(graph, args.posts));
    steps.end(&homes, accounts, store).await?;
    Ok(Report { steps: steps.steps, keys: steps.last.kinds, passing: store.passing().clone() })
}

/// Brings in some of everything, so that connections, buffers and functions are there before
/// anything is measured.
async fn warm_up(urls: &Urls) -> anyhow::Result<()> {
    let edges = (0..WARM_UP).map(|follower| Edge { follower, target: (follower + 1) % WARM_UP });
    let names = (0..WARM_UP).map(|number| format!("warm_up_{number}"));
    let graph = EdgeList::new(names, edges.collect());
    let ids = graph::users(&graph, &target(urls)).await?.ids;
    graph::follows(&graph, &ids, &target(urls)).await?;
    let content = Content::new(urls, &ids).await?;
    let posts = content.publish(0).await?;
    content.like(&posts, 1).await?;
    content.comment(&posts, 0).await?;
    content.read_homes().await
}

/// Returns where graphs go, with e-mail addresses as long as those of `microblog import`.
fn target(urls: &Urls) -> Target {
    Target { email_domain: EMAIL_DOMAIN.to_owned(), ..services::import_target(urls, "") }
}

/// Returns how many posts are in a home timeline on average: those of each whom its reader follows,
/// and the reader's own, as far as there is room.
fn posts_of_homes(graph: &EdgeList, posts_each: u32) -> f64 {
    let mut authors = vec![1_u64; graph.names().len()];
    for edge in &graph.edges {
        authors[edge.follower as usize] += 1;
    }
    let posts = authors.iter().map(|authors| (authors * u64::from(posts_each)).min(HOME_POSTS_MAX));
    posts.sum::<u64>() as f64 / authors.len() as f64
}

/// What was brought in so far.
struct Steps {
    last: Reading,
    steps: Vec<Step>,
}

impl Steps {
    /// Ends a step, after which there are so many more of what it brought in.
    async fn end(&mut self, what: &str, count: u64, store: &mut Store) -> anyhow::Result<()> {
        let now = store.at_rest().await?;
        let used = now.used - self.last.used;
        let keys = now.bytes_of_keys() - self.last.bytes_of_keys();
        self.steps.push(Step { what: what.to_owned(), count, used, keys });
        self.last = now;
        Ok(())
    }
}
