//! The databases of the services.

use std::path::{Path, PathBuf};

use anyhow::Result;
use microblog_testkit::PostgresServer;
use serde::Serialize;

use super::files::Copy;

/// The services with a database.
pub(super) const RECORDED: [&str; 3] = ["user", "relation", "post"];

const PASSWORD: &str = "secret";

/// The database behind a system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DatabaseKind {
    Sqlite,
    Postgres,
}

/// The running database.
pub(crate) enum Database {
    /// A file for each service in this directory.
    Sqlite(PathBuf),
    Postgres(PostgresServer),
}

impl Database {
    pub(super) async fn start(kind: DatabaseKind, directory: &Path) -> Result<Self> {
        Ok(match kind {
            DatabaseKind::Sqlite => Self::Sqlite(directory.to_owned()),
            DatabaseKind::Postgres => {
                let server = PostgresServer::start().await;
                server.create_roles(PASSWORD);
                Self::Postgres(server)
            }
        })
    }

    /// Returns the URL for a service, if it has a database.
    pub(super) fn url(&self, service: &str) -> Option<String> {
        if !RECORDED.contains(&service) {
            return None;
        }
        Some(match self {
            Self::Sqlite(directory) => {
                format!("sqlite://{}/{service}.sqlite?mode=rwc", directory.display())
            }
            Self::Postgres(server) => server.url_of(service, PASSWORD),
        })
    }

    /// Returns the server, if there is one.
    pub(crate) fn server(&self) -> Option<&PostgresServer> {
        match self {
            Self::Sqlite(_) => None,
            Self::Postgres(server) => Some(server),
        }
    }

    /// Returns the directory of the data, and the names of the files.
    fn files(&self) -> (PathBuf, Vec<String>) {
        match self {
            Self::Sqlite(directory) => {
                let endings = ["", "-wal", "-shm"];
                let of = |service| endings.map(|ending| format!("{service}.sqlite{ending}"));
                (directory.clone(), RECORDED.into_iter().flat_map(of).collect())
            }
            Self::Postgres(server) => {
                let data = server.data();
                let directory = data.parent().unwrap_or(&data).to_owned();
                (directory, vec!["data".to_owned()])
            }
        }
    }

    /// Copies the data, which nothing may use.
    pub(super) fn copy(&self) -> Result<Copy> {
        let (directory, names) = self.files();
        Copy::take(&directory, &names.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Replaces the data by a copy. Nothing may use them. Returns whether they differed.
    pub(super) fn put_back(&self, copy: &Copy) -> Result<bool> {
        let (directory, _) = self.files();
        let differs = copy.differs(&directory)?;
        copy.put_back(&directory)?;
        Ok(differs)
    }

    /// Returns the log of the server, if there is one.
    pub(super) fn log(&self) -> Option<String> {
        match self {
            Self::Sqlite(_) => None,
            Self::Postgres(server) => Some(server.log()),
        }
    }
}
