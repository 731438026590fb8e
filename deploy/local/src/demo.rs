//! `microblog demo`: a scripted tour through the gateway. It checks every response and deletes its
//! accounts at the end.

mod format;
mod person;
mod tour;

use std::process::ExitCode;

use person::Person;

use crate::remote::{self, GATEWAY_URL};

/// Runs a scripted tour through the gateway and prints each call with its response.
///
/// Creates three accounts with random names and deletes them at the end. Exits with 1 if a response
/// is wrong.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// URL of the gateway.
    #[arg(long, value_name = "URL", default_value = GATEWAY_URL, env = "MICROBLOG_GATEWAY_URL")]
    gateway_url: String,
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let channel = remote::connect(&args.gateway_url).await?;
    let mut people = ["ada", "bob", "cleo"].map(|name| Person::new(name, channel.clone()));
    let result = tour::run(&mut people).await;
    println!("\nDelete the accounts of the tour");
    for person in &mut people {
        if let Err(error) = person.delete_account().await {
            eprintln!("could not delete {person}: {error:#}");
        }
    }
    match result {
        Ok(()) => {
            println!("\nAll responses were correct.");
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            eprintln!("\nThe tour failed: {error:#}");
            Ok(ExitCode::from(1))
        }
    }
}
