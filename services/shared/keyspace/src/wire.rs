//! A connection to one server that many use at once: what they send goes out together, and
//! comes back in the same order. Knows no pool, no time-out, and no way but from end to end: a
//! connection that broke once is broken for ever.
//!
//! All of it belongs to one thread's runtime. Whoever sends writes into a buffer that all share and
//! wakes the driver, which runs when the others have had their turn.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex, MutexGuard},
};

use bytes::BytesMut;
use redis::{Cmd, ErrorKind, RedisConnectionInfo, RedisError, RedisResult, Value};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::{Notify, oneshot},
};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    lock::lock,
    resp::{Malformed, Message, Reader},
    stream::{self, Stream, Writer},
};

// Some dozen pages of answers. What is longer makes it grow.
const READ_BYTES: usize = 32 * 1024;
// What was written out is used again, unless something huge was in it.
const WRITE_BYTES_KEPT: usize = 64 * 1024;

/// Told of what Redis says by itself, in its place among the answers.
pub(crate) type Listener = Box<dyn FnMut(Vec<Value>) + Send>;

/// What came back for some commands.
pub(crate) struct Answers {
    /// In the order sent; none for who [joined](Wire::join).
    pub(crate) values: Vec<Value>,
    /// How many messages Redis had pushed before the first of them. Whatever it tells of any of them
    /// later is a further one, also if it comes between two of them.
    pub(crate) pushed: u64,
}

/// A connection. Its last clone closes it.
#[derive(Clone)]
pub(crate) struct Wire {
    shared: Arc<Shared>,
    _driver: Arc<AbortOnDropHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// There is something to write.
    written: Notify,
}

#[derive(Default)]
struct State {
    /// What is to be sent.
    out: Vec<u8>,
    /// Whose answers come next, in their order.
    waiting: VecDeque<Waiting>,
    is_closed: bool,
}

/// Somebody who waits for answers; who went away meanwhile is not missed before they are there.
struct Waiting {
    missing: usize,
    answers: Vec<Value>,
    /// How many messages had been pushed before the first answer, once that is there.
    pushed: u64,
    to: oneshot::Sender<Answers>,
    /// Those who sent nothing, and only have to know that there are answers.
    joined: Vec<oneshot::Sender<Answers>>,
}

impl Wire {
    /// Logs in on an open transport.
    pub(crate) async fn open(stream: Stream, settings: &RedisConnectionInfo) -> RedisResult<Self> {
        let mut commands = Vec::new();
        if let Some(password) = settings.password() {
            let mut auth = redis::cmd("AUTH");
            auth.arg(settings.username()).arg(password);
            commands.push(auth);
        }
        Self::begin(stream, settings, commands, None).await
    }

    /// Logs in to a primary, and tells a listener which keys have changed of those that are
    /// read here: of a change, before any answer that Redis gives after it
    /// (<https://redis.io/docs/latest/develop/reference/client-side-caching/>). A replica is refused:
    /// it answers, and tells of changes, when it hears of them.
    pub(crate) async fn open_tracking(
        stream: Stream,
        settings: &RedisConnectionInfo,
        listener: Listener,
    ) -> RedisResult<Self> {
        let mut hello = redis::cmd("HELLO");
        hello.arg(3);
        if let Some(password) = settings.password() {
            hello.arg("AUTH").arg(settings.username().unwrap_or("default")).arg(password);
        }
        let tracking = redis::cmd("CLIENT").arg("TRACKING").arg("ON").take();
        Self::begin(stream, settings, vec![hello, tracking], Some(listener)).await
    }

    async fn begin(
        stream: Stream,
        settings: &RedisConnectionInfo,
        mut commands: Vec<Cmd>,
        listener: Option<Listener>,
    ) -> RedisResult<Self> {
        let shared = Arc::new(Shared::default());
        let driver = tokio::spawn(drive(stream, shared.clone(), listener));
        let wire = Self { shared, _driver: Arc::new(AbortOnDropHandle::new(driver)) };
        if settings.db() != 0 {
            commands.push(redis::cmd("SELECT").arg(settings.db()).take());
        }
        if !commands.is_empty() {
            let answers = wire.send(commands.iter()).await?;
            answers.values.into_iter().try_for_each(let_in)?;
        }
        Ok(wire)
    }

    /// Returns whether the connection is broken.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.state().is_closed
    }

    /// Sends commands, at least one, and returns their answers, some of which may be refusals.
    ///
    /// An error means that the connection is broken, and that each of them may have run or not.
    pub(crate) async fn send<'a>(
        &self,
        commands: impl ExactSizeIterator<Item = &'a Cmd>,
    ) -> RedisResult<Answers> {
        let (to, answers) = oneshot::channel();
        {
            let mut state = self.shared.state();
            if state.is_closed {
                return Err(broken());
            }
            let missing = commands.len();
            commands.for_each(|command| command.write_packed_command(&mut state.out));
            let (answers, joined) = (Vec::with_capacity(missing), Vec::new());
            state.waiting.push_back(Waiting { missing, answers, pushed: 0, to, joined });
        }
        self.shared.written.notify_one();
        answers.await.map_err(|_closed| broken())
    }

    /// Returns what waits for the answers to what somebody else is about to send, without having
    /// them; `None` where nobody is. By then, all has been heard that Redis said before this.
    pub(crate) fn join(&self) -> Option<impl Future<Output = RedisResult<Answers>> + use<>> {
        let mut state = self.shared.state();
        if state.out.is_empty() {
            return None;
        }
        let (to, answers) = oneshot::channel();
        state.waiting.back_mut()?.joined.push(to);
        Some(async { answers.await.map_err(|_closed| broken()) })
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Returns what is to be sent, with a buffer for what comes next in its place.
    fn take_out(&self, mut spare: Vec<u8>) -> Vec<u8> {
        spare.clear();
        spare.shrink_to(WRITE_BYTES_KEPT);
        std::mem::replace(&mut self.state().out, spare)
    }

    async fn write(&self, mut stream: Writer) -> io::Result<()> {
        let mut bytes = Vec::new();
        loop {
            self.written.notified().await;
            bytes = self.take_out(bytes);
            stream.write_all(&bytes).await?;
            // TLS may keep a part back.
            stream.flush().await?;
        }
    }

    async fn read(&self, mut stream: stream::Reader, listener: Option<Listener>) -> io::Result<()> {
        let mut buffer = BytesMut::with_capacity(READ_BYTES);
        let mut incoming = Incoming { reader: Reader::default(), listener, pushed: 0 };
        loop {
            buffer.reserve(READ_BYTES / 2);
            if stream.read_buf(&mut buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            incoming
                .pass_on(&mut buffer, &self.state)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }
}

/// What comes from Redis, on its way to those who wait for it.
struct Incoming {
    reader: Reader,
    listener: Option<Listener>,
    pushed: u64,
}

impl Incoming {
    /// Passes on all messages of which a buffer has all.
    fn pass_on(&mut self, buffer: &mut BytesMut, state: &Mutex<State>) -> Result<(), Malformed> {
        let mut state = lock(state);
        while let Some(message) = self.reader.next(buffer)? {
            match (message, &mut self.listener) {
                (Message::Answer(answer), _) => {
                    state.answer(answer, self.pushed)?;
                }
                (Message::Push(data), Some(listener)) => {
                    self.pushed += 1;
                    listener(data);
                }
                (Message::Push(_), None) => return Err(Malformed),
            }
        }
        Ok(())
    }
}

impl State {
    /// Gives an answer to whoever waits for the next one.
    fn answer(&mut self, answer: Value, pushed: u64) -> Result<(), Malformed> {
        let waiting = self.waiting.front_mut().ok_or(Malformed)?;
        if waiting.answers.is_empty() {
            waiting.pushed = pushed;
        }
        waiting.answers.push(answer);
        waiting.missing -= 1;
        if waiting.missing == 0
            && let Some(Waiting { answers: values, pushed, to, joined, .. }) =
                self.waiting.pop_front()
        {
            for to in joined {
                let _ = to.send(Answers { values: Vec::new(), pushed });
            }
            // Who does not wait any more has no use for them.
            let _ = to.send(Answers { values, pushed });
        }
        Ok(())
    }
}

/// Moves bytes until the connection breaks. Those who wait then learn it by losing their place.
async fn drive(stream: Stream, shared: Arc<Shared>, listener: Option<Listener>) {
    let (reading, writing) = stream.split();
    let error = tokio::select! {
        ended = shared.read(reading, listener) => ended.err(),
        ended = shared.write(writing) => ended.err(),
    };
    tracing::debug!(error = error.map(tracing::field::display), "a connection to redis ended");
    let mut state = shared.state();
    state.is_closed = true;
    state.waiting.clear();
}

/// Checks an answer to what a connection begins with. A refusal is not one of a command that
/// somebody sent: there is no connection.
fn let_in(answer: Value) -> RedisResult<()> {
    let refused = |error: RedisError| -> RedisError {
        let text = "redis refuses the log-in";
        (ErrorKind::AuthenticationFailed, text, error.to_string()).into()
    };
    let answer = answer.extract_error().map_err(refused)?;
    match role(&answer) {
        None | Some(b"master") => Ok(()),
        Some(_) => Err((ErrorKind::Client, "what is read is not tracked by a replica").into()),
    }
}

/// Returns what HELLO says a server is; `None` for another answer.
fn role(answer: &Value) -> Option<&[u8]> {
    let Value::Array(values) = answer else { return None };
    values.chunks_exact(2).find_map(|pair| match pair {
        [Value::BulkString(name), Value::BulkString(role)] if name == b"role" => Some(&**role),
        _ => None,
    })
}

fn broken() -> RedisError {
    io::Error::from(io::ErrorKind::BrokenPipe).into()
}
