//! The commands under "Try it" of the README, and those of the longer tour after them, as a new user
//! runs them: with `sh` and `curl`.

use std::{
    fs::{self, File},
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use microblog_testkit::PATIENCE;

use crate::launcher::{Launcher, PROGRAM};

const IMPORT: &str = "microblog import";
const WATCH: &str = "call WatchHome";

/// Returns the block of commands of a document that has a text.
fn commands(file: &str, text: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    let document = fs::read_to_string(path).unwrap();
    let mut blocks =
        document.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.find(|block| block.contains(text)).unwrap().to_owned()
}

fn without_comments(commands: &str) -> Vec<&str> {
    commands.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect()
}

/// Runs commands as printed, but for the program and the ports, and returns what they print.
fn run_in_shell(launcher: &Launcher, commands: &str) -> String {
    // A new user ends the stream with Ctrl-C.
    let watch = commands.lines().find(|line| line.contains(WATCH)).unwrap();
    let ended = format!(
        "{watch} >watched & watch=$!
        for _ in $(seq 600); do grep -q posts watched && break; sleep 0.1; done
        kill $watch; cat watched"
    );
    let directory = tempfile::tempdir().unwrap();
    let script = commands
        .replace(watch, &ended)
        .replace("target/quick/microblog", PROGRAM)
        .replace("http://127.0.0.1:50050", &launcher.url(0));
    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", &script]).current_dir(directory.path());
    for (name, server) in
        ["GATEWAY", "USER", "RELATION", "POST", "TIMELINE", "NOTICE"].iter().zip(0..)
    {
        shell.env(format!("MICROBLOG_{name}_URL"), launcher.url(server));
    }
    let [stdout, stderr] = ["stdout", "stderr"].map(|name| directory.path().join(name));
    shell.stdout(File::create(&stdout).unwrap()).stderr(File::create(&stderr).unwrap());
    let mut shell = shell.spawn().unwrap();
    let mut status = None;
    // Some commands repeat until they succeed.
    let begun = Instant::now();
    while status.is_none() && begun.elapsed() < PATIENCE * 4 {
        thread::sleep(Duration::from_millis(100));
        status = shell.try_wait().unwrap();
    }
    let _ = shell.kill();
    shell.wait().unwrap();
    let [stdout, stderr] = [stdout, stderr].map(|file| fs::read_to_string(file).unwrap());
    assert!(status.is_some_and(|status| status.success()), "{status:?} {stdout}{stderr}");
    assert!(!stdout.contains("\"code\":"), "{stdout}");
    stdout
}

/// Checks that what was printed has these texts, in this order.
fn assert_printed(printed: &str, expected: &[&str]) {
    let mut rest = printed;
    for text in expected {
        let found = rest.split_once(text);
        assert!(found.is_some(), "{text} is missing, or comes earlier: {printed}");
        rest = found.unwrap().1;
    }
}

const TRIED: [&str; 11] = [
    "follows    3 created",
    r#""name":"cleo""#,
    r#""relation":"RELATION_STATE_FOLLOWING""#,
    r#""hashtag":{"tag":"microblog"}"#,
    r#""likes":"1""#,
    r#""text": "is anybody there?""#,
    r#"{"count":"#,
    r#""text":"is anybody there?""#,
    r#""NOTICE_KIND_MENTION""#,
    "no violations",
    r#""text":"is anybody there?""#,
];

#[test]
fn the_commands_under_try_it_print_what_is_said_beside_them() {
    let directory = tempfile::tempdir().unwrap();
    let launcher = Launcher::start(&directory.path().join("data"), &[]);
    let commands = commands("README.md", IMPORT);
    assert_printed(&run_in_shell(&launcher, &commands), &TRIED);
    // Once more, in another terminal.
    let again = run_in_shell(&launcher, &commands);
    assert_printed(&again, &[&["follows    0 created, 3 unchanged"], &TRIED[1..]].concat());
}

#[test]
fn the_commands_of_the_longer_tour_print_what_is_said_beside_them() {
    let directory = tempfile::tempdir().unwrap();
    let launcher = Launcher::start(&directory.path().join("data"), &[]);
    let tour = commands("gateway/README.md", "microblog demo");
    let script = [commands("README.md", IMPORT), tour].concat();
    let printed = run_in_shell(&launcher, &script);
    let (_, printed) = printed.split_once("All responses were correct.").unwrap();
    assert_printed(
        printed,
        &[
            r#""followers":"1""#,
            r#""text":"me again""#,
            r#"{"comments":[{"comment":{"#,
            r#""text":"me again""#,
            // Home, friends, and the posts of bob.
            r#""text":"is anybody there?""#,
            "hello @ada",
            r#""text":"is anybody there?""#,
            "hello @ada",
            r#""text":"is anybody there?""#,
            "hello @ada",
            r#""name":"ada""#,
            r#""counts":"#,
            r#""name":"cleo""#,
            "hello @ada",
            // The export.
            r#""name":"bob""#,
        ],
    );
}

#[test]
fn both_languages_have_the_same_commands() {
    let [english, chinese] = ["README.md", "README.zh-CN.md"].map(|file| commands(file, IMPORT));
    assert_eq!(without_comments(&english), without_comments(&chinese));
}
