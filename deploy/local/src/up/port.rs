//! Waits for the ports of 127.0.0.1 on which the servers listen, before anything is started.
//!
//! After a kill, a port may stay in use for some time: by an exiting process, or by an outgoing
//! connection in TIME-WAIT that used it as its ephemeral port.

use std::{
    io::ErrorKind,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::bail;

/// How long to wait for a process. An exiting process takes less; another process is an error,
/// which is reported early.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(20);
/// How long to wait for a closed connection. TIME-WAIT takes 60 s on Linux.
const TIME_WAIT_TIMEOUT: Duration = Duration::from_secs(75);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Waits until a port is free, and prints the holder. Fails with the holder after a timeout.
pub(super) fn wait_until_free(port: u16) -> anyhow::Result<()> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let begun = Instant::now();
    let mut found = None;
    loop {
        let Err(error) = TcpListener::bind(address) else { return Ok(()) };
        let problem = format!("cannot listen on {address} ({error})");
        if error.kind() != ErrorKind::AddrInUse {
            bail!("{problem}: choose other ports with --port-base");
        }
        // Once: each attempt may itself leave a connection in TIME-WAIT on one of the next ports.
        let (holder, timeout) = *found.get_or_insert_with(|| {
            let (holder, timeout) = holder(&address);
            println!("waiting up to {timeout:?} for port {port}, held by {holder}");
            (holder, timeout)
        });
        if begun.elapsed() >= timeout {
            bail!(
                "{problem}: held by {holder} (`ss -tanp sport = :{port}` shows it). \
                 Choose other ports with --port-base"
            );
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Returns the holder of an address, and how long to wait for it.
fn holder(address: &SocketAddr) -> (&'static str, Duration) {
    match TcpStream::connect_timeout(address, CONNECT_TIMEOUT) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            ("a connection that is open or was closed less than a minute ago", TIME_WAIT_TIMEOUT)
        }
        // If the process accepts none and its queue is full, the connection times out.
        _ => ("a process that listens", PROCESS_TIMEOUT),
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_connection_in_time_wait_holds_its_local_port() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(holder(&listener.local_addr().unwrap()).1, PROCESS_TIMEOUT);
        let caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let address = caller.local_addr().unwrap();
        // TIME-WAIT is on the side that closes first.
        let (accepted, _) = listener.accept().unwrap();
        drop(caller);
        drop(accepted);
        let problem = TcpListener::bind(address).unwrap_err();
        assert_eq!(problem.kind(), ErrorKind::AddrInUse);
        assert_eq!(holder(&address).1, TIME_WAIT_TIMEOUT);
    }
}
