//! Multiplexed connection to one server: concurrent callers share it, and their commands are
//! pipelined. Closes itself when the server is silent. Does not reconnect: once closed, it stays
//! closed.
//!
//! It belongs to the runtime of one thread. Callers write commands into a shared output buffer and
//! wake the driver task, which runs after them and sends the buffer in one write.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use bytes::BytesMut;
use redis::{Cmd, ErrorKind, RedisConnectionInfo, RedisError, RedisResult, Value};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::{Notify, oneshot},
    time::sleep,
};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    lock::lock,
    resp::{Message, Parser, ProtocolError},
    stream::{Reader, Stream, Writer},
};

// Holds the replies of a dozen pages. Longer replies grow the buffer.
const READ_BUFFER_BYTES: usize = 32 * 1024;
// The output buffer is reused after a write, and shrunk to this size.
const WRITE_BUFFER_BYTES_KEPT: usize = 64 * 1024;
// Unsent bytes beyond which commands are rejected. 40,000 calls of 100 bytes: so many are only
// unsent if Redis reads nothing.
const OUTPUT_BYTES_MAX: usize = 4 << 20;

/// Receives push messages (RESP 3), in their order among the replies.
pub(crate) type PushHandler = Box<dyn FnMut(Vec<Value>) + Send>;

/// The replies to some commands.
pub(crate) struct Replies {
    /// In the order sent. Empty for [`Multiplexed::join_unsent`].
    pub(crate) values: Vec<Value>,
    /// The number of push messages before the first reply. An invalidation of a key in the replies
    /// comes later, possibly between two of them.
    pub(crate) pushed: u64,
}

/// A connection. Dropping the last clone closes it.
#[derive(Clone)]
pub(crate) struct Multiplexed {
    shared: Arc<Shared>,
    _driver: Arc<AbortOnDropHandle<()>>,
    /// Of the primary (see [`Primaries::generation`](crate::Primaries::generation)).
    generation: u64,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Wakes the driver task to flush the output buffer.
    flush: Notify,
}

#[derive(Default)]
struct State {
    /// Serialised commands that are not sent yet.
    output: Vec<u8>,
    /// Requests without all of their replies, in the order sent.
    in_flight: VecDeque<InFlight>,
    /// The number of reads that returned bytes.
    reads: u64,
    /// The reason why the connection is closed.
    closed: Option<io::ErrorKind>,
}

/// A request in flight. It stays in the queue if its caller is cancelled, to consume its replies.
struct InFlight {
    missing: usize,
    replies: Vec<Value>,
    /// The number of push messages before the first reply.
    pushed: u64,
    sender: oneshot::Sender<Replies>,
    /// Callers without commands that wait for these replies.
    joined: Vec<oneshot::Sender<Replies>>,
}

impl Multiplexed {
    /// Performs the handshake with RESP 2 on an open transport.
    ///
    /// The connection closes when requests are in flight and the server sends nothing for
    /// `silence_max`, or up to twice as long.
    pub(crate) async fn open(
        stream: Stream,
        settings: &RedisConnectionInfo,
        silence_max: Duration,
    ) -> RedisResult<Self> {
        let mut commands = Vec::new();
        if let Some(password) = settings.password() {
            let mut auth = redis::cmd("AUTH");
            auth.arg(settings.username()).arg(password);
            commands.push(auth);
        }
        Self::handshake(stream, settings, silence_max, commands, None).await
    }

    /// Performs the handshake with RESP 3 and `CLIENT TRACKING`. Redis pushes the invalidation of a
    /// key read on this connection before any reply that follows the change
    /// (<https://redis.io/docs/latest/develop/reference/client-side-caching/>).
    ///
    /// Rejects a replica, whose invalidations follow the replication and not the write. Closes when
    /// a cluster node does not serve the slot of a key.
    pub(crate) async fn open_tracking(
        stream: Stream,
        settings: &RedisConnectionInfo,
        silence_max: Duration,
        on_push: PushHandler,
    ) -> RedisResult<Self> {
        let mut hello = redis::cmd("HELLO");
        hello.arg(3);
        if let Some(password) = settings.password() {
            hello.arg("AUTH").arg(settings.username().unwrap_or("default")).arg(password);
        }
        let tracking = redis::cmd("CLIENT").arg("TRACKING").arg("ON").take();
        let commands = vec![hello, tracking];
        Self::handshake(stream, settings, silence_max, commands, Some(on_push)).await
    }

    async fn handshake(
        stream: Stream,
        settings: &RedisConnectionInfo,
        silence_max: Duration,
        mut commands: Vec<Cmd>,
        on_push: Option<PushHandler>,
    ) -> RedisResult<Self> {
        let shared = Arc::new(Shared::default());
        let driver = tokio::spawn(drive(stream, shared.clone(), silence_max, on_push));
        let driver = Arc::new(AbortOnDropHandle::new(driver));
        let connection = Self { shared, _driver: driver, generation: 0 };
        if settings.db() != 0 {
            commands.push(redis::cmd("SELECT").arg(settings.db()).take());
        }
        if commands.is_empty() {
            // The kernel accepts connections for a frozen server too.
            commands.push(redis::cmd("PING"));
        }
        let replies = connection.send(commands.iter()).await?;
        replies.values.into_iter().try_for_each(check_handshake)?;
        Ok(connection)
    }

    /// Sets the generation of the primary that it is a connection to.
    pub(crate) fn of_generation(self, generation: u64) -> Self {
        Self { generation, ..self }
    }

    /// Returns the generation of the primary that it is a connection to.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns whether the connection is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.state().closed.is_some()
    }

    /// Sends at least one command and returns the replies, which may be error replies.
    ///
    /// After an error, the connection is closed, and each command may have run or not. After a
    /// timeout (`RedisError::is_timeout`), each may still run. Fails without sending them while the
    /// server reads fewer bytes than other callers send.
    pub(crate) async fn send<'a>(
        &self,
        commands: impl ExactSizeIterator<Item = &'a Cmd>,
    ) -> RedisResult<Replies> {
        let (sender, replies) = oneshot::channel();
        {
            let mut state = self.shared.state();
            if state.closed.is_some() {
                // Not the reason: these commands were not sent.
                return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
            }
            if state.output.len() > OUTPUT_BYTES_MAX {
                return Err(io::Error::other("too many unsent commands").into());
            }
            let missing = commands.len();
            commands.for_each(|command| command.write_packed_command(&mut state.output));
            let (replies, joined) = (Vec::with_capacity(missing), Vec::new());
            state.in_flight.push_back(InFlight { missing, replies, pushed: 0, sender, joined });
        }
        self.shared.flush.notify_one();
        replies.await.map_err(|_closed| self.shared.reason())
    }

    /// Waits for the replies to another caller's unsent commands, without returning them. All push
    /// messages that precede them are handled by then. Returns `None` if no command is unsent.
    pub(crate) fn join_unsent(&self) -> Option<impl Future<Output = RedisResult<Replies>> + use<>> {
        let mut state = self.shared.state();
        if state.output.is_empty() {
            return None;
        }
        let (sender, replies) = oneshot::channel();
        state.in_flight.back_mut()?.joined.push(sender);
        let shared = self.shared.clone();
        Some(async move { replies.await.map_err(|_closed| shared.reason()) })
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Closes the connection and drops the requests in flight, which ends them with an error.
    fn close(&self, reason: io::ErrorKind) {
        let mut state = self.state();
        state.closed.get_or_insert(reason);
        state.in_flight.clear();
    }

    /// Returns the reason why the connection is closed.
    fn reason(&self) -> RedisError {
        let reason = self.state().closed.unwrap_or(io::ErrorKind::BrokenPipe);
        io::Error::from(reason).into()
    }

    /// Takes the output buffer and puts `spare` in its place.
    fn take_output(&self, mut spare: Vec<u8>) -> Vec<u8> {
        spare.clear();
        spare.shrink_to(WRITE_BUFFER_BYTES_KEPT);
        std::mem::replace(&mut self.state().output, spare)
    }

    async fn write(&self, mut stream: Writer) -> io::Result<()> {
        let mut bytes = Vec::new();
        loop {
            self.flush.notified().await;
            bytes = self.take_output(bytes);
            stream.write_all(&bytes).await?;
            // TLS may buffer a part.
            stream.flush().await?;
        }
    }

    /// Returns an error once the server is silent: while requests are in flight, it sends nothing
    /// from one check to the next.
    async fn watch(&self, silence_max: Duration) -> io::Error {
        let mut reads_before = None;
        loop {
            sleep(silence_max).await;
            let state = self.state();
            let reads = (!state.in_flight.is_empty()).then_some(state.reads);
            if reads.is_some() && reads == reads_before {
                return io::ErrorKind::TimedOut.into();
            }
            reads_before = reads;
        }
    }

    async fn read(&self, mut stream: Reader, on_push: Option<PushHandler>) -> io::Result<()> {
        let mut buffer = BytesMut::with_capacity(READ_BUFFER_BYTES);
        let mut dispatcher = Dispatcher { parser: Parser::default(), on_push, pushed: 0 };
        loop {
            buffer.reserve(READ_BUFFER_BYTES / 2);
            if stream.read_buf(&mut buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            dispatcher.dispatch(&mut buffer, &self.state)?;
        }
    }
}

/// Dispatches messages from Redis to the callers and to the push handler.
struct Dispatcher {
    parser: Parser,
    on_push: Option<PushHandler>,
    pushed: u64,
}

impl Dispatcher {
    /// Dispatches all complete messages of a buffer.
    fn dispatch(&mut self, buffer: &mut BytesMut, state: &Mutex<State>) -> io::Result<()> {
        let mut state = lock(state);
        state.reads += 1;
        while let Some(message) = self.parser.next(buffer)? {
            match (message, &mut self.on_push) {
                (Message::Reply(reply), Some(_)) if is_not_served(&reply) => {
                    return Err(io::Error::other("the server does not serve a key"));
                }
                (Message::Reply(reply), _) => state.complete(reply, self.pushed)?,
                (Message::Push(message), Some(on_push)) => {
                    self.pushed += 1;
                    on_push(message);
                }
                (Message::Push(_), None) => return Err(ProtocolError.into()),
            }
        }
        Ok(())
    }
}

impl State {
    /// Adds a reply to the first request in flight, and completes that request with its last one.
    fn complete(&mut self, reply: Value, pushed: u64) -> Result<(), ProtocolError> {
        let request = self.in_flight.front_mut().ok_or(ProtocolError)?;
        if request.replies.is_empty() {
            request.pushed = pushed;
        }
        request.replies.push(reply);
        request.missing -= 1;
        if request.missing == 0
            && let Some(InFlight { replies: values, pushed, sender, joined, .. }) =
                self.in_flight.pop_front()
        {
            // A cancelled caller has dropped its receiver.
            for sender in joined {
                let _ = sender.send(Replies { values: Vec::new(), pushed });
            }
            let _ = sender.send(Replies { values, pushed });
        }
        Ok(())
    }
}

impl From<ProtocolError> for io::Error {
    fn from(error: ProtocolError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

/// Returns whether a reply means that a cluster node does not serve the slot of a key, or that a server
/// has become a replica. A tracked connection then closes, before a caller takes cached values: another
/// server may serve the key, whose invalidations this connection does not receive.
fn is_not_served(reply: &Value) -> bool {
    const CODES: [&str; 5] = ["MOVED", "ASK", "CLUSTERDOWN", "MASTERDOWN", "READONLY"];
    matches!(reply, Value::ServerError(error) if CODES.contains(&error.code()))
}

/// Closes the connection when dropped: at the end of the driver task, also by a panic.
struct CloseOnDrop(Arc<Shared>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close(io::ErrorKind::BrokenPipe);
    }
}

/// Driver task: reads and writes until the connection fails, then closes it.
async fn drive(
    stream: Stream,
    shared: Arc<Shared>,
    silence_max: Duration,
    on_push: Option<PushHandler>,
) {
    let guard = CloseOnDrop(shared);
    let shared = &guard.0;
    let (reader, writer) = stream.split();
    let error = tokio::select! {
        ended = shared.read(reader, on_push) => ended.err(),
        ended = shared.write(writer) => ended.err(),
        error = shared.watch(silence_max) => Some(error),
    };
    let is_timeout = error.as_ref().is_some_and(|error| error.kind() == io::ErrorKind::TimedOut);
    tracing::debug!(error = error.map(tracing::field::display), "redis connection closed");
    if is_timeout {
        shared.close(io::ErrorKind::TimedOut);
    }
}

/// Checks a reply of the handshake. An error reply becomes a failure to connect, which callers must
/// not take for the reply to a command of theirs.
fn check_handshake(reply: Value) -> RedisResult<()> {
    let rejected = |error: RedisError| -> RedisError {
        let text = "redis rejected the handshake";
        (ErrorKind::AuthenticationFailed, text, error.to_string()).into()
    };
    let reply = reply.extract_error().map_err(rejected)?;
    match role(&reply) {
        None | Some(b"master") => Ok(()),
        Some(_) => Err((ErrorKind::Client, "client tracking needs a primary").into()),
    }
}

/// Returns the role in a reply to HELLO; `None` for another reply.
fn role(reply: &Value) -> Option<&[u8]> {
    let Value::Array(values) = reply else { return None };
    values.chunks_exact(2).find_map(|pair| match pair {
        [Value::BulkString(name), Value::BulkString(role)] if name == b"role" => Some(&**role),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt as _, stream::FuturesUnordered};
    use tokio::{
        net::{TcpListener, TcpStream},
        time::timeout,
    };

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// Returns both ends of a TCP connection.
    async fn connect() -> (Stream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let stream = Stream::connect("127.0.0.1", port, None).await.unwrap();
        (stream, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn silent_server_fails_the_handshake() {
        let (stream, _silent) = connect().await;
        let (settings, silence_max) = (RedisConnectionInfo::default(), Duration::from_millis(50));
        let opened = Multiplexed::open(stream, &settings, silence_max).await;
        assert!(opened.err().unwrap().is_timeout());
    }

    #[tokio::test]
    async fn panic_of_the_push_handler_closes_the_connection() {
        let (stream, mut server) = connect().await;
        server.write_all(b"+OK\r\n+OK\r\n").await.unwrap();
        let on_push = Box::new(|_| panic!("as a defect would"));
        let settings = RedisConnectionInfo::default();
        let opened = Multiplexed::open_tracking(stream, &settings, LONG, on_push).await;
        let connection = opened.ok().unwrap();
        server.write_all(b">1\r\n+invalidate\r\n").await.unwrap();
        let ping = redis::cmd("PING");
        let reply = timeout(LONG / 10, connection.send([&ping].into_iter())).await;
        assert!(reply.unwrap().is_err());
        assert!(connection.is_closed());
    }

    #[tokio::test]
    async fn queue_of_a_silent_server_is_bounded() {
        const MIB: usize = 1 << 20;
        let (stream, mut server) = connect().await;
        server.write_all(b"+PONG\r\n").await.unwrap();
        let settings = RedisConnectionInfo::default();
        let connection = Multiplexed::open(stream, &settings, LONG).await.unwrap();
        let command = redis::cmd("ECHO").arg(vec![0; MIB]).take();
        let mut sends: FuturesUnordered<_> =
            (0..64).map(|_| connection.send([&command].into_iter())).collect();
        let rejected = timeout(LONG / 10, sends.next()).await.unwrap().unwrap();
        let error = rejected.err().unwrap();
        // Not sent again on another connection, which would be as silent.
        assert!(!error.is_connection_dropped() && !error.is_timeout(), "{error:?}");
        assert!(connection.shared.state().output.len() < 8 * MIB);
        assert!(!connection.is_closed());
    }
}
