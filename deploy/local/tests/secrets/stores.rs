//! Stores with canaries as passwords.

use std::{process::Command, time::Duration};

use microblog_testkit::{PostgresServer, RedisServer, eventually, redis};

/// The services with a Redis user.
pub(crate) const STORED: [&str; 4] = ["user", "relation", "timeline", "post"];

/// Adds a password to all services' Redis users.
pub(crate) async fn add_password(server: &RedisServer, password: &str) {
    set_user(server, &format!(">{password}")).await;
}

/// Removes a password from all services' Redis users, and closes their connections.
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

/// Returns the URL of a redis-server for a service with this password.
pub(crate) fn redis_url(server: &RedisServer, service: &str, password: &str) -> String {
    format!("redis://{service}:{password}@127.0.0.1:{}", server.port())
}

/// A PostgreSQL server with a database whose user needs a password.
pub(crate) struct Archive(PostgresServer);

impl Archive {
    pub(crate) async fn start(password: &str) -> Self {
        let archive = Self(PostgresServer::start().await);
        archive.run(&format!("CREATE ROLE archivist LOGIN PASSWORD '{password}'"));
        archive.run("CREATE DATABASE archive OWNER archivist");
        // The test server accepts any password by default.
        archive.run(
            "DO $$ BEGIN EXECUTE format('COPY (SELECT unnest(ARRAY[\
             ''host all postgres 127.0.0.1/32 trust'', \
             ''host all all 127.0.0.1/32 scram-sha-256''])) TO %L', \
             current_setting('hba_file')); END $$",
        );
        archive.run("SELECT pg_reload_conf()");
        archive
    }

    /// Returns its URL with a password.
    pub(crate) fn url(&self, password: &str) -> String {
        format!("postgres://archivist:{password}@127.0.0.1:{}/archive", self.0.port())
    }

    /// Changes the role's password, and closes its connections.
    pub(crate) fn change_password(&self, password: &str) {
        self.run(&format!("ALTER ROLE archivist PASSWORD '{password}'"));
        self.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'archivist'",
        );
    }

    /// Waits until the server has rejected a password.
    pub(crate) async fn wait_for_rejected_password(&self, within: Duration) {
        let rejection = "password authentication failed for user \"archivist\"";
        let what = "a client uses a wrong password";
        eventually(what, within, async || self.0.log().contains(rejection)).await;
    }

    /// Kills the server.
    pub(crate) fn kill(&self) {
        self.0.kill();
    }

    // Only the post service has a SQL client.
    fn run(&self, statement: &str) {
        let mut psql = Command::new("psql");
        psql.args(["--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1"]);
        psql.args(["--dbname", &self.0.url(), "--command", statement]);
        let output = psql.output();
        let output = output.unwrap_or_else(|error| panic!("these tests need `psql`: {error}"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{statement}: {errors}");
    }
}
