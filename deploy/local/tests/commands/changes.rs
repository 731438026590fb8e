//! `microblog changes`: snapshots, and a reader that follows through restarts.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
};

use microblog_testkit::PATIENCE;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    launcher::{Ended, Launcher, PROGRAM, eventually, free_ports, run},
    service_clients::ServiceClients,
};

// printf %s secret | sha256sum
const CALLERS: &str = r#"{"callers": [{"name": "search",
    "secrets_sha256": ["2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"],
    "methods": ["ChangeService.Watch", "ChangeService.Snapshot"]}]}"#;
const CALLER: &str = "search:secret";

fn start(directory: &Path, port_base: u16) -> Launcher {
    let callers = directory.join("callers.json");
    fs::write(&callers, CALLERS).unwrap();
    let mut command = Command::new(PROGRAM);
    command.env("MICROBLOG_CALLERS_FILE", callers);
    Launcher::start_at(port_base, command, &directory.join("data"), &[])
}

fn changes(launcher: &Launcher, caller: &str, args: &[&str]) -> Ended {
    let own = ["changes", "--gateway-url", &launcher.url(0), "--caller", caller];
    run(&[&own, args].concat(), "")
}

fn lines(printed: &str) -> Vec<Value> {
    printed.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Returns the pairs of accounts in lines of follows that have begun.
fn follows(lines: &[Value]) -> Vec<(u64, u64)> {
    let is_follow = |line: &&Value| line["kind"] == "follow" && line["ended"] == false;
    let ids =
        |line: &Value| (line["user_id"].as_u64().unwrap(), line["target_id"].as_u64().unwrap());
    lines.iter().filter(is_follow).map(ids).collect()
}

/// A running `microblog changes`. Dropping it kills it.
struct Reader {
    child: Child,
    output: PathBuf,
}

impl Reader {
    fn start(launcher: &Launcher, output: PathBuf, cursor: &str) -> Self {
        let child = Command::new(PROGRAM)
            .args(["changes", "--gateway-url", &launcher.url(0), "--cursor", cursor])
            .env("MICROBLOG_CALLER", CALLER)
            .stdin(Stdio::null())
            .stdout(File::create(&output).unwrap())
            .stderr(File::create(output.with_extension("err")).unwrap())
            .spawn()
            .unwrap();
        Self { child, output }
    }

    fn follows(&self) -> Vec<(u64, u64)> {
        follows(&lines(&fs::read_to_string(&self.output).unwrap()))
    }

    fn errors(&self) -> String {
        fs::read_to_string(self.output.with_extension("err")).unwrap()
    }

    fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the reader exits", PATIENCE, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let changes = fs::read_to_string(&self.output).unwrap_or_default();
            eprintln!("changes:\n{changes}errors of the reader:\n{}", self.errors());
        }
    }
}

#[test]
fn changes_are_followed_from_a_snapshot_through_a_restart_until_the_cursor_expires() {
    let dir = tempfile::tempdir().unwrap();
    let port_base = free_ports();
    let launcher = start(dir.path(), port_base);
    launcher.import("ada bob\nbob ada\n");
    let clients = ServiceClients::of(&launcher);
    let [ada, bob] = ["ada", "bob"].map(|name| clients.id(name));
    let mut snapshot = Vec::new();
    let accounts = |lines: &[Value]| lines.iter().filter(|it| it["kind"] == "account").count();
    eventually("the snapshot has the accounts and the follows", PATIENCE, || {
        let ended = changes(&launcher, CALLER, &["--snapshot"]);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        snapshot = lines(&ended.stdout);
        (accounts(&snapshot), follows(&snapshot).len()) == (2, 2)
    });
    let mut both = [(ada, bob), (bob, ada)];
    both.sort_unstable();
    assert_eq!(follows(&snapshot), both, "in the order of the ids");
    let cursor = snapshot.last().unwrap()["cursor"].as_str().unwrap();

    let mut reader = Reader::start(&launcher, dir.path().join("changes.jsonl"), cursor);
    launcher.import("cleo ada\n");
    let cleo = clients.id("cleo");
    // Changes that happened beside the snapshot may come again.
    eventually("a change is printed", PATIENCE, || {
        let mut all = reader.follows();
        all.retain(|follow| !follows(&snapshot).contains(follow));
        all == [(cleo, ada)]
    });
    launcher.signal(Signal::SIGKILL);
    drop(launcher);
    let launcher = start(dir.path(), port_base);
    launcher.import("dan ada\n");
    let dan = ServiceClients::of(&launcher).id("dan");
    // A change may arrive again, if the cursor behind it did not.
    eventually("the reader continues", PATIENCE, || reader.follows().contains(&(dan, ada)));
    assert!(reader.errors().contains("interrupted, retrying: "), "{}", reader.errors());

    // As a database that was lost, or is an older copy.
    launcher.execute("relation", "DELETE FROM feed");
    assert_eq!(reader.ended().code(), Some(2));
    assert!(reader.errors().contains("CURSOR_EXPIRED"), "{}", reader.errors());
    let ended = changes(&launcher, CALLER, &["--snapshot", "--kinds", "follow"]);
    assert_eq!(follows(&lines(&ended.stdout)).len(), 4, "{ended:?}");
}

#[test]
fn rejected_calls_are_explained() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = start(dir.path(), free_ports());
    for (caller, args, expected) in [
        ("search:wrong", &[][..], "CALLER_INVALID"),
        (CALLER, &["--kinds", "mute"], "CALLER_NOT_ALLOWED"),
        (CALLER, &["--kinds", "mute", "--snapshot"], "CALLER_NOT_ALLOWED"),
        (CALLER, &["--cursor", "garbage"], "PAGE_TOKEN_INVALID"),
        ("search:\n", &[], "--caller has invalid characters"),
    ] {
        let ended = changes(&launcher, caller, args);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains(expected), "{expected}: {}", ended.stderr);
        assert!(!ended.stderr.contains("wrong") && ended.stdout.is_empty(), "{ended:?}");
    }
    let both = changes(&launcher, CALLER, &["--snapshot", "--cursor", "x"]);
    assert!(both.stderr.contains("cannot be used with"), "{}", both.stderr);
}
