//! The subcommand `scale`: what each scenario costs as there are more accounts.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context as _;

use crate::{
    data,
    outcome::{Outcome, exit_code, table, write_json},
    plot,
    scenario::Scenario,
    system::{Shape, System},
    trial::{Rate, Trial},
};

/// What is measured unless other scenarios are named.
const SCENARIOS: [Scenario; 8] = [
    Scenario::ViewFollowers,
    Scenario::Relation,
    Scenario::ViewUser,
    Scenario::Follow,
    Scenario::Publish,
    Scenario::Home,
    Scenario::Like,
    Scenario::Mixed,
];

/// Measures what calls cost with more and more accounts, and draws it.
///
/// Starts a system of its own for each number of accounts, all in one process, and measures when
/// nothing is under way any more of what was brought into it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The numbers of accounts
    #[arg(value_name = "ACCOUNTS", default_values_t = [1_000, 10_000, 100_000])]
    sizes: Vec<u32>,
    /// The scenarios [default: all but scroll and register-login]
    #[arg(long = "scenario", value_name = "SCENARIO")]
    scenarios: Vec<Scenario>,
    #[command(flatten)]
    graph: data::Kind,
    #[command(flatten)]
    trial: Trial,
    #[command(flatten)]
    rate: Rate,
    /// Draws the processor time of a call by the number of accounts to this file
    #[arg(long, value_name = "FILE")]
    png: Option<PathBuf>,
}

/// What the scenarios took with so many accounts.
#[derive(Debug, serde::Serialize)]
struct Size {
    accounts: u32,
    outcomes: Vec<Outcome>,
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let scenarios =
        if args.scenarios.is_empty() { SCENARIOS.to_vec() } else { args.scenarios.clone() };
    let mut sizes = Vec::new();
    for &accounts in &args.sizes {
        let outcomes = outcomes(&args, &scenarios, accounts)
            .await
            .with_context(|| format!("with {accounts} accounts"))?;
        println!("{accounts} accounts\n{}", table(&outcomes));
        sizes.push(Size { accounts, outcomes });
    }
    if let Some(file) = &args.png {
        let series: Vec<_> = (0..scenarios.len()).map(|place| series(&sizes, place)).collect();
        plot::cost_by_accounts(file, &series, "accounts", "processor time of a call, µs")?;
    }
    write_json(args.trial.json.as_deref(), &sizes)?;
    Ok(exit_code(sizes.iter().flat_map(|size| &size.outcomes)))
}

async fn outcomes(
    args: &Args,
    scenarios: &[Scenario],
    accounts: u32,
) -> anyhow::Result<Vec<Outcome>> {
    let pace = args.rate.pace(&args.trial.load)?;
    let list = args.graph.graph(accounts)?;
    let system = System::start(Shape::One, None, &[]).await?;
    let world = args.trial.world(&system, &list, args.graph.seed).await?;
    system.settle().await?;
    let mut outcomes = Vec::new();
    for &scenario in scenarios {
        outcomes.push(args.trial.measure(&system, &world, scenario, pace).await?);
    }
    Ok(outcomes)
}

fn series(sizes: &[Size], place: usize) -> (String, Vec<(f64, f64)>) {
    let point = |size: &Size| (f64::from(size.accounts), size.outcomes[place].cpu_us_per_call());
    (sizes[0].outcomes[place].scenario.clone(), sizes.iter().map(point).collect())
}
