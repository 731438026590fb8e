//! An address that moves from one server to another, as that of a service does in a switchover.

use std::sync::{Arc, Mutex};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};

/// A TCP proxy on a free port of 127.0.0.1. New connections go to the present server; those that there are
/// stay.
pub struct Proxy {
    port: u16,
    server: Arc<Mutex<u16>>,
}

impl Proxy {
    /// Starts a proxy before the server at a port.
    pub async fn start(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let (port, server) =
            (listener.local_addr().expect("an address").port(), Arc::new(Mutex::new(server)));
        let present = server.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let port = *present.lock().expect("no panic with the lock held");
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(("127.0.0.1", port)).await?;
                    copy_bidirectional(&mut client, &mut server).await
                });
            }
        });
        Self { port, server }
    }

    /// Moves the address to the server at another port.
    pub fn move_to(&self, server: u16) {
        *self.server.lock().expect("no panic with the lock held") = server;
    }

    /// Returns its port.
    pub fn port(&self) -> u16 {
        self.port
    }
}
