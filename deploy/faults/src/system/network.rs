//! TCP proxies between processes, which lose or delay what passes.

use std::{cell::Cell, io, rc::Rc, time::Duration};

use anyhow::Result;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::Notify,
    task::JoinSet,
    time::sleep,
};

const BUFFER_BYTES: usize = 64 * 1024;

/// The delay of each message in [`Passage::Delayed`].
pub(crate) const DELAY: Duration = Duration::from_millis(100);

/// What passes a proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Passage {
    #[default]
    Open,
    /// Nothing. A connection that has lost bytes never passes any again.
    Cut,
    /// Only requests.
    RepliesCut,
    /// Everything, later.
    Delayed,
}

/// The direction of bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Request,
    Reply,
}

/// A proxy between a caller and what it calls. Dropping it closes its connections.
pub(crate) struct Proxy {
    pub(crate) caller: &'static str,
    pub(crate) callee: &'static str,
    port: u16,
    link: Rc<Link>,
    _accepting: JoinSet<()>,
}

/// What the connections of a proxy share.
#[derive(Default)]
struct Link {
    target: Cell<u16>,
    passage: Cell<Passage>,
    /// Ends all connections.
    closing: Notify,
    /// The number of messages that were lost or delayed.
    affected: Cell<u64>,
    /// The bytes that the caller has sent.
    sent: Cell<u64>,
}

impl Proxy {
    /// Starts a proxy on a free port to another one, both on 127.0.0.1.
    pub(crate) async fn start(
        caller: &'static str,
        callee: &'static str,
        target: u16,
    ) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let link = Rc::new(Link { target: Cell::new(target), ..Link::default() });
        let mut accepting = JoinSet::new();
        accepting.spawn_local(accept(listener, link.clone()));
        Ok(Self { caller, callee, port, link, _accepting: accepting })
    }

    /// Returns its port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Sets what passes from now on.
    pub(crate) fn set(&self, passage: Passage) {
        self.link.passage.set(passage);
    }

    /// Closes all connections.
    pub(crate) fn close_connections(&self) {
        self.link.closing.notify_waiters();
    }

    /// Sets the port to which new connections go, and closes the old ones.
    pub(crate) fn redirect(&self, target: u16) {
        self.link.target.set(target);
        self.close_connections();
    }

    /// Returns the port to which it leads.
    pub(super) fn target(&self) -> u16 {
        self.link.target.get()
    }

    /// Returns how many bytes its caller has sent so far.
    pub(super) fn sent(&self) -> u64 {
        self.link.sent.get()
    }

    /// Returns how many messages were lost or delayed so far.
    pub(crate) fn affected(&self) -> u64 {
        self.link.affected.get()
    }
}

async fn accept(listener: TcpListener, link: Rc<Link>) {
    let mut connections = JoinSet::new();
    while let Ok((caller, _)) = listener.accept().await {
        let link = link.clone();
        connections.spawn_local(async move {
            // An error ends the connection, as it would without a proxy.
            let _ = relay(caller, &link).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Relays both directions until one side closes the connection.
async fn relay(caller: TcpStream, link: &Link) -> io::Result<()> {
    let callee = TcpStream::connect(("127.0.0.1", link.target.get())).await?;
    caller.set_nodelay(true)?;
    callee.set_nodelay(true)?;
    let (from_caller, to_caller) = caller.into_split();
    let (from_callee, to_callee) = callee.into_split();
    tokio::select! {
        () = link.closing.notified() => Ok(()),
        ended = forward(from_caller, to_callee, link, Direction::Request) => ended,
        ended = forward(from_callee, to_caller, link, Direction::Reply) => ended,
    }
}

async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    link: &Link,
    direction: Direction,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut has_lost = false;
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        if direction == Direction::Request {
            link.sent.set(link.sent.get() + read as u64);
        }
        let passage = link.passage.get();
        has_lost |= passage == Passage::Cut
            || passage == Passage::RepliesCut && direction == Direction::Reply;
        if has_lost || passage == Passage::Delayed {
            link.affected.set(link.affected.get() + 1);
        }
        if has_lost {
            continue;
        }
        if passage == Passage::Delayed {
            sleep(DELAY).await;
        }
        to.write_all(&buffer[..read]).await?;
    }
}
