//! Location of the archive of `microblog up`.

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

/// Publishes a post, and waits until its delivery within Redis is complete. The archive may receive
/// it later.
fn publish(launcher: &Launcher) {
    launcher.import("ada bob\n");
    let clients = ServiceClients::of(launcher);
    clients.publish(clients.id("ada"), 3);
    let verified = launcher.verified();
    assert!(verified.stdout.contains("posts      3 posts"), "{verified:?}");
}

/// Returns the archive files in the data directory.
fn files(data: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(data).unwrap().map(|file| file.unwrap().path());
    files.filter(|file| file.display().to_string().contains("archive.sqlite")).collect()
}

#[test]
fn the_archive_is_in_the_data_directory_and_private() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    // The archive is private even if the directory is not.
    fs::create_dir(&data).unwrap();
    let launcher = Launcher::start(&data, &[]);
    publish(&launcher);
    // A background job creates it, and the -wal file with the first write.
    let made = ["archive.sqlite", "archive.sqlite-wal"].map(|name| data.join(name));
    eventually("the archive exists", PATIENCE, || {
        let files = files(&data);
        made.iter().all(|file| files.contains(file))
    });
    for file in files(&data) {
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", file.display());
    }
}

#[test]
fn the_archive_url_from_the_environment_is_used_and_not_printed() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let postgres = runtime.block_on(PostgresServer::start());
    let mut command = Command::new(PROGRAM);
    command.env("MICROBLOG_DATABASE_URL", postgres.url());
    let launcher = Launcher::start_by(command, &data, &[]);
    publish(&launcher);
    assert_eq!(files(&data), Vec::<PathBuf>::new());
    assert!(launcher.output().contains("  archive   from MICROBLOG_DATABASE_URL\n"));
    assert!(!launcher.output().contains(&postgres.url()));
}
