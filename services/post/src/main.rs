//! The post service as a process of its own.

use std::process::ExitCode;

use clap::Parser as _;
use microblog_post::{Config, listen};

// Many small messages make the allocator matter; see the release profile in Cargo.toml.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let config = Config::parse();
    microblog_chassis::run(&config.chassis.clone(), move |worker| listen(config.clone(), worker))
}
