//! The subcommand `report`: scenarios on systems of several layouts, in rounds.

use std::process::ExitCode;

use crate::{
    benchmark::{Benchmark, clients},
    data_set::DataSet,
    follow_graph,
    load_driver::LoadModel,
    results::{ScenarioResult, name, write_json},
    scenario::Scenario,
    system::{Database, Layout, Setup, System, Topology},
};

/// Runs scenarios on systems of all layouts, in rounds, and prints a table in Markdown: the medians of
/// the rounds and, of the processor time, also the least and the most. Each round starts each system
/// anew, so that a disturbance of the machine concerns all of them. Exits with 1 if a call fails.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The scenarios
    #[arg(value_name = "SCENARIO", default_values = ["mixed", "home", "view-followers"])]
    scenarios: Vec<Scenario>,
    /// The layouts, separated by commas
    #[arg(
        long,
        value_name = "LAYOUTS",
        value_delimiter = ',',
        default_value = "colocated,separate"
    )]
    layouts: Vec<Layout>,
    /// The topologies of Redis, separated by commas
    #[arg(
        long,
        value_name = "TOPOLOGIES",
        value_delimiter = ',',
        default_value = "single,cluster"
    )]
    redis: Vec<Topology>,
    /// Whether to use TLS and signed identities, `false`, `true` or both
    #[arg(long, value_name = "VALUES", value_delimiter = ',', default_value = "false,true")]
    tls: Vec<bool>,
    /// The numbers of clients, separated by commas
    #[arg(
        long,
        value_name = "COUNTS",
        value_delimiter = ',',
        default_value = "64,8",
        value_parser = clients
    )]
    clients: Vec<usize>,
    /// Number of rounds
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Worker threads per process [default: one for each core]
    #[arg(long, value_name = "COUNT")]
    threads: Option<usize>,
    #[command(flatten)]
    graph: follow_graph::Args,
    #[command(flatten)]
    benchmark: Benchmark,
}

/// The results of a scenario on systems of one setup, with one number of clients.
#[derive(serde::Serialize)]
struct Row {
    layout: String,
    redis: String,
    tls: bool,
    clients: usize,
    /// One for each round.
    results: Vec<ScenarioResult>,
}

impl Row {
    /// Returns a row of the table.
    fn markdown(&self) -> String {
        let of = |value: &dyn Fn(&ScenarioResult) -> f64| {
            let mut values: Vec<_> = self.results.iter().map(value).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let median = |values: &[f64]| {
            let count = values.len();
            (values[(count - 1) / 2] + values[count / 2]) / 2.0
        };
        let latency = |result: &ScenarioResult, is_median: bool| {
            let latency = result.latency_us.as_ref();
            let us = latency.map(|latency| if is_median { latency.p50 } else { latency.p99 });
            us.map_or(f64::NAN, |us| us as f64 / 1e3)
        };
        let cpu = of(&ScenarioResult::cpu_us_per_call);
        format!(
            "| {} | {} | {} | {} | {} | {:.0} | {:.2} | {:.1} | {:.0} ({:.0} to {:.0}) |",
            self.results[0].scenario,
            self.layout,
            self.redis,
            if self.tls { "yes" } else { "no" },
            self.clients,
            median(&of(&|result| result.calls_per_second)),
            median(&of(&|result| latency(result, true))),
            median(&of(&|result| latency(result, false))),
            median(&cpu),
            cpu[0],
            cpu[cpu.len() - 1],
        )
    }
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let list = args.graph.graph()?;
    let mut rows: Vec<Row> = Vec::new();
    for round in 1..=args.rounds {
        // Each round has the same rows.
        let mut row = 0;
        for setup in args.setups() {
            let (layout, redis) = (name(setup.layout), name(setup.redis));
            eprintln!("round {round}: {layout}, {redis}, TLS {}", setup.tls);
            let system = System::start(setup).await?;
            let data = &args.benchmark.data_set;
            let data_set = DataSet::create(system.urls(), &list, data, args.graph.seed).await?;
            for &clients in &args.clients {
                for &scenario in &args.scenarios {
                    let model = LoadModel::Closed(clients);
                    let measure = args.benchmark.measure(&system, &data_set, scenario, model, None);
                    if round == 1 {
                        let (layout, redis) = (layout.clone(), redis.clone());
                        let results = Vec::new();
                        rows.push(Row { layout, redis, tls: setup.tls, clients, results });
                    }
                    rows[row].results.push(measure.await?);
                    row += 1;
                }
            }
        }
    }
    println!(
        "| scenario | layout | Redis | TLS | clients | calls/s | p50, ms | p99, ms | processor time of a call, µs |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    rows.iter().for_each(|row| println!("{}", row.markdown()));
    write_json(args.benchmark.json.as_deref(), &rows)?;
    let has_failed = |row: &Row| row.results.iter().any(|result| !result.errors.is_empty());
    for row in rows.iter().filter(|row| has_failed(row)) {
        eprintln!("calls failed: {}", row.markdown());
    }
    Ok(if rows.iter().any(has_failed) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

impl Args {
    fn setups(&self) -> impl Iterator<Item = Setup> {
        let Self { layouts, redis, tls, threads, .. } = self;
        layouts.iter().flat_map(move |&layout| {
            redis.iter().flat_map(move |&redis| {
                tls.iter().map(move |&tls| Setup {
                    layout,
                    threads: *threads,
                    redis,
                    tls,
                    database: Database::Sqlite,
                })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::Usage;

    #[test]
    fn a_row_has_the_medians_of_the_rounds() {
        let result = |calls_per_second| ScenarioResult {
            scenario: "home".to_owned(),
            calls: 1,
            seconds: 1.0,
            calls_per_second,
            latency_us: None,
            errors: Default::default(),
            usage: Usage::default(),
        };
        let row = Row {
            layout: "separate".to_owned(),
            redis: "single".to_owned(),
            tls: true,
            clients: 8,
            results: [30.0, 10.0, 24.0, 20.0].map(result).to_vec(),
        };
        let expected = "| home | separate | single | yes | 8 | 22 | NaN | NaN | 0 (0 to 0) |";
        assert_eq!(row.markdown(), expected);
    }
}
