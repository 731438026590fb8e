//! The subcommand `classical`: what a page of followers with the viewer's relations costs Redis, by
//! the usual recipes and by the relation service, for lists of any length.

use std::process::ExitCode;

use anyhow::Context as _;

use crate::{
    limits::classical::{ours, recipes},
    system::{Shape, System},
};

/// As many accounts as one may follow.
const FOLLOWING_MAX: u64 = 5_000;

/// Compares a page of 50 followers, with how the viewer stands to each, with the usual recipes.
///
/// For a viewer and a listed account with as many followers each as a length says. All figures are
/// Redis' own time in microseconds.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The lengths of the lists
    #[arg(value_name = "LENGTH", default_values_t = [500, 5_000, 50_000, 500_000, 1_000_000],
          value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    lengths: Vec<u64>,
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let system = System::start(Shape::One, Some(1), &[]).await?;
    let admin = system.redis_client().context("the system's Redis is not known")?;
    println!(
        "{:>10}{:>12}{:>12}{:>18}{:>14}{:>8}",
        "followers", "page us", "of it ours", "temporary keys us", "whole lists us", "ratio"
    );
    for &length in &args.lengths {
        let usual = recipes(&admin, length).await?;
        let own = ours(&system.urls().relation, &admin, length, FOLLOWING_MAX).await?;
        println!(
            "{length:>10}{:>12.1}{:>12.1}{:>18.1}{:>14.1}{:>8.3}",
            own.page_us,
            own.relations_us,
            usual.temporary_keys_us,
            usual.whole_lists_us,
            own.page_us / usual.temporary_keys_us
        );
    }
    println!("page us: the page itself and the relations to those on it, which are `of it ours`;");
    println!("the recipes leave the page itself out. ratio: page us to temporary keys.");
    Ok(ExitCode::SUCCESS)
}
