//! Stores with canaries as passwords.

use std::time::Duration;

use microblog_testkit::{PostgresServer, RedisServer, eventually, redis};

/// The services with a Redis user.
const STORED: [&str; 4] = ["user", "relation", "timeline", "post"];

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

/// A PostgreSQL server with the roles of the services, which need a password.
pub(crate) struct Databases(PostgresServer);

impl Databases {
    pub(crate) async fn start(password: &str) -> Self {
        let server = PostgresServer::start().await;
        server.create_roles(password);
        // The test server accepts any password by default.
        server.sql(
            "DO $$ BEGIN EXECUTE format('COPY (SELECT unnest(ARRAY[\
             ''host all postgres 127.0.0.1/32 trust'', \
             ''host all all 127.0.0.1/32 scram-sha-256''])) TO %L', \
             current_setting('hba_file')); END $$",
        );
        server.sql("SELECT pg_reload_conf()");
        Self(server)
    }

    /// Returns the URL of a service's role with a password.
    pub(crate) fn url(&self, service: &str, password: &str) -> String {
        self.0.url_of(service, password)
    }

    /// Changes the roles' passwords, and closes their connections.
    pub(crate) fn change_password(&self, password: &str) {
        self.0.create_roles(password);
        self.0.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename <> 'postgres'",
        );
    }

    /// Waits until the server has rejected a password of a service.
    pub(crate) async fn wait_for_rejected_password(&self, service: &str, within: Duration) {
        let rejection = format!("password authentication failed for user \"{service}\"");
        let what = "a client uses a wrong password";
        eventually(what, within, async || self.0.log().contains(&rejection)).await;
    }

    /// Kills the server.
    pub(crate) fn kill(&self) {
        self.0.kill();
    }
}
