//! Black-box tests of `microblog restore`, on PostgreSQL.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, Command, Stdio},
};

use microblog_testkit::{PATIENCE, PostgresServer, redis};
use nix::sys::signal::{Signal, kill};

use crate::{
    databases::{TABLES, start_postgres, variable},
    launcher::{Ended, Launcher, PROGRAM, eventually, run},
    service_clients::ServiceClients,
};

/// Starts `microblog up` beside a PostgreSQL server, with two accounts, a follow and three posts, which it
/// has.
fn start(data: &std::path::Path, postgres: &PostgresServer) -> Launcher {
    let mut command = Command::new(PROGRAM);
    command
        .envs(TABLES.map(|(service, _)| (variable(service), postgres.url_of(service, "secret"))));
    let launcher = Launcher::start_by(command, data, &[]);
    launcher.import("ada bob\n");
    let clients = ServiceClients::of(&launcher);
    clients.publish(clients.id("ada"), 3);
    launcher.verified();
    for (table, count) in
        [("\"user\".accounts", "2"), ("relation.follows", "1"), ("post.posts", "3")]
    {
        let count_of = format!("SELECT count(*) FROM {table}");
        eventually(&count_of, PATIENCE, || {
            postgres.try_sql(&postgres.url(), &count_of).as_deref() == Ok(count)
        });
    }
    launcher
}

/// Deletes the data of all services from Redis, but not their function libraries.
fn lose_all(launcher: &Launcher) {
    let () = redis::cmd("FLUSHALL").query(&mut launcher.admin()).unwrap();
}

fn arguments(launcher: &Launcher) -> Vec<String> {
    let url = format!("--post-url={}", launcher.url(3));
    vec!["restore".to_owned(), "--verbose".to_owned(), url]
}

fn restore(launcher: &Launcher) -> Ended {
    let arguments = arguments(launcher);
    run(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), "")
}

#[test]
fn a_restore_waits_for_a_redis_that_starts() {
    let dir = tempfile::tempdir().unwrap();
    let postgres = start_postgres();
    let launcher = start(&dir.path().join("data"), &postgres);
    lose_all(&launcher);
    // The launcher starts it again after a second.
    kill(launcher.redis(), Signal::SIGKILL).unwrap();
    let ended = restore(&launcher);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let verified = launcher.verified();
    assert!(verified.stdout.contains("posts      3 posts"), "{verified:?}");
}

#[test]
fn an_interrupted_restore_is_repeated_and_damaged_rows_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let postgres = start_postgres();
    let launcher = start(&dir.path().join("data"), &postgres);
    let post = postgres.sql("SELECT max(id) FROM post.posts");
    postgres.sql(&format!("UPDATE post.posts SET likes = -1 WHERE id = {post}"));
    lose_all(&launcher);

    let mut child: Child = Command::new(PROGRAM)
        .args(arguments(&launcher))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut is_restored =
        lines.by_ref().map(|line| line.unwrap().contains("restored: recorded up to "));
    assert!(is_restored.any(|is_restored| is_restored));
    postgres.kill();
    let rest = lines.map(Result::unwrap).count();
    let mut error = String::new();
    child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(2), "{rest} partitions: {error}");
    assert!(error.contains("restore failed") && error.contains("database"), "{error}");

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(postgres.restart());
    let mut ended = restore(&launcher);
    eventually("the database is back", PATIENCE, || {
        if ended.code == Some(2) {
            ended = restore(&launcher);
        }
        ended.code != Some(2)
    });
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let damaged = format!("damaged  post posts id={post}: ");
    assert!(ended.stdout.contains(&damaged), "{ended:?}");
    assert!(ended.stdout.ends_with("\n1 damaged rows were left out\n"), "{ended:?}");

    postgres.sql("UPDATE post.posts SET likes = 0");
    let ended = restore(&launcher);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let verified = launcher.verified();
    assert!(verified.stdout.contains("accounts   2 checked"), "{verified:?}");
    assert!(verified.stdout.contains("posts      3 posts"), "{verified:?}");
}
