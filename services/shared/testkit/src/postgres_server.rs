//! A single PostgreSQL server.

mod installation;
mod process_tree;

use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use tempfile::TempDir;

use self::installation::{Account, Installation};
use crate::{PATIENCE, child_process::ChildProcess, eventually, free_port};

/// Small, since tests run side by side. Safe when a process is killed: the page cache survives it
/// without `fsync`, but pages may be torn, so `full_page_writes` stays on.
const SETTINGS: [&str; 11] = [
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "max_connections=100",
    "shared_buffers=16MB",
    "fsync=off",
    "autovacuum=off",
    "jit=off",
    "wal_level=minimal",
    "max_wal_senders=0",
    "max_logical_replication_workers=0",
    // In the data directory, which is deleted with the server.
    "dynamic_shared_memory_type=mmap",
];

/// The settings of a server that has or is a standby.
const PRIMARY: [&str; 2] = ["wal_level=replica", "max_wal_senders=4"];

/// The script that creates a role and a schema for each service with a database.
const ROLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../deploy/postgresql/roles.sql");

/// The name of the connections that hold locks.
const LOCKS: &str = "locks of a test";

/// The services with a database.
const RECORDED: [&str; 4] = ["user", "relation", "post", "notice"];

/// A PostgreSQL server on a free port of 127.0.0.1 with `trust` authentication. Dropping it kills
/// it and deletes its data.
///
/// PostgreSQL does not run as root. A test that runs as root therefore runs it as the user
/// `postgres`, which the packages create.
pub struct PostgresServer {
    port: u16,
    installation: Installation,
    settings: &'static [&'static str],
    directory: TempDir,
    running: Mutex<Option<ChildProcess>>,
    /// What its data directory is a copy of.
    _template: Option<Arc<Self>>,
}

/// Locks on tables. Dropping them ends their transaction.
pub struct TableLocks(Child);

impl Drop for TableLocks {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl PostgresServer {
    /// Starts a server with an empty database and waits until it answers.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts a server like [`Self::start`] with further settings: `name=value`.
    pub async fn start_with(settings: &'static [&'static str]) -> Self {
        let installation = Installation::find();
        let mut log = String::new();
        for _ in 0..5 {
            let server = Self::new(installation.clone(), settings);
            // Another process may have taken the port; the server then exits at once.
            if server.run().await {
                return server;
            }
            log = server.log();
        }
        panic!("PostgreSQL does not start:\n{log}");
    }

    /// Starts a server that may have a standby.
    pub async fn start_primary() -> Self {
        Self::start_with(&PRIMARY).await
    }

    /// Starts a standby of this server, which [`Self::start_primary`] has started: an asynchronous
    /// replica.
    pub async fn start_standby(&self) -> Self {
        let standby = Self::empty(self.installation.clone(), &PRIMARY);
        let mut copy = Command::new(self.installation.program("pg_basebackup"));
        copy.args([
            "--dbname",
            &self.url(),
            "--wal-method=stream",
            "--checkpoint=fast",
            "--no-sync",
        ]);
        copy.args(["--write-recovery-conf", "--pgdata"]).arg(standby.data()).stdin(Stdio::null());
        standby.prepare(&mut copy);
        let output = copy.output().expect("start pg_basebackup");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "pg_basebackup: {stderr}");
        assert!(standby.run().await, "the standby does not start:\n{}", standby.log());
        standby
    }

    /// Makes a standby a primary, and waits until it accepts writes.
    pub async fn promote(&self) {
        self.sql("SELECT pg_promote(wait => false)");
        eventually("the standby is promoted", PATIENCE, async || {
            self.sql("SELECT pg_is_in_recovery()") == "f"
        })
        .await;
    }

    fn new(installation: Installation, settings: &'static [&'static str]) -> Self {
        let mut server = Self::empty(installation, settings);
        server._template = Some(server.copy_template());
        server
    }

    // Without a data directory.
    fn empty(installation: Installation, settings: &'static [&'static str]) -> Self {
        let directory = TempDir::with_prefix("microblog-postgres-").expect("make a directory");
        if let Some(account) = &installation.account {
            account.chown(directory.path());
        }
        let (port, running) = (free_port(), Mutex::default());
        Self { port, installation, settings, directory, running, _template: None }
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the URL of the database `postgres`, for a superuser without a password.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Returns the URL of the database `postgres`, for the role of a service.
    pub fn url_of(&self, role: &str, password: &str) -> String {
        format!("postgres://{role}:{password}@127.0.0.1:{}/postgres", self.port)
    }

    /// Creates the roles and schemas of the services, all with one password.
    pub fn create_roles(&self, password: &str) {
        let passwords = TempDir::with_prefix("microblog-passwords-").expect("make a directory");
        for service in RECORDED {
            fs::write(passwords.path().join(service), password).expect("write a password");
        }
        let mut psql = self.psql(&self.url());
        psql.env("DATABASE_PASSWORDS", passwords.path());
        let output = psql.args(["--file", ROLES]).output().expect("start psql");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{ROLES}: {stderr}");
    }

    /// Runs statements as a superuser, and returns the rows.
    pub fn sql(&self, statements: &str) -> String {
        self.try_sql(&self.url(), statements)
            .unwrap_or_else(|error| panic!("{statements}: {error}"))
    }

    /// Runs statements at a URL of the server. Returns the rows, or the error.
    pub fn try_sql(&self, url: &str, statements: &str) -> Result<String, String> {
        let output = self.psql(url).args(["--command", statements]).output().expect("start psql");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// Locks tables in a transaction of a superuser, until the value is dropped. Waits until it has
    /// the locks.
    pub async fn lock_tables(&self, tables: &[String]) -> TableLocks {
        let lock = format!("LOCK TABLE {}", tables.join(", "));
        let mut psql = self.psql(&self.url());
        // Otherwise the server would sleep on after the end of psql.
        psql.env("PGAPPNAME", LOCKS)
            .args(["--command", "SET client_connection_check_interval = '100ms'"]);
        psql.args(["--command", "BEGIN", "--command", &lock]);
        psql.args(["--command", "SELECT pg_sleep(600)"]);
        psql.stdout(Stdio::null()).stderr(Stdio::null());
        let locks = TableLocks(psql.spawn().expect("start psql"));
        let sleeping = format!(
            "SELECT 1 FROM pg_stat_activity WHERE application_name = '{LOCKS}' \
             AND query LIKE '%pg_sleep%'"
        );
        eventually("the tables are locked", PATIENCE, async || self.sql(&sleeping) == "1").await;
        locks
    }

    fn psql(&self, url: &str) -> Command {
        let mut psql = Command::new(self.installation.program("psql"));
        psql.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align"]);
        psql.args(["--set", "ON_ERROR_STOP=1", "--dbname", url]).stdin(Stdio::null());
        psql
    }

    /// Kills all processes of the server (SIGKILL), as a crash would.
    pub fn kill(&self) {
        let Some(running) = self.running().take() else { return };
        let children = process_tree::stop(running.id());
        process_tree::kill(&children);
        running.kill();
        process_tree::wait_until_exited(&children);
        self.remove_shared_memory();
    }

    /// Restarts the server with its data on the same port, and waits until it answers.
    pub async fn restart(&self) {
        self.kill();
        assert!(self.run().await, "PostgreSQL does not start again:\n{}", self.log());
    }

    /// Stops all processes (SIGSTOP): connections stay open, and the server does not answer.
    pub fn pause(&self) {
        process_tree::stop(self.id());
    }

    /// Continues all processes (SIGCONT).
    pub fn resume(&self) {
        process_tree::resume(self.id());
    }

    /// Returns the PIDs of the server, including its backends.
    pub fn processes(&self) -> Vec<u32> {
        let children = process_tree::children(self.id()).into_iter().map(i32::cast_unsigned);
        [self.id()].into_iter().chain(children).collect()
    }

    /// Returns the server's log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    // Copies the data directory of a server that was never started. It takes a fifth of the time of `initdb`.
    // The servers of a test process share it, and its system identifier, as long as there is one.
    fn copy_template(&self) -> Arc<Self> {
        static TEMPLATE: Mutex<Weak<PostgresServer>> = Mutex::new(Weak::new());
        let mut known = TEMPLATE.lock().unwrap_or_else(PoisonError::into_inner);
        let template = known.upgrade().unwrap_or_else(|| {
            let server = Self::empty(self.installation.clone(), self.settings);
            server.init_data_dir();
            Arc::new(server)
        });
        *known = Arc::downgrade(&template);
        drop(known);
        let mut copy = Command::new("cp");
        copy.arg("-a").args([template.data(), self.data()]);
        assert!(copy.status().is_ok_and(|status| status.success()), "copy the data directory");
        template
    }

    // Creates the data directory with `initdb`.
    fn init_data_dir(&self) {
        let mut command = Command::new(self.installation.program("initdb"));
        command.args(["--username", "postgres", "--auth", "trust", "--encoding", "UTF8"]);
        command.args(["--locale", "C", "--no-sync", "--wal-segsize", "1", "--pgdata"]);
        command.arg(self.data()).stdin(Stdio::null());
        self.prepare(&mut command);
        let output = command.output().expect("start initdb");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "initdb: {}\n{stderr}", output.status);
    }

    // Starts the server. Returns false if it exits before it answers.
    async fn run(&self) -> bool {
        // The PID in a killed server's file may be reused by another process.
        let _ = fs::remove_file(self.pid_file());
        *self.running() = Some(self.spawn());
        let mut is_running = true;
        eventually("PostgreSQL answers", PATIENCE, async || {
            is_running =
                self.running().as_ref().is_some_and(|running| running.exit_status().is_none());
            let status = self.pid_file_line(8);
            !is_running || matches!(status.as_deref(), Some("ready" | "standby"))
        })
        .await;
        is_running
    }

    fn spawn(&self) -> ChildProcess {
        let settings = SETTINGS.iter().chain(self.settings);
        let settings = settings.flat_map(|&setting| ["-c".to_owned(), setting.to_owned()]);
        let own = ["-D".to_owned(), self.data().display().to_string()];
        let port = ["-p".to_owned(), self.port.to_string()];
        let args: Vec<String> = own.into_iter().chain(port).chain(settings).collect();
        let program = self.installation.program("postgres").display().to_string();
        // Unlike SIGKILL, SIGQUIT makes the server stop its children and release its shared memory.
        // In its own process group, a stopped server becomes orphaned when the test ends, and the
        // kernel continues it.
        ChildProcess::start_with(&program, &args, &self.log_file(), "QUIT", |command| {
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

    // Returns a line of `postmaster.pid`.
    fn pid_file_line(&self, line: usize) -> Option<String> {
        let text = fs::read_to_string(self.pid_file()).ok()?;
        Some(text.lines().nth(line - 1)?.trim().to_owned())
    }

    // A killed server leaves a System V shared memory segment, and the kernel limits their number.
    fn remove_shared_memory(&self) {
        let Some(id) =
            self.pid_file_line(7).and_then(|key| Some(key.split_whitespace().nth(1)?.to_owned()))
        else {
            return;
        };
        let mut command = Command::new("ipcrm");
        command.args(["-m", &id]).stdout(Stdio::null()).stderr(Stdio::null());
        // If `ipcrm` is missing, the next server on this directory removes the segment.
        let _ = command.status();
    }

    /// Returns the data directory.
    pub fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    fn pid_file(&self) -> PathBuf {
        self.data().join("postmaster.pid")
    }

    fn log_file(&self) -> PathBuf {
        self.directory.path().join("postgres.log")
    }

    fn id(&self) -> u32 {
        self.running().as_ref().expect("PostgreSQL is running").id()
    }

    fn running(&self) -> MutexGuard<'_, Option<ChildProcess>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.kill();
    }
}
