//! A certificate authority, and the files of a server and a client.

use microblog_chassis::{Config, Peer};
use microblog_testkit::{Certificate, TempFiles, TestCa};

use crate::support::{self, Server, Stub};

/// The address of all servers.
pub(crate) const HOST: &str = "127.0.0.1";

pub(crate) struct Fixture {
    pub(crate) authority: TestCa,
    pub(crate) files: TempFiles,
}

impl Fixture {
    /// Creates an authority that server and client trust, and a certificate for each.
    pub(crate) fn new() -> Self {
        let fixture = Self { authority: TestCa::new(), files: TempFiles::new() };
        fixture.files.write("ca.crt", fixture.authority.pem());
        fixture.issue("server", &fixture.authority.issue(&[HOST]));
        fixture.issue("caller", &fixture.authority.issue(&["caller.test"]));
        fixture
    }

    /// Replaces the certificate of one of them.
    pub(crate) fn issue(&self, name: &str, issued: &Certificate) {
        self.files.certificate(name, issued);
    }

    /// Flags of a server with mutual TLS.
    pub(crate) fn server(&self) -> Config {
        Config {
            tls_cert_file: Some(self.files.path("server.crt")),
            tls_key_file: Some(self.files.path("server.key")),
            tls_client_ca_file: Some(self.files.path("ca.crt")),
            ..support::config()
        }
    }

    /// Flags of a client with a certificate.
    pub(crate) fn caller(&self) -> Config {
        Config {
            peer_ca_file: Some(self.files.path("ca.crt")),
            peer_cert_file: Some(self.files.path("caller.crt")),
            peer_key_file: Some(self.files.path("caller.key")),
            ..support::config()
        }
    }

    /// The server's flags as text, for a process.
    pub(crate) fn flags(&self) -> String {
        let file = |name| self.files.path(name).display().to_string();
        format!(
            "--tls-cert-file {} --tls-key-file {} --tls-client-ca-file {}",
            file("server.crt"),
            file("server.key"),
            file("ca.crt")
        )
    }

    /// Starts a server that answers each call.
    pub(crate) fn start(&self) -> Server {
        Server::start(Stub::new().service(), self.server())
    }

    /// Returns a new client of a server.
    pub(crate) fn peer(&self, server: &Server) -> Peer {
        peer(server, "https", &self.caller())
    }
}

pub(crate) fn peer(server: &Server, scheme: &str, config: &Config) -> Peer {
    Peer::remote(&format!("{scheme}://{}", server.address), config).unwrap()
}
