//! The subcommand `memory`: Redis memory of accounts, follows, posts, likes, comments and home
//! timelines. It adds one kind of data after the other, waits for quiescence and reads the memory
//! in between.

mod content;
mod readings;
mod report;

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context as _, ensure};
use microblog_local::{
    edges::{Edge, EdgeList},
    graph::{self, Target},
};

pub(crate) use self::report::Step;
use self::{
    content::Content,
    readings::{Reading, Store},
    report::Report,
};
use crate::{
    follow_graph,
    results::write_json,
    service_clients,
    system::{Database, Layout, Setup, System, Topology, Urls},
};

/// Accounts that exist before the measurement.
const WARM_UP: u32 = 200;

const EMAIL_DOMAIN: &str = "import.invalid";

/// The maximum length of a home timeline.
const HOME_POSTS_MAX: u64 = 800;

/// Measures the Redis memory of each kind of data, in its own system.
///
/// Reports the growth of the memory that Redis uses, which includes its hash tables.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    data: follow_graph::Args,
    /// Number of posts per account, of 140 characters
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    posts: u32,
    /// Number of likes per post
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    likes: u32,
    /// Number of comments per post, of 140 characters
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    comments: u32,
    /// Also writes the results to a JSON file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let graph = args.data.graph()?;
    ensure!(graph.names().len() > 0, "the graph has no accounts");
    let (layout, redis) = (Layout::Colocated, Topology::Single);
    let sample =
        Sample { warm_up: WARM_UP, posts: args.posts, likes: args.likes, comments: args.comments };
    let system = System::start(Setup {
        layout,
        threads: Some(1),
        redis,
        tls: false,
        database: Database::Sqlite,
    })
    .await?;
    let report = measure(sample, &graph, &system).await?;
    print!("{}", report.table());
    write_json(args.json.as_deref(), &report)?;
    Ok(ExitCode::SUCCESS)
}

/// What is added to a graph, and before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Accounts that exist before the measurement, with a post, a like and a comment of each.
    pub(crate) warm_up: u32,
    /// Of each account.
    pub(crate) posts: u32,
    /// Of each post.
    pub(crate) likes: u32,
    /// Of each post.
    pub(crate) comments: u32,
}

/// Measures a started system with one Redis, to which it adds the accounts and follows of a graph.
pub(crate) async fn measure(
    args: Sample,
    graph: &EdgeList,
    system: &System,
) -> anyhow::Result<Report> {
    let urls = system.urls();
    let connection = system.redis().await?.pop().context("the system has no Redis")?;
    let store = &mut Store::new(connection);
    warm_up(urls, args.warm_up).await?;
    let mut steps = Steps { last: Reading::read(store, system).await?, steps: Vec::new(), system };
    let target = target(urls);
    let users = graph::users(graph, &target).await?;
    ensure!(users.rejected == 0, "{} accounts were rejected", users.rejected);
    let accounts = users.ids.len() as u64;
    let content = Content::new(urls, &users.ids).await?;
    content.read_accounts(graph.names()).await?;
    steps.end("accounts, cached with their names", accounts, store).await?;
    let follows = graph::follows(graph, &users.ids, &target).await?.outcome;
    ensure!(follows.rejected_limit == 0, "{} follows were rejected", follows.rejected_limit);
    content.read_lists().await?;
    steps.end("follows, cached on both sides", follows.created, store).await?;
    let mut posts = Vec::new();
    for round in 0..args.posts {
        posts.extend(content.publish(round).await?);
    }
    content.read_posts(&posts).await?;
    steps.end("posts, cached", posts.len() as u64, store).await?;
    let likes = content.like(&posts, args.likes).await?;
    content.read_likers(&posts).await?;
    steps.end("likes, cached on both sides", likes, store).await?;
    for round in 0..args.comments {
        content.comment(&posts, round).await?;
    }
    content.read_comments(&posts).await?;
    steps.end("comments, cached", posts.len() as u64 * u64::from(args.comments), store).await?;
    content.read_homes().await?;
    let homes = format!("home timelines, {:.0} posts each", posts_of_homes(graph, args.posts));
    steps.end(&homes, accounts, store).await?;
    Ok(Report { steps: steps.steps })
}

/// Adds some data of every kind, so that connections, buffers and functions exist before the first
/// reading.
async fn warm_up(urls: &Urls, accounts: u32) -> anyhow::Result<()> {
    let edges = (0..accounts).map(|follower| Edge { follower, target: (follower + 1) % accounts });
    let names = (0..accounts).map(|number| format!("warm_up_{number}"));
    let graph = EdgeList::new(names, edges.collect());
    let ids = graph::users(&graph, &target(urls)).await?.ids;
    graph::follows(&graph, &ids, &target(urls)).await?;
    let content = Content::new(urls, &ids).await?;
    content.read_accounts(graph.names()).await?;
    content.read_lists().await?;
    let posts = content.publish(0).await?;
    content.like(&posts, 1).await?;
    content.comment(&posts, 0).await?;
    content.read_posts(&posts).await?;
    content.read_likers(&posts).await?;
    content.read_comments(&posts).await?;
    content.read_homes().await
}

/// Returns the import target, with e-mail addresses as long as those of `microblog import`.
fn target(urls: &Urls) -> Target {
    let mut target = service_clients::import_target(urls, "");
    target.accounts.email_domain = EMAIL_DOMAIN.to_owned();
    target
}

/// Returns the mean length of the home timelines: posts of followed accounts and the reader's own
/// posts, up to the maximum.
pub(crate) fn posts_of_homes(graph: &EdgeList, posts_each: u32) -> f64 {
    let mut authors = vec![1_u64; graph.names().len()];
    for edge in &graph.edges {
        authors[edge.follower as usize] += 1;
    }
    let posts = authors.iter().map(|authors| (authors * u64::from(posts_each)).min(HOME_POSTS_MAX));
    posts.sum::<u64>() as f64 / authors.len() as f64
}

/// The measured steps and the last reading.
struct Steps<'a> {
    last: Reading,
    steps: Vec<Step>,
    system: &'a System,
}

impl Steps<'_> {
    /// Ends a step that added `count` entries.
    async fn end(&mut self, what: &str, count: u64, store: &mut Store) -> anyhow::Result<()> {
        let now = Reading::read(store, self.system).await?;
        self.steps.push(Step {
            what: what.to_owned(),
            count,
            used: now.used - self.last.used,
            sql: now.sql.zip(self.last.sql).map(|(now, last)| now.since(last)),
        });
        self.last = now;
        Ok(())
    }
}
