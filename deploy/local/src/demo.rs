//! `microblog demo`: a short tour through the gateway, as an application would call it, printed
//! for people. Every answer is checked; the accounts that it makes are deleted at the end.

mod person;
mod steps;

use std::process::ExitCode;

use person::Person;

use crate::remote::{self, GATEWAY_URL};

/// Takes a short tour through the gateway and prints each call with its answer.
///
/// Makes three accounts with random names and deletes them at the end. Exits with 1 if an answer
/// is not as it should be.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the gateway listens.
    #[arg(long, value_name = "URL", default_value = GATEWAY_URL, env = "MICROBLOG_GATEWAY_URL")]
    gateway_url: String,
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let channel = remote::serving(&args.gateway_url).await?;
    let mut people = ["ada", "bob", "cleo"].map(|name| Person::new(name, channel.clone()));
    let outcome = steps::tour(&mut people).await;
    println!("\nThe accounts of the tour go again");
    for person in &mut people {
        if let Err(error) = person.leave().await {
            eprintln!("could not delete {}: {error:#}", person.name);
        }
    }
    match outcome {
        Ok(()) => {
            println!("\nAll answers were as they should be.");
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            eprintln!("\nThe tour ended early: {error:#}");
            Ok(ExitCode::from(1))
        }
    }
}
