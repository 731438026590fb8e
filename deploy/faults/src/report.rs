//! The table that the command prints.

use std::{fmt, path::PathBuf};

use serde::Serialize;

use crate::system::Setup;

/// The result of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    Passed,
    Failed,
    /// The fault did not bite.
    Void,
}

/// A row of the table.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) fault: String,
    pub(crate) setup: Setup,
    pub(crate) injected: String,
    /// What was seen of the fault.
    pub(crate) bite: String,
    pub(crate) checked: String,
    pub(crate) status: Status,
    pub(crate) seconds: u64,
    pub(crate) violations: Vec<String>,
    /// The directory with the logs of a failed trial.
    pub(crate) logs: Option<PathBuf>,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fault, setup, injected, bite, checked, status, seconds, .. } = self;
        let status = format!("{status:?}").to_lowercase();
        write!(f, "| {fault} | {setup} | {injected} | {bite} | {checked} | {status}, {seconds} s |")
    }
}

/// Prints the header of a table in Markdown.
pub(crate) fn print_header() {
    println!("| fault | setup | injected | seen | checked | result |");
    println!("| --- | --- | --- | --- | --- | --- |");
}
