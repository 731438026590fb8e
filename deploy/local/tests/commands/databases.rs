//! The databases of `microblog up`: files in its data directory, or roles of a PostgreSQL server.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use microblog_testkit::{PATIENCE, PostgresServer};

use crate::{
    launcher::{Launcher, PROGRAM, eventually},
    service_clients::ServiceClients,
};

/// The services with a database, and a table of each.
pub(crate) const TABLES: [(&str, &str); 4] =
    [("user", "accounts"), ("relation", "follows"), ("post", "posts"), ("notice", "notices")];

/// Adds an account, a follow and posts, and waits until the delivery of posts within Redis is complete. Their
/// database may receive them later.
fn write(launcher: &Launcher) {
    launcher.import("ada bob\n");
    let clients = ServiceClients::of(launcher);
    clients.publish(clients.id("ada"), 3);
    let verified = launcher.verified();
    assert!(verified.stdout.contains("posts      3 posts"), "{verified:?}");
}

/// Returns the database files in the data directory.
fn files(data: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(data).unwrap().map(|file| file.unwrap().path());
    files.filter(|file| file.display().to_string().contains(".sqlite")).collect()
}

/// Starts a PostgreSQL server, and creates the roles twice.
pub(crate) fn start_postgres() -> PostgresServer {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let postgres = runtime.block_on(PostgresServer::start());
    postgres.create_roles("first");
    postgres.create_roles("secret");
    postgres
}

/// Returns the variable of the URL of a service's database.
pub(crate) fn variable(service: &str) -> String {
    format!("MICROBLOG_{}_DATABASE_URL", service.to_uppercase())
}

#[test]
fn databases_are_in_the_data_directory_and_private() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    // The files are private even if the directory is not.
    fs::create_dir(&data).unwrap();
    let launcher = Launcher::start(&data, &[]);
    write(&launcher);
    // Background jobs create the -wal files with the first write.
    eventually("the databases exist", PATIENCE, || {
        let files = files(&data);
        TABLES.iter().all(|(service, _)| {
            ["sqlite", "sqlite-wal"]
                .iter()
                .all(|end| files.contains(&data.join(service).with_extension(end)))
        })
    });
    for file in files(&data) {
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", file.display());
    }
}

#[test]
fn each_service_has_its_own_schema_of_a_given_database() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let postgres = start_postgres();
    let mut command = Command::new(PROGRAM);
    command
        .envs(TABLES.map(|(service, _)| (variable(service), postgres.url_of(service, "secret"))));
    let launcher = Launcher::start_by(command, &data, &[]);
    write(&launcher);
    assert_eq!(files(&data), Vec::<PathBuf>::new());
    assert!(!launcher.output().contains("secret"));
    for (service, table) in TABLES {
        let flag = format!("  database  of {service}: --{service}-database-url\n");
        assert!(launcher.output().contains(&flag));
        let rows = format!("SELECT 'some' FROM \"{service}\".{table} LIMIT 1");
        let has_rows = || postgres.try_sql(&postgres.url(), &rows).is_ok_and(|rows| rows == "some");
        eventually(&rows, PATIENCE, has_rows);
    }
    let in_public = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'";
    assert_eq!(postgres.sql(in_public), "0");
    let owners = "SELECT count(*) FROM pg_tables WHERE schemaname <> tableowner \
                  AND schemaname NOT IN ('pg_catalog', 'information_schema')";
    assert_eq!(postgres.sql(owners), "0");
}

#[test]
fn a_role_has_access_to_no_schema_but_its_own() {
    let postgres = start_postgres();
    for (service, table) in TABLES {
        let made = format!(
            "CREATE TABLE {table} (id BIGINT); INSERT INTO \"{service}\".{table} VALUES (1)"
        );
        postgres.try_sql(&postgres.url_of(service, "secret"), &made).unwrap();
    }
    // The tables and rights stay.
    postgres.create_roles("secret");
    for (service, _) in TABLES {
        let url = postgres.url_of(service, "secret");
        for (other, table) in TABLES {
            let read = postgres.try_sql(&url, &format!("SELECT id FROM \"{other}\".{table}"));
            if other == service {
                assert_eq!(read.as_deref(), Ok("1"));
                continue;
            }
            assert!(read.unwrap_err().contains(&format!("permission denied for schema {other}")));
            let error = postgres.try_sql(&url, &format!("SET ROLE \"{other}\"")).unwrap_err();
            assert!(error.contains("permission denied to set role"), "{error}");
        }
        let public = postgres.try_sql(&url, "CREATE TABLE public.a (b BIGINT)").unwrap_err();
        assert!(public.contains("permission denied for schema public"), "{public}");
    }
}

#[test]
fn one_database_for_all_services_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(PROGRAM);
    command.args(["up", "--data-dir"]).arg(dir.path());
    let url = "postgres://a:secret@127.0.0.1/b";
    let output = command.env("MICROBLOG_DATABASE_URL", url).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains(&variable("post")), "{error}");
    assert!(!error.contains("secret"), "{error}");
}
