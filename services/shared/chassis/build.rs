//! Passes the commit and the build profile to the crate, for `--version`.

use std::{env, ffi::OsStr, path::Path};

fn main() {
    // Not from git: each commit would build everything again.
    println!("cargo:rerun-if-env-changed=MICROBLOG_COMMIT");
    let commit = env::var("MICROBLOG_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = commit.unwrap_or_else(|| "unknown".to_owned());
    // Cargo passes only `debug` or `release`, but builds each profile in a directory of its own:
    // <profile>/build/<crate>/out.
    let out = env::var_os("OUT_DIR").unwrap_or_default();
    let profile = Path::new(&out).ancestors().nth(3).and_then(Path::file_name);
    let profile = profile.and_then(OsStr::to_str).unwrap_or("unknown");
    println!("cargo:rustc-env=MICROBLOG_BUILD=commit {commit}, profile {profile}");
}
