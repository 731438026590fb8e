//! The database on PostgreSQL: its connections, its locks and its migrations.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod connections;
mod locks;
mod migrations;

use clap::Parser as _;
use microblog_record::{Config, Database};
use microblog_testkit::PostgresServer;

#[derive(clap::Parser)]
struct Flags {
    #[command(flatten)]
    database: Config,
}

fn open(server: &PostgresServer) -> Database {
    let flags = Flags::parse_from(["test", "--database-url", &server.url()]);
    Database::open(&flags.database).unwrap().unwrap()
}
