//! Help, the version, and errors before any call to a server.

use std::{os::unix::process::CommandExt as _, process::Command};

use crate::launcher::{PROGRAM, run};

#[test]
fn an_invalid_file_is_rejected_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("graph.edges");
    std::fs::write(&file, "1 2\n2 3\n3 not-a-name\n").unwrap();
    let file = file.to_str().unwrap();
    let ended = run(&["import", file], "");
    assert_eq!(ended.code, Some(2));
    let expected = format!("error: {file}, line 3: `not-a-name` cannot be an account's name");
    assert!(ended.stderr.starts_with(&expected), "{ended:?}");
}

#[test]
fn a_missing_file_is_named() {
    let ended = run(&["import", "/no/such/file"], "");
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("cannot read /no/such/file: No such file"), "{ended:?}");
}

#[test]
fn an_unreachable_server_is_reported_at_once_with_a_hint() {
    // Nothing listens on port 1.
    let unreachable = "http://127.0.0.1:1";
    for args in [
        vec!["import", "-", "--user-url", unreachable],
        vec!["demo", "--gateway-url", unreachable],
        vec!["verify", "--user-url", unreachable],
        vec!["export", "ada", "--user-url", unreachable],
    ] {
        let ended = run(&args, "1 2\n");
        assert_eq!(ended.code, Some(2), "{ended:?}");
        let expected = format!("nothing answers at {unreachable}: is `microblog up` running?");
        assert!(ended.stderr.contains(&expected), "{ended:?}");
    }
}

#[test]
fn what_is_no_address_is_said() {
    let ended = run(&["demo", "--gateway-url", "not an address"], "");
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("`not an address` is not the URL of a server"), "{ended:?}");
}

#[test]
fn every_flag_has_a_help_text() {
    for command in ["up", "import", "demo", "verify", "export"] {
        let help = run(&[command, "--help"], "").stdout;
        let lines: Vec<_> = help.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            if line.trim_start().starts_with('-') {
                let explained = lines.get(at + 1).is_some_and(|next| next.starts_with("     "))
                    || line.trim_start().contains("  ");
                assert!(explained, "{command}: {line}");
            }
        }
    }
}

#[test]
fn the_version_names_the_commit_and_the_build_profile() {
    let version = run(&["--version"], "").stdout;
    let commit = option_env!("MICROBLOG_COMMIT").filter(|commit| !commit.is_empty());
    let commit = commit.unwrap_or("unknown");
    // The test is in the directory of its profile: <profile>/deps/commands-….
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap().file_name().unwrap().to_str().unwrap();
    let number = env!("CARGO_PKG_VERSION");
    let expected = format!("microblog {number} (commit {commit}, profile {profile})\n");
    assert_eq!(version, expected);
}

#[test]
fn under_the_name_of_a_servers_program_it_is_that_program() {
    for server in ["gateway", "user", "relation", "post", "timeline", "notice"] {
        let name = format!("microblog-{server}");
        let mut command = Command::new(PROGRAM);
        command.arg0(format!("/usr/local/bin/{name}")).arg("--version");
        let version = String::from_utf8(command.output().unwrap().stdout).unwrap();
        assert!(version.starts_with(&format!("{name} {}", env!("CARGO_PKG_VERSION"))), "{version}");
    }
}
