//! Stores that ask for passwords, which are canaries.

use std::{process::Command, time::Duration};

use microblog_testkit::{PostgresServer, RedisServer, eventually, redis};

/// Those who have a store.
pub(crate) const STORED: [&str; 4] = ["user", "relation", "timeline", "post"];

/// Gives all services' users in Redis one more password.
pub(crate) async fn add_password(server: &RedisServer, password: &str) {
    set_user(server, &format!(">{password}")).await;
}

/// Takes a password from all services' users in Redis, and closes their connections.
pub(crate) async fn take_password(server: &RedisServer, password: &str) {
    set_user(server, &format!("<{password}")).await;
    let mut admin = server.admin().await;
    for service in STORED {
        let mut command = redis::cmd("CLIENT");
        command.arg("KILL").arg("USER").arg(service);
        command.exec_async(&mut admin).await.unwrap();
    }
}

async fn set_user(server: &RedisServer, rule: &str) {
    let mut admin = server.admin().await;
    for service in STORED {
        let mut command = redis::cmd("ACL");
        command.arg("SETUSER").arg(service).arg(rule);
        command.exec_async(&mut admin).await.unwrap();
    }
}

/// Returns the address of a redis-server for a service with this password.
pub(crate) fn redis_url(server: &RedisServer, service: &str, password: &str) -> String {
    format!("redis://{service}:{password}@127.0.0.1:{}", server.port())
}

/// A PostgreSQL server with a database of somebody who needs a password for it.
pub(crate) struct Archive(PostgresServer);

impl Archive {
    pub(crate) async fn start(password: &str) -> Self {
        let archive = Self(PostgresServer::start().await);
        archive.run(&format!("CREATE ROLE archivist LOGIN PASSWORD '{password}'"));
        archive.run("CREATE DATABASE archive OWNER archivist");
        // Out of the box, the tests' server takes any password.
        archive.run(
            "DO $$ BEGIN EXECUTE format('COPY (SELECT unnest(ARRAY[\
             ''host all postgres 127.0.0.1/32 trust'', \
             ''host all all 127.0.0.1/32 scram-sha-256''])) TO %L', \
             current_setting('hba_file')); END $$",
        );
        archive.run("SELECT pg_reload_conf()");
        archive
    }

    /// Returns its address with a password.
    pub(crate) fn url(&self, password: &str) -> String {
        format!("postgres://archivist:{password}@127.0.0.1:{}/archive", self.0.port())
    }

    /// Has the role need another password, and closes its connections.
    pub(crate) fn change_password(&self, password: &str) {
        self.run(&format!("ALTER ROLE archivist PASSWORD '{password}'"));
        self.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'archivist'",
        );
    }

    /// Waits until it has refused somebody for their password.
    pub(crate) async fn refused(&self, within: Duration) {
        let refusal = "password authentication failed for user \"archivist\"";
        let what = "somebody comes with a wrong password";
        eventually(what, within, async || self.0.log().contains(refusal)).await;
    }

    /// Kills it.
    pub(crate) fn kill(&self) {
        self.0.kill();
    }

    // Only the post service speaks SQL by itself.
    fn run(&self, statement: &str) {
        let mut psql = Command::new("psql");
        psql.args(["--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1"]);
        psql.args(["--dbname", &self.0.url(), "--command", statement]);
        let output = psql.output();
        let output = output.unwrap_or_else(|error| panic!("these tests need `psql`: {error}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{statement}: {said}");
    }
}
