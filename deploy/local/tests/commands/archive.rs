//! Where `microblog up` has the archive of posts.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use microblog_testkit::PostgresServer;

use crate::{
    launcher::{Launcher, PROGRAM},
    people::People,
};

/// Has somebody post, waits until that is archived, and returns the files of an archive in the data
/// directory.
fn publish(launcher: &Launcher, data: &Path) -> Vec<PathBuf> {
    launcher.import("ada bob\n");
    let people = People::of(launcher);
    people.publish(people.id("ada"), 3);
    let verified = launcher.verified();
    assert!(verified.stdout.contains("posts      3 posts"), "{verified:?}");
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
    let files = publish(&launcher, &data);
    assert!(files.contains(&data.join("archive.sqlite")), "{files:?}");
    assert!(files.len() > 1, "{files:?}");
    for file in files {
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
    assert_eq!(publish(&launcher, &data), Vec::<PathBuf>::new());
    assert!(launcher.said().contains("  archive   where MICROBLOG_ARCHIVE_URL says\n"));
    assert!(!launcher.said().contains(&postgres.url()));
}
