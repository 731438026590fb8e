//! Free ports.

use std::{
    collections::HashSet,
    net::TcpListener,
    sync::{LazyLock, Mutex, PoisonError},
};

// Below the range from which the kernel takes the ports of outgoing connections (32768 up), so that
// none of those takes a server's port while the server restarts.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// Returns a port of 127.0.0.1 that nobody listens on now, and each one only once.
pub fn free_port() -> u16 {
    static GIVEN: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let is_free =
        |port: &u16| given.insert(*port) && TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let random = std::iter::repeat_with(|| rand::random_range(PORTS));
    random.take(1000).find(is_free).expect("no free port on 127.0.0.1")
}
