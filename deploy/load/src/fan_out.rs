//! The subcommand `fan-out`: delivery of one author's posts to many followers.

mod baseline;

use std::{
    cell::Cell,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use futures::{StreamExt as _, TryFutureExt as _, TryStreamExt as _, stream};
use microblog_local::{
    edges::{Edge, EdgeList},
    graph,
    progress::Progress,
    remote,
};
use tonic::Status;

use crate::{
    load_driver::{LoadModel, Measurements, run_until},
    results::write_json,
    service_clients::{self, ServiceClients, TEXT, status_to_error},
    system::{Layout, System, Urls},
};

/// Home timelines that are built concurrently.
const BUILDS_IN_FLIGHT: usize = 64;

/// Rate of home timeline reads during the fan-out: enough for a p99, too few to affect the fan-out.
const READS_PER_SECOND: f64 = 200.0;

/// Duration of the reads before the fan-out, without load.
const READS_BEFORE: Duration = Duration::from_secs(5);

/// Measures fan-out throughput: one author's posts into the home timelines of many followers.
///
/// Starts its own system in one process, in push mode. The baseline in the same Redis is bare
/// pipelined ZADD and ZREMRANGEBYRANK of the same posts into as many sorted sets of the same
/// length. Automatic rewrites of the append-only file are off.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of followers, each with a home timeline
    #[arg(long, value_name = "COUNT", default_value_t = 100_000,
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    followers: u32,
    /// Number of measured posts, one after the other
    #[arg(long, value_name = "COUNT", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..))]
    posts: u32,
    /// Initial number of posts in each home timeline, at most 800
    #[arg(long, value_name = "COUNT", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(..=800))]
    entries: u32,
    /// Also writes the results to a JSON file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The results.
#[derive(Debug, serde::Serialize)]
struct Report {
    followers: u32,
    posts: u32,
    entries: u32,
    /// From the start of the first publish call until the last post is delivered to all followers.
    seconds: f64,
    deliveries_per_second: f64,
    #[serde(rename = "bare_per_second")]
    baseline_per_second: f64,
    ratio: f64,
    /// Latency of each publish call, in order.
    author_ms: Vec<f64>,
    /// p99 of home timeline reads, before and during the fan-out.
    reader_p99_ms: [f64; 2],
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mode = ("MICROBLOG_TIMELINE_MODE".to_owned(), "push".to_owned());
    let system = System::start(Layout::One, None, None, &[mode]).await?;
    let mut admin = system.redis().await?.context("the system's Redis cannot be reached")?;
    let fixture = Fixture::create(system.urls(), &args).await?;
    system.prepare_measurement().await?;
    let end = Instant::now() + READS_BEFORE;
    let quiet = fixture.read(|due| due >= end).await?;

    let ended = Cell::new(None);
    let began = Instant::now();
    let publish = async {
        let (mut author_ms, mut newest) = (Vec::new(), 0);
        for _ in 0..args.posts {
            let begin = Instant::now();
            newest = fixture.publish().await?;
            author_ms.push(begin.elapsed().as_secs_f64() * 1e3);
        }
        system.wait_until_delivered().await?;
        ended.set(Some(Instant::now()));
        let seconds = began.elapsed().as_secs_f64();
        fixture.check_received(newest).await?;
        anyhow::Ok((author_ms, seconds))
    };
    let read = fixture.read(|due| ended.get().is_some_and(|end| due >= end));
    let ((author_ms, seconds), busy) = tokio::try_join!(publish, read)?;
    let deliveries = f64::from(args.followers) * f64::from(args.posts);
    let baseline = baseline::deliver(&mut admin, args.followers, args.entries, args.posts).await?;
    let report = Report {
        followers: args.followers,
        posts: args.posts,
        entries: args.entries,
        seconds,
        deliveries_per_second: deliveries / seconds,
        baseline_per_second: deliveries / baseline,
        ratio: baseline / seconds,
        author_ms,
        reader_p99_ms: [quiet, busy].map(|reads| reads.quantile_us(0.99) as f64 / 1e3),
    };
    report.print();
    write_json(args.json.as_deref(), &report)?;
    Ok(ExitCode::SUCCESS)
}

impl Report {
    fn print(&self) {
        let Self { followers, posts, entries, .. } = self;
        println!("{posts} posts to {followers} followers, each with {entries} posts at home");
        println!("deliveries     {:>10.0} a second", self.deliveries_per_second);
        println!(
            "baseline       {:>10.0} a second; ratio {:.2}",
            self.baseline_per_second, self.ratio
        );
        println!("total          {:>10.2} s", self.seconds);
        let mut waits = self.author_ms.clone();
        waits.sort_by(f64::total_cmp);
        if let [first, .., last] | [first @ last] = waits[..] {
            println!("publish call   {first:>10.2} to {last:.2} ms a post");
        }
        let [before, during] = self.reader_p99_ms;
        println!("home reads     {before:>10.2} ms p99 before, {during:.2} during");
    }
}

/// The author and the followers.
struct Fixture {
    author: u64,
    followers: Vec<u64>,
    services: ServiceClients,
}

impl Fixture {
    async fn create(urls: &Urls, args: &Args) -> anyhow::Result<Self> {
        let names = (0..=args.followers).map(|number| format!("f{number}"));
        let edges = (1..=args.followers).map(|follower| Edge { follower, target: 0 });
        let list = EdgeList::new(names, edges.collect());
        let target = service_clients::import_target(urls, "");
        let ids = graph::users(&list, &target).await?.ids;
        let (&author, followers) = ids.split_first().context("the graph has no author")?;
        ensure!(author != 0, "cannot create the author");
        let fixture = Self {
            author,
            followers: followers.to_vec(),
            services: ServiceClients::connect(urls).await?,
        };
        // A new home timeline includes existing posts at once. Posts from before the follows have
        // no fan-out.
        for _ in 0..args.entries {
            fixture.publish().await?;
        }
        graph::follows(&list, &ids, &target).await?;
        fixture.build_home_timelines().await?;
        Ok(fixture)
    }

    /// Publishes a post and returns its id.
    async fn publish(&self) -> anyhow::Result<u64> {
        status_to_error(self.services.publish(self.author, TEXT).await)
    }

    /// Reads every home timeline, which builds it.
    async fn build_home_timelines(&self) -> anyhow::Result<()> {
        let progress = Progress::start("homes", self.followers.len() as u64);
        let builds = self.followers.iter().map(async |&follower| {
            remote::retry(async || self.home(follower).await).await?;
            progress.add(1);
            Ok(())
        });
        let built: Result<(), Status> =
            stream::iter(builds).buffer_unordered(BUILDS_IN_FLIGHT).try_collect().await;
        progress.finish();
        status_to_error(built)
    }

    /// Returns the newest post of a home timeline, or 0.
    async fn home(&self, user_id: u64) -> Result<u64, Status> {
        let page = self.services.home(user_id).await?;
        Ok(page.entries.first().map_or(0, |entry| entry.post_id))
    }

    /// Checks that the first and the last follower have received a post.
    async fn check_received(&self, post: u64) -> anyhow::Result<()> {
        for &follower in self.followers.first().into_iter().chain(self.followers.last()) {
            let newest = status_to_error(self.home(follower).await)?;
            ensure!(
                newest == post,
                "post {post} is not in the home timeline of {follower}, newest is {newest}"
            );
        }
        Ok(())
    }

    /// Reads home timelines at a fixed rate, one follower after the other.
    async fn read(&self, is_over: impl Fn(Instant) -> bool) -> anyhow::Result<Measurements> {
        let reader = |client: usize| self.followers[client % self.followers.len()];
        let step = |client| self.home(reader(client)).map_ok(drop);
        let model = LoadModel::Open(READS_PER_SECOND);
        let read = run_until(model, Instant::now(), is_over, "reads", step).await;
        ensure!(read.failed() == 0, "reads of home timelines failed: {:?}", read.errors);
        Ok(read)
    }
}
