//! A program with secrets in its environment, and its outputs.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read as _, Seek as _, SeekFrom, Write as _},
    net::TcpStream,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::LazyLock,
    time::Duration,
};

use microblog_testkit::{eventually, free_port};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;
use tonic::transport::Endpoint;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

const START: Duration = Duration::from_secs(60);
const STOP: Duration = Duration::from_secs(60);

/// The environment variables of a program.
pub(crate) type Variables = Vec<(String, String)>;

/// A running server. Dropping it kills it.
pub(crate) struct Server {
    pub(crate) name: String,
    child: Child,
    port: u16,
    metrics_port: u16,
    directory: TempDir,
}

impl Server {
    /// Starts a server on free ports, without waiting.
    pub(crate) fn spawn(service: &str, variables: &[(String, String)]) -> Self {
        Self::spawn_on(free_port(), service, variables)
    }

    /// Starts a server, without waiting.
    pub(crate) fn spawn_on(port: u16, service: &str, variables: &[(String, String)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let log = File::create(directory.path().join("log")).unwrap();
        let metrics_port = free_port();
        let mut command = bound(&program(&format!("microblog-{service}")));
        let child = command
            .args(["--threads=1", &format!("--listen=127.0.0.1:{port}")])
            .arg(format!("--metrics-listen=127.0.0.1:{metrics_port}"))
            .envs(variables.iter().cloned())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { name: service.to_owned(), child, port, metrics_port, directory }
    }

    /// Waits until the server is SERVING.
    pub(crate) async fn serving(&mut self) {
        let url = format!("http://127.0.0.1:{}", self.port);
        eventually(&format!("{} serves", self.name), START, async || {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "{} ended: {}", self.name, self.last_words());
            is_serving(&url).await
        })
        .await;
    }

    /// Waits until the server reports that it is not serving.
    pub(crate) async fn not_serving(&self) {
        let url = format!("http://127.0.0.1:{}", self.port);
        let what = format!("{} does not serve", self.name);
        eventually(&what, START, async || !is_serving(&url).await).await;
    }

    /// Waits until the log contains a text, which may be its last line.
    pub(crate) async fn wait_for_log(&mut self, text: &str) {
        let mut log = File::open(self.directory.path().join("log")).unwrap();
        let (mut searched, mut has_ended) = (0, false);
        eventually(&format!("{} logs `{text}`", self.name), START, async || {
            // The log is long: search only what is new.
            let mut added = Vec::new();
            log.seek(SeekFrom::Start(searched)).unwrap();
            log.read_to_end(&mut added).unwrap();
            searched += added.len().saturating_sub(text.len()) as u64;
            let is_logged = String::from_utf8_lossy(&added).contains(text);
            let last = || self.last_words();
            assert!(is_logged || !has_ended, "{} ended without `{text}`: {}", self.name, last());
            has_ended = self.child.try_wait().unwrap().is_some();
            is_logged
        })
        .await;
    }

    /// Sends SIGTERM, and waits for the exit.
    pub(crate) async fn stop(&mut self) -> ExitStatus {
        // A server that cannot start may have exited already.
        if self.child.try_wait().unwrap().is_none() {
            kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM).unwrap();
        }
        let mut status = None;
        eventually(&format!("{} ends", self.name), STOP, async || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        })
        .await;
        status.unwrap()
    }

    /// Returns the log.
    pub(crate) fn output(&self) -> String {
        let bytes = fs::read(self.directory.path().join("log")).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the end of the log, which is long.
    pub(crate) fn last_words(&self) -> String {
        const LINES: usize = 20;
        let output = self.output();
        let lines: Vec<&str> = output.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }

    pub(crate) fn assert_no_panic(&self) {
        let output = self.output();
        let panic = output.lines().find(|line| line.contains("panic"));
        assert!(panic.is_none(), "{}: {panic:?}", self.name);
    }

    /// Returns the command line, which is public on the machine.
    pub(crate) fn command_line(&self) -> String {
        let bytes = fs::read(format!("/proc/{}/cmdline", self.child.id())).unwrap();
        String::from_utf8_lossy(&bytes).replace('\0', " ")
    }

    /// Returns the metrics page.
    pub(crate) fn metrics(&self) -> String {
        scrape(self.metrics_port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a program of the workspace, in the directory of `microblog`.
pub(crate) fn program(name: &str) -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_microblog")).with_file_name(name);
    assert!(
        program.is_file(),
        "{} not found: run `cargo build --workspace --bins`",
        program.display()
    );
    program
}

/// Writes a file that only its owner may read, and returns its path.
pub(crate) fn private_file(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Returns the metrics page on a port.
pub(crate) fn scrape(port: u16) -> String {
    let mut connection = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let request = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    connection.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    answer
}

/// Returns a command for a program that the kernel kills when the thread that started it ends, and
/// so with the test.
fn bound(program: &Path) -> Command {
    static BINDS: LazyLock<bool> = LazyLock::new(|| {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "true"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    });
    if !*BINDS {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

async fn is_serving(url: &str) -> bool {
    let channel = Endpoint::from_shared(url.to_owned()).unwrap().connect_lazy();
    let answer = HealthClient::new(channel).check(HealthCheckRequest::default()).await;
    answer.is_ok_and(|answer| answer.get_ref().status() == ServingStatus::Serving)
}
