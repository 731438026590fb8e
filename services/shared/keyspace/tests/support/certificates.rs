//! Servers with TLS, and the certificates of both sides.

use std::path::PathBuf;

use microblog_keyspace::{Config, redis};
use microblog_testkit::{Authority, Files, RedisServer, free_port};

/// A certificate authority, with a server certificate for `localhost` and a client certificate, as
/// files.
pub(crate) struct Certificates {
    pub(crate) authority: Authority,
    pub(crate) files: Files,
}

impl Certificates {
    pub(crate) fn make() -> Self {
        let (authority, files) = (Authority::new(), Files::new());
        files.write("ca.pem", authority.pem());
        files.certificate("server", &authority.issue(&["localhost"]));
        files.certificate("client", &authority.issue(&["client.test"]));
        Self { authority, files }
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.files.path(file)
    }

    pub(crate) async fn server(
        &self,
        requires_certificate: bool,
        more: &[(&'static str, &str)],
    ) -> (RedisServer, u16) {
        let port = free_port();
        let tls = self.files.redis_options(port, requires_certificate);
        let tls = tls.iter().map(|(name, value)| (*name, value.as_str()));
        let options: Vec<_> = tls.chain(more.iter().copied()).collect();
        (RedisServer::start_with(&options).await, port)
    }

    /// Starts a cluster of one node.
    pub(crate) async fn cluster(&self, requires_certificate: bool) -> (RedisServer, u16) {
        let bus_port = free_port().to_string();
        let options = [
            ("cluster-enabled", "yes"),
            // Without this, CLUSTER SLOTS has the plain-text port.
            ("tls-cluster", "yes"),
            ("cluster-port", &bus_port),
            ("cluster-announce-hostname", "localhost"),
            ("cluster-preferred-endpoint-type", "hostname"),
        ];
        let (server, port) = self.server(requires_certificate, &options).await;
        let mut slots = redis::cmd("CLUSTER");
        slots.arg("ADDSLOTSRANGE").arg(0).arg(16_383);
        slots.exec_async(&mut server.admin().await).await.unwrap();
        (server, port)
    }

    /// Returns the configuration of a client without a certificate.
    pub(crate) fn at(
        &self,
        server: &RedisServer,
        user: &str,
        scheme: &str,
        host: &str,
        port: u16,
    ) -> Config {
        let plain = format!("127.0.0.1:{}", server.port());
        let url = server.url(user).replace("redis://", &format!("{scheme}://"));
        let url = url.replace(&plain, &format!("{host}:{port}"));
        Config { redis_ca_file: Some(self.path("ca.pem")), ..Config::at(url) }
    }

    /// Adds the client certificate.
    pub(crate) fn with_client_certificate(&self, config: Config) -> Config {
        Config {
            redis_cert_file: Some(self.path("client.crt")),
            redis_key_file: Some(self.path("client.key")),
            ..config
        }
    }
}
