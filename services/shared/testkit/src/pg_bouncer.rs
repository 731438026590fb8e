//! A PgBouncer before a PostgreSQL server.

use std::{
    env, fs,
    net::TcpStream,
    path::{Path, PathBuf},
};

use nix::unistd::geteuid;
use tempfile::TempDir;

use crate::{PATIENCE, PostgresServer, child_process::ChildProcess, eventually, free_port};

/// The build directory, if no other is set.
const TARGET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../target");

/// The roles that may connect, without a password: the superuser, and those of the services.
const USERS: [&str; 5] = ["postgres", "user", "relation", "post", "notice"];

/// When PgBouncer gives a connection to the server back to its pool.
#[derive(Clone, Copy, Debug)]
pub enum PoolMode {
    /// When the client disconnects.
    Session,
    /// At the end of each transaction.
    Transaction,
}

/// A PgBouncer of version 1.24 or newer on a free port of 127.0.0.1. Dropping it kills it. Its settings
/// are the defaults, but for those that the guide names: `ignore_startup_parameters`, without which it
/// rejects sqlx, and `default_pool_size`.
pub struct PgBouncer {
    port: u16,
    _running: ChildProcess,
    _directory: TempDir,
}

impl PgBouncer {
    /// Starts a PgBouncer before a server, and waits until it answers.
    ///
    /// # Panics
    /// If PgBouncer is not installed.
    pub async fn start(server: &PostgresServer, mode: PoolMode) -> Self {
        let directory = TempDir::with_prefix("microblog-pgbouncer-").expect("make a directory");
        let (port, log) = (free_port(), directory.path().join("log"));
        let settings = write_settings(directory.path(), server, mode, port);
        let program = program().display().to_string();
        let running = ChildProcess::start(&program, &[settings.display().to_string()], &log);
        if geteuid().is_root() {
            running.watch();
        }
        eventually("PgBouncer answers", PATIENCE, async || {
            let status = running.exit_status();
            assert!(status.is_none(), "PgBouncer exited: {status:?}\n{}", running.log());
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        })
        .await;
        Self { port, _running: running, _directory: directory }
    }

    /// Returns the URL of the database `postgres`, for a superuser without a password.
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// Returns the URL of the database `postgres`, for the role of a service.
    pub fn url_of(&self, role: &str) -> String {
        format!("postgres://{role}@127.0.0.1:{}/postgres", self.port)
    }
}

/// Returns the program on PATH, in the directory of Debian's, or where `deploy/install-pgbouncer` puts
/// it.
fn program() -> PathBuf {
    let path = env::var_os("PATH").unwrap_or_default();
    let target = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| TARGET.into());
    let installed = Path::new(&target).join("pgbouncer/bin");
    // Before the others, which may be older.
    let directories = [installed].into_iter().chain(env::split_paths(&path));
    let mut programs = directories
        .chain([PathBuf::from("/usr/sbin")])
        .map(|directory| directory.join("pgbouncer"));
    programs.find(|program| program.is_file()).expect(
        "these tests need PgBouncer 1.24 or newer on the PATH (see deploy/install-pgbouncer)",
    )
}

/// Writes the configuration into a directory, and returns its path.
fn write_settings(directory: &Path, server: &PostgresServer, mode: PoolMode, port: u16) -> PathBuf {
    let mode = match mode {
        PoolMode::Session => "session",
        PoolMode::Transaction => "transaction",
    };
    let users = directory.join("users.txt");
    fs::write(&users, USERS.map(|user| format!("\"{user}\" \"\"\n")).concat()).expect("write");
    let mut text = format!(
        "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
         listen_port = {port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {}\n\
         pool_mode = {mode}\nignore_startup_parameters = extra_float_digits\n\
         default_pool_size = 50\n",
        server.port(),
        users.display(),
    );
    if geteuid().is_root() {
        // PgBouncer does not run as root, and gives up root's rights itself.
        text.push_str("user = postgres\n");
    }
    let settings = directory.join("pgbouncer.ini");
    fs::write(&settings, text).expect("write the configuration");
    settings
}
