//! The stream of batches on a connection: it carries the unary calls. What is sent while the
//! connection's task does not run shares a message, a frame and a system call; so do the replies.
//! Nothing waits for a batch to fill.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::Poll,
};

use futures::{Stream, stream};
use http_body_util::Either;
use hyper::client::conn::http2::SendRequest;
use microblog_domain::IdMap;
use microblog_proto::common::{BatchedCall, BatchedReply, CallBatch, ReplyBatch};
use tokio::sync::{
    Notify,
    mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    oneshot,
};
use tonic::{
    Streaming,
    body::Body,
    codec::{Codec as _, EncodeBody},
};
use tonic_prost::ProstCodec;

use super::{
    address::Origin,
    failure::Failure,
    request::{self, BufferedRequest, RequestBody},
};
use crate::call::{
    batch::{self, PATH},
    metadata::GRPC_STATUS,
};

/// Larger requests are sent by themselves, so that others do not wait for them.
const BODY_MAX: usize = 32 << 10;
/// With [`BODY_MAX`], a batch stays below the 4 MiB that the server takes.
const BATCH_CALLS_MAX: usize = 64;

/// What is sent to the server.
enum Outgoing {
    Call(BatchedCall),
    Cancel(u64),
}

type Reply = Result<BatchedReply, Failure>;

/// The stream of a connection. Dropping it ends the stream after its last reply.
#[derive(Debug)]
pub(super) struct CallStream(Arc<Mutex<Calls>>);

#[derive(Debug, Default)]
struct Calls {
    /// `None` before the stream, and after its end.
    outgoing: Option<UnboundedSender<Outgoing>>,
    /// Whether the stream takes no more calls. It still cancels those that are unanswered.
    takes_no_more: bool,
    /// Whether the server has said so.
    is_closing: bool,
    last_id: u64,
    unanswered: IdMap<u64, oneshot::Sender<Reply>>,
}

impl CallStream {
    /// Opens the stream. Returns `None` if the server takes no batches: any gRPC server may implement
    /// a service. `is_closed` is whether the server has closed the connection. Notifies `closed` when
    /// the stream takes no more calls.
    pub(super) async fn open(
        sender: &mut SendRequest<RequestBody>,
        origin: &Origin,
        is_closed: Arc<AtomicBool>,
        closed: Arc<Notify>,
    ) -> hyper::Result<Option<Self>> {
        let mut codec = ProstCodec::<CallBatch, ReplyBatch>::default();
        // The request's body ends with it, also if this future is dropped before there is a response.
        let stream = Self(Arc::default());
        let batches = outgoing(stream.0.clone());
        let body = EncodeBody::new_client(codec.encoder(), batches, None, None);
        let response =
            sender.send_request(request::new(PATH, origin, Either::Right(Body::new(body)))).await?;
        if !response.status().is_success() || response.headers().contains_key(GRPC_STATUS) {
            return Ok(None);
        }
        let (head, body) = response.into_parts();
        // The caller of each call limits the size of its response.
        let size_max = Some(usize::MAX);
        let replies = Streaming::new_response(codec.decoder(), body, head.status, None, size_max);
        tokio::spawn(receive(stream.0.clone(), replies, is_closed, closed));
        Ok(Some(stream))
    }

    /// Returns whether the stream takes calls.
    pub(super) fn is_open(&self) -> bool {
        lock(&self.0).is_open()
    }

    /// Returns whether the server takes no more calls.
    pub(super) fn is_closing(&self) -> bool {
        lock(&self.0).is_closing
    }

    /// Returns whether a request is small enough for a batch.
    pub(super) fn takes(request: &BufferedRequest) -> bool {
        request.body().len() <= BODY_MAX
    }

    /// Sends a call, and returns its reply. Dropping the future cancels the call.
    pub(super) async fn call(&self, request: BufferedRequest) -> Reply {
        let (head, body) = request.into_parts();
        let path = head.uri.path().to_owned();
        let metadata = batch::metadata(&head.headers).collect();
        let (reply, replied) = oneshot::channel();
        let id = lock(&self.0).send(reply, |id| BatchedCall { id, path, metadata, body });
        let id = id.ok_or_else(|| Failure::unsent("the connection is closing".to_owned()))?;
        let _cancel_on_drop = Cancel { calls: &self.0, id };
        replied.await.unwrap_or_else(|_| Err(missing_reply()))
    }
}

impl Drop for CallStream {
    fn drop(&mut self) {
        lock(&self.0).take_no_more();
    }
}

/// Cancels a call if it is still unanswered.
struct Cancel<'a> {
    calls: &'a Mutex<Calls>,
    id: u64,
}

impl Drop for Cancel<'_> {
    fn drop(&mut self) {
        let mut calls = lock(self.calls);
        if calls.unanswered.remove(&self.id).is_some()
            && let Some(outgoing) = &calls.outgoing
        {
            // Fails only if the stream has ended.
            let _ = outgoing.send(Outgoing::Cancel(self.id));
            calls.end_if_done();
        }
    }
}

impl Calls {
    fn is_open(&self) -> bool {
        self.outgoing.is_some() && !self.takes_no_more
    }

    /// Ends the stream after the last reply.
    fn take_no_more(&mut self) {
        self.takes_no_more = true;
        self.end_if_done();
    }

    fn end_if_done(&mut self) {
        if self.takes_no_more && self.unanswered.is_empty() {
            self.outgoing = None;
        }
    }

    /// Sends a call. Returns its id, or `None` if the stream takes no more calls.
    fn send(
        &mut self,
        reply: oneshot::Sender<Reply>,
        call: impl FnOnce(u64) -> BatchedCall,
    ) -> Option<u64> {
        if self.takes_no_more {
            return None;
        }
        let id = self.last_id + 1;
        if self.outgoing.as_ref()?.send(Outgoing::Call(call(id))).is_err() {
            // The connection has failed, and `receive` has yet to find that out.
            self.outgoing = None;
            return None;
        }
        self.last_id = id;
        self.unanswered.insert(id, reply);
        Some(id)
    }
}

fn lock(calls: &Mutex<Calls>) -> MutexGuard<'_, Calls> {
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}

fn missing_reply() -> Failure {
    Failure::of_protocol("the server ended the stream without a reply".to_owned())
}

/// Returns the batches of a stream: each of what is ready when it is polled. A call that was cancelled
/// before is not sent.
fn outgoing(calls: Arc<Mutex<Calls>>) -> impl Stream<Item = Result<CallBatch, tonic::Status>> {
    let (sender, receiver) = unbounded_channel();
    lock(&calls).outgoing = Some(sender);
    let mut queue = Queue { calls, receiver };
    let mut ready = Vec::with_capacity(BATCH_CALLS_MAX);
    stream::poll_fn(move |waker| {
        let mut batch = CallBatch::default();
        while batch.calls.is_empty() && batch.cancelled_ids.is_empty() {
            let received = queue.receiver.poll_recv_many(waker, &mut ready, BATCH_CALLS_MAX);
            if std::task::ready!(received) == 0 {
                return Poll::Ready(None);
            }
            let calls = lock(&queue.calls);
            for each in ready.drain(..) {
                match each {
                    Outgoing::Call(call) if !calls.unanswered.contains_key(&call.id) => {}
                    Outgoing::Call(call) => batch.calls.push(call),
                    Outgoing::Cancel(id) => batch.cancelled_ids.push(id),
                }
            }
        }
        Poll::Ready(Some(Ok(batch)))
    })
}

/// What a stream has yet to send. Dropping it, with the connection, fails the calls that are in it: no
/// server has seen them.
struct Queue {
    calls: Arc<Mutex<Calls>>,
    receiver: UnboundedReceiver<Outgoing>,
}

impl Drop for Queue {
    fn drop(&mut self) {
        let mut calls = lock(&self.calls);
        calls.outgoing = None;
        while let Ok(outgoing) = self.receiver.try_recv() {
            if let Outgoing::Call(call) = outgoing
                && let Some(waiting) = calls.unanswered.remove(&call.id)
            {
                // Its caller may just have gone.
                let _ = waiting.send(Err(Failure::unsent("the connection has failed".to_owned())));
            }
        }
    }
}

/// Receives replies until the stream ends, and fails the calls without one.
async fn receive(
    calls: Arc<Mutex<Calls>>,
    mut replies: Streaming<ReplyBatch>,
    is_closed: Arc<AtomicBool>,
    closed: Arc<Notify>,
) {
    let failure = loop {
        match replies.message().await {
            Ok(Some(ReplyBatch { replies, closing })) => {
                let mut calls = lock(&calls);
                for reply in replies {
                    if let Some(waiting) = calls.unanswered.remove(&reply.id) {
                        // Its caller may just have gone.
                        let _ = waiting.send(Ok(reply));
                    }
                }
                if closing {
                    calls.is_closing = true;
                    calls.take_no_more();
                    closed.notify_one();
                } else {
                    calls.end_if_done();
                }
            }
            Ok(None) => break missing_reply(),
            Err(status) => break Failure::of_batches(&status, is_closed.load(Relaxed)),
        }
    };
    let mut calls = lock(&calls);
    calls.outgoing = None;
    closed.notify_one();
    for (_, waiting) in calls.unanswered.drain() {
        let _ = waiting.send(Err(failure.clone()));
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, StreamExt as _};

    use super::*;
    use crate::client::failure::Kind;

    #[test]
    fn calls_that_are_queued_when_the_connection_fails_are_unsent() {
        let calls = Arc::<Mutex<Calls>>::default();
        let mut batches = Box::pin(outgoing(calls.clone()));
        let call = || {
            let (reply, replied) = oneshot::channel();
            let call = |id| BatchedCall { id, ..BatchedCall::default() };
            lock(&calls).send(reply, call).unwrap();
            replied
        };
        let sent = call();
        let batch = batches.next().now_or_never().flatten().unwrap().unwrap();
        assert_eq!(batch.calls.len(), 1);
        let queued = [call(), call()];
        drop(batches);
        for replied in queued {
            let failure = replied.now_or_never().unwrap().unwrap().unwrap_err();
            assert_eq!((failure.kind, failure.ends_connection), (Kind::Unsent, false));
        }
        assert!(sent.now_or_never().is_none(), "the server may have it");
        assert!(lock(&calls).outgoing.is_none(), "the stream takes no more calls");
    }

    #[test]
    fn a_call_is_cancelled_on_a_stream_that_takes_no_more() {
        let stream = CallStream(Arc::default());
        let mut batches = Box::pin(outgoing(stream.0.clone()));
        let (reply, _replied) = oneshot::channel();
        let call = |id| BatchedCall { id, ..BatchedCall::default() };
        let id = lock(&stream.0).send(reply, call).unwrap();
        let mut next = || batches.next().now_or_never();
        assert_eq!(next().flatten().unwrap().unwrap().calls.len(), 1);
        lock(&stream.0).take_no_more();
        assert!(!stream.is_open());
        assert!(next().is_none(), "the stream goes on until the call has ended");
        drop(Cancel { calls: &stream.0, id });
        assert_eq!(next().flatten().unwrap().unwrap().cancelled_ids, [id]);
        assert!(next().unwrap().is_none(), "the stream has ended");
    }
}
