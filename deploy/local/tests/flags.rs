//! Commands, flags and environment variables stay once they are released, because scripts and
//! manifests have them. A new one adds its line to `flags.txt`.

#![allow(clippy::unwrap_used, reason = "a test's helper fails with the test")]

use std::{collections::BTreeSet, os::unix::process::CommandExt as _, process::Command};

const RELEASED: &str = include_str!("flags.txt");

const SERVERS: [&str; 6] = ["gateway", "user", "relation", "post", "timeline", "notice"];

#[test]
fn released_flags_stay() {
    let mut found = BTreeSet::new();
    for server in SERVERS {
        found.extend(flags(&format!("microblog-{server}"), &[]));
    }
    found.extend(flags("microblog", &[]));
    for command in commands(&help("microblog", &[])) {
        found.extend(flags("microblog", &[&command]));
    }
    let released: BTreeSet<_> = RELEASED.lines().map(str::to_owned).collect();
    let missing: Vec<_> = released.difference(&found).collect();
    assert!(missing.is_empty(), "not compatible with earlier versions: {missing:#?}");
    let new: Vec<_> = found.difference(&released).map(String::as_str).collect();
    assert!(new.is_empty(), "add to flags.txt, in its order:\n{}", new.join("\n"));
}

/// Returns the commands of a program.
fn commands(help: &str) -> Vec<String> {
    let (_, list) = help.split_once("Commands:\n").unwrap();
    let list = list.lines().take_while(|line| !line.is_empty());
    // What follows a longer indentation continues the description above.
    let names = list.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !name.is_empty() && *name != "help").map(str::to_owned).collect()
}

/// Returns a line for each flag of a command: `microblog up --port-base MICROBLOG_PORT_BASE`.
fn flags(program: &str, command: &[&str]) -> Vec<String> {
    let mut flags: Vec<String> = Vec::new();
    for line in help(program, command).lines() {
        let text = line.trim_start();
        let indentation = line.len() - text.len();
        // A description has a longer one, and may name other flags.
        if indentation <= 6 && text.starts_with('-') {
            let flag = text.split([' ', '[', '=']).find(|word| word.starts_with("--")).unwrap();
            let words = [&[program], command, &[flag]].concat();
            flags.push(words.join(" "));
        } else if let Some(variable) = text.strip_prefix("[env: ") {
            // Values of secrets are not shown.
            let name = variable.split(['=', ']']).next().unwrap();
            let flag = flags.last_mut().unwrap();
            flag.push(' ');
            flag.push_str(name);
        }
    }
    assert!(!flags.is_empty(), "{program} {command:?} has no flags");
    flags
}

fn help(program: &str, command: &[&str]) -> String {
    let mut help = Command::new(env!("CARGO_BIN_EXE_microblog"));
    let output = help.arg0(program).args(command).arg("--help").env_clear().output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}
