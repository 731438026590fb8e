//! The measured inputs of the computation.

use std::{collections::BTreeMap, path::Path};

use anyhow::ensure;
use microblog_domain::Partition;
use microblog_local::edges::EdgeList;

use super::model::{Assumptions, Cost, Inputs, LayoutTimes, ProcessTime};
use crate::{
    benchmark::{Benchmark, CLIENTS, clients},
    data_set::DataSet,
    follow_graph,
    load_driver::LoadModel,
    memory::{self, Sample},
    results::name,
    scenario::Scenario,
    system::{Database, Layout, Setup, System, Topology},
};

/// Accounts before the measurement of bytes: every partition then has its own keys.
const WARM_UP: u32 = 4 * Partition::COUNT as u32;

/// The processes whose work grows with the followers of an author.
const DELIVERING: [&str; 4] = ["relation", "timeline", "microblog", "redis-server"];

/// Options of the measurement.
#[derive(Debug, clap::Args)]
// Without `skip`, clap gives the group the name of the command's own group.
#[group(skip)]
pub(super) struct Measurement {
    #[command(flatten)]
    graph: follow_graph::Args,
    /// Number of clients (closed loop)
    #[arg(long, value_name = "COUNT", default_value_t = CLIENTS, value_parser = clients)]
    clients: usize,
    /// Worker threads per process [default: one for each core]
    #[arg(long, value_name = "COUNT")]
    threads: Option<usize>,
    /// Accounts with which bytes are measured, each with the assumed numbers of followers and posts
    #[arg(long, value_name = "COUNT", default_value_t = 2_000)]
    sample: u32,
    #[command(flatten)]
    benchmark: Benchmark,
}

impl Measurement {
    /// Returns the file for the results.
    pub(super) fn json(&self) -> Option<&Path> {
        self.benchmark.json.as_deref()
    }

    /// Measures processor time on the given graph, and bytes on a generated one.
    pub(super) async fn inputs(&self, assumed: &Assumptions) -> anyhow::Result<Inputs> {
        let graph = self.graph.graph()?;
        let separate = self.times(&graph, Layout::Separate).await?;
        let colocated = self.times(&graph, Layout::Colocated).await?;
        let (costs, home_entry_bytes) = self.costs(assumed).await?;
        Ok(Inputs { layouts: vec![separate, colocated], costs, home_entry_bytes })
    }

    async fn start(&self, layout: Layout) -> anyhow::Result<System> {
        let (threads, redis) = (self.threads, Topology::Single);
        System::start(Setup { layout, threads, redis, tls: false, database: Database::Postgresql })
            .await
    }

    async fn times(&self, graph: &EdgeList, layout: Layout) -> anyhow::Result<LayoutTimes> {
        eprintln!("processor time, {}", name(layout));
        let system = self.start(layout).await?;
        let options = &self.benchmark.data_set;
        let all = DataSet::create(system.urls(), graph, options, self.graph.seed).await?;
        let run = Run { measurement: self, system: &system };
        let mixed = run.us_per_call(&[(&all, Scenario::Mixed)]).await?;
        let like = run.us_per_call(&[(&all, Scenario::Like)]).await?;
        // Authors with few and with many followers, in an order that cancels a constant drift of the
        // machine's speed.
        let (few, many) = few_and_many(&all);
        let publish = |data| (data, Scenario::Publish);
        let mut by_few = run.us_per_call(&[publish(&few)]).await?;
        let by_many = run.us_per_call(&[publish(&many), publish(&many)]).await?;
        let again = run.us_per_call(&[publish(&few)]).await?;
        by_few.iter_mut().for_each(|(process, us)| *us = (*us + again[process]) / 2.0);
        let (followers_few, followers_many) = (followers(&few), followers(&many));
        let difference = followers_many - followers_few;
        ensure!(difference >= 1.0, "all accounts that call have the same number of followers");
        let process = |(process, mixed_us): (&String, &f64)| {
            let is_delivering = DELIVERING.contains(&process.as_str());
            let slope = (by_many[process] - by_few[process]) / difference;
            let delivery_us = if is_delivering { slope.max(0.0) } else { 0.0 };
            let publish_us = by_few[process] - delivery_us * followers_few;
            ProcessTime {
                name: process.clone(),
                mixed_us: *mixed_us,
                like_us: like[process],
                publish_us: publish_us.max(0.0),
                delivery_us,
            }
        };
        Ok(LayoutTimes {
            layout: name(layout),
            readers: all.sessions.len() as f64 / all.accounts.len() as f64,
            followers: followers(&all),
            followers_few,
            followers_many,
            processes: mixed.iter().map(process).collect(),
        })
    }

    async fn costs(&self, assumed: &Assumptions) -> anyhow::Result<([Cost; 5], f64)> {
        eprintln!("bytes");
        let sample = Sample {
            warm_up: WARM_UP,
            posts: assumed.kept_posts,
            likes: assumed.likes,
            comments: assumed.comments,
        };
        let graph = follow_graph::Args::generated(self.sample, assumed.followers, self.graph.seed);
        let graph = graph.graph()?;
        let system = self.start(Layout::Colocated).await?;
        let steps = memory::measure(sample, &graph, &system).await?.steps;
        let bytes = |step: &memory::Step| step.used as f64;
        let cost = |step: &memory::Step| {
            let each = |amount: f64| if step.count == 0 { 0.0 } else { amount / step.count as f64 };
            let sql = step.sql.unwrap_or_default();
            Cost {
                measured: step.count,
                redis_bytes: each(bytes(step)),
                sql_rows: each(sql.rows),
                sql_written: each(sql.written),
                sql_bytes: each(sql.bytes),
                sql_us: each(sql.cpu_us),
            }
        };
        let [accounts, follows, posts, likes, comments, homes] = steps.as_slice() else {
            anyhow::bail!("expected six kinds of data, not {}", steps.len());
        };
        let entries = homes.count as f64 * memory::posts_of_homes(&graph, assumed.kept_posts);
        Ok(([accounts, follows, posts, likes, comments].map(cost), bytes(homes) / entries))
    }
}

/// Runs on a system.
struct Run<'a> {
    measurement: &'a Measurement,
    system: &'a System,
}

impl Run<'_> {
    /// Returns the processor time of each process per call, over all scenarios together.
    async fn us_per_call(
        &self,
        scenarios: &[(&DataSet, Scenario)],
    ) -> anyhow::Result<BTreeMap<String, f64>> {
        let (mut calls, mut times) = (0, BTreeMap::<String, u64>::new());
        for (data, scenario) in scenarios {
            let model = LoadModel::Closed(self.measurement.clients);
            let benchmark = &self.measurement.benchmark;
            let result = benchmark.measure(self.system, data, *scenario, model, None).await?;
            let failed = &result.errors;
            ensure!(failed.is_empty() && result.calls > 0, "calls failed: {failed:?}");
            calls += result.calls;
            for process in result.usage.processes {
                *times.entry(process.name).or_default() += process.cpu_us;
            }
        }
        ensure!(!times.is_empty(), "processor time is known on Linux only");
        Ok(times.into_iter().map(|(name, us)| (name, us as f64 / calls as f64)).collect())
    }
}

/// Returns the data set with the sessions of a quarter of the accounts: those with the fewest followers,
/// and those with the most.
fn few_and_many(data: &DataSet) -> (DataSet, DataSet) {
    let followers = data.followers();
    let mut sessions = data.sessions.clone();
    sessions.sort_by_key(|session| followers.get(&session.account).copied().unwrap_or_default());
    let quarter = sessions.len().div_ceil(4);
    let of = |sessions: &[_]| DataSet { sessions: sessions.to_vec(), ..data.clone() };
    (of(&sessions[..quarter]), of(&sessions[sessions.len() - quarter..]))
}

/// Returns the mean number of followers of the accounts that call.
fn followers(data: &DataSet) -> f64 {
    let followers = data.followers();
    let of = |account| followers.get(account).copied().unwrap_or_default();
    let sum: usize = data.sessions.iter().map(|session| of(&session.account)).sum();
    sum as f64 / data.sessions.len() as f64
}
