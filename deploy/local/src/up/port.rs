//! The ports of 127.0.0.1 that the launcher's servers listen on, which must be free before anything is
//! started. Knows who holds a port, where the system tells (Linux's `/proc`).
//!
//! After a kill, a port is held for some time by what is left of the run before: by a process that the
//! system is still taking apart, whose command line is empty by then, so that nobody can tell whose it
//! is; or by an outgoing connection that had the port as its own, which is closed but not forgotten.

use std::{
    fmt, fs,
    io::{self, ErrorKind},
    net::{Ipv4Addr, TcpListener},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::bail;

/// For how long a process that holds a port may go on. One that is ending takes less; one that is not
/// is a mistake, which is to be told soon.
const PROCESS_MAX: Duration = Duration::from_secs(20);
/// For how long a closed connection may hold a port: Linux forgets it after 60 s.
const CLOSED_MAX: Duration = Duration::from_secs(75);
const POLL: Duration = Duration::from_millis(100);

/// The state of a listening socket in `/proc/net/tcp`.
const LISTENING: &str = "0A";
/// The inode of what no process has open any more.
const NOBODYS: u64 = 0;

/// Who holds a port.
#[derive(Debug, PartialEq, Eq)]
enum Holder {
    /// A process of ours, by its id and command line. That is empty where the process is ending.
    Process(u32, String),
    /// A connection that no process has open any more (TIME-WAIT, and what comes before).
    Closed,
    /// A process of another user, or one that is ending, or the system does not say.
    Unknown,
}

impl Holder {
    fn of(port: u16) -> Self {
        let mut sockets: Vec<_> = ["/proc/net/tcp", "/proc/net/tcp6"]
            .into_iter()
            .flat_map(|f| sockets(f, port))
            .collect();
        // Whoever listens comes before connections, and those before what is left of them.
        sockets.sort_by_key(|socket| (!socket.listens, socket.inode == NOBODYS));
        match sockets.first() {
            Some(socket) if socket.inode == NOBODYS => Self::Closed,
            Some(socket) => process_with(socket.inode).unwrap_or(Self::Unknown),
            None => Self::Unknown,
        }
    }

    fn patience(&self) -> Duration {
        match self {
            Self::Closed => CLOSED_MAX,
            Self::Process(..) | Self::Unknown => PROCESS_MAX,
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(pid, command) if command.is_empty() => {
                write!(f, "process {pid}, which is ending")
            }
            Self::Process(pid, command) => write!(f, "process {pid} ({command})"),
            Self::Closed => f.write_str("a connection that was closed less than a minute ago"),
            Self::Unknown => f.write_str("another process, or one that is ending"),
        }
    }
}

/// Waits until nobody holds a port, and says for whom it waits. Fails, and says who holds it, where
/// that takes too long.
pub(super) fn wait_until_free(port: u16) -> anyhow::Result<()> {
    let begun = Instant::now();
    let mut said = false;
    loop {
        let Err(error) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) else { return Ok(()) };
        let refused = format!("cannot listen on 127.0.0.1:{port} ({error})");
        if error.kind() != ErrorKind::AddrInUse {
            bail!("{refused}: choose other ports with --port-base");
        }
        let holder = Holder::of(port);
        let patience = holder.patience();
        if begun.elapsed() >= patience {
            bail!("{refused}: held by {holder}. Choose other ports with --port-base");
        }
        if !said {
            println!("waiting up to {patience:?} for port {port}, which is held by {holder}");
            said = true;
        }
        thread::sleep(POLL);
    }
}

/// A socket as the system lists it.
struct Socket {
    listens: bool,
    inode: u64,
}

/// Returns the sockets of one of the system's lists that keep others from listening on a port of
/// 127.0.0.1. None where there is no such list.
fn sockets(list: &str, port: u16) -> Vec<Socket> {
    let list = fs::read_to_string(list).unwrap_or_default();
    list.lines().skip(1).filter_map(|line| socket(line, port)).collect()
}

/// Reads a line such as
/// `0: 0100007F:C383 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 12345 …`: the local
/// address comes second, the state fourth, the inode tenth.
fn socket(line: &str, port: u16) -> Option<Socket> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (address, own_port) = fields.get(1)?.split_once(':')?;
    // 127.0.0.1 ends a mapped address of IPv6 as well; an address of zeros is any.
    let counts = address.ends_with("0100007F") || address.bytes().all(|digit| digit == b'0');
    if !counts || u16::from_str_radix(own_port, 16).ok()? != port {
        return None;
    }
    Some(Socket { listens: *fields.get(3)? == LISTENING, inode: fields.get(9)?.parse().ok()? })
}

/// Returns the process that has a socket open, if it is one whose files we may look at.
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
    fn who_listens_is_told_with_its_process() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let Holder::Process(pid, command) = Holder::of(listener.local_addr().unwrap().port())
        else {
            panic!("it is this process")
        };
        assert_eq!(pid, std::process::id());
        assert!(!command.is_empty());
    }

    #[test]
    fn a_closed_connection_holds_the_port_that_it_came_from() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let port = caller.local_addr().unwrap().port();
        assert!(matches!(Holder::of(port), Holder::Process(pid, _) if pid == std::process::id()));
        // Whoever closes first keeps the port.
        let (accepted, _) = listener.accept().unwrap();
        drop(caller);
        drop(accepted);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let refused = TcpListener::bind(address).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AddrInUse);
        assert_eq!(Holder::of(port), Holder::Closed);
    }
}
