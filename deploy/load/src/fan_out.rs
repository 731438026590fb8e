//! The subcommand `fan-out`: one author's posts on their way to very many followers.

mod bare;

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
    drive::{Measured, Pace, drive_until},
    outcome::write_json,
    services::{self, Services, TEXT, told},
    system::{Shape, System, Urls},
};

/// Home timelines that are built at once.
const BUILDS: usize = 64;

/// How many home timelines are read a second while posts are on their way: enough to see how long
/// that takes, too few to take the machine away from what is measured.
const READS_PER_SECOND: f64 = 200.0;

/// For how long they are read before that.
const BEFORE: Duration = Duration::from_secs(5);

/// Measures how fast one author's posts come into the home timelines of many followers.
///
/// Starts a system of its own, all in one process, that pushes posts however many followers there
/// are. Beside it, in the same Redis: bare pipelined ZADD and ZREMRANGEBYRANK of the same posts into
/// as many sorted sets of the same length. Meanwhile, Redis does not write its append-only file
/// anew.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many follow the author, each with a home timeline
    #[arg(long, value_name = "COUNT", default_value_t = 100_000,
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    followers: u32,
    /// How many posts are measured, one after the other
    #[arg(long, value_name = "COUNT", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..))]
    posts: u32,
    /// How many posts are in each home timeline before that, 800 at most
    #[arg(long, value_name = "COUNT", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(..=800))]
    entries: u32,
    /// Writes what was measured to a file, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What was measured.
#[derive(Debug, serde::Serialize)]
struct Report {
    followers: u32,
    posts: u32,
    entries: u32,
    /// From the first post's call until the last follower has the last post.
    seconds: f64,
    deliveries_per_second: f64,
    bare_per_second: f64,
    ratio: f64,
    /// What the author waits for each post, in order.
    author_ms: Vec<f64>,
    /// What readers of home timelines wait for, before and meanwhile.
    reader_p99_ms: [f64; 2],
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mode = ("MICROBLOG_TIMELINE_MODE".to_owned(), "push".to_owned());
    let system = System::start(Shape::One, None, &[mode]).await?;
    let mut admin = system.redis().await?.context("the system's Redis cannot be reached")?;
    let crowd = Crowd::make(system.urls(), &args).await?;
    system.settle().await?;
    let end = Instant::now() + BEFORE;
    let quiet = crowd.read(|due| due >= end).await?;

    let ended = Cell::new(None);
    let began = Instant::now();
    let publish = async {
        let (mut author_ms, mut newest) = (Vec::new(), 0);
        for _ in 0..args.posts {
            let begin = Instant::now();
            newest = crowd.publish().await?;
            author_ms.push(begin.elapsed().as_secs_f64() * 1e3);
        }
        system.delivered().await?;
        ended.set(Some(Instant::now()));
        let seconds = began.elapsed().as_secs_f64();
        crowd.have(newest).await?;
        anyhow::Ok((author_ms, seconds))
    };
    let read = crowd.read(|due| ended.get().is_some_and(|end| due >= end));
    let ((author_ms, seconds), busy) = tokio::try_join!(publish, read)?;
    let deliveries = f64::from(args.followers) * f64::from(args.posts);
    let bare = bare::deliver(&mut admin, args.followers, args.entries, args.posts).await?;
    let report = Report {
        followers: args.followers,
        posts: args.posts,
        entries: args.entries,
        seconds,
        deliveries_per_second: deliveries / seconds,
        bare_per_second: deliveries / bare,
        ratio: bare / seconds,
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
        println!("bare           {:>10.0} a second; ratio {:.2}", self.bare_per_second, self.ratio);
        println!("until the last {:>10.2} s", self.seconds);
        let mut waits = self.author_ms.clone();
        waits.sort_by(f64::total_cmp);
        if let [first, .., last] | [first @ last] = waits[..] {
            println!("the author     {first:>10.2} to {last:.2} ms a post");
        }
        let [before, meanwhile] = self.reader_p99_ms;
        println!("readers        {before:>10.2} ms p99 before, {meanwhile:.2} meanwhile");
    }
}

/// An author and the followers.
struct Crowd {
    author: u64,
    followers: Vec<u64>,
    services: Services,
}

impl Crowd {
    async fn make(urls: &Urls, args: &Args) -> anyhow::Result<Self> {
        let names = (0..=args.followers).map(|number| format!("f{number}"));
        let edges = (1..=args.followers).map(|follower| Edge { follower, target: 0 });
        let list = EdgeList::new(names, edges.collect());
        let target = services::import_target(urls, "");
        let ids = graph::users(&list, &target).await?.ids;
        let (&author, followers) = ids.split_first().context("there is no author")?;
        ensure!(author != 0, "the author could not be made");
        let crowd =
            Self { author, followers: followers.to_vec(), services: Services::of(urls).await? };
        // What is there before a home timeline is built is in it at once, and what is there before
        // somebody follows is on its way to nobody.
        for _ in 0..args.entries {
            crowd.publish().await?;
        }
        graph::follows(&list, &ids, &target).await?;
        crowd.build().await?;
        Ok(crowd)
    }

    /// Publishes, and returns the post.
    async fn publish(&self) -> anyhow::Result<u64> {
        told(self.services.publish(self.author, TEXT).await)
    }

    /// Looks at every home timeline, so that there is one.
    async fn build(&self) -> anyhow::Result<()> {
        let progress = Progress::start("homes", self.followers.len() as u64);
        let builds = self.followers.iter().map(async |&follower| {
            remote::repeatedly(async || self.home(follower).await).await?;
            progress.add(1);
            Ok(())
        });
        let built: Result<(), Status> =
            stream::iter(builds).buffer_unordered(BUILDS).try_collect().await;
        progress.finish();
        told(built)
    }

    /// Returns the newest post of a home timeline, 0 where there is none.
    async fn home(&self, user_id: u64) -> Result<u64, Status> {
        let page = self.services.home(user_id).await?;
        Ok(page.entries.first().map_or(0, |entry| entry.post_id))
    }

    /// Checks that a post has come to the first of the followers, and to the last.
    async fn have(&self, post: u64) -> anyhow::Result<()> {
        for &follower in self.followers.first().into_iter().chain(self.followers.last()) {
            let newest = told(self.home(follower).await)?;
            ensure!(newest == post, "post {post} did not come to {follower}, who has {newest}");
        }
        Ok(())
    }

    /// Has one follower after the other look at the home timeline, until it is over.
    async fn read(&self, is_over: impl Fn(Instant) -> bool) -> anyhow::Result<Measured> {
        let reader = |client: usize| self.followers[client % self.followers.len()];
        let step = |client| self.home(reader(client)).map_ok(drop);
        let pace = Pace::Open(READS_PER_SECOND);
        let read = drive_until(pace, Instant::now(), is_over, "reads", step).await;
        ensure!(read.failed() == 0, "home timelines cannot be read: {:?}", read.errors);
        Ok(read)
    }
}
