//! Waits for the ports of 127.0.0.1 on which the servers listen, before anything is started. On
//! Linux it finds the process that holds a port in `/proc`.
//!
//! After a kill, a port may stay in use for some time: by an exiting process, whose command line is
//! already empty, or by an outgoing connection in TIME-WAIT that used it as its ephemeral port.

use std::{
    fmt, fs,
    io::{self, ErrorKind},
    net::{Ipv4Addr, TcpListener},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::bail;

/// How long to wait for a process. An exiting process takes less; another process is an error,
/// which is reported early.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(20);
/// How long to wait for a closed connection. TIME-WAIT takes 60 s on Linux.
const TIME_WAIT_TIMEOUT: Duration = Duration::from_secs(75);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The state of a listening socket in `/proc/net/tcp`.
const LISTENING: &str = "0A";
/// The inode of a socket that no process has open.
const NO_INODE: u64 = 0;

/// The holder of a port.
#[derive(Debug, PartialEq, Eq)]
enum Holder {
    /// A process that we may inspect: its PID and command line. The command line of an exiting
    /// process is empty.
    Process(u32, String),
    /// A connection that no process has open (TIME-WAIT and the states before it).
    TimeWait,
    /// A process of another user, an exiting process, or unknown.
    Unknown,
}

impl Holder {
    fn of(port: u16) -> Self {
        let mut sockets: Vec<_> = ["/proc/net/tcp", "/proc/net/tcp6"]
            .into_iter()
            .flat_map(|f| sockets(f, port))
            .collect();
        // Listening sockets first, then connections, then closed connections.
        sockets.sort_by_key(|socket| (!socket.listens, socket.inode == NO_INODE));
        match sockets.first() {
            Some(socket) if socket.inode == NO_INODE => Self::TimeWait,
            Some(socket) => process_with(socket.inode).unwrap_or(Self::Unknown),
            None => Self::Unknown,
        }
    }

    fn timeout(&self) -> Duration {
        match self {
            Self::TimeWait => TIME_WAIT_TIMEOUT,
            Self::Process(..) | Self::Unknown => PROCESS_TIMEOUT,
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(pid, command) if command.is_empty() => {
                write!(f, "process {pid}, which is exiting")
            }
            Self::Process(pid, command) => write!(f, "process {pid} ({command})"),
            Self::TimeWait => f.write_str("a connection that was closed less than a minute ago"),
            Self::Unknown => f.write_str("an unknown or exiting process"),
        }
    }
}

/// Waits until a port is free, and prints the holder. Fails with the holder after a timeout.
pub(super) fn wait_until_free(port: u16) -> anyhow::Result<()> {
    let begun = Instant::now();
    let mut is_logged = false;
    loop {
        let Err(error) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) else { return Ok(()) };
        let problem = format!("cannot listen on 127.0.0.1:{port} ({error})");
        if error.kind() != ErrorKind::AddrInUse {
            bail!("{problem}: choose other ports with --port-base");
        }
        let holder = Holder::of(port);
        let timeout = holder.timeout();
        if begun.elapsed() >= timeout {
            bail!("{problem}: held by {holder}. Choose other ports with --port-base");
        }
        if !is_logged {
            println!("waiting up to {timeout:?} for port {port}, held by {holder}");
            is_logged = true;
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// A socket in `/proc/net/tcp` or `/proc/net/tcp6`.
struct Socket {
    listens: bool,
    inode: u64,
}

/// Returns the sockets of a list that prevent listening on a port of 127.0.0.1. Empty if the list
/// does not exist.
fn sockets(list: &str, port: u16) -> Vec<Socket> {
    let list = fs::read_to_string(list).unwrap_or_default();
    list.lines().skip(1).filter_map(|line| socket(line, port)).collect()
}

/// Parses a line such as `0: 0100007F:C383 00000000:0000 0A 00000000:00000000 00:00000000 00000000
/// 0 0 12345 …`: the local address is the second field, the state the fourth, the inode the tenth.
fn socket(line: &str, port: u16) -> Option<Socket> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (address, own_port) = fields.get(1)?.split_once(':')?;
    // 127.0.0.1 is also the end of an IPv4-mapped IPv6 address; zeros are the wildcard address.
    let counts = address.ends_with("0100007F") || address.bytes().all(|digit| digit == b'0');
    if !counts || u16::from_str_radix(own_port, 16).ok()? != port {
        return None;
    }
    Some(Socket { listens: *fields.get(3)? == LISTENING, inode: fields.get(9)?.parse().ok()? })
}

/// Returns the process that has a socket open, if we may inspect it.
fn process_with(inode: u64) -> Option<Holder> {
    let wanted = format!("socket:[{inode}]");
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let has = has_open(&entry.path().join("fd"), &wanted).unwrap_or(false);
        has.then(|| Holder::Process(pid, command_line(&entry.path())))
    })
}

fn has_open(files: &Path, wanted: &str) -> io::Result<bool> {
    let mut links =
        fs::read_dir(files)?.flatten().filter_map(|file| fs::read_link(file.path()).ok());
    Ok(links.any(|link| link.as_os_str() == wanted))
}

fn command_line(process: &Path) -> String {
    let arguments = fs::read(process.join("cmdline")).unwrap_or_default();
    let words: Vec<_> = arguments.split(|&byte| byte == 0).map(String::from_utf8_lossy).collect();
    words.join(" ").trim().chars().filter(|c| !c.is_control()).collect()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::net::{SocketAddr, TcpStream};

    use super::*;

    #[test]
    fn a_listening_process_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let Holder::Process(pid, command) = Holder::of(listener.local_addr().unwrap().port())
        else {
            panic!("it is this process")
        };
        assert_eq!(pid, std::process::id());
        assert!(!command.is_empty());
    }

    #[test]
    fn a_connection_in_time_wait_holds_its_local_port() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let port = caller.local_addr().unwrap().port();
        assert!(matches!(Holder::of(port), Holder::Process(pid, _) if pid == std::process::id()));
        // TIME-WAIT is on the side that closes first.
        let (accepted, _) = listener.accept().unwrap();
        drop(caller);
        drop(accepted);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let problem = TcpListener::bind(address).unwrap_err();
        assert_eq!(problem.kind(), ErrorKind::AddrInUse);
        assert_eq!(Holder::of(port), Holder::TimeWait);
    }
}
