//! The process of the gateway: parses flags, returns an exit code.

use std::process::ExitCode;

use clap::Parser as _;
use microblog_chassis as chassis;
use microblog_gateway::{Config, Limits, listen};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let config = Config::parse();
    // Shared by all workers: any of them may get a client's next connection.
    let limits = Limits::new(&config.limits);
    chassis::run(&config.chassis.clone(), move |worker| {
        listen(config.clone(), limits.clone(), worker)
    })
}
