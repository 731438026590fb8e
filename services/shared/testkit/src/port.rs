//! Allocation of free ports.

use std::{
    collections::HashSet,
    net::TcpListener,
    sync::{LazyLock, Mutex, PoisonError},
};

// Below the ephemeral port range of Linux (32768 up), so that no outgoing connection takes the port
// of a server while it restarts. Above the ports that the launcher chooses.
const PORTS: std::ops::Range<u16> = 16_000..32_000;

/// Returns a free port of 127.0.0.1. It returns each port only once per process.
pub fn free_port() -> u16 {
    static USED: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);
    let mut used = USED.lock().unwrap_or_else(PoisonError::into_inner);
    let is_free =
        |port: &u16| used.insert(*port) && TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let random = std::iter::repeat_with(|| rand::random_range(PORTS));
    random.take(1000).find(is_free).expect("no free port on 127.0.0.1")
}
