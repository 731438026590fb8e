//! The notice server.

use std::process::ExitCode;

use clap::Parser as _;
use microblog_notice::{Config, listen};

// Many small allocations dominate; see the release profile in Cargo.toml.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let config = Config::parse();
    microblog_chassis::run(&config.chassis.clone(), move |worker| listen(config.clone(), worker))
}
