//! The commands under "Try it" of the README, as a new user runs them: with `sh` and `curl`.

use std::{fs, path::Path, process::Command};

use crate::launcher::{Launcher, PROGRAM};

/// Returns the block of commands of a README that has the import.
fn commands(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    let document = fs::read_to_string(path).unwrap();
    let mut blocks =
        document.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.find(|block| block.contains("microblog import")).unwrap().to_owned()
}

fn without_comments(commands: &str) -> Vec<&str> {
    commands.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect()
}

#[test]
fn the_commands_under_try_it_work() {
    let directory = tempfile::tempdir().unwrap();
    let launcher = Launcher::start(&directory.path().join("data"), &[]);
    let commands = commands("README.md");
    // Publish may return before the post is in the timelines of followers.
    let count = commands.lines().find(|line| line.contains(" CountNew ")).unwrap();
    let is_one = format!(r#"{count} | grep -q '"count":1}}'"#);
    let wait = format!("for _ in $(seq 600); do {is_one} && break; sleep 0.1; done");
    // The stream would not end.
    let script = commands
        .replace(count, &format!("{wait}\n{count}"))
        .replace("call WatchHome", "call WatchHome & watch=$!; sleep 3; kill $watch")
        .replace("target/quick/microblog", PROGRAM)
        .replace("http://127.0.0.1:50050", &launcher.url(0));
    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", &script]);
    for (name, server) in ["GATEWAY", "USER", "RELATION", "POST", "TIMELINE"].iter().zip(0..) {
        shell.env(format!("MICROBLOG_{name}_URL"), launcher.url(server));
    }
    let output = shell.output().unwrap();
    let [stdout, stderr] =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert!(output.status.success(), "{stdout}{stderr}");
    assert!(!stdout.contains("\"code\":"), "{stdout}");
    for expected in [
        r#""relation":"RELATION_STATE_MUTUAL""#,
        r#""hashtag":{"tag":"microblog"}"#,
        r#""likes":"1""#,
        r#"{"count":1}"#,
        r#""text":"is anybody there?""#,
    ] {
        assert!(stdout.contains(expected), "{expected}: {stdout}{stderr}");
    }
}

#[test]
fn both_languages_have_the_same_commands() {
    let [english, chinese] = ["README.md", "README.zh-CN.md"].map(commands);
    assert_eq!(without_comments(&english), without_comments(&chinese));
}
