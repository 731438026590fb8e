//! `microblog-faults`: a suite of faults. It starts the real programs, drives them with clients that
//! log each call and its outcome, injects a fault, heals it, reads everything back, and checks that
//! the clients got what they were promised.

mod check;
mod clock;
mod faults;
mod feed;
mod load;
mod model;
mod report;
mod run;
mod system;
mod trial;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    run::run(&run::Args::parse()).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::from(2)
    })
}
