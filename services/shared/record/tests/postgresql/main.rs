//! The database on PostgreSQL: its connections, its locks and its migrations, also through PgBouncer, at a
//! standby, and for roles with settings of their own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod connections;
mod locks;
mod migrations;
mod passwords;
mod pooler;
mod roles;
mod standby;
mod start_check;

use clap::Parser as _;
use microblog_record::{Config, Database};
use microblog_testkit::PostgresServer;

#[derive(clap::Parser)]
struct Flags {
    #[command(flatten)]
    database: Config,
}

fn open(server: &PostgresServer) -> Database {
    open_url(&server.url())
}

fn open_url(url: &str) -> Database {
    // On a busy machine, a connection takes longer than a call waits by default.
    open_with(&["--database-timeout-ms=20000", "--database-url", url])
}

fn open_with(flags: &[&str]) -> Database {
    let flags = Flags::parse_from([&["test"], flags].concat());
    Database::open(&flags.database).unwrap()
}
