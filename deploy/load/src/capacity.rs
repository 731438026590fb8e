//! The subcommand `capacity`: what a number of accounts needs, from measured processor time and bytes.

mod measure;
mod model;
mod report;

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use serde::Serialize;

use self::{
    measure::Measurement,
    model::{Assumptions, Inputs, Plan, plan},
};
use crate::results::write_json;

/// Computes the cores, Redis memory, SQL rows and disk that numbers of accounts need, and the nearest
/// limits. Prints Markdown.
///
/// It measures processor time in both layouts, and the bytes of each kind of data, in systems that it
/// starts with PostgreSQL. This takes some minutes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    measurement: Measurement,
    #[command(flatten)]
    assumptions: Assumptions,
    /// Takes the measured inputs from the JSON file of an earlier run
    #[arg(long, value_name = "FILE")]
    inputs: Option<PathBuf>,
}

/// What the JSON file has.
#[derive(Serialize)]
struct Report<'a> {
    inputs: &'a Inputs,
    assumptions: &'a Assumptions,
    plans: &'a [Plan],
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { measurement, assumptions, inputs } = args;
    let inputs = match inputs {
        Some(file) => {
            let named = || format!("cannot read the inputs in {}", file.display());
            let text = fs::read(&file).with_context(named)?;
            let json: serde_json::Value = serde_json::from_slice(&text).with_context(named)?;
            serde_json::from_value(json["inputs"].clone()).with_context(named)?
        }
        None => measurement.inputs(&assumptions).await?,
    };
    let sizes = assumptions.sizes.iter();
    let plans: Vec<_> = sizes.map(|&accounts| plan(&inputs, &assumptions, accounts)).collect();
    print!("{}", report::markdown(&inputs, &assumptions, &plans));
    let report = Report { inputs: &inputs, assumptions: &assumptions, plans: &plans };
    write_json(measurement.json(), &report)?;
    Ok(ExitCode::SUCCESS)
}
