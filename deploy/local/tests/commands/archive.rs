//! Where `microblog up` has the archive of posts.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use microblog_testkit::{PATIENCE, PostgresServer};

use crate::{
    launcher::{Launcher, PROGRAM, eventually},
    people::People,
};

/// Has somebody post, and waits until that has come wherever it belongs within Redis: into the archive
/// it may come later.
fn publish(launcher: &Launcher) {
    launcher.import("ada bob\n");
    let people = People::of(launcher);
    people.publish(people.id("ada"), 3);
    let verified = launcher.verified();
    assert!(verified.stdout.contains("posts      3 posts"), "{verified:?}");
}

/// Returns the files of an archive in the data directory.
fn files(data: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(data).unwrap().map(|file| file.unwrap().path());
    files.filter(|file| file.display().to_string().contains("archive.sqlite")).collect()
}

#[test]
fn it_is_in_the_data_directory_for_its_owner_alone() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    // What a directory lets others read, the archive does not.
    fs::create_dir(&data).unwrap();
    let launcher = Launcher::start(&data, &[]);
    publish(&launcher);
    // It is made by a job of its own, with its log when something is written.
    let made = ["archive.sqlite", "archive.sqlite-wal"].map(|name| data.join(name));
    eventually("there is an archive", PATIENCE, || {
        let files = files(&data);
        made.iter().all(|file| files.contains(file))
    });
    for file in files(&data) {
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", file.display());
    }
}

#[test]
fn it_is_where_the_environment_says_and_nobody_is_told_its_address() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let postgres = runtime.block_on(PostgresServer::start());
    let mut command = Command::new(PROGRAM);
    command.env("MICROBLOG_ARCHIVE_URL", postgres.url());
    let launcher = Launcher::start_by(command, &data, &[]);
    publish(&launcher);
    assert_eq!(files(&data), Vec::<PathBuf>::new());
    assert!(launcher.said().contains("  archive   where MICROBLOG_ARCHIVE_URL says\n"));
    assert!(!launcher.said().contains(&postgres.url()));
}
