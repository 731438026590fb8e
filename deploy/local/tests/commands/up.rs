//! Black-box tests of `microblog up`: a real process on its own data directory, called by the other
//! commands, interrupted, killed and restarted.

use std::{
    env, fs,
    net::TcpStream,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use microblog_proto::gateway::{LoginRequest, gateway_service_client::GatewayServiceClient};
use microblog_testkit::PATIENCE;
use nix::sys::signal::{Signal, kill};
use tonic::transport::Endpoint;

use crate::launcher::{Launcher, PROGRAM, eventually, free_ports, run, wait_until_exited};

const STOP: Duration = PATIENCE;
// Less than the half minute after which a stuck redis-server is killed.
const STUCK: Duration = Duration::from_secs(25);
const EDGES: &str = "# a small graph\nada bob\nbob ada\ncleo ada\r\ncleo cleo\n\ndan\tada\n";

fn created(report: &str) -> bool {
    report.contains("follows    4 created, 0 unchanged")
}

fn kept(report: &str) -> bool {
    report.contains("0 new, 4 existing") && report.contains("follows    0 created, 4 unchanged")
}

#[test]
fn imported_data_persist_and_an_interrupt_stops_everything() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut launcher = Launcher::start(&data, &[]);
    let report = launcher.import(EDGES);
    assert!(report.contains("4 new, 0 existing") && created(&report), "{report}");
    assert!(report.contains("1 rejected: self-follow"), "{report}");
    assert!(kept(&launcher.import(EDGES)));
    let verified = launcher.verify();
    assert_eq!(verified.code, Some(0), "{verified:?}");
    assert!(verified.stdout.contains("accounts   4 checked"), "{verified:?}");
    assert!(verified.stdout.contains("4 follows checked"), "{verified:?}");

    let redis = launcher.redis();
    launcher.signal(Signal::SIGINT);
    assert!(launcher.ended(STOP).success(), "{}", launcher.output());
    assert!(launcher.output().contains("stopped; the data are in"), "{}", launcher.output());
    assert!(!launcher.output().contains("drain timed out"), "{}", launcher.output());
    wait_until_exited(redis);

    let mut launcher = Launcher::start(&data, &[]);
    assert!(kept(&launcher.import(EDGES)));
    launcher.signal(Signal::SIGTERM);
    assert!(launcher.ended(STOP).success(), "{}", launcher.output());
}

#[test]
fn changes_of_service_callers_are_in_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let callers = dir.path().join("callers.json");
    // printf %s secret | sha256sum
    let content = r#"{"callers": [{"name": "sso", "methods": ["EnsureUser"], "issuers": ["sso"],
        "secrets_sha256": ["2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"]}]}"#;
    fs::write(&callers, content).unwrap();
    let mut command = Command::new(PROGRAM);
    command.env("MICROBLOG_CALLERS_FILE", &callers).env_remove("MICROBLOG_LOG");
    let mut launcher = Launcher::start_by(command, &dir.path().join("data"), &[]);
    launcher.import(EDGES);
    assert!(!launcher.output().contains("audit"), "{}", launcher.output());
    let request = r#"{"issuer": "sso", "external_id": "1", "name": "eve"}"#;
    let url = launcher.url(0);
    let call = ["call", "EnsureUser", request, "--caller", "sso:secret", "--gateway-url", &url];
    assert_eq!(run(&call, "").code, Some(0));
    launcher.wait_for_output("microblog::audit");
    launcher.wait_for_output("EnsureUser");
    assert!(!launcher.output().contains("microblog::call"), "{}", launcher.output());
}

#[test]
fn the_change_feeds_of_a_start_are_no_fault() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    for (accounts, edges) in [(1, "bob ada\n"), (2, "ada cleo\n")] {
        let mut launcher = Launcher::start(&data, &[]);
        launcher.import(edges);
        // A notice is the end of a chain through services that start.
        eventually("each followed account has a notice", PATIENCE, || {
            launcher.verify().stdout.contains(&format!(" notices of {accounts} accounts checked"))
        });
        launcher.signal(Signal::SIGINT);
        launcher.ended(STOP);
        let output = launcher.output();
        assert!(!output.contains("cannot follow a change feed"), "{output}");
    }
}

#[test]
fn the_demo_passes_and_deletes_its_data() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = Launcher::start(&dir.path().join("data"), &[]);
    let tour = run(&["demo", "--gateway-url", &launcher.url(0)], "");
    assert_eq!(tour.code, Some(0), "{tour:?}");
    assert!(tour.stdout.contains("All responses were correct."), "{tour:?}");
    for text in ["reposted with `Worth the walk`: a deleted post", "counts new posts", "receives"] {
        assert!(tour.stdout.contains(text), "{text}: {tour:?}");
    }
    // The follows and posts of deleted accounts are deleted asynchronously.
    eventually("no data are left", STOP, || {
        let verified = launcher.verify();
        verified.code == Some(0)
            && verified.stdout.contains("accounts   0 checked")
            && verified.stdout.contains("posts      0 posts and 0 entries")
    });
}

// Calls time out while Redis is stopped, and are retried.
#[test]
fn the_demo_passes_while_redis_hangs_for_some_seconds() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = Launcher::start(&dir.path().join("data"), &[]);
    let (redis, url) = (launcher.redis(), launcher.url(0));
    kill(redis, Signal::SIGSTOP).unwrap();
    let tour = thread::spawn(move || run(&["demo", "--gateway-url", &url], ""));
    // Longer than the response timeout.
    thread::sleep(Duration::from_secs(6));
    kill(redis, Signal::SIGCONT).unwrap();
    let tour = tour.join().unwrap();
    assert_eq!(tour.code, Some(0), "{tour:?}");
}

#[test]
fn the_demo_graph_is_created_once_and_only_in_an_empty_store() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut launcher = Launcher::start(&data, &["--demo"]);
    launcher.wait_for_output("The demo graph is ready.");
    let made = launcher.verified();
    assert!(made.stdout.contains("accounts   200 checked"), "{made:?}");
    assert!(!made.stdout.contains("posts      0 posts"), "{made:?}");
    // An interrupted creation continues, without duplicates.
    fs::remove_file(data.join("sample")).unwrap();
    launcher.signal(Signal::SIGINT);
    launcher.ended(STOP);
    let mut launcher = Launcher::start(&data, &["--demo"]);
    launcher.wait_for_output("The demo graph is ready.");
    launcher.wait_for_output("GatewayService/ViewHome");
    launcher.wait_for_output("GatewayService/ViewComments");
    assert_eq!(launcher.verified().stdout, made.stdout);
    drop(launcher);

    let other = dir.path().join("other");
    let mut launcher = Launcher::start(&other, &[]);
    launcher.import(EDGES);
    launcher.signal(Signal::SIGINT);
    launcher.ended(STOP);
    let mut launcher = Launcher::start(&other, &["--demo"]);
    launcher.wait_for_output("Other accounts exist: not creating the demo graph.");
}

#[test]
fn a_second_launcher_on_the_same_data_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let launcher = Launcher::start(&data, &[]);
    let second = run(&["up", "--port-base", "9000", "--data-dir", data.to_str().unwrap()], "");
    assert_eq!(second.code, Some(2), "{second:?}");
    assert!(second.stderr.contains("another microblog (process "), "{second:?}");
    assert!(created(&launcher.import(EDGES)));
}

#[test]
fn ports_in_use_are_reported_before_anything_is_started() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = Launcher::start(&dir.path().join("data"), &[]);
    let other = dir.path().join("other");
    let base = launcher.port_base.to_string();
    let second = run(&["up", "--port-base", &base, "--data-dir", other.to_str().unwrap()], "");
    assert_eq!(second.code, Some(2), "{second:?}");
    assert!(second.stderr.contains("(Address already in use"), "{second:?}");
    assert!(second.stderr.contains("held by a process that listens"), "{second:?}");
    assert!(second.stderr.contains("Choose other ports with --port-base"), "{second:?}");
}

#[test]
fn a_killed_launcher_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut launcher = Launcher::start(&data, &[]);
    assert!(created(&launcher.import(EDGES)));
    launcher.signal(Signal::SIGKILL);
    launcher.ended(STOP);
    let launcher = Launcher::start(&data, &[]);
    assert!(kept(&launcher.import(EDGES)));
    assert_eq!(launcher.verify().code, Some(0));
}

#[test]
fn an_orphaned_redis_server_is_stopped_by_the_next_launcher() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    // Without setpriv on PATH, the launcher cannot set a death signal for redis-server.
    let bin = dir.path().join("bin");
    fs::create_dir(&bin).unwrap();
    symlink(redis_server(), bin.join("redis-server")).unwrap();
    let mut command = Command::new(PROGRAM);
    command.env("PATH", &bin);
    let mut launcher = Launcher::start_by(command, &data, &[]);
    assert!(created(&launcher.import(EDGES)));
    let redis = launcher.redis();
    launcher.signal(Signal::SIGKILL);
    launcher.ended(STOP);
    kill(redis, None).unwrap();

    let launcher = Launcher::start(&data, &[]);
    wait_until_exited(redis);
    assert!(launcher.output().contains("stopping orphaned redis-server"), "{}", launcher.output());
    assert!(kept(&launcher.import(EDGES)));
}

/// Starts a redis-server that listens on a port, and waits until it does.
fn listening_on(port: u16) -> Child {
    let mut command = Command::new(redis_server());
    command.args(["--bind", "127.0.0.1", "--save", "", "--port"]).arg(port.to_string());
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    eventually("it listens", STOP, || TcpStream::connect(("127.0.0.1", port)).is_ok());
    child
}

#[test]
fn the_launcher_waits_for_a_port_of_an_exiting_process() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let port_base = free_ports();
    let mut dying = listening_on(port_base + 9);
    let output = Launcher::output_file(&data, port_base);
    let waits = format!("for port {}, held by a process that listens", port_base + 9);
    let ending = thread::spawn(move || {
        eventually("it waits", STOP, || {
            fs::read_to_string(&output).is_ok_and(|output| output.contains(&waits))
        });
        dying.kill().unwrap();
        dying.wait().unwrap();
    });
    let launcher = Launcher::start_at(port_base, Command::new(PROGRAM), &data, &[]);
    ending.join().unwrap();
    assert!(created(&launcher.import(EDGES)));
}

#[test]
fn a_crashed_redis_server_is_restarted() {
    let dir = tempfile::tempdir().unwrap();
    let mut launcher = Launcher::start(&dir.path().join("data"), &[]);
    assert!(created(&launcher.import(EDGES)));
    let dead = launcher.redis();
    kill(dead, Signal::SIGKILL).unwrap();
    launcher.wait_for_output("restarting in");
    eventually("another redis-server runs", STOP, || launcher.redis() != dead);
    eventually("the launcher serves again", STOP, || launcher.verify().code == Some(0));
    assert!(kept(&launcher.import(EDGES)));
    launcher.signal(Signal::SIGINT);
    assert!(launcher.ended(STOP).success(), "{}", launcher.output());
}

#[test]
fn a_second_interrupt_exits_while_redis_server_is_stuck() {
    let dir = tempfile::tempdir().unwrap();
    let mut launcher = Launcher::start(&dir.path().join("data"), &[]);
    let redis = launcher.redis();
    kill(redis, Signal::SIGSTOP).unwrap();
    launcher.signal(Signal::SIGINT);
    launcher.wait_for_output("a second Ctrl-C stops at once");
    launcher.signal(Signal::SIGINT);
    assert!(!launcher.ended(STUCK).success());
    kill(redis, Signal::SIGCONT).unwrap();
    wait_until_exited(redis);
}

#[test]
fn imported_accounts_can_log_in_with_the_given_password() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = Launcher::start(&dir.path().join("data"), &[]);
    let urls = ["--user-url", &launcher.url(1), "--relation-url", &launcher.url(2)];
    let given = ["--password", "opensesame", "--email-domain", "example.org"];
    let ended = run(&[&["import", "-"], &urls[..], &given[..]].concat(), EDGES);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let user = runtime.block_on(async {
        let channel = Endpoint::from_shared(launcher.url(0)).unwrap().connect().await.unwrap();
        let email = "cleo@example.org".to_owned();
        let request = LoginRequest { login: email, password: "opensesame".to_owned() };
        GatewayServiceClient::new(channel).login(request).await.unwrap().into_inner().user
    });
    assert_eq!(user.unwrap().name, "cleo");
}

#[test]
fn secret_files_are_private() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let launcher = Launcher::start(&data, &[]);
    for file in ["redis/passwords", "redis/users.acl", "redis/redis.conf", "redis/redis.log"] {
        let mode = fs::metadata(data.join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    let passwords = fs::read_to_string(data.join("redis/passwords")).unwrap();
    for line in passwords.lines() {
        let password = line.split_once(' ').unwrap().1;
        assert!(!launcher.output().contains(password));
        let arguments = fs::read_to_string(format!("/proc/{}/cmdline", launcher.redis()));
        assert!(!arguments.unwrap_or_default().contains(password));
    }
}

#[test]
fn an_old_redis_server_is_rejected_with_its_version() {
    let dir = tempfile::tempdir().unwrap();
    let old = dir.path().join("redis-server");
    fs::write(&old, "#!/bin/sh\necho 'Redis server v=6.2.14 sha=0 malloc=libc bits=64'\n").unwrap();
    fs::set_permissions(&old, fs::Permissions::from_mode(0o755)).unwrap();
    let data = dir.path().join("data");
    let flags = ["--data-dir", data.to_str().unwrap(), "--redis-server", old.to_str().unwrap()];
    let ended = run(&[&["up"], &flags[..]].concat(), "");
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("is version 6.2.14, but microblog requires 7.0"), "{ended:?}");
    assert!(!data.exists());
}

fn redis_server() -> PathBuf {
    let path = env::var_os("PATH").unwrap();
    env::split_paths(&path).map(|dir| dir.join("redis-server")).find(|file| file.is_file()).unwrap()
}
