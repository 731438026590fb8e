//! `microblog call` and `microblog completion`.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use microblog_testkit::PATIENCE;
use serde_json::Value;

use crate::launcher::{Ended, Launcher, PROGRAM, eventually, run};

const PASSWORD: &str = "correct horse";

/// A person with a state directory.
struct Person {
    state: PathBuf,
    url: String,
}

impl Person {
    fn new(directory: &Path, url: String) -> Self {
        Self { state: directory.join("state"), url }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg("call").args(args).args(["--gateway-url", &self.url]);
        command.env("XDG_STATE_HOME", &self.state);
        command.env_remove("MICROBLOG_TOKEN").env_remove("MICROBLOG_CALLER");
        command
    }

    fn call(&self, args: &[&str]) -> Ended {
        ended(self.command(args), "")
    }

    /// Makes a call that succeeds, and returns the answer.
    fn answer(&self, args: &[&str]) -> Value {
        let ended = self.call(args);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
        serde_json::from_str(&ended.stdout).unwrap()
    }

    fn log_in(&self, name: &str) -> Ended {
        let request = format!(r#"{{"login": "{name}", "password": "{PASSWORD}"}}"#);
        ended(self.command(&["Login", "-"]), &request)
    }

    fn sessions(&self) -> PathBuf {
        self.state.join("microblog/sessions.json")
    }
}

fn ended(mut command: Command, input: &str) -> Ended {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    // The command may exit before it has read all input.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    Ended {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Starts a launcher with accounts that follow each other, whose streams are never silent for long.
fn start(directory: &Path) -> Launcher {
    let mut command = Command::new(PROGRAM);
    command.env("MICROBLOG_WATCH_HEARTBEAT_MS", "20");
    let launcher = Launcher::start_by(command, &directory.join("data"), &[]);
    let urls = ["--user-url", &launcher.url(1), "--relation-url", &launcher.url(2)];
    let import = [&["import", "-", "--password", PASSWORD], &urls[..]].concat();
    let imported = run(&import, "ada bob\nbob ada\ncleo ada\n");
    assert_eq!(imported.code, Some(0), "{imported:?}");
    launcher
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn call_keeps_a_session_from_login_to_logout() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = start(dir.path());
    let ada = Person::new(dir.path(), launcher.url(0));
    let missing = ada.call(&["Me"]);
    assert_eq!((missing.code, missing.stdout.as_str()), (Some(2), ""));
    assert!(missing.stderr.starts_with("error: Unauthenticated (TOKEN_MISSING): "), "{missing:?}");
    assert!(missing.stderr.contains("hint: log in"), "{missing:?}");

    let wrong = ada.call(&["Login", r#"{"login": "ada", "password": "wrong"}"#]);
    assert!(wrong.stderr.contains("BAD_CREDENTIALS"), "{wrong:?}");
    assert!(!ada.sessions().exists());
    let login = ada.log_in("ada");
    assert_eq!(login.code, Some(0), "{login:?}");
    assert_eq!(mode(&ada.sessions()), 0o600);
    assert_eq!(mode(ada.sessions().parent().unwrap()), 0o700);
    assert_eq!(ada.answer(&["Me"])["account"]["user"]["name"], "ada");
    // With the slash, the URL is that of the same gateway.
    let slash = Person { state: ada.state.clone(), url: format!("{}/", ada.url) };
    assert_eq!(slash.answer(&["me", "--compact"])["account"]["user"]["name"], "ada");
    let anonymous = ada.call(&["Me", "--anonymous"]);
    assert!(anonymous.stderr.contains("TOKEN_MISSING"), "{anonymous:?}");
    let mut other_token = ada.command(&["Me"]);
    other_token.env("MICROBLOG_TOKEN", "unknown");
    let invalid = ended(other_token, "");
    assert_eq!(invalid.code, Some(2), "{invalid:?}");
    assert!(invalid.stderr.contains("TOKEN_INVALID"), "{invalid:?}");
    assert!(invalid.stderr.contains("hint: MICROBLOG_TOKEN is not"), "{invalid:?}");

    let stored = fs::read_to_string(ada.sessions()).unwrap();
    let logout = ada.call(&["Logout"]);
    assert_eq!(logout.stdout, "{}\n", "{logout:?}");
    assert_eq!(fs::read_to_string(ada.sessions()).unwrap().trim(), "{}");
    assert_eq!(mode(&ada.sessions()), 0o600);
    // A session that ended elsewhere. A new log-in does not send its token.
    fs::write(ada.sessions(), stored).unwrap();
    let ended_session = ada.call(&["Me"]);
    assert!(ended_session.stderr.contains("hint: log in again"), "{ended_session:?}");
    assert_eq!(ada.log_in("ada").code, Some(0));
    assert_eq!(ada.answer(&["Me"])["account"]["user"]["name"], "ada");
}

#[test]
fn call_prints_json_tables_and_errors() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = start(dir.path());
    let ada = Person::new(dir.path(), launcher.url(0));
    assert_eq!(ada.log_in("ada").code, Some(0));
    let of_ada = r#"{"user": {"name": "ada"}}"#;

    let followers = ada.call(&["ViewFollowers", of_ada, "--table"]);
    let rows: Vec<Vec<_>> =
        followers.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["user.id", "user.name", "user.createdAt", "relation", "since"]);
    // The import made both follows at once.
    let mut relations = [&rows[1], &rows[2]].map(|row| (row[1], row[3]));
    relations.sort_unstable();
    let expected = [("bob", "RELATION_STATE_MUTUAL"), ("cleo", "RELATION_STATE_FOLLOWER")];
    assert_eq!(relations, expected);
    let line = followers.stdout.lines().nth(1).unwrap();
    assert_eq!(followers.stdout.find("user.name"), line.find(rows[1][1]), "aligned");
    let profile = ada.call(&["ViewUser", of_ada, "--table"]).stdout;
    assert!(profile.lines().any(|line| line.starts_with("user.name ")), "{profile}");
    assert!(profile.lines().any(|line| line.ends_with(" 2")), "{profile}");

    // The request id is filled in.
    let published = ada.answer(&["Publish", r#"{"text": "two\nlines"}"#]);
    let again = ada.answer(&["Publish", r#"{"text": "two\nlines"}"#]);
    assert_ne!(published["post"]["id"], again["post"]["id"]);
    let full = "microblog.gateway.v1.GatewayService/ViewUserTimeline";
    let posts = ada.call(&[full, of_ada, "--table"]).stdout;
    assert!(posts.contains("two lines") && posts.contains("author.user.name"), "{posts}");
    let compact = ada.call(&["ViewUserTimeline", of_ada, "--compact"]).stdout;
    assert_eq!(compact.lines().count(), 1);

    let id = r#"{"request_id": "7c2d9b1e-53a4-4f0e-9a7e-0d5c1b7f2a01", "text": "once"}"#;
    assert_eq!(ada.answer(&["Publish", id]), ada.answer(&["Publish", id]));
    let invalid = ada.call(&["Publish", r#"{"request_id": "x"}"#]);
    assert_eq!(invalid.code, Some(2), "{invalid:?}");
    for expected in ["error: InvalidArgument (INVALID_FIELD): ", "request_id", "text"] {
        assert!(invalid.stderr.contains(expected), "{expected}: {}", invalid.stderr);
    }
    let rejected = ada.call(&["ChangeService/Watch"]);
    assert!(rejected.stderr.contains("CALLER_NOT_ALLOWED"), "{rejected:?}");
}

#[test]
fn call_prints_each_message_of_a_stream_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = start(dir.path());
    let [ada, bob] = ["ada", "bob"].map(|name| {
        let person = Person::new(&dir.path().join(name), launcher.url(0));
        assert_eq!(person.log_in(name).code, Some(0));
        person
    });
    let output = dir.path().join("stream");
    let mut watch = ada.command(&["WatchHome"]);
    let mut watch = watch.stdout(File::create(&output).unwrap()).spawn().unwrap();
    let messages = || {
        let printed = fs::read_to_string(&output).unwrap();
        let lines = printed.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        lines.map(|line| serde_json::from_str::<Value>(line).unwrap()).collect::<Vec<_>>()
    };
    let printed =
        |text: &str| messages().iter().any(|message| message["posts"][0]["post"]["text"] == text);
    for text in ["hello", "hello again"] {
        eventually("a post is printed", PATIENCE, || {
            bob.answer(&["Publish", &format!(r#"{{"text": "{text}"}}"#)]);
            printed(text)
        });
        // Time for many messages without posts.
        thread::sleep(Duration::from_secs(1));
    }
    watch.kill().unwrap();
    watch.wait().unwrap();
    let silent = messages().iter().filter(|message| message["posts"].is_null()).count();
    assert_eq!(silent, 1, "the first message: {:?}", messages());

    // The reader closes the pipe after some bytes.
    let mut watch = ada.command(&["WatchHome"]);
    let mut watch = watch.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut status = None;
    let mut pipe = watch.stdout.take();
    eventually("the stream ends with its reader", PATIENCE, || {
        bob.answer(&["Publish", r#"{"text": "hello"}"#]);
        if let Some(mut pipe) = pipe.take() {
            pipe.read_exact(&mut [0]).unwrap();
        }
        status = watch.try_wait().unwrap();
        status.is_some()
    });
    let mut errors = String::new();
    watch.stderr.unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!((status.unwrap().code(), errors.as_str()), (Some(0), ""));
}

#[test]
fn call_explains_invalid_arguments_without_a_server() {
    let dir = tempfile::tempdir().unwrap();
    // Nothing listens on port 1.
    let nobody = Person::new(dir.path(), "http://127.0.0.1:1".to_owned());
    for (args, expected) in [
        (&["ViewFollower"][..], "a similar value exists: 'ViewFollowers'"),
        (&["Nothing"], "`microblog call --list` lists the methods"),
        (&["ViewUser", "{"], "EOF while parsing"),
        (&["ViewUser", r#"{"usr": {}}"#], "which has the fields user {id, name}: unrecognized"),
        (&["WatchHome", "--table"], "--table is not possible for streams"),
        (&["Me"], "nothing answers at http://127.0.0.1:1: is `microblog up` running?"),
        (&[], "<METHOD>"),
    ] {
        let ended = nobody.call(args);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{ended:?}");
        assert!(ended.stderr.contains(expected), "{expected}: {}", ended.stderr);
        assert!(!ended.stderr.contains("ViewMutuals"), "a few lines: {}", ended.stderr);
    }
    fs::create_dir_all(nobody.sessions().parent().unwrap()).unwrap();
    fs::write(nobody.sessions(), "damaged").unwrap();
    let damaged = nobody.call(&["Me"]);
    assert!(damaged.stderr.contains("sessions.json is damaged: remove it"), "{damaged:?}");
}

#[test]
fn call_lists_and_completes_methods() {
    let list = run(&["call", "--list"], "").stdout;
    let description =
        |name: &str| list.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
    assert_eq!(description("Logout "), "Ends the session of the token.");
    assert_eq!(
        description("Login "),
        "Creates a session, by name or e-mail address.",
        "the first sentence"
    );
    assert!(list.lines().all(|line| line.split_once("  ").unwrap().1.ends_with('.')), "{list}");
    assert!(list.contains("\nChangeService/Watch "));
    for flag in ["-h", "--help"] {
        let help = run(&["call", flag], "").stdout;
        assert!(help.contains("--list") && !help.contains("ViewMutuals"), "{help}");
    }
    assert!(run(&["completion", "fish"], "").stdout.contains("verify"));
    for shell in ["bash", "zsh"] {
        let script = run(&["completion", shell], "").stdout;
        assert!(script.contains("ViewFollowers"), "{shell}: {script}");
        assert!(script.contains("ChangeService/Watch"), "{shell}: {script}");
    }
    let completed = "source <(\"$0\" completion bash)
        COMP_WORDS=(microblog call ViewFollowers) COMP_CWORD=2
        _microblog microblog ViewFollowers call; echo \"${COMPREPLY[@]}\"";
    let completed = Command::new("bash").args(["-c", completed, PROGRAM]).output().unwrap();
    let completed = String::from_utf8(completed.stdout).unwrap();
    assert_eq!(completed, "ViewFollowers ViewFollowersIFollow\n");
}
