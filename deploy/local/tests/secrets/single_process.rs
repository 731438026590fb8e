//! `microblog up` with all servers in one process, and the commands that call it.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
    time::Duration,
};

use microblog_testkit::free_port;
use nix::sys::signal::{Signal, kill};

use crate::{
    canaries::{Canaries, word},
    client::Client,
    collector::{Collector, KEY_HEADER},
    launcher::{Launcher, PROGRAM},
    outputs::Outputs,
    server::scrape,
    stores::Databases,
};

const STOP: Duration = Duration::from_secs(60);

#[tokio::test]
async fn the_launcher_does_not_print_secrets() {
    let canaries = Canaries::new();
    let mut outputs = Outputs::default();
    let database_password = canaries.make("the password of the databases");
    let databases = Databases::start(&database_password).await;
    let (collector, collector_at, _receiving) = Collector::start();
    let collector_password = canaries.make("the password of the collector");
    let key = canaries.make("the key for the collector");
    let (public, metrics_port) = (word(20), free_port());

    let mut command = Command::new(PROGRAM);
    command
        .env("MICROBLOG_LOG", "trace")
        .env("MICROBLOG_USER_DATABASE_URL", databases.url("user", &database_password))
        .env("MICROBLOG_RELATION_DATABASE_URL", databases.url("relation", &database_password))
        .env("MICROBLOG_POST_DATABASE_URL", databases.url("post", &database_password))
        .env("MICROBLOG_NOTICE_DATABASE_URL", databases.url("notice", &database_password))
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://s:{collector_password}@{collector_at}"))
        .env("OTEL_EXPORTER_OTLP_HEADERS", format!("{KEY_HEADER}={key}"))
        .env("OTEL_SERVICE_NAME", &public)
        .env("OTEL_BSP_SCHEDULE_DELAY", "50")
        .env("MICROBLOG_METRICS_LISTEN", format!("127.0.0.1:{metrics_port}"));
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut launcher = Launcher::start_by(command, &data, &[]);
    for line in fs::read_to_string(data.join("redis/passwords")).unwrap().lines() {
        let (user, password) = line.split_once(' ').unwrap();
        canaries.add(&format!("the password of {user} in Redis"), password);
    }
    let trace_id = format!("{:032x}", rand::random_range(1..u128::MAX));
    let other = Client::join(&launcher.url(0), &canaries, &trace_id).await;
    let mut client = Client::join(&launcher.url(0), &canaries, &trace_id).await;
    client.make_calls(&other).await;
    import(&launcher, &canaries, &mut outputs);
    outputs.add("the metrics page", scrape(metrics_port));
    outputs.add("the command line", command_line(&data.join("lock")));
    outputs.add("the command line of Redis", command_line(&data.join("redis/redis.pid")));
    kill(launcher.redis(), Signal::SIGKILL).unwrap();
    launcher.wait_for_output("restarting in");
    launcher.signal(Signal::SIGTERM);
    assert!(launcher.ended(STOP).success());
    outputs.add("the log", launcher.output());
    outputs.add("what Redis logs", fs::read_to_string(data.join("redis/redis.log")).unwrap());
    outputs.add("spans", collector.spans());
    outputs.add("responses to the client", client.recorded());

    outputs.assert_keeps(&canaries);
    outputs.assert_contains("the log", "restarting in");
    outputs.assert_contains("the metrics page", &public);
    outputs.assert_contains("spans", &public);
    outputs.assert_contains("the command line", data.to_str().unwrap());
    outputs.assert_contains("responses to the client", "BAD_CREDENTIALS");
}

/// Imports accounts with a password from the environment.
fn import(launcher: &Launcher, canaries: &Canaries, outputs: &mut Outputs) {
    let edges = tempfile::NamedTempFile::new().unwrap();
    fs::write(edges.path(), "imported_one imported_two\n").unwrap();
    for password in [
        canaries.make("the password of imported accounts"),
        canaries.make_of("a password that is too short for import", 7),
    ] {
        let mut command = Command::new(PROGRAM);
        command.arg("import").arg(edges.path()).env("MICROBLOG_IMPORT_PASSWORD", password);
        command.args(["--user-url", &launcher.url(1), "--relation-url", &launcher.url(2)]);
        let Output { stdout, stderr, .. } = command.output().unwrap();
        outputs.add("the import", String::from_utf8([stdout, stderr].concat()).unwrap());
    }
}

/// Returns the command line of the process in a PID file.
fn command_line(file: &Path) -> String {
    let number = fs::read_to_string(file).unwrap();
    let bytes = fs::read(format!("/proc/{}/cmdline", number.trim())).unwrap();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}
