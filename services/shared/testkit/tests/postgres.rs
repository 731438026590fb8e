//! `PostgresServer` answers, survives a crash, can be stopped and continued, and leaves no
//! processes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use microblog_testkit::{PostgresServer, eventually};
use nix::{errno::Errno, sys::signal::kill, unistd::Pid};

const TIMEOUT: Duration = Duration::from_secs(60);
const READ_TIMEOUT: Duration = Duration::from_millis(300);

/// A minimal client of PostgreSQL's simple query protocol.
struct Connection(TcpStream);

impl Connection {
    fn open(server: &PostgresServer) -> io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", server.port()))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let mut connection = Self(stream);
        // Protocol version 3.0.
        let startup_message = b"\0\x03\0\0user\0postgres\0database\0postgres\0\0";
        connection.send(startup_message)?;
        connection.answer()?;
        Ok(connection)
    }

    fn run(&mut self, statement: &str) -> io::Result<String> {
        self.0.write_all(b"Q")?;
        self.send(format!("{statement}\0").as_bytes())?;
        self.answer()
    }

    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let length = u32::try_from(message.len() + 4).unwrap();
        self.0.write_all(&length.to_be_bytes())?;
        self.0.write_all(message)
    }

    /// Reads messages until ReadyForQuery.
    fn answer(&mut self) -> io::Result<String> {
        let mut answer = String::new();
        loop {
            let mut head = [0; 5];
            self.0.read_exact(&mut head)?;
            let length = u32::from_be_bytes(head[1..].try_into().unwrap());
            let mut message = vec![0; length as usize - 4];
            self.0.read_exact(&mut message)?;
            match head[0] {
                b'Z' => return Ok(answer),
                b'E' => return Err(io::Error::other(String::from_utf8_lossy(&message))),
                _ => answer.push_str(&String::from_utf8_lossy(&message)),
            }
        }
    }
}

fn is_running(process: u32) -> bool {
    // Without an init process that reaps orphans, they stay as zombies.
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    kill(Pid::from_raw(process.cast_signed()), None) != Err(Errno::ESRCH) && !stat.contains(") Z ")
}

#[tokio::test]
async fn data_survives_kill_and_restart() {
    let server = PostgresServer::start().await;
    assert!(server.url().ends_with(&format!("@127.0.0.1:{}/postgres", server.port())));
    let mut connection = Connection::open(&server).unwrap();
    let coding = "SELECT pg_encoding_to_char(encoding) || ' ' || datcollate FROM pg_database";
    assert!(connection.run(coding).unwrap().contains("UTF8 C"));
    connection.run("CREATE TABLE a (b text); INSERT INTO a VALUES ('kept')").unwrap();
    server.kill();
    assert!(connection.run("SELECT 1").is_err());
    assert!(Connection::open(&server).is_err());
    server.restart().await;
    let mut connection = Connection::open(&server).unwrap();
    assert!(connection.run("SELECT b FROM a").unwrap().contains("kept"));
    // Restart again without a query in between.
    server.restart().await;
    assert!(Connection::open(&server).unwrap().run("SELECT b FROM a").unwrap().contains("kept"));
}

#[tokio::test]
async fn a_paused_server_answers_only_after_resume() {
    let server = PostgresServer::start().await;
    let mut connection = Connection::open(&server).unwrap();
    server.pause();
    connection.0.set_read_timeout(Some(READ_TIMEOUT)).unwrap();
    let error = connection.run("SELECT 'resumed'").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    server.resume();
    connection.0.set_read_timeout(Some(TIMEOUT)).unwrap();
    assert!(connection.answer().unwrap().contains("resumed"));
}

#[tokio::test]
async fn drop_kills_all_processes_of_the_server() {
    for is_paused in [false, true] {
        let server = PostgresServer::start().await;
        let _connection = Connection::open(&server).unwrap();
        let processes = server.processes();
        // The postmaster, the connection's backend, and background processes.
        assert!(processes.len() > 3 && processes.iter().all(|&process| is_running(process)));
        if is_paused {
            server.pause();
        }
        drop(server);
        assert!(!processes.iter().any(|&process| is_running(process)));
    }
}

// The environment variable with the path to which the killed test writes its server's PIDs.
const PID_FILE: &str = "MICROBLOG_TESTKIT_PROCESSES_FILE";
const PAUSED: &str = "MICROBLOG_TESTKIT_PAUSED";

#[tokio::test]
async fn server_exits_when_the_test_process_is_killed() {
    if let Ok(file) = std::env::var(PID_FILE) {
        let server = PostgresServer::start().await;
        let _connection = Connection::open(&server).unwrap();
        let processes: Vec<_> = server.processes().iter().map(u32::to_string).collect();
        if std::env::var(PAUSED).is_ok() {
            server.pause();
        }
        fs::write(format!("{file}.new"), processes.join(" ")).unwrap();
        fs::rename(format!("{file}.new"), file).unwrap();
        std::future::pending::<()>().await;
    }
    tokio::join!(kill_test(&[]), kill_test(&[(PAUSED, "1")]));
}

async fn kill_test(variables: &[(&str, &str)]) {
    let directory = tempfile::tempdir().unwrap();
    // PostgreSQL may run as another user, which needs access.
    allow_traversal(directory.path());
    let file = directory.path().join("processes");
    let mut test = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "server_exits_when_the_test_process_is_killed"])
        .env(PID_FILE, &file)
        .envs(variables.iter().copied())
        // The killed test cannot delete its directories, so they are inside this one.
        .env("TMPDIR", directory.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    eventually("the other test starts a server", TIMEOUT, async || file.exists()).await;
    let processes = fs::read_to_string(&file).unwrap();
    let processes: Vec<u32> = processes.split(' ').map(|id| id.parse().unwrap()).collect();
    assert!(processes.iter().all(|&process| is_running(process)));
    test.kill().unwrap();
    test.wait().unwrap();
    eventually("the server has exited", TIMEOUT, async || {
        !processes.iter().any(|&process| is_running(process))
    })
    .await;
}

fn allow_traversal(directory: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o711)).unwrap();
}
