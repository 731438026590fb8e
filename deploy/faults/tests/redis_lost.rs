//! One fault in a small form, so that the suite keeps working. `microblog-faults` runs all.

#![allow(clippy::unwrap_used, reason = "a test's helper fails with the test")]

use std::process::Command;

#[test]
fn nothing_acknowledged_is_lost_with_redis_and_the_fault_is_seen() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_microblog-faults"));
    command.args(["--only", "redis-lost", "--layout", "colocated", "--calls", "100"]);
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("calls were done with an empty Redis"), "{text}");
}
