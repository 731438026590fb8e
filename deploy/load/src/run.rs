//! The subcommand `run`: one scenario, and what it took.

mod import;

use std::{process::ExitCode, sync::LazyLock};

use anyhow::ensure;
use clap::{ValueEnum, builder::PossibleValue};
use microblog_local::remote;

use crate::{
    data,
    outcome::{exit_code, table, write_json},
    scenario::Scenario,
    system::{Shape, System, Urls},
    trial::{Rate, Trial},
};

/// Runs one scenario and tells how fast it was. Fails if a call does.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What is done
    #[arg(value_name = "SCENARIO")]
    work: Work,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    graph: data::Args,
    #[command(flatten)]
    trial: Trial,
    #[command(flatten)]
    rate: Rate,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Clients call.
    Calls(Scenario),
    /// The follows of the graph are brought in.
    Import,
}

impl ValueEnum for Work {
    fn value_variants<'a>() -> &'a [Self] {
        static ALL: LazyLock<Vec<Work>> = LazyLock::new(|| {
            let calls = Scenario::value_variants().iter().copied().map(Work::Calls);
            calls.chain([Work::Import]).collect()
        });
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::Calls(scenario) => scenario.to_possible_value(),
            Self::Import => Some(PossibleValue::new(import::NAME).help(
                "The follows of the graph as `microblog import` brings them in: once, in its own \
                 way, whatever is said of clients. A call is a follow",
            )),
        }
    }
}

/// Where the system is.
#[derive(Clone, Debug, clap::Args)]
// The group would have the name of the command's own.
#[group(skip)]
pub(crate) struct Place {
    /// Starts a system of this layout, with a redis-server and data of its own, instead of calling
    /// one that runs
    #[arg(long, value_name = "LAYOUT")]
    start: Option<Shape>,
    /// The worker threads of each process that is started [default: one for each core]
    #[arg(long, value_name = "COUNT", requires = "start")]
    threads: Option<usize>,
    /// Where the gateway listens, the services on the next four ports
    #[arg(long, value_name = "URL", default_value = remote::GATEWAY_URL, env = "MICROBLOG_GATEWAY_URL")]
    gateway_url: String,
    /// Where the user service listens
    #[arg(long, value_name = "URL", default_value = remote::USER_URL, env = "MICROBLOG_USER_URL")]
    user_url: String,
    /// Where the relation service listens
    #[arg(long, value_name = "URL", default_value = remote::RELATION_URL, env = "MICROBLOG_RELATION_URL")]
    relation_url: String,
    /// Where the post service listens
    #[arg(long, value_name = "URL", default_value = remote::POST_URL, env = "MICROBLOG_POST_URL")]
    post_url: String,
    /// Where the timeline service listens
    #[arg(long, value_name = "URL", default_value = remote::TIMELINE_URL, env = "MICROBLOG_TIMELINE_URL")]
    timeline_url: String,
}

impl Place {
    /// Starts the system, or takes the one that is there.
    pub(crate) async fn system(&self) -> anyhow::Result<System> {
        match self.start {
            Some(shape) => System::start(shape, self.threads, &[]).await,
            None => Ok(System::elsewhere(Urls {
                gateway: self.gateway_url.clone(),
                user: self.user_url.clone(),
                relation: self.relation_url.clone(),
                post: self.post_url.clone(),
                timeline: self.timeline_url.clone(),
            })),
        }
    }
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { work, place, graph, trial, rate } = args;
    let pace = rate.pace(&trial.load)?;
    let list = graph.graph()?;
    ensure!(!list.edges.is_empty(), "the graph has no follows");
    let system = place.system().await?;
    let outcome = match work {
        Work::Import => import::measure(&system, &list).await?,
        Work::Calls(scenario) => {
            let world = trial.world(&system, &list, graph.seed()).await?;
            trial.measure(&system, &world, scenario, pace).await?
        }
    };
    print!("{}", table(std::slice::from_ref(&outcome)));
    write_json(trial.json.as_deref(), &outcome)?;
    Ok(exit_code([&outcome]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn importing_is_a_scenario_of_this_command_beside_those_of_all() {
        assert_eq!(Work::from_str("import", false), Ok(Work::Import));
        assert_eq!(Work::from_str("mixed", false), Ok(Work::Calls(Scenario::Mixed)));
        assert!(Work::from_str("export", false).is_err());
    }
}
