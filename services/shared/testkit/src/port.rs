//! Allocation of free ports.

use std::{
    collections::HashSet,
    fs::{self, File},
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    ops::{Range, RangeInclusive},
    sync::{LazyLock, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use nix::{
    fcntl::{FcntlArg, fcntl},
    libc,
    unistd::geteuid,
};
use socket2::{Domain, Socket, Type};

use crate::PATIENCE;

/// Between the usual ports of other services and the usual ephemeral ports of Linux.
const PORTS: Range<u16> = 10_000..32_700;
/// The ephemeral ports where the kernel does not say them.
const EPHEMERAL: RangeInclusive<u16> = 49_152..=65_535;
const ATTEMPTS: usize = 1000;

/// Returns a free port of 127.0.0.1: see [`free_ports`].
pub fn free_port() -> u16 {
    free_ports(1)
}

/// Returns the first of consecutive free ports of 127.0.0.1. They are locked until this process ends, so
/// that no other test or check chooses them: neither before their servers listen, nor while a server
/// is stopped. Each is returned only once.
///
/// # Panics
/// If there are none.
pub fn free_ports(count: u16) -> u16 {
    static LOCKS: LazyLock<Mutex<Locks>> = LazyLock::new(|| Mutex::new(Locks::open()));
    let mut locks = LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    let candidates = candidates(count);
    let chosen = std::iter::repeat_with(|| rand::random_range(candidates.clone()));
    let are_free = |&base: &u16| locks.take(base..base + count);
    chosen.take(ATTEMPTS).find(are_free).expect("no free ports on 127.0.0.1")
}

/// Returns the first ports of such rows below or above the ephemeral range, from which the kernel takes
/// the ports of outgoing connections; all of them if that range has all ports.
fn candidates(count: u16) -> Range<u16> {
    let ephemeral = ephemeral_ports().unwrap_or(EPHEMERAL);
    let below = PORTS.start..PORTS.end.min(ephemeral.start().saturating_sub(count));
    let above = PORTS.start.max(ephemeral.end().saturating_add(1))..PORTS.end;
    [below, above].into_iter().find(|ports| !ports.is_empty()).unwrap_or(PORTS)
}

fn ephemeral_ports() -> Option<RangeInclusive<u16>> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    let mut ports = text.split_whitespace().map(str::parse);
    Some(ports.next()?.ok()?..=ports.next()?.ok()?)
}

/// The ports of this process.
struct Locks {
    /// A lock on byte N is a lock on port N. Opened once: closing any descriptor of the file would
    /// release all locks of this process.
    file: File,
    taken: HashSet<u16>,
}

impl Locks {
    /// Opens the file. The checks in Python (deploy/checks/processes.py) lock theirs there too.
    fn open() -> Self {
        let path = format!("/tmp/microblog-ports-{}", geteuid());
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.unwrap_or_else(|error| panic!("{path}: {error}"));
        Self { file, taken: HashSet::new() }
    }

    /// Takes ports, unless one of them is taken or in use.
    fn take(&mut self, ports: Range<u16>) -> bool {
        let is_free = |port: u16| !self.taken.contains(&port) && can_bind(port).is_ok();
        let is_taken = ports.clone().all(is_free) && self.lock(&ports);
        if is_taken {
            self.taken.extend(ports);
        }
        is_taken
    }

    /// Locks ports. Returns false if another process has locked one of them.
    fn lock(&self, ports: &Range<u16>) -> bool {
        let lock = libc::flock {
            l_type: libc::F_WRLCK as _,
            l_whence: libc::SEEK_SET as _,
            l_start: ports.start.into(),
            l_len: ports.len() as _,
            l_pid: 0,
        };
        fcntl(&self.file, FcntlArg::F_SETLK(&lock)).is_ok()
    }
}

// Does not listen: a process that another thread starts has all sockets of this one until it executes
// its program, and a server could not use the port as long.
fn can_bind(port: u16) -> io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())
}

/// Listens at an address where a server has ended. A process that is being started may have its socket
/// for a moment.
pub fn listen_again(address: SocketAddr) -> TcpListener {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match TcpListener::bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(1));
            }
            bound => return bound.expect("a free address"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        env,
        io::{BufRead as _, BufReader},
        process::{Command, Stdio},
    };

    use super::*;

    /// Set in the other process of the test.
    const OTHER: &str = "MICROBLOG_TEST_OTHER_PORTS";
    /// Far fewer than there are, and enough that two processes would choose a port twice.
    const COUNT: usize = 500;
    const ROW: u16 = 10;

    #[test]
    fn another_process_chooses_other_ports() {
        let ports: Vec<u16> = std::iter::repeat_with(free_port).take(COUNT).collect();
        if env::var_os(OTHER).is_some() {
            println!("\nports {ports:?}");
            // Until this process is to end.
            io::stdin().read_line(&mut String::new()).unwrap();
            return;
        }
        let test = "port::tests::another_process_chooses_other_ports";
        let mut other = Command::new(env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(OTHER, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(other.stdout.take().unwrap()).lines().map(Result::unwrap);
        let theirs = lines.find_map(|line| line.strip_prefix("ports ").map(str::to_owned)).unwrap();
        let theirs: HashSet<u16> =
            theirs.trim_matches(['[', ']']).split(", ").map(|port| port.parse().unwrap()).collect();
        let rows = std::iter::repeat_with(|| free_ports(ROW)).take(COUNT / usize::from(ROW));
        let rows: Vec<u16> = rows.flat_map(|base| base..base + ROW).collect();
        drop(other.stdin.take());
        assert!(other.wait().unwrap().success());

        let ours: HashSet<u16> = ports.into_iter().chain(rows).collect();
        assert_eq!((theirs.len(), ours.len()), (COUNT, 2 * COUNT), "a process chose a port twice");
        let both: Vec<_> = ours.intersection(&theirs).collect();
        assert!(both.is_empty(), "two processes chose {both:?}");
    }
}
