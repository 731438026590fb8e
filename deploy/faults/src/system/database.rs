//! The databases of the services.

use std::{
    cell::Cell,
    path::{Path, PathBuf},
};

use anyhow::Result;
use microblog_testkit::PostgresServer;
use serde::Serialize;

use super::{Equipment, Proxy, Setup, files::Copy};

/// The services with a database.
pub(super) const SERVICES: [&str; 4] = ["user", "relation", "post", "notice"];

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
    WithStandby(Box<WithStandby>),
}

/// A PostgreSQL server with a standby, behind the address of both.
pub(crate) struct WithStandby {
    pub(crate) primary: PostgresServer,
    pub(crate) standby: PostgresServer,
    address: Proxy,
    is_promoted: Cell<bool>,
}

impl WithStandby {
    async fn start() -> Result<Self> {
        let primary = PostgresServer::start_primary().await;
        primary.create_roles(PASSWORD);
        let standby = primary.start_standby().await;
        let address = Proxy::start("services", "database", primary.port()).await?;
        Ok(Self { primary, standby, address, is_promoted: Cell::new(false) })
    }

    /// Kills the primary, and promotes the standby.
    pub(crate) async fn fail_over(&self) {
        self.primary.kill();
        self.standby.promote().await;
        self.is_promoted.set(true);
        self.address.redirect(self.standby.port());
    }
}

impl Database {
    pub(super) async fn start(setup: Setup, directory: &Path) -> Result<Self> {
        Ok(match setup.database {
            DatabaseKind::Sqlite => Self::Sqlite(directory.to_owned()),
            DatabaseKind::Postgres if setup.equipment == Equipment::Standby => {
                Self::WithStandby(Box::new(WithStandby::start().await?))
            }
            DatabaseKind::Postgres => {
                let server = PostgresServer::start().await;
                server.create_roles(PASSWORD);
                Self::Postgres(server)
            }
        })
    }

    /// Returns the URL for a service, if it has a database.
    pub(super) fn url(&self, service: &str) -> Option<String> {
        if !SERVICES.contains(&service) {
            return None;
        }
        Some(match self {
            Self::Sqlite(directory) => {
                format!("sqlite://{}/{service}.sqlite?mode=rwc", directory.display())
            }
            Self::Postgres(server) => server.url_of(service, PASSWORD),
            Self::WithStandby(pair) => {
                let (own, common) = (pair.primary.port(), pair.address.port());
                let url = pair.primary.url_of(service, PASSWORD);
                url.replace(&format!(":{own}/"), &format!(":{common}/"))
            }
        })
    }

    /// Returns the server, if there is one: with a standby, the primary.
    pub(crate) fn server(&self) -> Option<&PostgresServer> {
        match self {
            Self::Sqlite(_) => None,
            Self::Postgres(server) => Some(server),
            Self::WithStandby(pair) if pair.is_promoted.get() => Some(&pair.standby),
            Self::WithStandby(pair) => Some(&pair.primary),
        }
    }

    /// Returns the directory of the data, and the names of the files.
    fn files(&self) -> (PathBuf, Vec<String>) {
        if let Self::Sqlite(directory) = self {
            let endings = ["", "-wal", "-shm"];
            let of = |service| endings.map(|ending| format!("{service}.sqlite{ending}"));
            return (directory.clone(), SERVICES.into_iter().flat_map(of).collect());
        }
        let data = self.server().map(PostgresServer::data).unwrap_or_default();
        let directory = data.parent().unwrap_or(&data).to_owned();
        (directory, vec!["data".to_owned()])
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
        self.server().map(PostgresServer::log)
    }
}
