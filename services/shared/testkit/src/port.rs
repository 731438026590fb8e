//! Allocation of free ports.

use std::{
    collections::HashSet,
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::{LazyLock, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use socket2::{Domain, Socket, Type};

use crate::PATIENCE;

// Below the ephemeral port range of Linux (32768 up), so that no outgoing connection takes the port
// of a server while it restarts. Above the ports that the launcher chooses.
const PORTS: std::ops::Range<u16> = 16_000..32_000;

/// Returns a free port of 127.0.0.1. It returns each port only once per process.
pub fn free_port() -> u16 {
    static USED: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);
    let mut used = USED.lock().unwrap_or_else(PoisonError::into_inner);
    let is_free = |port: &u16| used.insert(*port) && can_bind(*port).is_ok();
    let random = std::iter::repeat_with(|| rand::random_range(PORTS));
    random.take(1000).find(is_free).expect("no free port on 127.0.0.1")
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
