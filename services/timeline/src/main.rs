//! The timeline service as a process of its own.

use std::process::ExitCode;

use clap::Parser as _;
use microblog_timeline::{Config, listen};

// A server of many small messages lives on its allocator; see the release profile in Cargo.toml.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let config = Config::parse();
    microblog_chassis::run(&config.chassis.clone(), move |worker| listen(config.clone(), worker))
}
