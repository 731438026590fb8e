//! One PostgreSQL server.

mod installation;
mod tree;

use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
};

use tempfile::TempDir;

use self::installation::{Account, Installation};
use crate::{PATIENCE, child::Running, eventually, free_port};

/// Light, since tests run side by side, and safe where a process is killed: what was written
/// outlives it without `fsync`, but a page may be half written, so `full_page_writes` stays on.
const SETTINGS: [&str; 11] = [
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "max_connections=50",
    "shared_buffers=16MB",
    "fsync=off",
    "autovacuum=off",
    "jit=off",
    "wal_level=minimal",
    "max_wal_senders=0",
    "max_logical_replication_workers=0",
    // In the server's own directory, which goes with it.
    "dynamic_shared_memory_type=mmap",
];

/// A PostgreSQL server on a free port of 127.0.0.1, where everybody may do everything. Dropping it
/// kills it and removes its data.
///
/// It refuses to run as root: a test that does has it run as the user `postgres`, whom the packages
/// make.
pub struct PostgresServer {
    port: u16,
    installation: Installation,
    directory: TempDir,
    running: Mutex<Option<Running>>,
}

impl PostgresServer {
    /// Starts one, with an empty database, and waits until it answers.
    pub async fn start() -> Self {
        let installation = Installation::find();
        let mut log = String::new();
        for _ in 0..5 {
            let server = Self::new(installation.clone());
            // Somebody else may have taken a port first: then it ends at once.
            if server.run().await {
                return server;
            }
            log = server.log();
        }
        panic!("PostgreSQL does not start:\n{log}");
    }

    fn new(installation: Installation) -> Self {
        let directory = TempDir::with_prefix("microblog-postgres-").expect("make a directory");
        let server = Self { port: free_port(), installation, directory, running: Mutex::default() };
        server.make_cluster();
        server
    }

    /// Returns its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns its address: that of the database `postgres`, for a superuser, without a password.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Kills all its processes (SIGKILL), as a crash would.
    pub fn kill(&self) {
        let Some(running) = self.running().take() else { return };
        let children = tree::freeze(running.id());
        tree::kill(&children);
        running.kill();
        tree::wait_until_gone(&children);
        self.remove_shared_memory();
    }

    /// Starts it again with its data, on the same port, and waits until it answers.
    pub async fn restart(&self) {
        self.kill();
        assert!(self.run().await, "PostgreSQL does not start again:\n{}", self.log());
    }

    /// Freezes all its processes (SIGSTOP): its connections stay, and nothing answers.
    pub fn pause(&self) {
        tree::freeze(self.id());
    }

    /// Ends a freeze (SIGCONT).
    pub fn resume(&self) {
        tree::thaw(self.id());
    }

    /// Returns the numbers of its processes, those of its connections among them.
    pub fn processes(&self) -> Vec<u32> {
        let children = tree::children(self.id()).into_iter().map(i32::cast_unsigned);
        [self.id()].into_iter().chain(children).collect()
    }

    /// Returns what it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    // Makes the directory that a server keeps all its databases in, which PostgreSQL calls a
    // cluster.
    fn make_cluster(&self) {
        if let Some(account) = &self.installation.account {
            account.own(self.directory.path());
        }
        let mut command = Command::new(self.installation.program("initdb"));
        command.args(["--username", "postgres", "--auth", "trust", "--encoding", "UTF8"]);
        command.args(["--locale", "C", "--no-sync", "--wal-segsize", "1", "--pgdata"]);
        command.arg(self.data()).stdin(Stdio::null());
        self.prepare(&mut command);
        let output = command.output().expect("start initdb");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "initdb: {}\n{said}", output.status);
    }

    // Starts it; false if it ended instead of answering.
    async fn run(&self) -> bool {
        // All that a killed one names is gone, but its numbers may be somebody else's by now.
        let _ = fs::remove_file(self.pid_file());
        *self.running() = Some(self.spawn());
        let mut is_running = true;
        eventually("PostgreSQL answers", PATIENCE, async || {
            is_running = self.running().as_ref().is_some_and(|running| running.ended().is_none());
            !is_running || self.note(8).as_deref() == Some("ready")
        })
        .await;
        is_running
    }

    fn spawn(&self) -> Running {
        let settings = SETTINGS.iter().flat_map(|&setting| ["-c".to_owned(), setting.to_owned()]);
        let own = ["-D".to_owned(), self.data().display().to_string()];
        let port = ["-p".to_owned(), self.port.to_string()];
        let args: Vec<String> = own.into_iter().chain(port).chain(settings).collect();
        let program = self.installation.program("postgres").display().to_string();
        // Unlike SIGKILL, SIGQUIT has it end its children and give back its shared memory. Alone in
        // its process group, a frozen one is woken by the kernel when the test is gone.
        Running::start_with(&program, &args, &self.log_file(), "QUIT", |command| {
            self.prepare(command);
            command.process_group(0);
        })
    }

    fn prepare(&self, command: &mut Command) {
        command.current_dir(self.directory.path());
        if let Some(Account { uid, gid }) = self.installation.account {
            command.uid(uid).gid(gid);
        }
    }

    // Returns a line of the file in which it notes how it runs.
    fn note(&self, line: usize) -> Option<String> {
        let notes = fs::read_to_string(self.pid_file()).ok()?;
        Some(notes.lines().nth(line - 1)?.trim().to_owned())
    }

    // A killed server leaves a small segment with the kernel, which has room for so many.
    fn remove_shared_memory(&self) {
        let Some(id) = self.note(7).and_then(|key| Some(key.split_whitespace().nth(1)?.to_owned()))
        else {
            return;
        };
        let mut command = Command::new("ipcrm");
        command.args(["-m", &id]).stdout(Stdio::null()).stderr(Stdio::null());
        // Without it, the next server on this directory would remove the segment.
        let _ = command.status();
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    fn pid_file(&self) -> PathBuf {
        self.data().join("postmaster.pid")
    }

    fn log_file(&self) -> PathBuf {
        self.directory.path().join("postgres.log")
    }

    fn id(&self) -> u32 {
        self.running().as_ref().expect("PostgreSQL runs").id()
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.kill();
    }
}
