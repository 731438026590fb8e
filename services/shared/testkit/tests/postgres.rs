//! The kit's PostgreSQL servers answer, survive a crash, can be frozen, and leave nothing behind.

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

const SOON: Duration = Duration::from_secs(60);
const A_WHILE: Duration = Duration::from_millis(300);

/// A connection that sends statements and returns what comes back, as PostgreSQL writes it.
struct Connection(TcpStream);

impl Connection {
    fn open(server: &PostgresServer) -> io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", server.port()))?;
        stream.set_read_timeout(Some(SOON))?;
        let mut connection = Self(stream);
        // Version 3.0 of the protocol.
        let about = b"\0\x03\0\0user\0postgres\0database\0postgres\0\0";
        connection.send(about)?;
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

    /// Reads messages until the server is ready for the next statement.
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

fn is_there(process: u32) -> bool {
    // Where nobody waits for orphans, they stay in the table as zombies.
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    kill(Pid::from_raw(process.cast_signed()), None) != Err(Errno::ESRCH) && !stat.contains(") Z ")
}

#[tokio::test]
async fn a_server_answers_and_keeps_its_data_over_a_crash() {
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
    // Once more, without anything in between.
    server.restart().await;
    assert!(Connection::open(&server).unwrap().run("SELECT b FROM a").unwrap().contains("kept"));
}

#[tokio::test]
async fn a_frozen_server_does_not_answer_until_it_is_woken() {
    let server = PostgresServer::start().await;
    let mut connection = Connection::open(&server).unwrap();
    server.pause();
    connection.0.set_read_timeout(Some(A_WHILE)).unwrap();
    let error = connection.run("SELECT 'awake'").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    server.resume();
    connection.0.set_read_timeout(Some(SOON)).unwrap();
    assert!(connection.answer().unwrap().contains("awake"));
}

#[tokio::test]
async fn a_dropped_server_leaves_nothing_behind() {
    for is_frozen in [false, true] {
        let server = PostgresServer::start().await;
        let _connection = Connection::open(&server).unwrap();
        let processes = server.processes();
        // Itself, the connection's, and what writes in the background.
        assert!(processes.len() > 3 && processes.iter().all(|&process| is_there(process)));
        if is_frozen {
            server.pause();
        }
        drop(server);
        assert!(!processes.iter().any(|&process| is_there(process)));
    }
}

// The name of the file in which the test below finds the processes of a test to kill.
const FILE: &str = "MICROBLOG_TESTKIT_PROCESSES_FILE";
const FROZEN: &str = "MICROBLOG_TESTKIT_FROZEN";

#[tokio::test]
async fn a_server_dies_with_a_test_that_is_killed() {
    if let Ok(file) = std::env::var(FILE) {
        let server = PostgresServer::start().await;
        let _connection = Connection::open(&server).unwrap();
        let processes: Vec<_> = server.processes().iter().map(u32::to_string).collect();
        if std::env::var(FROZEN).is_ok() {
            server.pause();
        }
        fs::write(format!("{file}.new"), processes.join(" ")).unwrap();
        fs::rename(format!("{file}.new"), file).unwrap();
        std::future::pending::<()>().await;
    }
    tokio::join!(kill_test(&[]), kill_test(&[(FROZEN, "1")]));
}

async fn kill_test(variables: &[(&str, &str)]) {
    let directory = tempfile::tempdir().unwrap();
    // PostgreSQL may run as another user, who must come through.
    open_to_all(directory.path());
    let file = directory.path().join("processes");
    let mut test = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_server_dies_with_a_test_that_is_killed"])
        .env(FILE, &file)
        .envs(variables.iter().copied())
        // The killed test cannot remove its directories: they go with this one.
        .env("TMPDIR", directory.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    eventually("the other test has a server", SOON, async || file.exists()).await;
    let processes = fs::read_to_string(&file).unwrap();
    let processes: Vec<u32> = processes.split(' ').map(|id| id.parse().unwrap()).collect();
    assert!(processes.iter().all(|&process| is_there(process)));
    test.kill().unwrap();
    test.wait().unwrap();
    eventually("its server is gone", SOON, async || {
        !processes.iter().any(|&process| is_there(process))
    })
    .await;
}

fn open_to_all(directory: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o711)).unwrap();
}
