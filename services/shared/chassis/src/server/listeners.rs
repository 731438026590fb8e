//! Listeners of several workers on one port (SO_REUSEPORT). The kernel assigns each connection to
//! one of them.

use std::{
    collections::HashMap,
    io,
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex, PoisonError},
};

use socket2::{Domain, Protocol, Socket, Type};

use super::connection_balancer::ConnectionBalancer;

// Backlog of connections that the kernel has accepted for a busy worker.
const BACKLOG: i32 = 1024;

/// Why a port cannot be bound.
#[derive(Debug, thiserror::Error)]
pub(super) enum ListenError {
    #[error(
        "cannot listen on {0}: another process (or another instance of this one) listens there"
    )]
    InUse(SocketAddr),
    #[error("cannot listen on {0}")]
    Refused(SocketAddr, #[source] io::Error),
}

/// A worker's listener on a port.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) socket: TcpListener,
    /// Shared by all workers on the port.
    pub(super) balancer: Arc<ConnectionBalancer>,
}

impl From<TcpListener> for Listener {
    /// Returns the only listener of its port.
    fn from(socket: TcpListener) -> Self {
        Self { socket, balancer: Arc::new(ConnectionBalancer::new(1)) }
    }
}

/// The listeners of a process.
#[derive(Debug)]
pub(super) struct Listeners {
    /// Listeners per port.
    workers: usize,
    // By the listener's index in its worker: several may ask for port 0.
    bound: Mutex<HashMap<usize, (SocketAddr, Arc<ConnectionBalancer>)>>,
}

impl Listeners {
    /// Returns an empty set for a number of workers.
    pub(super) fn of(workers: usize) -> Self {
        Self { workers, bound: Mutex::default() }
    }

    /// Binds to the port of the other workers. The first one binds it exclusively before:
    /// SO_REUSEPORT alone would let two processes share it unnoticed.
    pub(super) fn listen(
        &self,
        index: usize,
        address: SocketAddr,
    ) -> Result<Listener, ListenError> {
        let mut bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        let describe = |error: io::Error| match error.kind() {
            io::ErrorKind::AddrInUse => ListenError::InUse(address),
            _ => ListenError::Refused(address, error),
        };
        if let Some((shared, balancer)) = bound.get(&index) {
            let socket = bind(*shared, true).and_then(listen).map_err(describe)?;
            return Ok(Listener { socket, balancer: balancer.clone() });
        }
        // Closed at once. Two processes may still race between this bind and the next.
        drop(bind(address, false).map_err(describe)?);
        let socket = bind(address, true).and_then(listen).map_err(describe)?;
        let shared = socket.local_addr().map_err(describe)?;
        let balancer = Arc::new(ConnectionBalancer::new(self.workers));
        bound.insert(index, (shared, balancer.clone()));
        Ok(Listener { socket, balancer })
    }
}

fn bind(address: SocketAddr, shared: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // SO_REUSEADDR: a restart must not wait for sockets of the previous process in TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn listen(socket: Socket) -> io::Result<TcpListener> {
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    #[test]
    fn workers_share_a_port_and_services_do_not() {
        let ports = Listeners::of(2);
        let first = ports.listen(0, any()).unwrap();
        let second = ports.listen(0, any()).unwrap();
        let other = ports.listen(1, any()).unwrap();
        assert_eq!(first.socket.local_addr().unwrap(), second.socket.local_addr().unwrap());
        assert_ne!(first.socket.local_addr().unwrap(), other.socket.local_addr().unwrap());
    }

    #[test]
    fn port_in_use_by_another_instance_is_reported() {
        let first = Listeners::of(1).listen(0, any()).unwrap();
        let address = first.socket.local_addr().unwrap();
        let error = Listeners::of(1).listen(0, address).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "cannot listen on {address}: another process (or another instance of this one) \
                 listens there"
            )
        );
    }
}
