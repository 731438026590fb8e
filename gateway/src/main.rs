//! The gateway as a process of its own: flags in, exit code out.

use std::process::ExitCode;

use clap::Parser as _;
use microblog_chassis as chassis;
use microblog_gateway::{Config, Limits, listen};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let config = Config::parse();
    // One for all workers: a caller's connection may come to any of them.
    let limits = Limits::new(&config.limits);
    chassis::run(&config.chassis.clone(), move |worker| {
        listen(config.clone(), limits.clone(), worker)
    })
}
