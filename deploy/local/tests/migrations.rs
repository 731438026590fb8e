//! Migrations of databases do not change once they are released: sqlx has the checksum of each in the
//! database, and a service with another one does not start. Even a comment counts.

#![allow(clippy::unwrap_used, reason = "a test's helper fails with the test")]

use std::{collections::BTreeMap, fs, path::Path};

use sha2::{Digest as _, Sha256};

/// The files, with the beginnings of their SHA-256. A new migration adds a line.
const RELEASED: [(&str, &str); 5] = [
    ("services/notice/src/schema.sql", "b699e2568d0d5447"),
    ("services/post/src/schema.sql", "d537d159f08a5ffe"),
    ("services/relation/src/schema.sql", "192e269ad4a83b81"),
    ("services/shared/storage/src/feed.sql", "c11457c4a767e3f1"),
    ("services/user/src/schema.sql", "7aec2109e3a98513"),
];

const DIRECTORIES: [&str; 5] = [
    "services/notice/src",
    "services/post/src",
    "services/relation/src",
    "services/shared/storage/src",
    "services/user/src",
];

#[test]
fn released_migrations_do_not_change() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = BTreeMap::new();
    for directory in DIRECTORIES {
        for entry in fs::read_dir(root.join(directory)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "sql") {
                let name = format!("{directory}/{}", path.file_name().unwrap().display());
                let digest = Sha256::digest(fs::read(&path).unwrap());
                found.insert(name, hex::encode(&digest[..8]));
            }
        }
    }
    let released = RELEASED.map(|(name, digest)| (name.to_owned(), digest.to_owned()));
    assert_eq!(found, BTreeMap::from(released));
}
